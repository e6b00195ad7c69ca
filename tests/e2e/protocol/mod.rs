//! The wire by hand: what a client may send and in which order, and what happens to a client that breaks the rules.

pub(crate) mod bad_input;
pub(crate) mod channel;
pub(crate) mod idempotency;
pub(crate) mod pins;
pub(crate) mod revocations;
pub(crate) mod sessions;
pub(crate) mod slow_clients;
pub(crate) mod word_table;
