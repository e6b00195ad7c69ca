//! Discardable memory: its client can compute it again. A part of it leaves its device without a copy: it is
//! *dropped*. When a session wants it, it gets new memory, and each session that is sent it learns its drop
//! count.
//!
//! A dropped part lies in an extent of the state `Dropped`, so that it moves as any other part does.

use vramd_types::{Bytes, ExtentId};

use crate::{
    broker::Broker,
    event::PartRef,
    ledger::Place,
    line::Footprint,
    moves::Backing,
    pool::{Extent, ExtentError, ExtentState},
};

impl Broker {
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
    ) -> Result<ExtentId, ExtentError> {
        let id = self.next_extent_id()?;
        self.pool.insert(id, Extent::new(place, size, part, ExtentState::Dropped));
        Ok(id)
    }

    /// Removes an extent without memory at once.
    pub(crate) fn forget_nothing(&mut self, id: ExtentId) {
        let part = self.pool.take(id).and_then(|extent| extent.part);
        self.forget_extent(id, part, false);
    }
}
