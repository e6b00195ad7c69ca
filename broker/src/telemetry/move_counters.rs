//! Counts ended moves by tenant and kind, for as long as the daemon lives. It also counts which fetched parts the
//! daemon sent to a client before they left again: a part that no client maps was fetched for nothing.
//!
//! A counter must not fall. So a series that is counted for a tenant by name keeps that name, and new combinations are
//! counted for `_other` for good once no series are left. [`super::figures::NamedTenants`] gives out names more freely,
//! since its values may fall.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::{Mutex, MutexGuard, PoisonError},
};

use broker_core::{Notice, PartRef};
use vramd_types::{AllocationId, Bytes, PartIndex};

use super::{
    ended_move::{EndedMove, MoveKind},
    metrics::OTHER_TENANTS,
};

#[derive(Debug)]
pub(super) struct MoveCounters {
    /// Maximum series of tenants by name. Beside them all series of `_other` fit.
    named_max: usize,
    counted: Mutex<Counted>,
}

#[derive(Debug, Default)]
struct Counted {
    tenants: BTreeMap<String, Counts>,
    /// The number of series that belong to a tenant by name.
    named: usize,
    /// Fetched parts that the daemon has not yet sent to a client, with the series that counts them.
    unused: BTreeMap<PartRef, (String, MoveKind, Bytes)>,
}

pub(super) type Counts = BTreeMap<MoveKind, Count>;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) parts: u64,
    pub(super) bytes: u64,
    /// The part of `bytes` that the daemon sent to a client before it left again.
    pub(super) used: u64,
}

impl MoveCounters {
    pub(super) fn new(series_max: usize, devices: usize) -> Self {
        let others_max = devices.max(1).saturating_mul(MoveKind::ON_DEVICE);
        Self { named_max: series_max.saturating_sub(others_max), counted: Mutex::default() }
    }

    /// Counts an ended move.
    pub(super) fn count(&self, ended: &EndedMove<'_>) {
        let EndedMove { part, tenant, kind, bytes, .. } = *ended;
        let mut counted = self.lock();
        let name = counted.series_name(tenant, kind, self.named_max);
        let count = counted.count_mut(&name, kind);
        count.parts = count.parts.saturating_add(1);
        count.bytes = count.bytes.saturating_add(bytes.get());
        if kind.is_arrival() {
            counted.unused.insert(part, (name, kind, bytes));
        } else if kind.is_departure() {
            counted.unused.remove(&part);
        }
    }

    /// Counts parts that the daemon is about to send to a client.
    pub(super) fn count_used(&self, parts: impl IntoIterator<Item = PartRef>) {
        let mut counted = self.lock();
        if counted.unused.is_empty() {
            return;
        }
        for part in parts {
            if let Some((name, kind, bytes)) = counted.unused.remove(&part) {
                let count = counted.count_mut(&name, kind);
                count.used = count.used.saturating_add(bytes.get());
            }
        }
    }

    /// Forgets the parts of an allocation that is gone.
    pub(super) fn forget_gone(&self, notice: &Notice) {
        if let Notice::AllocationGone { allocation, .. } = notice {
            self.lock().forget(*allocation);
        }
    }

    /// Returns all counts by tenant.
    pub(super) fn by_tenant(&self) -> BTreeMap<String, Counts> {
        self.lock().tenants.clone()
    }

    /// Locks the counts. The reactor and the collecting thread keep the lock only briefly.
    fn lock(&self) -> MutexGuard<'_, Counted> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counted {
    /// Returns the tenant's name, or `_other` if no series is left.
    fn series_name(&self, tenant: &str, kind: MoveKind, named_max: usize) -> String {
        let is_named = self.tenants.get(tenant).is_some_and(|counts| counts.contains_key(&kind));
        let name = if is_named || self.named < named_max { tenant } else { OTHER_TENANTS };
        name.to_owned()
    }

    fn count_mut(&mut self, name: &str, kind: MoveKind) -> &mut Count {
        match self.tenants.entry(name.to_owned()).or_default().entry(kind) {
            Entry::Occupied(count) => count.into_mut(),
            Entry::Vacant(vacant) => {
                self.named += usize::from(name != OTHER_TENANTS);
                vacant.insert(Count::default())
            }
        }
    }

