//! A part in host memory that a session wants moves to its device, or is read where it lies (`placement.rs`).
//!
//! A part that is read in place is mapped like one whose owner advised that its device accesses it there. That ends once
//! it is used so often that a move pays, or once the sum no longer applies: advice, a prefetch request, a sequence or a
//! hold comes before it. The part then moves with a later pin. As long as a pin call names the part it goes on, since
//! the call may not fit otherwise.

use vramd_types::AllocationId;

use crate::{
    broker::Broker,
    command::Notice,
    event::{PartRef, Tier},
    moves::{Cause, LinkCopy, MoveEnd, MoveReport},
    placement::{PlacedBy, Placement, PlacementSum},
};

impl Broker {
    /// Decides where a part that a session wants is read. Returns whether it stays in host memory.
    pub(crate) fn choose_in_place(&mut self, part: PartRef) -> bool {
        let Some(sum) = self.placement_sum(part) else { return false };
        // A session without pins would keep it mapped there for as long as it has it.
        let has_pins = |id: &_| self.sessions.get(*id).is_some_and(|session| session.words.is_some());
        if !self.sessions_waiting_for(part).iter().all(has_pins) {
            return false;
        }
        let in_place = !sum.pays();
        planted!(self, PlacementFactorIgnored => in_place = sum.benefit <= sum.cost);
        self.note_placement(part, sum, in_place);
        if in_place {
            self.mapping.chosen_in_place.insert(part);
            self.usage.placements.forget_decided(part);
            // It may have been unmapped there in this very event.
            self.mapping.in_place_to_unmap.remove(&part);
            self.usage.placements.record_stay(part.allocation);
            let (by, at) = (PlacedBy::ReadInPlace, self.shell.now);
            self.usage.placements.place(part, Placement { by, at, sum: Some(sum) });
        } else {
            self.usage.placements.decide(part, sum);
        }
        in_place
    }

    /// Decides whether a part that a session will probably want is to move to its device.
    pub(crate) fn decide_ahead(&mut self, part: PartRef) -> bool {
        let sum = self.placement_sum(part);
        if let Some(sum) = sum.filter(PlacementSum::pays) {
            self.usage.placements.decide(part, sum);
        }
        sum.is_none_or(|sum| sum.pays())
    }

    fn note_placement(&mut self, part: PartRef, sum: PlacementSum, in_place: bool) {
        let Some(footprint) = self.footprint_of(part) else { return };
        let tenant = self.tenants.shared(footprint.tenant);
        self.push_notice(Notice::PlacementChosen { part, tenant, sum, in_place });
    }

    /// The sum for a part in host memory. `None` if it is not known how much of it a use reads or how fast it would come, if
    /// its device cannot read it there, or if something else comes before the sum.
    fn placement_sum(&self, part: PartRef) -> Option<PlacementSum> {
        if self.usage.advice.is_empty() || !self.lies_in_host(part) || self.moves.migrations.contains(part) {
            return None;
        }
        let advice = self.advice_for(part).at(self.shell.now);
        let pattern = advice.pattern.filter(|_| advice.location != Some(Tier::Device))?;
        let footprint = self.footprint_of(part)?;
        let device = footprint.device;
        let is_advised = self.allocations.get(part.allocation).is_some_and(|allocation| allocation.in_place);
        let maps_host = self.config.devices.get(usize::from(device.0)).is_some_and(|device| device.maps_host);
        let is_asked = self.moves.sequences.is_named(part) || self.moves.prefetches.is_named(part);
        let is_movable =
            self.is_stable(part.allocation) && !self.is_discardable(part) && !self.moves.is_held(part);
        if !maps_host || !is_movable || is_asked || is_advised {
            return None;
        }
        let copy = self.moves.links.time_from_host(device, footprint.size, self.shell.now)?;
        self.usage.placements.sum_for(part.allocation, (footprint.size, pattern), copy)
    }

    /// A session has used the part: the sum for its allocation may come out otherwise.
    pub(crate) fn record_placed_use(&mut self, part: PartRef) {
        if !self.usage.advice.is_empty() {
            self.usage.placements.record_use(part.allocation);
        }
        self.reconsider_in_place(part);
    }

    /// Ends that a part is read in place, if its move pays by now or the sum no longer applies.
    pub(crate) fn reconsider_in_place(&mut self, part: PartRef) {
        // A call counts on it, and may not fit otherwise.
        if !self.mapping.chosen_in_place.contains(&part) || self.pins.names(part) {
            return;
        }
        planted!(self, NamedPartReadInPlace => if self.placement_sum(part).is_none() { return });
        if self.placement_sum(part).is_none_or(|sum| sum.pays()) {
            self.end_in_place(part);
        }
    }

    /// The same for all parts of an allocation, as its advice has changed.
    pub(crate) fn reconsider_all_in_place(&mut self, id: AllocationId) {
        self.chosen_in_place_of(id).into_iter().for_each(|part| self.reconsider_in_place(part));
    }

    fn end_in_place(&mut self, part: PartRef) {
        self.mapping.chosen_in_place.remove(&part);
        self.push_notice(Notice::ReadInPlaceEnded { part });
        // Its owner may have advised by now that it is read there.
        if self.has_mappers(part) && !self.stays_in_place(part) {
            self.schedule_in_place_unmap(part);
        }
    }

    /// A part has moved, or has not.
    pub(crate) fn record_placement(&mut self, report: &MoveReport) {
        let MoveReport { part, end, cause, copied_since, reason, sum, awaited, from, .. } = report;
        let Some(tier) = self.tier_of(*part).filter(|_| matches!(end, MoveEnd::Arrived)) else { return };
        if tier != Tier::Host {
            self.mapping.chosen_in_place.remove(part);
        }
        let by = match tier {
            Tier::Device => PlacedBy::Fetched(*cause),
            Tier::Host | Tier::Disk => PlacedBy::Left(*cause, *reason),
        };
        self.usage.placements.place(*part, Placement { by, at: self.shell.now, sum: *sum });
        if tier != Tier::Device {
            return;
        }
        if !self.usage.advice.is_empty() {
            self.usage.placements.record_stay(part.allocation);
        }
        planted!(self, UncopiedMoveMeasured => copied_since = &Some(self.shell.now));
        // Pins of parts on disk say nothing about the time that a request of another tenant takes.
        let is_typical = *from == Tier::Host || *cause == Cause::Prefetch;
        let copied = self.footprint_of(*part).zip(*copied_since).filter(|_| is_typical);
        if let Some((footprint, began)) = copied {
            let copy = LinkCopy { from: *from, bytes: footprint.size, awaited: *awaited, began };
            self.moves.links.record(footprint.device, copy, self.shell.now);
        }
    }
}
