//! Discardable memory: its client can compute it again. A part of it leaves its device without a copy: it is
//! *dropped*. When a session wants it, it gets new memory, and each session that is sent it learns its drop
//! count.
//!
//! A dropped part lies in an extent of the state `Nothing`, so that it moves as any other part does.

use vramd_types::{Bytes, ExtentId};

use crate::{
    broker::Broker,
    error::Refusal,
    event::PartRef,
    ledger::Place,
    line::Footprint,
    moves::Backing,
    pool::{Extent, ExtentState},
    residency::Allocation,
};

impl Broker {
    pub(crate) fn is_discardable(&self, part: PartRef) -> bool {
        self.allocations.get(part.allocation).is_some_and(|allocation| allocation.discardable)
    }

    /// Lets the part leave its device without reserving bytes for that.
    pub(crate) fn waive_backing(&mut self, part: PartRef, Footprint { tenant, device, size }: Footprint) {
        self.moves.backings.insert(part, (tenant, device), size, Backing::Needless);
    }

    /// Creates the destination of a part that is dropped.
    pub(crate) fn order_nothing(
        &mut self,
        part: PartRef,
        place: Place,
        size: Bytes,
    ) -> Result<ExtentId, Refusal> {
        let id = self.next_extent_id()?;
        self.pool.insert(id, Extent::new(place, size, part, ExtentState::Dropped));
        Ok(id)
    }

    /// Removes an extent without memory at once.
    pub(crate) fn forget_nothing(&mut self, id: ExtentId) {
        let part = self.pool.take(id).and_then(|extent| extent.part);
        self.forget_extent(id, part, false);
    }

    /// Counts a drop of the part.
    pub(crate) fn count_drop(&mut self, part: PartRef) {
        let count = self.moves.drop_counts.entry(part).or_default();
        *count = count.saturating_add(1);
    }

    /// How often the part was dropped.
    pub(crate) fn drop_count_of(&self, part: PartRef) -> u64 {
        match planted!(self, DropUnreported) {
            true => 0,
            false => self.moves.drop_counts.get(&part).copied().unwrap_or_default(),
        }
    }

    /// Whether the part is dropped.
    pub(crate) fn is_dropped(&self, part: PartRef) -> bool {
        self.extent_of(part).is_some_and(Extent::is_dropped)
    }

    /// Whether the part lies on disk and no session has ever written it. Then it is zeros wherever it moves.
    pub(crate) fn is_unwritten(&self, part: PartRef) -> bool {
        self.extent_of(part).is_some_and(|extent| extent.unwritten)
    }

    pub(crate) fn forget_drops(&mut self, id: vramd_types::AllocationId) {
        let indices = self.allocations.get(id).filter(|it| it.discardable).map(Allocation::indices);
        for part in indices.into_iter().flatten() {
            self.moves.drop_counts.remove(&PartRef { allocation: id, part });
        }
    }
}
