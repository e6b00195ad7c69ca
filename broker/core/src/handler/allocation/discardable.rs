//! Discardable memory: what its client can make again. A part of it leaves its device without being copied, and is nowhere
//! until somebody wants it: then it gets new memory, and whoever is sent it is told how often its content was given up.
//!
//! While it is nowhere it is in an extent that is nothing, so it moves as any other part does.

use vramd_types::{Bytes, ExtentId};

use crate::{
    broker::Broker,
    error::Refusal,
    event::PartRef,
    handler::line::make_room::Footprint,
    ledger::Place,
    migration::Backing,
    pool::{Extent, ExtentState},
    residency::Allocation,
};

impl Broker {
    pub(crate) fn is_discardable(&self, part: PartRef) -> bool {
        self.allocations.get(part.allocation).is_some_and(|allocation| allocation.discardable)
    }

    /// The part may leave its device, and needs no bytes for that.
    pub(crate) fn waive_backing(&mut self, part: PartRef, Footprint { tenant, device, size }: Footprint) {
        self.backings.insert(part, (tenant, device), size, Backing::Needless);
    }

    /// What a part goes to whose content is given up.
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

    /// Nothing is left behind at once.
    pub(crate) fn forget_nothing(&mut self, id: ExtentId) {
        let part = self.pool.take(id).and_then(|extent| extent.part);
        self.forget_extent(id, part, false);
    }

    /// The part is nowhere now.
    pub(crate) fn count_drop(&mut self, part: PartRef) {
        let count = self.drop_counts.entry(part).or_default();
        *count = count.saturating_add(1);
    }

    /// How often the content of the part was given up.
    pub(crate) fn drop_count_of(&self, part: PartRef) -> u64 {
        match planted!(self, LossNotTold) {
            true => 0,
            false => self.drop_counts.get(&part).copied().unwrap_or_default(),
        }
    }

    /// Whether the part is nowhere.
    pub(crate) fn is_dropped(&self, part: PartRef) -> bool {
        self.extent_of(part).is_some_and(Extent::is_dropped)
    }

    /// Whether the part lies on disk and nobody has ever written it: then it is zeros, wherever it goes.
    pub(crate) fn is_unwritten(&self, part: PartRef) -> bool {
        self.extent_of(part).is_some_and(|extent| extent.unwritten)
    }

    pub(crate) fn forget_drops(&mut self, id: vramd_types::AllocationId) {
        let indices = self.allocations.get(id).filter(|it| it.discardable).map(Allocation::indices);
        for part in indices.into_iter().flatten() {
            self.drop_counts.remove(&PartRef { allocation: id, part });
        }
    }
}
