//! Allocations as a program sees them: requests, handles, what is known of an allocation, and the operations of a client.

pub(crate) mod advice;
pub(crate) mod allocation;
pub(crate) mod handle;
pub(crate) mod info;
pub(crate) mod load;
pub(crate) mod operations;
pub(crate) mod raw;
pub(crate) mod request;
