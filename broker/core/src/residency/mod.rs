//! Allocations, their parts, and the sessions that map them.

mod allocation;
mod mapping;
mod revocation;
mod state;
mod table;

pub(crate) use allocation::{Allocation, Entry, Mapping, Part, Readers, mappers_of};
pub(crate) use mapping::MapStep;
pub use mapping::{MapEvent, MapState};
pub(crate) use revocation::{Revocation, Revocations, Stage};
pub use state::{AllocationEvent, AllocationState};
pub(crate) use table::AllocationTable;
