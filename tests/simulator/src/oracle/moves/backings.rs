//! What parts have below their devices: bytes that are charged from when a part is made until it is freed, and in which
//! memory stays once it has been made.

use std::collections::BTreeSet;

use broker_core::{
    AllocationState, Broker, PartRef, Target, Tier,
    invariants::{BACKED, COPIES},
};
use vramd_types::{AllocationId, ExtentId};

use crate::oracle::{
    Oracle,
    facts::{BackingFacts, Tenant},
};

impl Oracle {
    /// A part that can move is made on its device, or has lost what it had below: bytes are set aside, if there are any.
    pub(crate) fn reserve_backing(
        &mut self,
        part: PartRef,
        (owner, discardable): (Tenant, bool),
        device: usize,
        size: u64,
    ) {
        let below = self.facts.below(device);
        if below.is_empty() || self.facts.backings.contains_key(&part) {
            return;
        }
        if discardable {
            self.facts.backings.insert(part, BackingFacts::Unneeded);
            return;
        }
        match below.into_iter().find(|place| self.would_admit(owner, *place, size)) {
            Some(place) => self.record_reserved(part, owner, place, size),
            None => _ = self.facts.missing_backing.insert(part, (owner, device, size)),
        }
    }

    fn record_reserved(&mut self, part: PartRef, owner: Tenant, place: usize, size: u64) {
        self.facts.balance(owner, place).reserved += size;
        self.facts.backings.insert(part, BackingFacts::Reserved { owner, place, size });
        self.step.changed_accounts.push((owner, place));
    }

    /// A part gets bytes below that had none: it lacked them, and there are some.
    pub(crate) fn record_late_backing(&mut self, part: PartRef, tier: Tier) {
        let lacked = self.facts.missing_backing.remove(&part);
        self.expect(BACKED, lacked.is_some(), || format!("{part:?} gets bytes below, and lacked none"));
        let place = lacked.and_then(|(_, device, _)| self.facts.place(device, tier));
        self.expect(BACKED, place.is_some(), || format!("{part:?} gets bytes in {tier}, and there is none"));
        let Some(((owner, _, size), place)) = lacked.zip(place) else { return };
        let fits = self.would_admit(owner, place, size);
        self.expect(BACKED, fits, || format!("{part:?} gets {size} bytes below, which there are not"));
        self.record_reserved(part, owner, place, size);
    }

    /// Nobody lacks bytes below for which there are some, but for what older parts wait for.
    pub(crate) fn check_missing_backing(&mut self) {
        let mut seen = BTreeSet::new();
        let mut full = BTreeSet::new();
        for (part, (owner, device, size)) in self.facts.missing_backing.clone() {
            if !seen.insert((owner, device)) {
                continue;
            }
            for place in self.facts.below(device) {
                let admitted = self.would_admit(owner, place, size);
                let kept = admitted && !full.contains(&place);
                self.expect(BACKED, !kept, || {
                    format!("{part:?} lacks {size} bytes below, and there are some")
                });
                let (_, limit) = self.quota_now(owner, place);
                if !admitted && self.facts.charged(owner, place) + size <= limit {
                    full.insert(place);
                }
            }
        }
    }

    /// Whether it was asked for as discardable: it may not have been answered yet.
    pub(crate) fn is_discardable(part: PartRef, broker: &Broker) -> bool {
        broker.show(&Target::Id(part.allocation)).is_ok_and(|view| view.discardable)
    }

    pub(crate) fn would_admit(&self, tenant: Tenant, place: usize, size: u64) -> bool {
        let (guarantee, limit) = self.quota_now(tenant, place);
        let (held, size, guarantee) =
            (u128::from(self.facts.charged(tenant, place)), u128::from(size), u128::from(guarantee));
        let before = self.committed_all()[place];
        let after = before - guarantee.max(held) + guarantee.max(held + size);
        held + size <= u128::from(limit) && (after <= u128::from(self.capacity(place)) || after <= before)
    }

    /// Memory is made below for a part: in the bytes that it has there, or in others. Whether in its own. What it has in another
    /// place stays its own meanwhile.
    pub(crate) fn record_backing_made(&mut self, part: PartRef, place: usize) -> bool {
        self.facts.missing_backing.remove(&part);
        let lies_in = match self.facts.backings.get(&part) {
            Some(BackingFacts::Reserved { place, .. }) => Some(*place),
            Some(BackingFacts::Kept(id)) => self.facts.extents.get(id).map(|extent| extent.place),
            Some(BackingFacts::Unneeded) | None => None,
        };
        if lies_in.is_some_and(|it| it != place) {
            return false;
        }
        let had = self.facts.backings.remove(&part);
        let kept = matches!(had, Some(BackingFacts::Kept(_)));
        self.expect(BACKED, !kept, || format!("{part:?} has memory below, and gets more"));
        had.is_some()
    }

