//! The SDKs against a real daemon.

pub(crate) mod aio;
pub(crate) mod away;
pub(crate) mod discardable;
pub(crate) mod finding;
pub(crate) mod handles;
pub(crate) mod managed;
pub(crate) mod other_languages;
pub(crate) mod pinning_processes;
pub(crate) mod pins;
pub(crate) mod prefetch;
pub(crate) mod sequence;
pub(crate) mod sharing;
pub(crate) mod small;
pub(crate) mod turns;
pub(crate) mod unpinned;
