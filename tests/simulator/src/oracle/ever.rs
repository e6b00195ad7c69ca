//! Nobody waits for what can never be: more than a device has, than the tenant that is charged may have there, or than the guarantees of
//! others leave.

use std::collections::BTreeMap;

use broker_core::{PartRef, invariants::DEMANDS};
use vramd_types::{AllocationId, PartIndex};

use super::{Oracle, facts::Tenant};

impl Oracle {
    /// Who has just asked is judged; and everybody who waits when a quota has changed.
    pub(super) fn nobody_waits_for_ever(&mut self) {
        let (now, all) = (self.facts.clock, self.step.quotas_changed);
        let served = self.facts.sessions.iter().filter(|(_, session)| self.is_served(session));
        let calls =
            served.flat_map(|(id, session)| session.pin_calls.iter().map(move |(at, call)| (*id, *at, call)));
        let judged = calls.filter(|(.., call)| !call.answered && (all || call.came == now));
        let judged: Vec<_> = judged.map(|(id, at, call)| ((id, at), call.parts.clone())).collect();
        for (call, parts) in judged {
            let can = self.could_be_together(&parts);
            self.expect(DEMANDS, can, || format!("{call:?} waits for what can never be: {parts:?}"));
        }
    }

    /// Who attaches what is not all on its device is sent all of it, if that can be there.
    pub(super) fn attaches_what_can_be(&mut self, id: AllocationId, new: &[PartRef]) {
        let Some(count) = self.facts.allocations.get(&id).map(|it| it.part_count) else { return };
        let mut parts = (0..).map(PartIndex).take(count).map(|part| PartRef { allocation: id, part });
        if parts.any(|part| self.lies_elsewhere(part)) {
            let can = self.could_be_together(new);
            self.expect(DEMANDS, can, || format!("{id} is attached, and {new:?} can never be on its device"));
        }
    }

    fn could_be_together(&mut self, parts: &[PartRef]) -> bool {
        let mut asked: BTreeMap<usize, BTreeMap<Tenant, u64>> = BTreeMap::new();
        for part in parts {
            let allocation = self.facts.allocations.get(&part.allocation);
            if let Some((allocation, size)) = allocation.zip(self.size_of(*part)) {
                *asked.entry(allocation.device).or_default().entry(allocation.tenant).or_default() += size;
            }
        }
        asked.into_iter().all(|(device, of)| self.fit_on(device, &of))
    }

    fn fit_on(&mut self, device: usize, asked: &BTreeMap<Tenant, u64>) -> bool {
        let capacity = self.usual_capacity(device);
        let (mut with, mut is_own) = (0, true);
        for tenant in 0..self.facts.tenants.len() {
            // What is about to be written since this event began is judged when it is.
            let (guarantee, limit) = match self.step.quotas_changed {
                true => self.quota_in(&self.facts.book, tenant, device),
                false => self.quota_now(tenant, device),
            };
            let asked = asked.get(&tenant).copied().unwrap_or_default();
            if asked > limit {
                return false;
            }
            is_own &= asked <= guarantee;
            with += guarantee.max(asked);
        }
        // What is guaranteed beyond what there is now is still its tenant's first.
        asked.values().sum::<u64>() <= capacity && (with <= capacity || is_own)
    }
}
