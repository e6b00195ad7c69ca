//! The two gRPC sockets: `vramd.sock` for clients, `admin.sock` for operators.
//!
//! ```text
//!   connection ─▶ observe ─▶ deadline ─▶ service: who calls? ─▶ convert ─▶ inbox ─▶ … ─▶ convert or status ─▶ answer
//! ```
//!
//! Nothing is decided here but who an operator is: requests become the core's words, its answers become messages,
//! and its refusals statuses, in one place (`status`). Both sockets also serve health and reflection, of both
//! versions, so that tools work with no proto files at hand.
//!
//! C-core clients (Python, C++) must be told to send the authority `localhost`: for a Unix socket they send the
//! percent-encoded path otherwise, which HTTP/2 servers refuse as malformed.

mod admin;
mod caller;
mod connections;
mod convert;
mod deadline;
mod decision;
mod file_loading;
mod memory;
mod observe;
mod open_calls;
mod serve;
mod status;

pub use admin::NodeFacts;
pub use file_loading::Loading;
pub use serve::{Listeners, ServeError, Settings, serve};

#[cfg(test)]
mod tests;
