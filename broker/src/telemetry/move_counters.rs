//! Counts ended moves by kind, for as long as the daemon lives. It also counts which fetched parts the daemon sent to a
//! client before they left again: a part that no client maps was fetched for nothing.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use broker_core::{Notice, PartRef};
use vramd_types::{AllocationId, Bytes, PartIndex};

use super::ended_move::{EndedMove, MoveKind};

#[derive(Debug, Default)]
pub(super) struct MoveCounters(Mutex<Counted>);

#[derive(Debug, Default)]
struct Counted {
    kinds: BTreeMap<MoveKind, Count>,
    /// Fetched parts that the daemon has not yet sent to a client.
    unused: BTreeMap<PartRef, Fetched>,
}

/// A part that was copied to its device.
#[derive(Debug)]
struct Fetched {
    tenant: Box<str>,
    kind: MoveKind,
    bytes: Bytes,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) parts: u64,
    pub(super) bytes: u64,
    /// The part of `bytes` that the daemon sent to a client before it left again.
    pub(super) used: u64,
}

impl MoveCounters {
    /// Counts an ended move.
    pub(super) fn count(&self, ended: &EndedMove<'_>) {
        let EndedMove { part, tenant, kind, bytes, .. } = *ended;
        let mut counted = self.lock();
        let count = counted.kinds.entry(kind).or_default();
        count.parts = count.parts.saturating_add(1);
        count.bytes = count.bytes.saturating_add(bytes.get());
        if kind.is_arrival() {
            counted.unused.insert(part, Fetched { tenant: tenant.into(), kind, bytes });
        } else if kind.is_departure() {
            counted.unused.remove(&part);
        }
    }

    /// Counts parts that the daemon is about to send to a client, and reports the bytes of those that were fetched.
    pub(super) fn count_used(
        &self,
        parts: impl IntoIterator<Item = PartRef>,
        mut report: impl FnMut(&str, Bytes),
    ) {
        let mut counted = self.lock();
        if counted.unused.is_empty() {
            return;
        }
        for part in parts {
            if let Some(Fetched { tenant, kind, bytes }) = counted.unused.remove(&part) {
                let count = counted.kinds.entry(kind).or_default();
                count.used = count.used.saturating_add(bytes.get());
                report(&tenant, bytes);
            }
        }
    }

    /// Forgets the parts of an allocation that is gone.
    pub(super) fn forget_gone(&self, notice: &Notice) {
        if let Notice::AllocationGone { allocation, .. } = notice {
            self.lock().forget(*allocation);
        }
    }

    /// Returns all counts.
    pub(super) fn by_kind(&self) -> BTreeMap<MoveKind, Count> {
        self.lock().kinds.clone()
    }

    /// Locks the counts. The reactor and the collecting thread keep the lock only briefly.
    fn lock(&self) -> MutexGuard<'_, Counted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counted {
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

    /// Counts a part that is sent to a client. Returns the MiB that have been used, and those that were reported now.
    fn send(moves: &MoveCounters, parts: impl IntoIterator<Item = PartRef>) -> (u64, u64) {
        let mut reported = 0;
        moves.count_used(parts, |tenant, bytes| {
            assert_eq!(tenant, "a");
            reported += bytes.get() >> 20;
        });
        (moves.by_kind().values().map(|count| count.used >> 20).sum(), reported)
    }

    #[test]
    fn each_direction_cause_and_outcome_has_its_own_count() {
        let moves = MoveCounters::default();
        count(&moves, &moved("a"));
        count(&moves, &moved("b"));
        count(&moves, &moved_to(Tier::Host, part(1), "a", Cause::Demand, false));
        let (tier, device, bytes, began) = (Tier::Device, DeviceIndex(0), Bytes::mib(2), Time::START);
        let (part, tenant, cause) = (part(1), "a".into(), Cause::Rebalance);
        let (problem, from) = ("a cable".to_owned(), Tier::Host);
        count(&moves, &Notice::MoveFailed { part, tenant, device, from, tier, bytes, cause, began, problem });
        let tenant = "a".into();
        count(&moves, &Notice::MoveStopped { part, tenant, device, from, tier, bytes, cause, began });
        let counted: Vec<_> = moves
            .by_kind()
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
    fn an_arrived_part_counts_as_used_once_if_sent_before_it_leaves() {
        let moves = MoveCounters::default();
        for index in 0..4 {
            count(&moves, &arrived(part(index), "a"));
        }
        assert_eq!(send(&moves, [part(0), part(9)]), (2, 2));
        assert_eq!(send(&moves, [part(0)]), (2, 0));
        // The part left again before.
        count(&moves, &moved_to(Tier::Host, part(1), "a", Cause::Demand, false));
        assert_eq!(send(&moves, [part(1)]), (2, 0));
        assert_eq!(send(&moves, [part(2)]), (4, 2));
        moves.forget_gone(&Notice::AllocationGone {
            allocation: AllocationId::from_shown(1),
            tenant: "a".into(),
        });
        assert_eq!(send(&moves, [part(3)]), (4, 0));
        assert!(moves.lock().unused.is_empty());
    }
}
