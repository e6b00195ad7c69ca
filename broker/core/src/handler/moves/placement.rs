//! A part in host memory that a session wants moves to its device, or is read where it lies (`placement.rs`).
//!
//! A part that is read in place is mapped like one whose owner advised that its device accesses it there. It moves with a
//! later pin, once it is used so often that a move pays.

use vramd_types::AllocationId;

use crate::{
    broker::Broker,
    command::Notice,
    event::{PartRef, Tier},
    follow_up::Fact,
    moves::{MoveEnd, MoveReport},
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

    /// Whether a part that a session will probably want is to move to its device, as far as the daemon knows.
    pub(crate) fn pays_to_move(&self, part: PartRef) -> bool {
        self.placement_sum(part).is_none_or(|sum| sum.pays())
    }

    fn note_placement(&mut self, part: PartRef, sum: PlacementSum, in_place: bool) {
        let Some(footprint) = self.footprint_of(part) else { return };
        let tenant = self.tenants.shared(footprint.tenant);
        self.push_notice(Notice::PlacementChosen { part, tenant, sum, in_place });
    }

    /// The sum for a part in host memory; `None` if it is not known how much of it a use reads, or how fast it would come,
    /// or if its device cannot read it there.
    fn placement_sum(&self, part: PartRef) -> Option<PlacementSum> {
        if self.usage.advice.is_empty() || !self.lies_in_host(part) || self.moves.migrations.contains(part) {
            return None;
        }
        let advice = self.advice_for(part).at(self.shell.now);
        let pattern = advice.pattern.filter(|_| advice.location != Some(Tier::Device))?;
        let footprint = self.footprint_of(part)?;
        let device = footprint.device;
        let maps_host = self.config.devices.get(usize::from(device.0)).is_some_and(|device| device.maps_host);
        let is_asked = self.moves.sequences.is_named(part) || self.moves.prefetches.is_named(part);
        let is_movable =
            self.is_stable(part.allocation) && !self.is_discardable(part) && !self.moves.is_held(part);
        if !maps_host || !is_movable || is_asked {
            return None;
        }
        let of = (part.allocation, device);
        self.usage.placements.sum_for(of, (footprint.size, pattern), self.shell.now)
    }

    /// A session has used the part: the sum for its allocation may come out otherwise.
    pub(crate) fn record_placed_use(&mut self, part: PartRef) {
        if self.usage.advice.is_empty() {
            return;
        }
        self.usage.placements.record_use(part.allocation);
        self.reconsider_in_place(part);
    }

    /// A part that is read in place comes with the next pin, if that pays by now.
    fn reconsider_in_place(&mut self, part: PartRef) {
        // A call counts on it, and may not fit otherwise.
        if !self.mapping.chosen_in_place.contains(&part) || self.pins.names(part) {
            return;
        }
        if self.placement_sum(part).is_none_or(|sum| sum.pays()) {
            self.end_in_place(part);
        }
    }

    /// Advice for the allocation has changed: sums that it decided may come out otherwise.
    pub(crate) fn reconsider_all_in_place(&mut self, id: AllocationId) {
        let chosen = self.mapping.chosen_in_place.range(PartRef::all_of(id)).copied();
        chosen.collect::<Vec<_>>().into_iter().for_each(|part| self.reconsider_in_place(part));
    }

    fn end_in_place(&mut self, part: PartRef) {
        self.mapping.chosen_in_place.remove(&part);
        self.push_notice(Notice::ReadInPlaceEnded { part });
        if self.tier_of(part) == Some(Tier::Host) && self.has_mappers(part) {
            self.mapping.in_place_to_unmap.insert(part);
            self.follow_ups.push(Fact::InPlaceUnpinned(part));
        }
    }

    /// A part has moved, or has not.
    pub(crate) fn record_placement(&mut self, report: &MoveReport) {
        let MoveReport { part, end, cause, since, reason, sum, awaited, from, .. } = report;
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
        if let Some(footprint) = self.footprint_of(*part).filter(|_| *from == Tier::Host) {
            let of = (footprint.size, *awaited);
            self.usage.placements.record_copy(footprint.device, of, (*since, self.shell.now));
        }
    }
}
