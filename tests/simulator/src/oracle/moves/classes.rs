//! Classes of tenants. No part of a higher class leaves a device for pressure or a prefetch while a cold part of a lower
//! class stays there that could certainly have left.

use std::{
    cell::LazyCell,
    collections::{BTreeMap, BTreeSet},
    ops::Deref,
};

use broker_core::{Broker, Cause, Kind, PartRef, invariants::CLASS_ORDER};

use crate::oracle::{Oracle, facts::Tenant, line::waiting::UsedParts, sessions::silences::Doubt};

impl Oracle {
    /// Checks a part that begins to leave a device, together with others.
    pub(crate) fn check_class_order(
        &mut self,
        (part, tenant, device): (PartRef, Tenant, usize),
        cause: Cause,
        leaving: &BTreeSet<PartRef>,
        broker: &Broker,
    ) {
        let is_unsure = self.step.quotas_changed || self.step.settings_changed || self.facts.extents_ran_out;
        // A tenant at its own limit gives up its own memory. For its own requests its parts leave by rank, cold or not.
        let asks = |of: Tenant| cause == Cause::Prefetch && self.prefetched_bytes(of, device, broker) > 0;
        if is_unsure || asks(tenant) {
            return;
        }
        let class = self.class_of(tenant);
        // A part waits for the end of an earlier copy to where it goes.
        let is_moving = |part: &PartRef| broker.moves().iter().any(|it| it.part == *part);
        let used = LazyCell::new(|| self.used_parts());
        let mut spared = self.facts.leavable_by_class.iter().filter(|(other, of, on)| {
            *on == device
                && self.class_of(*of) < class
                && !asks(*of)
                && !leaving.contains(other)
                && !self.facts.prefetches.is_named(*other)
                && !self.facts.prefetches.sequences.is_named(*other)
                && self.can_leave_as_cold(*other, &used)
                && self.is_surely_above_guarantee(*other, *of, device)
                && !is_moving(other)
                && self.resident(*other).is_some()
        });
        let spared = spared.next().map(|(other, of, _)| (*other, *of, self.class_of(*of)));
        drop(used);
        self.expect(CLASS_ORDER, spared.is_none(), || {
            format!("{part:?} of tenant {tenant} and class {class} leaves device {device} for {cause:?}, and {spared:?} stays")
        });
    }

    /// Whether the part was not used for so long that it may leave, and nothing keeps it.
    fn can_leave_as_cold(&self, part: PartRef, used: &impl Deref<Target = UsedParts>) -> bool {
        let has_cold = self.settings.cold_after(self.facts.now).is_some_and(|after| !after.is_zero());
        has_cold
            && self.is_surely_cold(part)
            && self.can_surely_leave(part, used)
            && self.doubt_about(part) == Doubt::Nothing
    }

    pub(crate) fn is_surely_above_guarantee(&self, part: PartRef, tenant: Tenant, device: usize) -> bool {
        let guarantee = self.quota_now(tenant, device).0;
        // Cached memory that leaves for the target may be reused in the same event.
        let reused = self.step.taken.get(&(tenant, device)).copied().unwrap_or_default();
        let leaving = self.leaving_bytes_max(tenant, device) + reused;
        let rest = self.facts.charged(tenant, device).saturating_sub(leaving);
        guarantee == 0 || self.size_of(part).is_some_and(|size| rest.saturating_sub(size) > guarantee)
    }

    /// Records the parts that can certainly leave their devices after this event, if tenants are of several classes.
    pub(crate) fn record_leavable_by_class(&mut self, broker: &Broker) {
        self.facts.leavable_by_class.clear();
        let owners: BTreeSet<Tenant> = self.facts.allocations.values().map(|it| it.tenant).collect();
        let classes: BTreeSet<_> = owners.into_iter().map(|tenant| self.class_of(tenant)).collect();
        if classes.len() < 2 {
            return;
        }
        let mut open = BTreeMap::new();
        let mut found = Vec::new();
        let used = LazyCell::new(|| self.used_parts());
        for part in self.facts.backings.keys().copied() {
            let Some((tenant, device, _)) = self.resident(part) else { continue };
            let is_meant =
                self.facts.allocations.get(&part.allocation).is_some_and(|it| {
                    it.kind == Kind::Movable && !it.discardable && !it.leaving && !it.freed
                });
            let is_open = is_meant
                && *open.entry(part.allocation).or_insert_with(|| Self::is_to_be_mapped(part, broker));
            if is_open && self.can_leave_as_cold(part, &used) {
                found.push((part, tenant, device));
            }
        }
        drop(used);
        self.facts.leavable_by_class = found;
    }
}
