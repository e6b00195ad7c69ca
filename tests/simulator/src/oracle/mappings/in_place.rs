//! What its owner wants accessed in place is mapped in the host's memory where it lies there, and does not come to its device for
//! who pins it. Once it is no more wanted so, whoever maps it there is told to unmap it.

use broker_core::{Advice, MapPart, OperatorRequest, PartRef, Tier, invariants::IN_PLACE};
use vramd_types::{AllocationId, SessionId};

use crate::oracle::{
    Oracle,
    facts::{Asked, MapPhase, SessionFacts},
};

impl Oracle {
    pub(crate) fn record_advice(&mut self, id: AllocationId, advice: Advice) {
        let is_set = advice == Advice::SetAccessedBy;
        let Some(allocation) = self.facts.allocations.get_mut(&id) else { return };
        let changed = std::mem::replace(&mut allocation.in_place, is_set) != is_set;
        self.expect(IN_PLACE, changed, || format!("{id} is said to be advised {advice:?}, and was"));
        self.facts.in_place_to_unmap.retain(|part| part.allocation != id);
        let parts = self.facts.parts_of(id);
        for part in parts.filter(|part| !is_set && self.may_need_unmap(*part)).collect::<Vec<_>>() {
            self.facts.in_place_to_unmap.insert(part);
        }
    }

    /// Whether somebody maps it in the host's memory, or may stand in the queue for it. Where it lies is not known of what was
    /// never sent.
    fn may_need_unmap(&self, part: PartRef) -> bool {
        let comes = |it: &SessionFacts| {
            let waits = it.pin_requested.contains(&part) || it.owed.contains(&part);
            waits && !it.gone && (it.in_flight > 0 || !self.has_budget(it.tenant))
        };
        let lies_there = self.tier_of(part).is_none_or(|tier| tier == Tier::Host);
        lies_there && (self.is_mapped(part) || self.facts.sessions.values().any(comes))
    }

    fn is_mapped(&self, part: PartRef) -> bool {
        self.facts.sessions.values().any(|session| session.mappings.contains_key(&part))
    }

    /// Whether the part lies in the host's memory and is, or may be, mapped there.
    pub(crate) fn is_in_place(&self, part: PartRef) -> bool {
        self.lies_in_host(part) && self.may_be_mapped_in_host(part)
    }

    fn lies_in_host(&self, part: PartRef) -> bool {
        self.tier_of(part) == Some(Tier::Host) && !self.facts.dropped.contains_key(&part)
    }

    /// Whether the part is to be accessed in the host's memory, or is mapped there still.
    fn may_be_mapped_in_host(&self, part: PartRef) -> bool {
        self.is_advised(part) || self.facts.in_place_to_unmap.contains(&part) || self.is_mapped(part)
    }

    fn is_advised(&self, part: PartRef) -> bool {
        self.facts.allocations.get(&part.allocation).is_some_and(|it| it.in_place)
    }

    /// Whether it is to be accessed in the host's memory, and lies there, or may for all that is known: then it asks for no room.
    pub(crate) fn may_stay_in_place(&self, part: PartRef) -> bool {
        self.is_advised(part) && self.tier_of(part).is_none_or(|tier| tier == Tier::Host)
    }

    /// What is sent of the host's memory is to be accessed there, or others map it there still.
    pub(crate) fn check_sent_tier(&mut self, id: SessionId, sent: &MapPart) {
        let Some(extent) = self.facts.extents.get(&sent.extent) else { return };
        let (tier, part) = (self.facts.places[extent.place].tier, sent.part);
        let may = match tier {
            Tier::Device => true,
            Tier::Host => self.may_be_mapped_in_host(part),
            Tier::Disk => false,
        };
        self.expect(IN_PLACE, may, || format!("{part:?} is sent to {id} from the tier {tier}"));
    }

    /// A part begins to come to its device.
    pub(crate) fn check_arrival(&mut self, part: PartRef) {
        let by_hand = |asked: &Asked| {
            matches!(asked, Asked::Operator { request: OperatorRequest::MoveParts { .. }, .. })
        };
        let moved = self.facts.calls.values().any(|call| by_hand(&call.asked))
            || self.step.call.as_ref().is_some_and(|(_, call)| by_hand(&call.asked));
        let stays = self.is_advised(part) && self.lies_in_host(part);
        self.expect(IN_PLACE, !stays || moved, || {
            format!("{part:?} comes to its device, and is to be accessed in place")
        });
    }

    /// After the event: what is no more to be accessed in place, and nobody uses there, is being unmapped. And what nobody maps there
    /// any more, or is about to, is as any other part.
    pub(crate) fn check_in_place_unmaps(&mut self) {
        for part in std::mem::take(&mut self.facts.in_place_to_unmap) {
            if !self.may_need_unmap(part) {
                continue;
            }
            let stays = self.is_mapped(part) && self.could_be_unmapped(part);
            self.facts.in_place_to_unmap.insert(part);
            self.expect(IN_PLACE, !stays, || {
                format!("{part:?} is no more to be accessed in place, and nobody is told to unmap it")
            });
        }
    }

    /// Whether all who map the part could be told to unmap it: they answer, and none of them uses it, for certain.
    fn could_be_unmapped(&self, part: PartRef) -> bool {
        let rests = |it: &SessionFacts| {
            let answers = it.pins && !it.silent && !it.gone && !it.ending && self.facts.is_heard(it);
            let calls = it.pin_calls.values().any(|call| call.parts.contains(&part));
            answers && !calls && matches!(it.mappings.get(&part), Some((MapPhase::Mapped, _)))
        };
        let comes =
            |it: &SessionFacts| !it.gone && (it.pin_requested.contains(&part) || it.owed.contains(&part));
        let is_under_way = self.may_move(part)
            || self.is_being_evicted(part)
            || self.is_being_revoked(part)
            || self.facts.departing.contains(&part);
        let is_there =
            self.facts.allocations.get(&part.allocation).is_some_and(|it| !(it.leaving || it.freed));
        let mut holders = self.facts.sessions.values().filter(|it| it.mappings.contains_key(&part));
        is_there
            && !is_under_way
            && self.tier_of(part) == Some(Tier::Host)
            && !self.facts.pinned.iter().any(|(of, _)| *of == part)
            && !self.facts.sessions.values().any(comes)
            && holders.all(rests)
    }
}