    /// What was to be made below for a part could not be.
    pub(crate) fn record_backing_failure(&mut self, id: ExtentId) {
        let Some(extent) = self.facts.extents.get(&id) else { return };
        let Some(part) = extent.part.filter(|_| self.facts.places[extent.place].tier != Tier::Device) else {
            return;
        };
        let (owner, size) = (extent.owner, extent.size);
        let goes = self.facts.moves.contains_key(&id)
            || self.facts.backings.get(&part) == Some(&BackingFacts::Kept(id));
        match self.facts.backings.get(&part) {
            Some(BackingFacts::Kept(own)) if *own == id => _ = self.facts.backings.remove(&part),
            // It has something in another place.
            Some(_) => return,
            None if !self.may_lie_on_device(part) => return,
            None => {}
        }
        // What leaves for another tier meanwhile needs nothing there.
        let mut moves = self.facts.moves.iter();
        if moves.any(|(to, moves)| *to != id && moves.part == part) {
            return;
        }
        let stays = self.facts.allocations.get(&part.allocation).filter(|it| !it.leaving && goes);
        if let Some(device) = stays.map(|it| it.device) {
            self.reserve_backing(part, (owner, false), device, size);
        }
    }

    /// Memory below that the part is not in stays its own.
    pub(crate) fn keep_as_backing(&mut self, part: PartRef, id: ExtentId) {
        let stays = self.facts.allocations.get(&part.allocation).is_some_and(|it| !it.leaving);
        if stays && self.facts.extents.contains_key(&id) {
            self.facts.backings.insert(part, BackingFacts::Kept(id));
        }
    }

    /// What was made below for a part that stays on its device, unless it has something there already.
    pub(crate) fn keep_as_backing_if_none(&mut self, part: PartRef, id: ExtentId) {
        if self.may_lie_on_device(part) && !self.facts.backings.contains_key(&part) {
            self.keep_as_backing(part, id);
        }
    }

    /// A part has left its device for another tier than the one in which it had something.
    pub(crate) fn release_reserved_backing(&mut self, part: PartRef) {
        if let Some(BackingFacts::Reserved { owner, place, size }) = self.facts.backings.remove(&part) {
            self.facts.balance(owner, place).reserved -= size;
            self.step.changed_accounts.push((owner, place));
        }
    }

    /// Whether the part goes from one tier below its device to another.
    pub(crate) fn is_moving_below(&self, part: PartRef, tier: Tier) -> bool {
        self.step.moved_below == Some(part) || self.unwritten_extent(part, tier).is_some()
    }

    /// The extent on disk that the part lay in and was never written to, if it lay in one and is in another tier now.
    fn unwritten_extent(&self, part: PartRef, tier: Tier) -> Option<ExtentId> {
        let extent = *self.facts.allocations.get(&part.allocation)?.parts.get(&part.part.0)?;
        let is_left = |place: usize| self.facts.places[place].tier != tier;
        self.facts.extents.get(&extent).filter(|it| it.unwritten && is_left(it.place)).map(|_| extent)
    }

    /// What was never written is zeros wherever it goes, so it is not copied. Whether the part was that.
    fn record_move_of_zeros(&mut self, part: PartRef, tier: Tier) -> bool {
        let Some(from) = self.unwritten_extent(part, tier) else { return false };
        let to = self.facts.moves.iter().find(|(_, moves)| moves.part == part && moves.from.is_none());
        let to = to.map(|(to, _)| *to);
        let made = to.and_then(|id| self.facts.extents.get(&id)).is_some_and(|it| {
            it.phase == crate::oracle::facts::ExtentPhase::Live
                && !it.reused
                && self.facts.places[it.place].tier == tier
        });
        self.expect(COPIES, made, || format!("{part:?} was never written, and is in no new memory"));
        let (Some(to), Some(allocation)) = (to, self.facts.allocations.get_mut(&part.allocation)) else {
            return true;
        };
        self.facts.moves.remove(&to);
        allocation.parts.insert(part.part.0, to);
        for (id, detached) in [(to, false), (from, true)] {
            if let Some(extent) = self.facts.extents.get_mut(&id) {
                extent.detached = detached;
            }
        }
        if tier == Tier::Device {
            self.keep_as_backing(part, from);
        }
        true
    }

