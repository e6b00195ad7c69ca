//! Write-backs: copies of a part to its backing while it stays on its device. No session may be writing it
//! when one begins, and later writes must be reported by the mappers.

use broker_core::{
    Broker, Cause, PartMove, PartRef, Tier,
    invariants::{CALLS, COPIES},
};
use vramd_types::{AllocationId, ExtentId, PartIndex};

use crate::oracle::{
    Oracle,
    facts::{BackingFacts, ExtentPhase, Tenant, WriteBackFacts},
};

impl Oracle {
    /// Whether the core shows that a part is written back to the extent.
    pub(crate) fn is_written_back(to: ExtentId, broker: &Broker) -> bool {
        broker.moves().iter().any(|it| it.extent == to && it.cause == Cause::WriteBack)
    }

    /// The tenant that pays for the backing of a part that stays on its device.
    pub(crate) fn payer_of(&self, part: PartRef) -> Option<Tenant> {
        self.facts.allocations.get(&part.allocation).map(|allocation| allocation.tenant)
    }

    pub(crate) fn check_write_back_start(&mut self, from: ExtentId, to: ExtentId) {
        self.expect_not_file(to);
        let own = self.facts.extents.get(&to).and_then(|extent| extent.part);
        let Some(part) = own.filter(|part| self.facts.backings.get(part) == Some(&BackingFacts::Kept(to)))
        else {
            return self.expect(COPIES, false, || {
                format!("{to} is the target of a write-back, and is no part's backing")
            });
        };
        self.expect_no_writer(part, from);
        let allocation = self.facts.allocations.get_mut(&part.allocation);
        let lies_in = allocation.map(|it| *it.parts.entry(part.part.0).or_insert(from));
        self.expect(COPIES, lies_in == Some(from), || {
            format!("{part:?} is written back from {from}, and lies in {lies_in:?}")
        });
        let mut ends = Vec::new();
        for id in [from, to] {
            let Some(extent) = self.facts.extents.get_mut(&id) else {
                return self.expect(COPIES, false, || format!("{part:?}: {id} is copied and does not exist"));
            };
            let of_part = *extent.part.get_or_insert(part) == part;
            let busy = extent.copied || std::mem::replace(&mut extent.written_back, true);
            let free = !busy && extent.phase == ExtentPhase::Live;
            extent.copied |= id == to;
            ends.push((extent.place, extent.size));
            self.expect(COPIES, of_part && free, || {
                format!("{part:?}: {id} is written back although it is another part's, is not live, or is being copied already")
            });
        }
        let [(here, size), (there, room)] = ends[..] else { return };
        let (here, there) = (&self.facts.places[here], &self.facts.places[there]);
        let across = here.uuid == there.uuid && here.tier != there.tier && size == room;
        self.expect(COPIES, across, || format!("{part:?} is written back to a place that is not its own"));
        if let Some(extent) = self.facts.extents.get_mut(&to) {
            extent.unwritten = false;
        }
        self.facts.write_backs.insert(to, WriteBackFacts { part, from, cancelled: false });
    }

    /// Checks that the mappers of an unsealed part were asked by their words, and did not pin it then.
    fn expect_no_writer(&mut self, part: PartRef, from: ExtentId) {
        let asked = self.step.cleared_word == Some(part);
        let sealed = self.facts.allocations.get(&part.allocation).is_some_and(|it| it.sealed);
        let mapper = self.facts.extents.get(&from).and_then(|extent| extent.mappers.first().copied());
        self.expect(COPIES, asked || sealed || mapper.is_none(), || {
            format!("{part:?} is written back although {mapper:?} maps it and its word was not read")
        });
    }

    /// Cancels a write-back. Returns whether the copy was one.
    pub(crate) fn cancel_write_back(&mut self, to: ExtentId) -> bool {
        let Some(under_way) = self.facts.write_backs.get_mut(&to) else { return false };
        under_way.cancelled = true;
        true
    }

    /// Ends a write-back. Returns whether the copy was one.
    pub(crate) fn end_write_back(&mut self, to: ExtentId) -> bool {
        let Some(WriteBackFacts { from, .. }) = self.facts.write_backs.remove(&to) else { return false };
        for id in [from, to] {
            if let Some(extent) = self.facts.extents.get_mut(&id) {
                extent.written_back = false;
                extent.copied &= id != to;
                // All of it has been written, or no session reads it.
                extent.reused &= id != to;
            }
        }
        true
    }

    /// Records the departure of parts that leave without a further report: no session maps them, and their
    /// copy is already made, or waits for the pin word that their write-back checks.
    pub(crate) fn record_departures_after_write_back(&mut self, broker: &Broker) {
        if self.facts.write_backs.is_empty() && self.facts.words_checked.is_empty() {
            return;
        }
        for moving in broker.moves().into_iter().filter(|it| it.cause != Cause::WriteBack) {
            let is_checked = self.facts.words_checked.contains(&moving.part);
            let is_new = moving.since == self.facts.now && moving.to != Tier::Device;
            let waits = self.facts.write_backs.contains_key(&moving.extent) || (is_checked && is_new);
            if waits && !self.facts.departing.contains(&moving.part) {
                self.record_departure(moving.part, true, broker);
            }
        }
    }

    /// Checks a reported write-back: the copy ended well and was not cancelled.
    pub(crate) fn check_written_back(&mut self, part: PartRef) {
        let well = self.step.written_back == Some(part);
        self.expect(COPIES, well, || format!("{part:?} is reported as written back, and was not copied"));
    }

    /// Checks what an operator is told of each written-back part. `at_once`: nothing else has happened since
    /// the request.
    pub(crate) fn check_write_back_reply(
        &mut self,
        allocation: AllocationId,
        parts: &[(PartIndex, PartMove)],
        at_once: bool,
        broker: &Broker,
    ) {
        let held = parts.iter().find(|(_, outcome)| matches!(outcome, PartMove::Held));
        self.expect(CALLS, held.is_none() || !at_once, || {
            format!("{held:?} is reported for a write-back as held by an operator")
        });
        self.check_move_reply(allocation, None, parts, at_once, broker);
    }
}
