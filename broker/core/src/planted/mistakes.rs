//! The helpers of planted bugs that one line cannot hold.

use vramd_types::{Bytes, ExtentId};

use crate::{
    broker::Broker,
    event::{PartRef, Tier},
    ledger::Place,
    moves::{Backing, Migration},
    tenancy::TenantId,
};

impl Broker {
    /// Returns the backing of another part of that size, for `WrittenBackToAnother`.
    pub(crate) fn backing_of_another(&self, part: PartRef) -> Option<ExtentId> {
        let footprint = self.footprint_of(part);
        self.moves.backings.iter().find_map(|(other, backing)| match backing {
            Backing::Extent { extent, .. } if *other != part && self.footprint_of(*other) == footprint => {
                Some(*extent)
            }
            _ => None,
        })
    }

    /// Whether the backing of the part still counts as clean, for `FailedWriteBackTakenForClean`.
    pub(crate) fn is_clean_below(&self, part: PartRef) -> bool {
        matches!(self.moves.backings.get(&part), Some(Backing::Extent { clean: true, .. }))
    }

    /// Charges the tenant for memory that does not exist, for `HandOverChargedTwice`.
    pub(crate) fn charge_if(&mut self, is_handed_over: bool, tenant: TenantId, place: Place, bytes: Bytes) {
        if is_handed_over && let Ok(again) = self.ledger.reserve(tenant, place, bytes) {
            let _charge = self.ledger.settle(again);
        }
    }

    /// Returns an extent that the part has left and that still exists, for `SentFromOldExtent`.
    pub(crate) fn extent_left_by(&self, part: PartRef) -> Option<ExtentId> {
        let mut detached_extents = self.moves.detached_extents.get(&part.allocation)?.iter().copied();
        detached_extents.find(|id| self.pool.extent_of_part(part, *id).is_some())
    }

    /// Forgets the backing of the part, without a release, if it is a file, for `FileLeaked`.
    pub(crate) fn forget_file(&mut self, part: PartRef) {
        if matches!(self.moves.backings.get(&part), Some(Backing::File { .. })) {
            self.moves.backings.remove(&part);
        }
    }

    /// Releases the file of the part, and reserves other backing, for `FileForgotten`.
    pub(crate) fn replace_file(&mut self, part: PartRef, extent: ExtentId) {
        self.release_extent(extent);
        self.reserve_backing_anew(part);
    }
}

impl Migration {
    /// Takes the mappers of the part for gone already, for `CopiedWhileMappedInPlace`.
    pub(crate) fn unmapped_in(self, tier: Tier) -> Self {
        Self { is_unmapped: self.from_tier == tier, ..self }
    }
}
