//! Backings: bytes below the device that are charged from the creation of a part until it is freed. An extent
//! that was once made in them stays.

use std::collections::BTreeSet;

use broker_core::{
    AllocationState, Broker, PartRef, Target, Tier,
    invariants::{BACKINGS, COPIES},
};
use vramd_types::{AllocationId, ExtentId};

use crate::oracle::{
    Oracle,
    facts::{BackingFacts, ExtentFacts, ExtentPhase, Tenant},
};

impl Oracle {
    /// Reserves the backing of a part that is created on its device, or that has lost its backing, if there
    /// are bytes for it.
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

    /// Checks that a part that gets its backing late had none for want of bytes, and that there are bytes
    /// now.
    pub(crate) fn record_late_backing(&mut self, part: PartRef, tier: Tier) {
        let lacked = self.facts.missing_backing.remove(&part);
        self.expect(BACKINGS, lacked.is_some(), || {
            format!("{part:?} gets a backing, and was not short of one")
        });
        let place = lacked.and_then(|(_, device, _)| self.facts.place(device, tier));
        self.expect(BACKINGS, place.is_some(), || {
            format!("{part:?} gets a backing in {tier}, and its device has no such tier")
        });
        let Some(((owner, _, size), place)) = lacked.zip(place) else { return };
        let fits = self.would_admit(owner, place, size);
        self.expect(BACKINGS, fits, || {
            format!("{part:?} gets a backing of {size} bytes, which are not available")
        });
        self.record_reserved(part, owner, place, size);
    }

