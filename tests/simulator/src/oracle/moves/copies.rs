//! Copies: from the extent that a part lies in to one that was created for it. No session maps either, and
//! both stay until the driver is done with them.

use broker_core::{Broker, PartRef, Tier, invariants::COPIES};
use vramd_types::{CopyClass, ExtentId};

use crate::oracle::{
    Oracle,
    facts::{BackingFacts, ExtentPhase, MoveFacts, Tenant},
};

impl Oracle {
    /// Records that a part starts to move. Returns the tenant that pays for the target.
    pub(crate) fn record_move_start(&mut self, to: ExtentId, part: PartRef) -> Option<Tenant> {
        self.step.began_to_move = true;
        self.facts.moves.insert(to, MoveFacts { part, from: None, cancelled: false });
        self.facts.allocations.get(&part.allocation).map(|allocation| allocation.tenant)
    }

    pub(crate) fn check_copy_start(
        &mut self,
        (from, to): (ExtentId, ExtentId),
        shadow: bool,
        broker: &Broker,
    ) {
        self.expect_not_file(to);
        let own = self.facts.extents.get(&to).and_then(|extent| extent.part);
        if let Some(part) = own.filter(|part| self.facts.backings.get(part) == Some(&BackingFacts::Kept(to)))
        {
            self.record_departure(part, false, broker);
            self.facts.backings.remove(&part);
            self.record_move_start(to, part);
        }
        let Some(moves) = self.facts.moves.get_mut(&to) else {
            return self
                .expect(COPIES, false, || format!("{to} is the target of a copy, and no part moves there"));
        };
        let (part, first) = (moves.part, moves.from.replace(from).is_none());
        let unwritten = self.facts.extents.get(&from).is_some_and(|it| it.unwritten);
        self.expect(COPIES, !unwritten, || {
            format!("{part:?} is copied from {from}, which was never written")
        });
        // A copy that only compares writes nothing, as no session writes without a pin.
        if let Some(extent) = self.facts.extents.get_mut(&to).filter(|_| !shadow) {
            extent.unwritten = false;
        }
        let allocation = self.facts.allocations.get_mut(&part.allocation);
        let lies_in = allocation.map(|it| *it.parts.entry(part.part.0).or_insert(from));
        self.expect(COPIES, first && lies_in == Some(from), || {
            format!("{part:?} is copied from {from}, and lies in {lies_in:?}")
        });
        let mut ends = Vec::new();
        for id in [from, to] {
            let Some(extent) = self.facts.extents.get_mut(&id) else {
                return self.expect(COPIES, false, || format!("{part:?}: {id} is copied and does not exist"));
            };
            let of_part = *extent.part.get_or_insert(part) == part;
            let free = !std::mem::replace(&mut extent.copied, true) && extent.phase == ExtentPhase::Live;
            let (mapper, place) = (extent.mappers.first().copied(), extent.place);
            ends.push((self.facts.places[place].clone(), extent.size));
            self.expect(COPIES, mapper.is_none(), || format!("{id} is copied while {mapper:?} maps it"));
            self.expect(COPIES, of_part && free, || {
                format!("{part:?}: {id} is copied although it is another part's, is not live, or is being copied already")
            });
        }
        let [(here, size), (there, room)] = ends.as_slice() else { return };
        let across = here.uuid == there.uuid && here.tier != there.tier && size == room;
        self.expect(COPIES, across, || {
            format!("{part:?} is copied from {here:?} to {there:?}, of {size} and {room} bytes")
        });
    }

    pub(crate) fn check_cancel(&mut self, to: ExtentId) {
        if self.cancel_write_back(to) {
            return;
        }
        let is_copied = self.facts.extents.get(&to).is_some_and(|extent| extent.copied);
        if let Some(moves) = self.facts.moves.get_mut(&to) {
            moves.cancelled = true;
        }
        self.expect(COPIES, is_copied, || format!("the copy to {to} is cancelled, but there is none"));
    }

    pub(crate) fn check_hasten(&mut self, to: ExtentId) {
        let is_copied = self.facts.extents.get(&to).is_some_and(|extent| extent.copied);
        self.expect(COPIES, is_copied, || format!("the copy to {to} is hastened, but there is none"));
        self.record_copy_class(to, CopyClass::Demand);
    }

    /// Records the end of a copy. If it went well and was not cancelled, the part lies in its target.
    pub(crate) fn record_copy_end(&mut self, to: ExtentId, well: bool) {
        self.facts.copies.remove(&to);
        let own = self.facts.write_backs.get(&to).filter(|it| well && !it.cancelled);
        self.step.written_back = own.map(|it| it.part);
        if self.end_write_back(to) {
            return;
        }
        let Some(MoveFacts { part, from: Some(from), cancelled }) = self.facts.moves.get(&to).copied() else {
            return;
        };
        let arrived = well && !cancelled;
        self.record_link_copy_end(to, part, arrived);
        let below = self.facts.extents.get(&to).map(|extent| self.facts.places[extent.place].tier);
        let leaves = below != Some(Tier::Device);
        for (id, is_left) in [(from, arrived), (to, !arrived)] {
            if let Some(extent) = self.facts.extents.get_mut(&id) {
                (extent.copied, extent.detached) = (false, is_left);
                // All of it has been written.
                extent.reused &= id != to || is_left;
            }
        }
        if !well {
            self.facts.failed_parts.insert(part);
        }
        if arrived {
            self.facts.moves.remove(&to);
            if let Some(allocation) = self.facts.allocations.get_mut(&part.allocation) {
                allocation.parts.insert(part.part.0, to);
            }
        }
        let above = self.facts.extents.get(&from).map(|extent| self.facts.places[extent.place].tier);
        match (leaves, arrived) {
            (true, true) if above == Some(Tier::Device) => self.release_reserved_backing(part),
            (true, true) => self.step.moved_below = Some(part),
            (true, false) if self.facts.allocations.get(&part.allocation).is_some_and(|it| !it.leaving) => {
                self.facts.moves.remove(&to);
                self.keep_as_backing_if_none(part, to);
            }
            (true, false) | (false, false) => {}
            (false, true) => self.keep_as_backing(part, from),
        }
    }
}
