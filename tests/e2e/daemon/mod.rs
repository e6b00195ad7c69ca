//! The daemon itself: how it starts and stops, what its driver does, and what bounds it.

pub(crate) mod descriptors;
pub(crate) mod driver_faults;
pub(crate) mod life;
pub(crate) mod limits;
pub(crate) mod service_manager;
