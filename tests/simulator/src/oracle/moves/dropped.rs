//! Discardable parts: no other part is dropped, a dropped part lies nowhere, and a session that is sent it
//! again is told.

use broker_core::{MapPart, PartRef, Tier, invariants::CONTENT};

use crate::oracle::{Oracle, facts::BackingFacts};

impl Oracle {
    /// Records that a part left its device without a copy and lies nowhere.
    pub(crate) fn record_drop(&mut self, part: PartRef, size: u64, tier: Tier) {
        let Some(allocation) = self.facts.allocations.get_mut(&part.allocation) else { return };
        let discardable = allocation.discardable;
        let left = allocation.parts.remove(&part.part.0);
        allocation.left_unseen |= left.is_none();
        self.facts.departing.remove(&part);
        self.facts.backings.remove(&part);
        self.facts.contents.remove(&part);
        if let Some(extent) = left.and_then(|id| self.facts.extents.get_mut(&id)) {
            extent.detached = extent.part == Some(part);
        }
        self.facts.dropped.insert(part, (size, tier));
        *self.facts.drop_counts.entry(part).or_default() += 1;
        self.update_pin_requests(part);
        self.expect(CONTENT, discardable, || format!("{part:?} was dropped, and is not discardable"));
    }

    /// Records that a dropped part has memory again. Returns whether it was dropped.
    pub(crate) fn record_remade(&mut self, part: PartRef) -> bool {
        if self.facts.dropped.remove(&part).is_none() {
            return false;
        }
        let to = self.made_for(part, |_| true);
        let made = to.and_then(|id| self.facts.extents.get_mut(&id)).map(|extent| extent.detached = false);
        self.expect(CONTENT, made.is_some(), || {
            format!("{part:?} is no longer dropped, and no memory was made for it")
        });
        if let (Some(to), Some(allocation)) = (to, self.facts.allocations.get_mut(&part.allocation)) {
            allocation.parts.insert(part.part.0, to);
            self.facts.moves.remove(&to);
            self.facts.backings.insert(part, BackingFacts::Unneeded);
        }
        true
    }

    /// Checks that a sent part carries the number of times it was dropped.
    pub(crate) fn check_drop_count(&mut self, sent: &MapPart) {
        let (part, told) = (sent.part, sent.drop_count);
        let were = self.facts.drop_counts.get(&part).copied().unwrap_or_default();
        self.expect(CONTENT, told == were, || {
            format!("{part:?} is sent with drop count {told}, and was dropped {were} times")
        });
    }

    /// Forgets the dropped parts of a freed allocation. Their drop counts stay: a process may be about to
    /// look at what it was sent before.
    pub(crate) fn forget_dropped(&mut self, allocation: vramd_types::AllocationId) {
        self.facts.dropped.retain(|part, _| part.allocation != allocation);
    }

    /// Size of a part, where it is known.
    pub(crate) fn size_of(&self, part: PartRef) -> Option<u64> {
        let known = || {
            let allocation = self.facts.allocations.get(&part.allocation)?;
            Some(self.facts.extents.get(allocation.parts.get(&part.part.0)?)?.size)
        };
        self.facts.dropped.get(&part).map(|(size, _)| *size).or_else(known)
    }
}
