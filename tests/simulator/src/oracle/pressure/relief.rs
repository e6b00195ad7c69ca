//! Where pressure stays high, the core releases what is cached and evicts what is cold. The oracle asks that
//! only of what certainly could leave: parts that no session maps, while nothing else is under way there.

use std::{collections::BTreeMap, time::Duration};

use broker_core::{
    AllocationState, Broker, Kind, PartRef, Pressure, Target, Tier, invariants::PRESSURE_RELIEF,
};
use vramd_types::{AllocationId, PartIndex};

use crate::oracle::{
    Oracle,
    facts::{AllocationFacts, BackingFacts, ExtentFacts, ExtentPhase},
};

/// Time that anything may take beyond the sample intervals.
const SLACK: Duration = Duration::from_millis(400);

impl Oracle {
    pub(crate) fn check_relief(&mut self, broker: &Broker) {
        if !self.facts.clock.is_multiple_of(16) {
            return;
        }
        for place in 0..self.facts.places.len() {
            let full = self.pressure_in(place) >= Pressure::High
                && !self.is_anything_leaving(place)
                && !self.is_at_target(place, broker);
            self.check_cached_released(place, full);
            self.check_cold_evicted(place, full, broker);
        }
    }

    fn check_cached_released(&mut self, place: usize, full: bool) {
        let before = self.facts.cached_since.remove(&place).unwrap_or_default();
        if !full {
            return;
        }
        let (now, patience) = (self.facts.now, self.bounds().sample_interval * 4 + SLACK);
        let is_cached = |it: &ExtentFacts| it.place == place && it.phase == ExtentPhase::Cached;
        let cached = self.facts.extents.iter().filter(|(_, it)| is_cached(it)).map(|(id, _)| *id);
        let cached: BTreeMap<_, _> = cached.map(|id| (id, before.get(&id).copied().unwrap_or(now))).collect();
        let stays = cached.iter().find(|(_, since)| since.after(patience) < now).map(|(id, _)| *id);
        let pressure = self.pressure_in(place);
        self.expect(PRESSURE_RELIEF, stays.is_none(), || {
            format!("place {place} is {pressure}, and {stays:?} stays there although it is only cached")
        });
        self.facts.cached_since.insert(place, cached);
    }

    fn check_cold_evicted(&mut self, place: usize, full: bool, broker: &Broker) {
        let before = self.facts.idle_since.remove(&place).unwrap_or_default();
        let has_cached = self.facts.cached.iter().any(|((_, of), bytes)| *of == place && *bytes > 0);
        if full && !has_cached && !self.facts.extents_ran_out && !self.bounds().cold_after.is_zero() {
            let (now, bounds) = (self.facts.now, self.bounds());
            let patience = bounds.cold_after + bounds.sample_interval * 4 + SLACK;
            let since = |part: PartRef| (part, before.get(&part).copied().unwrap_or(now));
            let idle: BTreeMap<_, _> = self.find_cold(place, broker).into_iter().map(since).collect();
            let stays = idle.iter().find(|(_, since)| since.after(patience) < now).map(|(part, _)| *part);
            let pressure = self.pressure_in(place);
            self.expect(PRESSURE_RELIEF, stays.is_none(), || {
                format!("place {place} is {pressure}, and {stays:?} stays there although no session uses it")
            });
            self.facts.idle_since.insert(place, idle);
        }
    }

    fn is_anything_leaving(&self, place: usize) -> bool {
        let leaves = |phase| matches!(phase, ExtentPhase::Releasing | ExtentPhase::GivenUp);
        !self.facts.moves.is_empty()
            || !self.facts.departing.is_empty()
            || self.facts.extents.values().any(|it| it.place == place && leaves(it.phase))
    }

    fn is_at_target(&self, place: usize, broker: &Broker) -> bool {
        let facts = &self.facts.places[place];
        let view = broker.devices().into_iter().find(|device| device.uuid == facts.uuid);
        let fill = view.and_then(|view| match facts.tier {
            Tier::Device => Some((view.charged, view.capacity)),
            Tier::Host => view.host.map(|host| (host.charged, host.capacity)),
            Tier::Disk => None,
        });
        let target = u128::from(self.bounds().evict_to_percent);
        fill.is_none_or(|(held, capacity)| {
            u128::from(held.get()) * 100 <= u128::from(capacity.get()) * target
        })
    }

    fn find_cold(&self, place: usize, broker: &Broker) -> Vec<PartRef> {
        let allocations = self.facts.allocations.iter();
        let parts = allocations.filter(|(_, it)| may_leave(it)).flat_map(|(id, it)| {
            let part = |index: &u32| PartRef { allocation: *id, part: PartIndex(*index) };
            it.parts.keys().map(part)
        });
        let mut idle = parts.filter(|part| self.is_idle(*part)).collect::<Vec<_>>();
        idle.retain(|part| self.can_leave(*part, place) && is_settled(*part, broker));
        idle
    }

    fn is_idle(&self, part: PartRef) -> bool {
        let uses = |it: &crate::oracle::facts::SessionFacts| {
            !it.gone
                && (it.mappings.contains_key(&part)
                    || it.owed.contains(&part)
                    || it.pin_requested.contains(&part))
        };
        self.last_use_of(part).is_some_and(|used| used.after(self.bounds().cold_after) < self.facts.now)
            && !self.facts.sessions.values().any(uses)
            && !self.facts.pinned.iter().any(|(of, _)| *of == part)
            && !self.facts.part_waiters.contains_key(&part)
            && !self.facts.operator_holds.contains(&part)
            && !self.facts.failed_parts.contains(&part)
            && !self.facts.write_backs.values().any(|it| it.part == part)
            && !self.is_read(part.allocation)
    }

    fn is_read(&self, allocation: AllocationId) -> bool {
        self.facts.digesting.contains_key(&allocation) || !self.facts.revoking.is_empty()
    }

    /// Whether the part lies in that place, is above its tenant's guarantee there, and has a place to go to.
    fn can_leave(&self, part: PartRef, place: usize) -> bool {
        let Some(allocation) = self.facts.allocations.get(&part.allocation) else { return false };
        let (tenant, device) = (allocation.tenant, allocation.device);
        let Some(size) = self.size_of(part) else { return false };
        let tier = self.facts.places[place].tier;
        if self.facts.place(device, tier) != Some(place) || self.tier_of(part) != Some(tier) {
            return false;
        }
        if self.facts.charged(tenant, place).saturating_sub(size) < self.quota_now(tenant, place).0 {
            return false;
        }
        match tier {
            Tier::Device => matches!(
                self.facts.backings.get(&part),
                Some(BackingFacts::Kept(_) | BackingFacts::Reserved { .. })
            ),
            Tier::Host => {
                let disk = self.facts.place(device, Tier::Disk);
                disk.is_some_and(|disk| self.would_admit(tenant, disk, size))
            }
            Tier::Disk => false,
        }
    }
}

/// Whether nothing is under way with the allocation as a whole: a seal may never end.
fn is_settled(part: PartRef, broker: &Broker) -> bool {
    let view = broker.show(&Target::Id(part.allocation));
    view.is_ok_and(|view| matches!(view.state, AllocationState::Open | AllocationState::Sealed))
}

fn may_leave(allocation: &AllocationFacts) -> bool {
    allocation.kind == Kind::Movable && !allocation.discardable && !allocation.leaving && !allocation.freed
}
