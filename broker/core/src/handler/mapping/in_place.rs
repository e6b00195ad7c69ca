//! The daemon has sessions unmap parts in host memory that are no longer to be read there.

use crate::{
    broker::Broker,
    event::{PartRef, Tier},
    follow_up::Fact,
    residency::AllocationState,
};

impl Broker {
    /// Schedules the unmapping of a part in host memory, as soon as no session pins it. The daemon asks the pin
    /// words now: a session that was seen to pin it may have unpinned since.
    pub(crate) fn schedule_in_place_unmap(&mut self, part: PartRef) {
        planted!(self, EndedAdviceKept => return);
        if self.tier_of(part) == Some(Tier::Host) {
            self.mapping.in_place_to_unmap.insert(part);
            self.follow_ups.push(Fact::InPlaceUnpinned(part));
        }
    }

    /// Unmaps a part that is mapped in place although it is no longer advised. Afterwards it is as any other
    /// part: a pin has it fetched.
    pub(crate) fn unmap_in_place(&mut self, part: PartRef) {
        if !self.mapping.in_place_to_unmap.contains(&part) {
            return;
        }
        // The end of the migration or revocation pushes the fact again.
        if self.moves.migrations.contains(part) || self.mapping.revocations.contains_key(&part) {
            return;
        }
        let state = self.allocations.get(part.allocation).map(|allocation| allocation.state);
        let is_freed = state.is_none_or(|state| state == AllocationState::Freeing);
        if is_freed || self.tier_of(part) != Some(Tier::Host) || !self.is_in_place(part) {
            self.mapping.in_place_to_unmap.remove(&part);
        } else {
            let begun = self.revoke_part(None, part, false, self.pins.after_all()).is_none();
            let asked = &mut self.follow_ups.words_asked;
            *asked = asked.saturating_add(usize::from(begun));
        }
    }
}
