//! Who wants a part that is elsewhere, in a pin call or since it attached it, waits only while there is no room for it;
//! and nobody who came later is in its way.

use std::collections::BTreeSet;

use broker_core::{Broker, PartRef, Tier, invariants::DEMANDS};

use super::{
    Oracle,
    facts::{ExtentPhase, Tenant},
};

/// Why a part waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    /// Its tenant is at its limit.
    Limit,
    /// The device is full.
    Full,
    Nothing,
}

#[derive(Clone, Copy, Debug)]
struct Why {
    device: usize,
    tenant: Tenant,
    /// It would be within what is guaranteed to its tenant.
    guaranteed: bool,
    wait: Wait,
}

impl Oracle {
    pub(super) fn nobody_is_kept_waiting(&mut self, broker: &Broker) {
        let wanted: BTreeSet<_> =
            self.wanted(broker).into_iter().filter(|part| self.lies_elsewhere(*part)).collect();
        let clock = self.facts.clock;
        self.facts.demands.retain(|part, _| wanted.contains(part));
        for part in wanted {
            self.facts.demands.entry(part).or_insert(clock);
        }
        if self.facts.demands.is_empty() || self.facts.extents.len() >= self.limits.extents_max {
            return;
        }
        let demands: Vec<_> = self.facts.demands.iter().map(|(part, since)| (*part, *since)).collect();
        let each: Vec<_> = demands.into_iter().map(|(part, since)| (part, since, self.why(part))).collect();
        for (part, since, why) in &each {
            // Nobody overtakes on a full device, but for what is guaranteed; and no tenant overtakes itself.
            let before = |other: &&(PartRef, u64, Why)| {
                let (full, limit) = (other.2.wait == Wait::Full, other.2.wait == Wait::Limit);
                let same = other.2.device == why.device;
                other.1 <= *since
                    && same
                    && ((full && !why.guaranteed) || (limit && other.2.tenant == why.tenant))
            };
            let excused = self.facts.unlucky.contains(part);
            let kept = why.wait == Wait::Nothing && !excused && !each.iter().any(|other| before(&other));
            self.expect(DEMANDS, !kept, || {
                format!("{part:?} is wanted since event {since}, and there is room: {each:?}")
            });
        }
    }

    /// Parts that sessions lack that can be sent to: of pin calls, and those that they are to be sent anyhow.
    fn wanted(&self, broker: &Broker) -> Vec<PartRef> {
        let mut wanted = Vec::new();
        for session in self.facts.sessions.values() {
            if session.gone || session.ending || !self.facts.is_heard(session) {
                continue;
            }
            let waiting = session.pin_calls.values().filter(|call| !call.answered);
            let lacking = waiting.flat_map(|call| &call.parts).filter(|part| session.away.contains(part));
            wanted.extend(lacking.copied());
            let owed = session.owed.iter().filter(|part| Self::is_to_be_mapped(**part, broker));
            wanted.extend(owed.copied());
        }
        wanted
    }

    /// Whether the part lies in another tier, and does not move.
    pub(super) fn lies_elsewhere(&self, part: PartRef) -> bool {
        self.tier_of(part).is_some_and(|tier| tier != Tier::Device) && !self.may_move(part)
    }

    /// Of what a part is short that would come to its device, and what that is. What is cached is room, and what is on its
    /// way to the driver will be.
    fn why(&mut self, part: PartRef) -> Why {
        let allocation = self.facts.allocations.get(&part.allocation);
        let extent = allocation.and_then(|it| self.facts.extents.get(it.parts.get(&part.part.0)?));
        let Some((allocation, extent)) = allocation.zip(extent) else {
            return Why { device: 0, tenant: Tenant::default(), guaranteed: false, wait: Wait::Full };
        };
        let (tenant, device, size) = (allocation.tenant, allocation.device, u128::from(extent.size));
        let (guarantee, limit) = self.quota_now(tenant, device);
        let held = u128::from(self.held_in_use(tenant, device));
        let guaranteed = held + size <= u128::from(guarantee);
        let why = |wait| Why { device, tenant, guaranteed, wait };
        let leaving = |extent: &super::facts::ExtentFacts| {
            extent.place == device && matches!(extent.phase, ExtentPhase::Releasing | ExtentPhase::GivenUp)
        };
        if self.facts.extents.values().any(leaving) {
            return why(Wait::Full);
        }
        if held + size > u128::from(limit) {
            return why(Wait::Limit);
        }
        let guarantee = u128::from(guarantee);
        let before = self.committed_in_use(device);
        let after = before - guarantee.max(held) + guarantee.max(held + size);
        match after > u128::from(self.capacity(device)) && after > before {
            true => why(Wait::Full),
            false => why(Wait::Nothing),
        }
    }
}
