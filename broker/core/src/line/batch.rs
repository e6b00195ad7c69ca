//! The data of a batch of allocations that may wait in the line.

use vramd_types::{Bytes, DeviceIndex};

use crate::{
    error::Refusal,
    event::{AllocationSpec, FileSpan, Kind},
    ledger::{Place, Shortage},
    pool::Age,
    tenancy::Arrival,
    time::Time,
};

/// An item that passed its checks, with its sizes.
#[derive(Clone, Debug)]
pub(crate) struct AllocationPlan {
    pub(crate) spec: AllocationSpec,
    pub(crate) device: DeviceIndex,
    pub(crate) part_size: Bytes,
    pub(crate) span: Bytes,
    pub(crate) part_count: usize,
    /// The file to load, if any.
    pub(crate) file: Option<FileSpan>,
}

impl AllocationPlan {
    /// The sizes of its parts, in their order, and how many parts have each.
    pub(crate) fn part_sizes(&self) -> [(Bytes, usize); 2] {
        let rest = Bytes::new(self.span.get() % self.part_size.get());
        let whole = self.part_count.saturating_sub(usize::from(!rest.is_zero()));
        [(self.part_size, whole), (rest, self.part_count.saturating_sub(whole))]
    }

    /// Whether cached memory of its tenant will do.
    pub(crate) fn takes_cached(&self) -> bool {
        self.spec.uninitialized && self.spec.kind == Kind::Movable
    }
}

/// The request of a batch, its arrival, and how long it waits.
#[derive(Debug)]
pub(crate) struct BatchRequest {
    pub(crate) plans: Vec<AllocationPlan>,
    pub(crate) arrived: Arrival,
    pub(crate) until: Time,
    /// How often the driver had no memory for it.
    pub(crate) tries: u32,
}

/// A batch in the line.
#[derive(Debug)]
pub(crate) struct WaitingBatch {
    pub(crate) request: BatchRequest,
    /// Its shortage at the last scan.
    pub(crate) why: Refusal,
}

/// Why a batch cannot start.
#[derive(Debug)]
pub(crate) enum BatchShortage {
    Bytes {
        place: Place,
        shortage: Shortage,
        /// Including the cached extents that the batch would reuse.
        requested: Bytes,
    },
    /// There are too many extents. The daemon has to release these cached ones.
    Extents(Vec<Age>),
}

impl WaitingBatch {
    pub(crate) const fn new(request: BatchRequest, why: Refusal) -> Self {
        Self { request, why }
    }
}

/// The number of parts of all plans.
pub(crate) fn parts_of(plans: &[AllocationPlan]) -> usize {
    plans.iter().fold(0, |sum: usize, plan| sum.saturating_add(plan.part_count))
}
