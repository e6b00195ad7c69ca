//! A copy that a client waits for is of class demand: it is ordered so, or hastened before the event is over. No
//! other copy is.

use std::collections::BTreeSet;

use broker_core::{Broker, Cause, MoveView, PartRef, Tier, WaitView, invariants::LINK_AWAITED};
use vramd_types::{CopyClass, ExtentId};

use crate::oracle::Oracle;

impl Oracle {
    pub(crate) fn record_copy_class(&mut self, to: ExtentId, class: CopyClass) {
        self.facts.copies.insert(to, class);
        if class == CopyClass::Demand {
            self.step.urgent.push(to);
        }
    }

    /// Records on which devices clients wait: for a part that they want, or in the line.
    pub(crate) fn record_waited_devices(&mut self, wanted: &BTreeSet<PartRef>, line: &[WaitView]) {
        let of_parts = wanted.iter().filter_map(|part| self.facts.allocations.get(&part.allocation));
        let in_line = line.iter().filter_map(|wait| self.facts.needs.get(&wait.id));
        let in_line = in_line.flat_map(|needs| needs.bytes.keys().copied());
        let devices: BTreeSet<_> = of_parts.map(|it| it.device).chain(in_line).collect();
        for device in devices {
            self.facts.waited.insert(device, self.facts.now);
        }
    }

    /// Records that a client has waited until now, even if it waited only within this event. The core does not report
    /// on which devices.
    pub(crate) fn record_ended_wait(&mut self) {
        for (device, _) in
            self.facts.places.iter().enumerate().filter(|(_, place)| place.tier == Tier::Device)
        {
            self.facts.waited.insert(device, self.facts.now);
        }
    }

    pub(crate) fn check_awaited_copies(&mut self, broker: &Broker) {
        let copies = self.facts.copies.iter().map(|(to, class)| (*to, *class));
        let background: Vec<_> =
            copies.filter(|(to, class)| *class != CopyClass::Demand && !self.is_given_up(*to)).collect();
        let urgent = std::mem::take(&mut self.step.urgent);
        if background.is_empty() && urgent.is_empty() {
            return;
        }
        let moves = broker.moves();
        // A batch that was refused because too many extents exist has left the line already.
        if !self.step.too_many_refused {
            self.check_urgent_copies(&urgent, &moves);
        }
        if background.is_empty() {
            return;
        }
        let wanted: BTreeSet<_> = self.wanted(broker).into_iter().collect();
        for (to, class) in background {
            let moving = moved_with(to, &moves);
            let part = moving.map(|it| it.part);
            // The core decides about a part that is being unmapped once that has ended.
            let is_wanted = part.is_some_and(|part| wanted.contains(&part) && !self.is_being_evicted(part));
            // A client waits for the part, or for the room that it takes, as the core shows.
            let is_needed = moving.is_some_and(|it| it.cause == Cause::Demand);
            self.expect(LINK_AWAITED, !is_wanted && !is_needed, || {
                format!("{part:?} is copied to {to} as {class:?} although a client waits for it")
            });
        }
    }

    /// Checks the copies that were ordered or raised as demand in this event: the move is for a client, or a
    /// client has waited on its device since it began.
    fn check_urgent_copies(&mut self, urgent: &[ExtentId], moves: &[MoveView]) {
        for to in urgent {
            let is_for_client = |it: &MoveView| {
                let device = self.facts.allocations.get(&it.part.allocation).map(|it| it.device);
                let waited = device.and_then(|device| self.facts.waited.get(&device));
                // A pin raises all fetches of its request, also those that something else began.
                let may_be_raised =
                    it.to == Tier::Device && self.facts.prefetches.may_be_wanted_since(it.part, it.since);
                it.cause == Cause::Demand || may_be_raised || waited.is_some_and(|last| *last >= it.since)
            };
            let is_known = moves.iter().any(|it| it.extent == *to);
            let rightly = !is_known || moved_with(*to, moves).is_some_and(is_for_client);
            self.expect(LINK_AWAITED, rightly, || {
                format!("the copy to {to} runs as demand, and no client waits for it")
            });
        }
    }

    /// Whether the copy was cancelled: its end is reported to no session.
    pub(crate) fn is_given_up(&self, to: ExtentId) -> bool {
        self.facts.moves.get(&to).is_some_and(|it| it.cancelled)
            || self.facts.write_backs.get(&to).is_some_and(|it| it.cancelled)
    }
}

/// The move of a part that goes on with the copy to that extent. It waits for the end of any write-back of the
/// part, whatever its own destination.
fn moved_with(to: ExtentId, moves: &[MoveView]) -> Option<&MoveView> {
    let part = moves.iter().find(|it| it.extent == to)?.part;
    moves.iter().find(|it| it.part == part && it.cause != Cause::WriteBack)
}
