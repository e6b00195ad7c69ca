//! Answers to calls, and the views that they show.
//!
//! - `reply`: the answer to a call, from its outcome and the present state
//! - `per_part`: orders for single parts, each with its own outcome
//! - `query`: views for clients and operators

mod per_part;
mod query;
mod reply;
