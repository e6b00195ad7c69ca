//! Allocations as a program sees them: requests, handles, descriptions, and the operations of a client.
//!
//! `operations` and `load` make handles, `handle` holds what every handle does, and `allocation` and `raw` are its
//! public faces. None of them maps memory of the daemon: that is `mapping`'s part. `mapped_file` maps files.

pub(crate) mod addresses;
pub(crate) mod advice;
pub(crate) mod allocation;
pub(crate) mod charge;
pub(crate) mod handle;
pub(crate) mod info;
pub(crate) mod load;
pub(crate) mod managed;
pub(crate) mod mapped_file;
pub(crate) mod operations;
pub(crate) mod quota;
pub(crate) mod raw;
pub(crate) mod request;
pub(crate) mod staging;