    /// Checks that no part goes without a backing that there is room for, but for room that older parts wait
    /// for.
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
                self.expect(BACKINGS, !kept, || {
                    format!("{part:?} has no backing of {size} bytes, although they are available")
                });
                let (_, limit) = self.quota_now(owner, place);
                if !admitted && self.facts.charged(owner, place) + size <= limit {
                    full.insert(place);
                }
            }
        }
    }

    /// Whether the part was requested as discardable. The request may not have been answered yet.
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

    /// Records an extent made below for a part. Returns whether it is in the bytes reserved for it. A backing
    /// in another place stays the part's own meanwhile.
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
        self.expect(BACKINGS, !kept, || format!("{part:?} has a backing with an extent, and gets another"));
        had.is_some()
    }

    /// Records that an extent for a backing could not be created.
    pub(crate) fn record_backing_failure(&mut self, id: ExtentId) {
        let Some(extent) = self.facts.extents.get(&id) else { return };
        let Some(part) = extent.part.filter(|_| self.facts.places[extent.place].tier != Tier::Device) else {
            return;
        };
        let (owner, size) = (extent.owner, extent.size);
        let goes = self.facts.moves.contains_key(&id)
            || self.facts.backings.get(&part) == Some(&BackingFacts::Kept(id));
        match self.facts.backings.get(&part) {
            Some(BackingFacts::Kept(own)) if *own == id => {
                self.facts.backings.remove(&part);
                self.facts.evictable_pins.retain(|(of, _)| *of != part);
            }
            // It has a backing in another place.
            Some(_) => return,
            None if !self.may_lie_on_device(part) => return,
            None => {}
        }
        // A part that leaves for another tier meanwhile needs nothing there.
        let mut moves = self.facts.moves.iter();
        if moves.any(|(to, moves)| *to != id && moves.part == part) {
            return;
        }
        let stays = self.facts.allocations.get(&part.allocation).filter(|it| !it.leaving && goes);
        if let Some(device) = stays.map(|it| it.device) {
            self.reserve_backing(part, (owner, false), device, size);
        }
    }

    /// Keeps an extent that the part does not lie in as its backing.
    pub(crate) fn keep_as_backing(&mut self, part: PartRef, id: ExtentId) {
        let stays = self.facts.allocations.get(&part.allocation).is_some_and(|it| !it.leaving);
        if stays && self.facts.extents.contains_key(&id) {
            self.facts.backings.insert(part, BackingFacts::Kept(id));
        }
    }

    /// Keeps an extent below as backing of a part on its device, unless it has one.
    pub(crate) fn keep_as_backing_if_none(&mut self, part: PartRef, id: ExtentId) {
        if self.may_lie_on_device(part) && !self.facts.backings.contains_key(&part) {
            self.keep_as_backing(part, id);
        }
    }

    /// Releases the reserved backing of a part that left its device for another tier.
    pub(crate) fn release_reserved_backing(&mut self, part: PartRef) {
        if let Some(BackingFacts::Reserved { owner, place, size }) = self.facts.backings.remove(&part) {
            self.facts.balance(owner, place).reserved -= size;
            self.step.changed_accounts.push((owner, place));
        }
    }

    /// Whether the part moves from one tier below its device to another.
    pub(crate) fn is_moving_below(&self, part: PartRef, tier: Tier) -> bool {
        self.step.moved_below == Some(part) || self.unwritten_extent(part, tier).is_some()
    }

    /// The extent on disk that the part lay in and was never written to, if the part is in another tier now.
    fn unwritten_extent(&self, part: PartRef, tier: Tier) -> Option<ExtentId> {
        let extent = *self.facts.allocations.get(&part.allocation)?.parts.get(&part.part.0)?;
        let is_left = |place: usize| self.facts.places[place].tier != tier;
        self.facts.extents.get(&extent).filter(|it| it.unwritten && is_left(it.place)).map(|_| extent)
    }

    /// The extent that was made for a part which moves without a copy.
    pub(crate) fn made_for(
        &self,
        part: PartRef,
        is_meant: impl Fn(&ExtentFacts) -> bool,
    ) -> Option<ExtentId> {
        let is_made = |it: &ExtentFacts| it.phase == ExtentPhase::Live && !it.copied && is_meant(it);
        let to = self.facts.moves.iter().find(|(_, moves)| moves.part == part).map(|(to, _)| *to)?;
        self.facts.extents.get(&to).is_some_and(is_made).then_some(to)
    }

    /// Records the move of a part that was never written: it is zeros wherever it goes and is not copied.
    /// Returns whether this is such a part.
    fn record_move_of_zeros(&mut self, part: PartRef, tier: Tier) -> bool {
        let Some(from) = self.unwritten_extent(part, tier) else { return false };
        let to = self.made_for(part, |it| !it.reused && self.facts.places[it.place].tier == tier);
        self.expect(COPIES, to.is_some(), || {
            format!("{part:?} was never written, and no new extent was made for it")
        });
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

    /// Checks that a released extent is no part's backing: a backing ends only with its part.
    pub(crate) fn expect_not_backing(&mut self, id: ExtentId) {
        let Some(part) = self.facts.extents.get(&id).and_then(|extent| extent.part) else { return };
        let backs = self.facts.backings.get(&part) == Some(&BackingFacts::Kept(id));
        self.expect(BACKINGS, !backs, || format!("{id} is released although it is the backing of {part:?}"));
    }

    /// Records that an allocation is being freed, and the backings of its parts with it.
    pub(crate) fn mark_leaving(&mut self, id: AllocationId) {
        if let Some(allocation) = self.facts.allocations.get_mut(&id) {
            allocation.leaving = true;
        }
        self.forget_name(id);
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

    /// Forgets allocations of which a part could not be created. The core undoes these without a report.
    pub(crate) fn forget_unmade(&mut self, broker: &Broker) {
        let reported = |id: &AllocationId| self.facts.allocations.contains_key(id);
        let parts = self.facts.backings.keys().chain(self.facts.missing_backing.keys());
        let mut unmade: Vec<_> = parts.map(|part| part.allocation).collect();
        unmade.sort_unstable();
        unmade.dedup();
        unmade.retain(|id| !reported(id));
        for id in unmade {
            let state = broker.show(&Target::Id(id)).map(|view| view.state);
            if matches!(state, Err(_) | Ok(AllocationState::Freeing)) {
                self.mark_leaving(id);
            }
        }
    }

    /// Records that a part lies in another tier now, as the core reports. Without a copy this is possible
    /// only if its content was there already.
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
        let is_live = |id: &ExtentId| {
            self.facts.extents.get(id).is_some_and(|it| it.phase == ExtentPhase::Live && !it.copied)
        };
        let there = match self.facts.backings.get(&part) {
            Some(BackingFacts::Kept(id)) => Some(*id).filter(is_live),
            _ => self.made_for(part, |_| true),
        };
        self.facts.backings.remove(&part);
        self.expect(COPIES, there.is_some(), || format!("{part:?} has moved without a copy"));
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

    /// Records that a part stays where it is. An extent below its device that it was to go to remains its own. One on
    /// its device is released, if need be once the driver has made it: the part may wait for room meanwhile.
    pub(crate) fn record_stay(&mut self, part: PartRef, tier: Tier) {
        self.facts.departing.remove(&part);
        let mut its = self.facts.moves.iter().filter(|(_, moves)| moves.part == part && moves.from.is_none());
        let Some(to) = its.next().map(|(to, _)| *to) else { return };
        if tier == Tier::Device {
            self.facts.moves.remove(&to);
        } else if self.facts.allocations.get(&part.allocation).is_some_and(|it| !it.leaving) {
            self.facts.moves.remove(&to);
            self.keep_as_backing_if_none(part, to);
        }
    }
}
