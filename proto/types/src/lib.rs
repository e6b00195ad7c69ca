//! Types that the pure core, the daemon, the SDKs and the tools share.
//!
//! The crate depends on nothing, so every crate can depend on it. [`Bytes`] and the ids are newtypes that do not mix.
//! [`Quantity`] is the one parser for sizes that people type. [`name`] checks names, [`Shares`] divides a link among
//! classes of copies, [`printable`] makes text of strangers safe to show, and [`Reason`] is the registry of refusals.
//! [`FallBack`] names why a file was copied to a device that was to read it in place.

#![forbid(unsafe_code)]

mod bytes;
mod fall_back;
mod file_kind;
mod file_range;
mod ids;
pub mod name;
mod printable;
mod quantity;
mod reason;
mod shares;
mod shown_ids;

pub use bytes::{Bytes, GRANULARITY};
pub use fall_back::FallBack;
pub use file_kind::file_kind_name;
pub use file_range::file_range_problem;
pub use ids::{
    AllocationId, BOOT_EPOCH_MAX, CopyId, DeviceIndex, ExtentId, HostNode, IdSource, ParseIdError, PartIndex,
    PrefetchNumber, SessionId, WaitId, epoch_of,
};
pub use printable::{printable, printable_within};
pub use quantity::{Quantity, QuantityError};
pub use reason::{Reason, StatusCode};
pub use shares::{CopyClass, Shares, TooManyShares};
pub use shown_ids::hide_counts;
