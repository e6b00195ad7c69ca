//! Allocations, their parts, and the sessions that map them.

use std::collections::{BTreeSet, VecDeque};

mod allocation;
mod fd_budget;
mod managed;
mod mapping;
mod revocation;
mod state;
mod table;

pub(crate) use allocation::{Allocation, Entry, FilePath, Mapping, Part, Readers, mappers_of};
pub(crate) use fd_budget::FdBudget;
pub(crate) use managed::{EndedOrder, ManagedMemory, ManagedSums};
pub(crate) use mapping::MapStep;
pub use mapping::{MapEvent, MapState};
pub(crate) use revocation::{Revocation, RevocationReport, Revocations, Stage};
pub use state::{AllocationEvent, AllocationState};
pub(crate) use table::AllocationTable;

use crate::event::PartRef;

/// Everything under way between the daemon and the sessions that map parts.
#[derive(Debug, Default)]
pub(crate) struct Mappings {
    pub(crate) revocations: Revocations,
    /// Revocations that have ended, for `handler/after_revocation.rs`.
    pub(crate) ended: VecDeque<RevocationReport>,
    /// How many mappings are in the state `Evicting`.
    pub(crate) evicting: usize,
    /// Descriptors in flight.
    pub(crate) fds: FdBudget,
    /// Parts that a device must no longer access in host memory, and that may still be mapped there.
    pub(crate) in_place_to_unmap: BTreeSet<PartRef>,
    /// Parts that are read in host memory since a move does not pay (`handler/moves/placement.rs`).
    pub(crate) chosen_in_place: BTreeSet<PartRef>,
}
