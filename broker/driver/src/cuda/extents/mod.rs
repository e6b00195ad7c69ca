//! Creates extents on devices and releases them, and finds out whether their memory has returned.

pub(crate) mod deferred;
pub(crate) mod freer;
pub(crate) mod maker;
pub(crate) mod releaser;
pub(crate) mod surveys;
