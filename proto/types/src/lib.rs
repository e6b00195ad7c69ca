//! Types that the pure core, the daemon, the SDKs and the tools share.
//!
//! The crate depends on nothing, so every crate can depend on it. [`Bytes`] and the ids are newtypes that do not mix.
//! [`Quantity`] is the one parser for sizes that people type. [`name`] checks names, [`Shares`] divides a link among
//! classes of copies, and [`Reason`] is the registry of refusals.

#![forbid(unsafe_code)]

mod bytes;
mod ids;
pub mod name;
mod quantity;
mod reason;
mod shares;

pub use bytes::{Bytes, GRANULARITY};
pub use ids::{
    AllocationId, BOOT_EPOCH_MAX, CopyId, DeviceIndex, ExtentId, HostNode, IdSource, ParseIdError, PartIndex,
    SessionId, epoch_of,
};
pub use quantity::{Quantity, QuantityError};
pub use reason::{Reason, StatusCode};
pub use shares::{CopyClass, Shares, TooManyShares};
