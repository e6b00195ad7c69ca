//! Waiters for room: pins and batches, in order of arrival.

pub(crate) mod batches;
pub(crate) mod demand;
pub(crate) mod nested;
pub(crate) mod never_fits;
pub(crate) mod passing;
pub(crate) mod sets;
pub(crate) mod turns;
pub(crate) mod waits;
