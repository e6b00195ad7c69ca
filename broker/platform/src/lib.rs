//! Reads what a node is, and judges it.
//!
//! [`Readings`] are plain facts: what the kernel, NVIDIA's kernel module and the driver say of the node. They can be
//! saved and read again as JSON. Everything else here is a pure function of them: [`platform`] says what the node is,
//! [`host_share`] how much host memory the daemon may take by itself, and [`Diagnosis`] what follows for an operator.
//! So a node out of reach is judged from a file as one at hand is.

pub mod cgroup;
mod collect;
mod detect;
mod diagnosis;
mod file_access;
mod host_share;
mod other_programs;
pub mod readings;

pub use collect::collect;
pub use detect::{Certainty, Detected, Platform, platform};
pub use diagnosis::{CONFIGURED, Diagnosis, Finding, diagnose, host_reason};
pub use file_access::{FileAccess, NotInPlace, file_access, is_in_place_by_default};
pub use host_share::{HostBound, HostNeed, HostShare, SHARE_PERCENT, host_share};
pub use other_programs::left_to_other_programs;
pub use readings::Readings;
