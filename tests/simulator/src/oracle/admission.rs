//! What is admitted and what is refused: limits, and the sum of what is guaranteed and held.

use broker_core::{
    Refusal,
    invariants::{ADMISSION, LIMIT},
};

use super::{Oracle, facts::Book};

impl Oracle {
    /// What is committed of each device: by tenant, the larger of what it is guaranteed and what it holds.
    pub(super) fn committed_all(&mut self) -> Vec<u128> {
        let mut sums = Vec::with_capacity(self.facts.devices.len());
        for device in 0..self.facts.devices.len() {
            let mut sum = 0;
            for tenant in 0..self.facts.tenants.len() {
                let guarantee = self.quota_now(tenant, device).0;
                sum += u128::from(guarantee.max(self.facts.held(tenant, device)));
            }
            sums.push(sum);
        }
        sums
    }

    /// What would be committed of a device if nothing were cached.
    fn committed_in_use(&mut self, device: usize) -> u128 {
        let of = |oracle: &mut Self, tenant| {
            u128::from(oracle.quota_now(tenant, device).0.max(oracle.held_in_use(tenant, device)))
        };
        (0..self.facts.tenants.len()).map(|tenant| of(self, tenant)).sum()
    }

    /// What the event admitted keeps the limit, and the sum where it had been kept.
    pub(super) fn admitted(&mut self) {
        if self.step.created == 0 {
            return;
        }
        for (device, after) in self.committed_all().into_iter().enumerate() {
            let (before, capacity) = (self.step.committed[device], u128::from(self.capacity(device)));
            let fits = after <= capacity || after <= before;
            self.expect(ADMISSION, fits, || {
                format!("device {device}: {after} committed after {before}, of {capacity}")
            });
        }
        for (tenant, device) in std::mem::take(&mut self.step.admitted) {
            let (held, limit) = (self.facts.held(tenant, device), self.quota_now(tenant, device).1);
            let name = self.facts.tenants[tenant].clone();
            self.expect(LIMIT, held <= limit, || {
                format!("{name} was admitted to {held} on device {device}, its limit is {limit}")
            });
        }
    }

    /// A batch that was refused for want of room really lacked it, and would have without all that is cached.
    pub(super) fn refused_for_room(&mut self, tenant: usize, refusal: &Refusal) {
        let place = |device: &str| self.facts.devices.iter().position(|it| it.uuid == device);
        match refusal {
            Refusal::QuotaLimit { device, limit, held, asked, .. } => {
                let Some(device) = place(device) else { return };
                let is = (limit.get(), held.get());
                let should = (self.quota_now(tenant, device).1, self.facts.held(tenant, device));
                let in_use = u128::from(self.held_in_use(tenant, device));
                let over = in_use + u128::from(asked.get()) > u128::from(is.0);
                self.expect(LIMIT, is == should && over, || {
                    format!("refused for limit and held {is:?} with {asked} asked; they are {should:?}")
                });
            }
            Refusal::DeviceFull { device, asked, .. } => {
                let Some(device) = place(device) else { return };
                let guarantee = u128::from(self.quota_now(tenant, device).0);
                let held = u128::from(self.held_in_use(tenant, device));
                let before = self.committed_in_use(device);
                let with = held + u128::from(asked.get());
                let after = before - guarantee.max(held) + guarantee.max(with);
                let capacity = u128::from(self.capacity(device));
                self.expect(ADMISSION, after > capacity && after > before, || {
                    format!("{asked} refused: {after} would be committed after {before}, of {capacity}")
                });
            }
            _ => {}
        }
    }

    /// A change of quotas that is about to be written can be kept.
    pub(super) fn quota_is_backed(&mut self, staged: &Book) {
        self.learn_tenants();
        for (name, _) in staged.keys() {
            self.facts.tenant(name);
        }
        self.facts.quotas.clear();
        let before = self.committed_all();
        for (device, before) in before.into_iter().enumerate() {
            let mut after = 0;
            for tenant in 0..self.facts.tenants.len() {
                let new = self.quota_in(staged, tenant, device).0.max(self.quota_now(tenant, device).0);
                after += u128::from(new.max(self.facts.held(tenant, device)));
            }
            let capacity = u128::from(self.capacity(device));
            self.expect(ADMISSION, after <= capacity || after <= before, || {
                format!("a quota would commit {after} of {capacity} on device {device}, {before} before")
            });
        }
        self.facts.quotas.clear();
    }

    /// A guarantee that was refused could not have been kept.
    pub(super) fn refused_guarantee(&mut self, refusal: &Refusal) {
        let Refusal::GuaranteeUnbacked { tenant, device, guarantee, capacity, committed, .. } = refusal
        else {
            return;
        };
        let Some(device) = self.facts.devices.iter().position(|it| it.uuid == *device) else { return };
        let tenant = self.facts.tenant(tenant);
        let held = self.facts.held(tenant, device);
        let own = u128::from(self.quota_now(tenant, device).0.max(held));
        let before = self.committed_all()[device];
        let would = before - own + u128::from(guarantee.get().max(held));
        let should = (u128::from(self.capacity(device)), would);
        let is = (u128::from(capacity.get()), u128::from(committed.get()));
        let in_use = self.held_in_use(tenant, device);
        let own = u128::from(self.quota_now(tenant, device).0.max(in_use));
        let least = self.committed_in_use(device) - own + u128::from(guarantee.get().max(in_use));
        let lacks = least > should.0 && least > self.committed_in_use(device);
        self.expect(ADMISSION, is == should && lacks && would > before, || {
            format!("a guarantee is refused for capacity and committed {is:?}; they are {should:?}")
        });
    }
}
