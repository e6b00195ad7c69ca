//! The guides and the README: what stands in them works as it stands.

pub(crate) mod commands;
pub(crate) mod programs;