    fn forget(&mut self, allocation: AllocationId) {
        let part = |index| PartRef { allocation, part: PartIndex(index) };
        let gone: Vec<_> =
            self.unused.range(part(u32::MIN)..=part(u32::MAX)).map(|(part, _)| *part).collect();
        for part in gone {
            self.unused.remove(&part);
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use broker_core::{Cause, Tier, Time};
    use vramd_types::DeviceIndex;

    use super::*;

    pub(in crate::telemetry) fn part(index: u32) -> PartRef {
        PartRef { allocation: AllocationId::from_shown(1), part: PartIndex(index) }
    }

    pub(in crate::telemetry) fn moved_to(
        tier: Tier,
        part: PartRef,
        tenant: &str,
        cause: Cause,
        copied: bool,
    ) -> Notice {
        let (tenant, device, bytes, began) = (tenant.into(), DeviceIndex(0), Bytes::mib(2), Time::START);
        let for_parts = Vec::new();
        let from = if tier == Tier::Device { Tier::Host } else { Tier::Device };
        Notice::Moved { part, tenant, device, from, tier, bytes, cause, began, copied, sum: None, for_parts }
    }

    /// The notice that a part of 2 MiB has moved to the host.
    pub(in crate::telemetry) fn moved(tenant: &str) -> Notice {
        moved_to(Tier::Host, part(0), tenant, Cause::Operator, true)
    }

    /// The notice that a part was fetched to its device on demand.
    pub(in crate::telemetry) fn arrived(part: PartRef, tenant: &str) -> Notice {
        moved_to(Tier::Device, part, tenant, Cause::Demand, true)
    }

    fn count(moves: &MoveCounters, notice: &Notice) {
        moves.count(&EndedMove::of(notice).unwrap());
    }

    fn used(moves: &MoveCounters) -> u64 {
        moves.by_tenant().values().flat_map(BTreeMap::values).map(|count| count.used >> 20).sum()
    }

    #[test]
    fn each_direction_cause_and_outcome_has_its_own_count() {
        let moves = MoveCounters::new(4000, 2);
        count(&moves, &moved("a"));
        count(&moves, &moved("a"));
        count(&moves, &moved_to(Tier::Host, part(1), "a", Cause::Demand, false));
        let (tier, device, bytes, began) = (Tier::Device, DeviceIndex(0), Bytes::mib(2), Time::START);
        let (part, tenant, cause) = (part(1), "a".into(), Cause::Rebalance);
        let (problem, from) = ("a cable".to_owned(), Tier::Host);
        count(&moves, &Notice::MoveFailed { part, tenant, device, from, tier, bytes, cause, began, problem });
        let tenant = "a".into();
        count(&moves, &Notice::MoveStopped { part, tenant, device, from, tier, bytes, cause, began });
        let counted: Vec<_> = moves.by_tenant()["a"]
            .iter()
            .map(|(kind, count)| (kind.direction, kind.cause, kind.outcome, count.parts, count.bytes >> 20))
            .collect();
        assert_eq!(
            counted,
            [
                ("in", "rebalance", "failed", 1, 2),
                ("in", "rebalance", "stopped", 1, 2),
                ("out", "demand", "clean", 1, 2),
                ("out", "operator", "moved", 2, 4)
            ]
        );
    }

    #[test]
    fn late_tenants_are_counted_as_other_and_no_count_falls() {
        // Beside all series of `_other`.
        let named = 58;
        let moves = MoveCounters::new(2 * MoveKind::ON_DEVICE + named, 2);
        let mut last = moves.by_tenant();
        for round in 0..3 {
            for tenant in 0..80 {
                count(&moves, &moved(&format!("team-{:03}", 99 - tenant)));
            }
            let now = moves.by_tenant();
            assert_eq!(now.len(), named + 1);
            let parts: u64 = now.values().flat_map(BTreeMap::values).map(|count| count.parts).sum();
            assert_eq!(parts, 80 * (round + 1));
            for (tenant, counts) in &last {
                assert!(counts.iter().all(|(kind, count)| now[tenant][kind].parts >= count.parts));
            }
            last = now;
        }
        assert_eq!(last[OTHER_TENANTS].values().map(|count| count.parts).sum::<u64>(), 3 * 22);
        // A new combination of a named tenant is counted for `_other` too.
        count(&moves, &arrived(part(1), "team-099"));
        assert_eq!(moves.by_tenant()["team-099"].len(), 1);
        assert_eq!(moves.by_tenant().values().map(BTreeMap::len).sum::<usize>(), named + 2);
        moves.count_used([part(1)]);
        assert_eq!(used(&moves), 2, "and there it is found again");
    }

    #[test]
    fn an_arrived_part_counts_as_used_once_if_sent_before_it_leaves() {
        let moves = MoveCounters::new(4000, 1);
        for index in 0..4 {
            count(&moves, &arrived(part(index), "a"));
        }
        moves.count_used([part(0), part(9)]);
        moves.count_used([part(0)]);
        assert_eq!(used(&moves), 2);
        // The part left again before.
        count(&moves, &moved_to(Tier::Host, part(1), "a", Cause::Demand, false));
        moves.count_used([part(1)]);
        assert_eq!(used(&moves), 2);
        moves.count_used([part(2)]);
        assert_eq!(used(&moves), 4);
        moves.forget_gone(&Notice::AllocationGone {
            allocation: AllocationId::from_shown(1),
            tenant: "a".into(),
        });
        moves.count_used([part(3)]);
        assert_eq!(used(&moves), 4);
        assert!(moves.lock().unused.is_empty());
    }
}
