//! The tenants file against the node: the check as a whole, the difference to what is stored, and the change itself.
//!
//! `plan` is pure: it turns a file and what is stored into a list of changes, in an order in which each can be made.
//! `store` makes them one by one through the core, and keeps what is stored.

mod book;
mod node;
mod plan;
mod store;

pub use node::Node;
pub use plan::{Change, Plan};
pub use store::{ApplyError, Drift, TenantStore, log, now_s, rules_in_force};

#[cfg(test)]
mod tests;