    /// What a part has below goes with it alone.
    pub(crate) fn expect_not_backing(&mut self, id: ExtentId) {
        let Some(part) = self.facts.extents.get(&id).and_then(|extent| extent.part) else { return };
        let backs = self.facts.backings.get(&part) == Some(&BackingFacts::Kept(id));
        self.expect(BACKED, !backs, || format!("{id} is released, and is what {part:?} has below"));
    }

    /// An allocation is freed, and what its parts have below with it.
    pub(crate) fn mark_leaving(&mut self, id: AllocationId) {
        if let Some(allocation) = self.facts.allocations.get_mut(&id) {
            allocation.leaving = true;
        }
        self.forget_holds(id);
        self.forget_dropped(id);
        let all = PartRef { allocation: id, part: vramd_types::PartIndex(0) }..=PartRef {
            allocation: id,
            part: vramd_types::PartIndex(u32::MAX),
        };
        self.facts.missing_backing.retain(|part, _| part.allocation != id);
        let parts: Vec<_> = self.facts.backings.range(all).map(|(part, _)| *part).collect();
        for part in parts {
            if let Some(BackingFacts::Reserved { owner, place, size }) = self.facts.backings.remove(&part) {
                self.facts.balance(owner, place).reserved -= size;
                self.step.changed_accounts.push((owner, place));
            }
        }
    }

    /// What could not be made as a whole is undone without a word.
    pub(crate) fn forget_unmade(&mut self, broker: &Broker) {
        let told = |id: &AllocationId| self.facts.allocations.contains_key(id);
        let parts = self.facts.backings.keys().chain(self.facts.missing_backing.keys());
        let mut unmade: Vec<_> = parts.map(|part| part.allocation).collect();
        unmade.sort_unstable();
        unmade.dedup();
        unmade.retain(|id| !told(id));
        for id in unmade {
            let state = broker.show(&Target::Id(id)).map(|view| view.state);
            if matches!(state, Err(_) | Ok(AllocationState::Freeing)) {
                self.mark_leaving(id);
            }
        }
    }

    /// A part is in another tier, as the core says: without a copy only if it holds there already what it holds.
    pub(crate) fn record_move(&mut self, part: PartRef, tier: Tier) {
        self.facts.departing.remove(&part);
        if (tier == Tier::Device && self.record_remade(part)) || self.record_move_of_zeros(part, tier) {
            return;
        }
        if tier != Tier::Device {
            self.update_pin_requests(part);
        }
        if tier == Tier::Device || self.tier_of(part) != Some(Tier::Device) {
            return;
        }
        let moves = self.facts.moves.iter().find(|(_, moves)| moves.part == part).map(|(to, _)| *to);
        let kept = match self.facts.backings.remove(&part) {
            Some(BackingFacts::Kept(id)) => Some(id),
            _ => moves,
        };
        let there = kept.filter(|id| {
            self.facts
                .extents
                .get(id)
                .is_some_and(|it| it.phase == crate::oracle::facts::ExtentPhase::Live && !it.copied)
        });
        self.expect(COPIES, there.is_some(), || format!("{part:?} has moved, and nothing was copied"));
        let (Some(to), Some(allocation)) = (there, self.facts.allocations.get_mut(&part.allocation)) else {
            return;
        };
        self.facts.moves.remove(&to);
        let from = allocation.parts.insert(part.part.0, to);
        for (id, detached) in [(Some(to), false), (from, true)] {
            if let Some(extent) = id.and_then(|id| self.facts.extents.get_mut(&id)) {
                extent.detached = detached;
            }
        }
    }

    /// A part stays where it is. What it was to go to is its own still.
    pub(crate) fn record_stay(&mut self, part: PartRef, tier: Tier) {
        self.facts.departing.remove(&part);
        let to = self.facts.moves.iter().find(|(_, moves)| moves.part == part && moves.from.is_none());
        if let Some(to) = to.map(|(to, _)| *to).filter(|_| tier != Tier::Device)
            && self.facts.allocations.get(&part.allocation).is_some_and(|it| !it.leaving)
        {
            self.facts.moves.remove(&to);
            self.keep_as_backing_if_none(part, to);
        }
    }
}
