//! A part whose owner wants it accessed in place is mapped in host memory while it lies there, and no pin
//! moves it to its device. When the owner withdraws the advice, every mapper there is told to unmap it.

use broker_core::{Advice, MapPart, OperatorRequest, PartRef, Tier, invariants::IN_PLACE};
use vramd_types::{AllocationId, SessionId};

use crate::oracle::{
    Oracle,
    facts::{Asked, MapPhase, SessionFacts},
};

impl Oracle {
    pub(crate) fn record_advice(&mut self, id: AllocationId, advice: Advice) {
        let is_set = match advice {
            Advice::SetAccessedBy => true,
            Advice::UnsetAccessedBy => false,
            Advice::Retain { .. } => return,
        };
        let Some(allocation) = self.facts.allocations.get_mut(&id) else { return };
        let changed = std::mem::replace(&mut allocation.in_place, is_set) != is_set;
        self.expect(IN_PLACE, changed, || {
            format!("{id} is reported as advised {advice:?}, which it was already")
        });
        self.facts.in_place_to_unmap.retain(|part| part.allocation != id);
        let parts = self.facts.parts_of(id);
        for part in parts
            .filter(|part| !is_set && !self.is_advised(*part) && self.may_need_unmap(*part))
            .collect::<Vec<_>>()
        {
            self.facts.in_place_to_unmap.insert(part);
        }
    }

    /// Whether a session maps the part in host memory, or may be queued for it. Where a part lies that was
    /// never sent is unknown.
    pub(super) fn may_need_unmap(&self, part: PartRef) -> bool {
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

    /// Whether the part lies in host memory and is, or may be, mapped there.
    pub(crate) fn is_in_place(&self, part: PartRef) -> bool {
        self.lies_in_host(part) && self.may_be_mapped_in_host(part)
    }

    /// Whether the part certainly is to be accessed in host memory or is mapped there, and lies there. A session may also
    /// be queued for a part that is no longer advised, and the oracle does not see that.
    pub(crate) fn is_surely_in_place(&self, part: PartRef) -> bool {
        self.lies_in_host(part) && (self.is_advised(part) || self.is_mapped(part))
    }

    fn lies_in_host(&self, part: PartRef) -> bool {
        self.tier_of(part) == Some(Tier::Host) && !self.facts.dropped.contains_key(&part)
    }

    /// Whether the part is to be accessed in host memory, or is still mapped there.
    fn may_be_mapped_in_host(&self, part: PartRef) -> bool {
        self.is_advised(part) || self.facts.in_place_to_unmap.contains(&part) || self.is_mapped(part)
    }

    /// Whether the part is to be accessed in host memory, by advice or since a move does not pay.
    pub(super) fn is_advised(&self, part: PartRef) -> bool {
        let by_advice = self.facts.allocations.get(&part.allocation).is_some_and(|it| it.in_place);
        by_advice || self.facts.read_in_place.contains(&part)
    }

    /// Whether the part is to be accessed in host memory and lies there, or may lie there. Then it needs no
    /// room on its device.
    pub(crate) fn may_stay_in_place(&self, part: PartRef) -> bool {
        self.is_advised(part) && self.tier_of(part).is_none_or(|tier| tier == Tier::Host)
    }

    /// Checks that a part that is sent from host memory is to be accessed there, or still mapped there by
    /// others.
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

    /// Checks that a part that starts moving to its device is not to stay in place.
    pub(crate) fn check_arrival(&mut self, part: PartRef) {
        let by_hand = |asked: &Asked| {
            matches!(asked, Asked::Operator { request: OperatorRequest::MoveParts { .. }, .. })
        };
        let moved = self.facts.calls.values().any(|call| by_hand(&call.asked))
            || self.step.call.as_ref().is_some_and(|(_, call)| by_hand(&call.asked));
        let stays = self.is_advised(part) && self.lies_in_host(part);
        self.expect(IN_PLACE, !stays || moved, || {
            format!("{part:?} moves to its device although it is to be accessed in place")
        });
    }

    /// Checks that parts that are no longer to be accessed in place are being unmapped wherever no session
    /// uses them. Parts without mappers there are like any other.
    pub(crate) fn check_in_place_unmaps(&mut self) {
        for part in std::mem::take(&mut self.facts.in_place_to_unmap) {
            if !self.may_need_unmap(part) {
                continue;
            }
            let stays = self.is_mapped(part) && self.could_be_unmapped(part);
            self.facts.in_place_to_unmap.insert(part);
            self.expect(IN_PLACE, !stays, || {
                format!("{part:?} is no longer to be accessed in place, and no mapper is told to unmap it")
            });
        }
    }

    /// Whether every mapper of the part could be told to unmap it: it answers, and certainly does not use the
    /// part.
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
