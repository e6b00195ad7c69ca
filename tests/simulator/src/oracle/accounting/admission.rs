//! Admission: limits, and the committed sum of guarantees and charges.

use broker_core::{
    AllocationSpec, Broker, Refusal, Tier,
    invariants::{ADMISSION, LIMIT},
};

use crate::oracle::{Oracle, facts::QuotaTable, line::waiting::Shortage};

impl Oracle {
    /// Committed bytes of each place: the sum over tenants of the larger of guarantee and charge.
    pub(crate) fn committed_all(&self) -> Vec<u128> {
        let mut sums = Vec::with_capacity(self.facts.places.len());
        for place in 0..self.facts.places.len() {
            let mut sum = 0;
            for tenant in 0..self.facts.tenants.len() {
                let guarantee = self.quota_now(tenant, place).0;
                sum += u128::from(guarantee.max(self.facts.charged(tenant, place)));
            }
            sums.push(sum);
        }
        sums
    }

    /// Bytes that would be committed in a place if nothing were cached.
    pub(crate) fn committed_in_use(&self, place: usize) -> u128 {
        let in_use =
            |tenant| u128::from(self.quota_now(tenant, place).0.max(self.charged_in_use(tenant, place)));
        (0..self.facts.tenants.len()).map(in_use).sum()
    }

    /// Checks that the event's admissions kept every limit, and the committed sum wherever it was kept
    /// before.
    pub(crate) fn check_admissions(&mut self) {
        if self.step.ordered_count == 0 {
            return;
        }
        for (place, after) in self.committed_all().into_iter().enumerate() {
            let (before, capacity) = (self.step.committed[place], u128::from(self.capacity(place)));
            let fits = after <= capacity || after <= before;
            self.expect(ADMISSION, fits, || {
                format!("place {place}: {after} committed after {before}, of {capacity}")
            });
        }
        for (tenant, place) in std::mem::take(&mut self.step.admitted) {
            let (held, limit) = (self.facts.charged(tenant, place), self.quota_now(tenant, place).1);
            let name = self.facts.tenants[tenant].clone();
            self.expect(LIMIT, held <= limit, || {
                format!("{name} was admitted to {held} bytes in place {place}; its limit is {limit}")
            });
        }
    }

    /// Checks that a batch that was refused for want of room was short of it, even without all cached memory.
    pub(crate) fn check_refusal_for_room(
        &mut self,
        tenant: usize,
        items: &[AllocationSpec],
        refusal: &Refusal,
        broker: &Broker,
    ) {
        // A batch behind other waiters is refused for what they take. A batch on several devices may be short
        // on any of them.
        let on_one = items.windows(2).all(|pair| pair[0].device == pair[1].device);
        let alone = on_one && self.facts.part_waiters.is_empty() && self.facts.waits.is_empty();
        if let Refusal::QuotaLimit { device, tier: Tier::Device, requested: asked, .. }
        | Refusal::DeviceFull { device, tier: Tier::Device, requested: asked, .. } = refusal
            && let Some(place) = self.facts.place_of(device, Tier::Device).filter(|_| alone)
            && !self.facts.extents_ran_out
        {
            let leavable = self.leavable(place, broker, &self.used_parts());
            let shortage = self.shortage(tenant, place, asked.get(), &leavable);
            // A request above the capacity never fits.
            let fits = asked.get() <= self.capacity(place);
            self.expect(ADMISSION, shortage != Shortage::None || !fits, || {
                format!("a batch is refused although {leavable:?} could leave place {place}: {refusal:?}")
            });
        }
        match refusal {
            Refusal::QuotaLimit { device, tier, limit, charged: held, requested: asked, .. } => {
                let Some(place) = self.facts.place_of(device, *tier) else { return };
                let shown = (limit.get(), held.get());
                let expected = (self.quota_now(tenant, place).1, self.facts.charged(tenant, place));
                let in_use = u128::from(self.charged_in_use(tenant, place));
                let over = *tier == Tier::Device || in_use + u128::from(asked.get()) > u128::from(shown.0);
                self.expect(LIMIT, shown == expected && over, || {
                    format!(
                        "a batch of {asked} is refused with limit and charge {shown:?}; they are {expected:?}"
                    )
                });
            }
            Refusal::DeviceFull { device, tier, requested: asked, .. } if *tier != Tier::Device => {
                let Some(place) = self.facts.place_of(device, *tier) else { return };
                let guarantee = u128::from(self.quota_now(tenant, place).0);
                let held = u128::from(self.charged_in_use(tenant, place));
                let before = self.committed_in_use(place);
                let with = held + u128::from(asked.get());
                let after = before - guarantee.max(held) + guarantee.max(with);
                let capacity = u128::from(self.capacity(place));
                self.expect(ADMISSION, after > capacity && after > before, || {
                    format!("a batch of {asked} is refused: {after} would be committed after {before}, of {capacity}")
                });
            }
            _ => {}
        }
    }

    /// Checks that a change of quotas that is about to be stored can be kept.
    pub(crate) fn check_staged_guarantees(&mut self, staged: &QuotaTable) {
        self.learn_tenants();
        for (name, ..) in staged.keys() {
            self.facts.tenant(name);
        }
        self.facts.quotas.get_mut().clear();
        let before = self.committed_all();
        for (place, before) in before.into_iter().enumerate() {
            let mut after = 0;
            for tenant in 0..self.facts.tenants.len() {
                let new = self.quota_in(staged, tenant, place).0.max(self.quota_now(tenant, place).0);
                after += u128::from(new.max(self.facts.charged(tenant, place)));
            }
            let capacity = u128::from(self.capacity(place));
            self.expect(ADMISSION, after <= capacity || after <= before, || {
                format!("a quota would commit {after} of {capacity} on place {place}, {before} before")
            });
        }
        self.facts.quotas.get_mut().clear();
    }

    /// Checks that a refused guarantee could not have been kept.
    pub(crate) fn check_refused_guarantee(&mut self, refusal: &Refusal) {
        let Refusal::GuaranteeUnbacked { tenant, device, tier, guarantee, capacity, committed } = refusal
        else {
            return;
        };
        let Some(place) = self.facts.place_of(device, *tier) else { return };
        let tenant = self.facts.tenant(tenant);
        let held = self.facts.charged(tenant, place);
        let own = u128::from(self.quota_now(tenant, place).0.max(held));
        let before = self.committed_all()[place];
        let would = before - own + u128::from(guarantee.get().max(held));
        let expected = (u128::from(self.capacity(place)), would);
        let shown = (u128::from(capacity.get()), u128::from(committed.get()));
        let in_use = self.charged_in_use(tenant, place);
        let own = u128::from(self.quota_now(tenant, place).0.max(in_use));
        let least = self.committed_in_use(place) - own + u128::from(guarantee.get().max(in_use));
        let lacks = least > expected.0 && least > self.committed_in_use(place);
        self.expect(ADMISSION, shown == expected && lacks && would > before, || {
            format!("a guarantee is refused for capacity and committed {shown:?}; they are {expected:?}")
        });
    }
}
