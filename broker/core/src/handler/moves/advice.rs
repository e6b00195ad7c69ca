//! `Advise`: what an owner knows about the use of an allocation.
//!
//! Memory that is accessed by its device in place is mapped where it lies in the host's memory, at the same addresses. So what is
//! read once, or here and there, costs no room on its device and no copy. What lies there already stays; what lies on its
//! device leaves as it would have, and then comes back no more.

use vramd_types::{AllocationId, SessionId};

use crate::{
    broker::Broker,
    command::Notice,
    error::Refusal,
    event::{Advice, Kind, PartRef, Tier},
    handler::{Start, Started, Timer, requests::part_orders::MOMENT},
    limits::PARTS_STARTED_PER_EVENT,
    residency::AllocationState,
    tenancy::{Outcome, TenantId},
};

impl Broker {
    pub(crate) fn advise(
        &mut self,
        session: SessionId,
        tenant: TenantId,
        id: AllocationId,
        advice: Advice,
    ) -> Start {
        self.check_owner(session, tenant, id)?;
        let not_found = || Refusal::AllocationNotFound { allocation: id.to_string() };
        let allocation = self.allocations.get(id).ok_or_else(not_found)?;
        let in_place = advice == Advice::SetAccessedBy;
        if allocation.state == AllocationState::Freeing {
            return Err(not_found());
        }
        if allocation.kind != Kind::Movable {
            return Err(Refusal::KindUnsupported { kind: "advised fixed" });
        }
        // It would be dropped before it lay anywhere else.
        if allocation.discardable {
            return Err(Refusal::KindUnsupported { kind: "advised discardable" });
        }
        let device = self.config.devices.get(usize::from(allocation.device.0));
        if in_place && !device.is_some_and(|device| device.maps_host) {
            return Err(Refusal::TierUnsupported { tier: Tier::Host });
        }
        if allocation.in_place == in_place {
            return Ok(Started::Done(Outcome::Advised(id)));
        }
        self.allocations.set_in_place(id, in_place);
        self.note_allocation(id, |allocation, tenant| Notice::Advised { allocation, tenant, advice });
        for part in self.every_part_of(id) {
            match in_place {
                true => self.map_in_place(part),
                false => self.schedule_in_place_unmap(part),
            }
        }
        if !in_place {
            // It would have to come together with what else they wait for.
            self.refuse_infeasible_pins();
        }
        Ok(Started::Done(Outcome::Advised(id)))
    }

    /// Who waits for the part to come to its device is sent it where it lies.
    fn map_in_place(&mut self, part: PartRef) {
        self.in_place_to_unmap.remove(&part);
        if !self.migrations.contains_key(&part) && self.is_in_place(part) {
            self.serve_part_waiters(part);
        }
    }

    /// Whoever maps the part in the host's memory unmaps it there as soon as nobody pins it. Whether somebody does is asked now: who
    /// was seen to pin it may have let go since.
    fn schedule_in_place_unmap(&mut self, part: PartRef) {
        if self.tier_of(part) == Some(Tier::Host) && !planted!(self, AdviceKept) {
            self.in_place_to_unmap.insert(part);
            self.follow_ups.in_place_to_unmap.insert(part);
        }
    }

    /// What kept the part where it is mapped may be over. Who is known to pin it is seen to unpin it: to ask its word would send pins
    /// of its own the long way.
    pub(crate) fn queue_in_place_unmap(&mut self, part: PartRef) {
        if self.in_place_to_unmap.contains(&part) && !self.idle_on_host.is_pinned(part) {
            self.follow_ups.in_place_to_unmap.insert(part);
        }
    }

    /// The same of all that a session maps: it answers again.
    pub(crate) fn queue_in_place_unmaps_of(&mut self, session: SessionId) {
        let its = self.in_place_to_unmap.iter().filter(|part| self.map_state(session, **part).is_some());
        let its: Vec<_> = its.copied().collect();
        its.into_iter().for_each(|part| self.queue_in_place_unmap(part));
    }

    /// The same of all.
    pub(crate) fn queue_all_in_place_unmaps(&mut self) {
        let unpinned = self.in_place_to_unmap.iter().filter(|part| !self.idle_on_host.is_pinned(**part));
        self.follow_ups.in_place_to_unmap.extend(unpinned);
    }

    /// The next of them that may be unmapped, unless so many words were asked already because of this event: then they are looked
    /// at a moment later, and whatever else has happened is not kept waiting.
    pub(crate) fn next_in_place_unmap(&mut self) -> Option<PartRef> {
        if self.follow_ups.words_asked >= PARTS_STARTED_PER_EVENT {
            if !self.follow_ups.in_place_to_unmap.is_empty() {
                self.arm(self.now.after(MOMENT), Timer::InPlaceUnmaps);
            }
            return None;
        }
        self.follow_ups.in_place_to_unmap.pop_first()
    }

    /// Once nobody maps it there it is as any other part: who pins it has it come.
    pub(crate) fn unmap_in_place(&mut self, part: PartRef) {
        if !self.in_place_to_unmap.contains(&part) {
            return;
        }
        // What is under way says when it is over.
        if self.migrations.contains_key(&part) || self.revocations.contains_key(&part) {
            return;
        }
        let state = self.allocations.get(part.allocation).map(|allocation| allocation.state);
        let is_freed = state.is_none_or(|state| state == AllocationState::Freeing);
        if is_freed || self.tier_of(part) != Some(Tier::Host) || !self.is_in_place(part) {
            self.in_place_to_unmap.remove(&part);
        } else {
            let begun = self.revoke_part(None, part, false, self.pins.after_all()).is_none();
            let asked = &mut self.follow_ups.words_asked;
            *asked = asked.saturating_add(usize::from(begun));
        }
    }
}
