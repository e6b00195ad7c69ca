//! The two gRPC sockets: `vramd.sock` for clients, `admin.sock` for operators.
//!
//! ```text
//!   connection ─▶ observe ─▶ intake ─▶ deadline ─▶ service: identify caller ─▶ convert ─▶ inbox ─▶ … ─▶ convert or status ─▶ answer
//! ```
//!
//! The only decision here is whether a caller is an operator. Requests become the core's types, its answers become messages, and one
//! place (`status`) turns its refusals into statuses. Both sockets also serve health and two versions of reflection, so
//! that tools work without proto files.
//!
//! C-core clients (Python, C++) must be told to send the authority `localhost`. For a Unix socket they otherwise send
//! the percent-encoded path, which HTTP/2 servers refuse as malformed.

mod admin;
mod budget;
mod caller;
mod connections;
mod convert;
mod deadline;
mod decision;
mod file_loading;
mod frames;
mod health;
mod intake;
mod mapped_files;
mod memory;
mod message_rules;
mod observe;
mod open_calls;
mod serve;
mod status;

pub use admin::NodeFacts;
pub use file_loading::Loading;
pub use serve::{GrpcOptions, Listeners, ServeError, serve};

#[cfg(test)]
mod tests;
