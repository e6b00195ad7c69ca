//! Converts between the messages of the protocol and the types of the core.

pub(super) mod moves;
pub(super) mod page;
pub(super) mod prefetch;
pub(super) mod request;
pub(super) mod tenant;
pub(super) mod turns;
pub(super) mod view;
