//! Parts that went to another tier, or were to: counted where it is told, for as long as the daemon lives.
//!
//! A counter must not fall, so who is counted by name here stays so, and who comes when no names are left is one of the others
//! for good. [`super::figures::Roll`] is more generous with names, since what it shows may fall.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use broker_core::{Notice, Tier};
use vramd_types::{Bytes, DeviceIndex};

use super::registry::OTHER_TENANTS;

/// Series that one tenant has on one device: for each direction and outcome.
const SERIES_ON_DEVICE: usize = 7;

#[derive(Debug)]
pub(super) struct Moves {
    /// Tenants that are counted by name.
    named_max: usize,
    tenants: Mutex<BTreeMap<String, Counts>>,
}

pub(super) type Counts = BTreeMap<Kind, Count>;

/// What is counted apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Kind {
    pub(super) device: DeviceIndex,
    /// `in` or `out`, as seen from the device.
    pub(super) direction: &'static str,
    pub(super) outcome: &'static str,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) parts: u64,
    pub(super) bytes: u64,
}

impl Moves {
    pub(super) fn new(series_max: usize, devices: usize) -> Self {
        let each = devices.max(1).saturating_mul(SERIES_ON_DEVICE);
        Self { named_max: (series_max / each).saturating_sub(1), tenants: Mutex::default() }
    }

    /// Counts it, if it is a move.
    pub(super) fn told(&self, notice: &Notice) {
        let (outcome, tenant, device, tier, bytes) = match notice {
            Notice::Moved { tenant, device, tier, bytes, .. } => ("moved", tenant, device, tier, bytes),
            Notice::Dropped { tenant, device, tier, bytes, .. } => ("dropped", tenant, device, tier, bytes),
            Notice::MoveFailed { tenant, device, tier, bytes, .. } => ("failed", tenant, device, tier, bytes),
            Notice::MoveStopped { tenant, device, tier, bytes, .. } => {
                ("stopped", tenant, device, tier, bytes)
            }
            _ => return,
        };
        let direction = if *tier == Tier::Device { "in" } else { "out" };
        self.count(tenant, Kind { device: *device, direction, outcome }, *bytes);
    }

    fn count(&self, tenant: &str, kind: Kind, bytes: Bytes) {
        let mut tenants = self.lock();
        let named = tenants.len().saturating_sub(usize::from(tenants.contains_key(OTHER_TENANTS)));
        let fits = named < self.named_max || tenants.contains_key(tenant);
        let name = if fits { tenant } else { OTHER_TENANTS };
        let count = tenants.entry(name.to_owned()).or_default().entry(kind).or_default();
        count.parts = count.parts.saturating_add(1);
        count.bytes = count.bytes.saturating_add(bytes.get());
    }

    /// By tenant.
    pub(super) fn all(&self) -> BTreeMap<String, Counts> {
        self.lock().clone()
    }

    /// The reactor and whoever collects: neither has it for long.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Counts>> {
        self.tenants.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use broker_core::{Cause, PartRef, Time};
    use vramd_types::{AllocationId, PartIndex};

    use super::*;

    /// That a part of 2 MiB has come to the host.
    pub(in crate::telemetry) fn moved(tenant: &str) -> Notice {
        let part = PartRef { allocation: AllocationId::from_raw(1), part: PartIndex(0) };
        let (device, tier, bytes) = (DeviceIndex(0), Tier::Host, Bytes::mib(2));
        let (cause, began) = (Cause::Operator, Time::START);
        Notice::Moved { part, tenant: tenant.into(), device, tier, bytes, cause, began }
    }

    #[test]
    fn each_way_and_each_end_is_counted_apart() {
        let moves = Moves::new(4000, 2);
        moves.told(&moved("a"));
        moves.told(&moved("a"));
        if let Notice::Moved { part, tenant, device, bytes, cause, began, .. } = moved("a") {
            let (tier, problem) = (Tier::Device, "a cable".to_owned());
            let failed = tenant.clone();
            moves.told(&Notice::MoveFailed {
                part,
                tenant: failed,
                device,
                tier,
                bytes,
                cause,
                began,
                problem,
            });
            moves.told(&Notice::MoveStopped { part, tenant, device, tier, bytes, cause, began });
        }
        moves.told(&Notice::Draining { draining: true });
        let counted: Vec<_> = moves.all()["a"]
            .iter()
            .map(|(kind, count)| (kind.direction, kind.outcome, count.parts, count.bytes >> 20))
            .collect();
        assert_eq!(counted, [("in", "failed", 1, 2), ("in", "stopped", 1, 2), ("out", "moved", 2, 4)]);
    }

    #[test]
    fn who_comes_late_is_one_of_the_others_and_no_count_ever_falls() {
        // Room for 512 / 14 = 36 tenants, and one of these is all the others.
        let moves = Moves::new(512, 2);
        let mut last = moves.all();
        for round in 0..3 {
            for tenant in 0..100 {
                moves.told(&moved(&format!("team-{:03}", 99 - tenant)));
            }
            let now = moves.all();
            assert_eq!(now.len(), 36);
            let parts: u64 = now.values().flat_map(BTreeMap::values).map(|count| count.parts).sum();
            assert_eq!(parts, 100 * (round + 1));
            for (tenant, counts) in &last {
                assert!(counts.iter().all(|(kind, count)| now[tenant][kind].parts >= count.parts));
            }
            last = now;
        }
        assert_eq!(last[OTHER_TENANTS].values().map(|count| count.parts).sum::<u64>(), 3 * 65);
    }
}
