//! Describes the end of a part's move in the terms of metrics and traces.

use broker_core::{Cause, Notice, PartRef, PlacementSum, Tier, Time};
use vramd_types::{Bytes, DeviceIndex};

#[derive(Clone, Copy, Debug)]
pub(super) struct EndedMove<'a> {
    pub(super) part: PartRef,
    pub(super) tenant: &'a str,
    pub(super) kind: MoveKind,
    pub(super) bytes: Bytes,
    pub(super) began: Time,
    /// The error, if the move failed.
    pub(super) problem: Option<&'a str>,
    /// Parts that wait for the room that this part left.
    pub(super) for_parts: &'a [PartRef],
    /// The sum by which it moved to its device, if there was one.
    pub(super) sum: Option<PlacementSum>,
}

/// The properties of a move that have a count of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct MoveKind {
    pub(super) device: DeviceIndex,
    /// `in` or `out`, as seen from the device.
    pub(super) direction: &'static str,
    /// The tier that the part moved from and the one that it moved to, or was to move to; or [`NOWHERE`].
    pub(super) from: &'static str,
    pub(super) to: &'static str,
    pub(super) cause: &'static str,
    pub(super) outcome: &'static str,
}

impl MoveKind {
    /// The kinds that can happen on a device with these tiers below it: host, disk. Rare ones are left out: a failed
    /// or stopped return of a dropped part.
    pub(super) fn all(device: DeviceIndex, (host, disk): (bool, bool)) -> impl Iterator<Item = Self> {
        use Cause::{Demand, Operator, Owner, Prefetch, Pressure, Rebalance, Speculation, WriteBack};
        let [device_tier, host_tier, disk_tier] = [Tier::Device, Tier::Host, Tier::Disk].map(tier_name);
        let arriving = &[Demand, Operator, Prefetch, Speculation][..];
        let leaving = &[Demand, Operator, Owner, Prefetch, Pressure, Rebalance][..];
        let copied = &["moved", "failed", "stopped"][..];
        let left = &["moved", "clean", "failed", "stopped"][..];
        let ways = [
            (host, host_tier, device_tier, arriving, copied),
            (disk, disk_tier, device_tier, arriving, copied),
            (host || disk, NOWHERE, device_tier, arriving, &["made"][..]),
            (host, device_tier, host_tier, leaving, left),
            (host, device_tier, host_tier, &[WriteBack], copied),
            (disk, device_tier, disk_tier, leaving, left),
            (disk, device_tier, disk_tier, &[WriteBack], copied),
            (host && disk, host_tier, disk_tier, &[Operator, Owner, Pressure], copied),
            (host && disk, disk_tier, host_tier, &[Operator, Owner], left),
            (host || disk, device_tier, NOWHERE, leaving, &["dropped"]),
        ];
        let ways = ways.into_iter().filter(|(is_there, ..)| *is_there);
        ways.flat_map(move |(_, from, to, causes, outcomes)| {
            let direction = if to == device_tier { "in" } else { "out" };
            causes.iter().flat_map(move |cause| {
                let cause = cause.name();
                outcomes.iter().map(move |outcome| Self { device, direction, from, to, cause, outcome })
            })
        })
    }

    /// Whether the part was copied in full.
    pub(super) fn is_copy(&self) -> bool {
        self.outcome == "moved"
    }

    /// Whether the part was copied to its device and is there now.
    pub(super) fn is_arrival(&self) -> bool {
        self.direction == "in" && self.is_copy()
    }

    /// Whether the part has left its device.
    pub(super) fn is_departure(&self) -> bool {
        let stays = self.cause == Cause::WriteBack.name();
        self.direction == "out" && !stays && matches!(self.outcome, "moved" | "clean" | "dropped")
    }
}

/// The place of a part that was dropped, or that no client ever wrote.
const NOWHERE: &str = "none";

const fn tier_name(tier: Tier) -> &'static str {
    match tier {
        Tier::Device => "device",
        Tier::Host => "host",
        Tier::Disk => "disk",
    }
}

impl<'a> EndedMove<'a> {
    /// Converts a notice, if it reports the end of a move.
    pub(super) fn of(notice: &'a Notice) -> Option<Self> {
        let (outcome, problem, for_parts, tiers, (part, tenant, device, bytes, cause, began)) = match notice {
            Notice::Moved {
                part,
                tenant,
                device,
                from,
                tier,
                bytes,
                cause,
                began,
                copied,
                for_parts,
                ..
            } => {
                let (outcome, from) = match (copied, tier) {
                    (true, _) => ("moved", tier_name(*from)),
                    // Its content was dropped, or no client had ever written it.
                    (false, Tier::Device) => ("made", NOWHERE),
                    (false, Tier::Host | Tier::Disk) => ("clean", tier_name(*from)),
                };
                let tiers = (from, tier_name(*tier));
                (outcome, None, &for_parts[..], tiers, (part, tenant, device, bytes, cause, began))
            }
            Notice::WrittenBack { part, tenant, device, tier, bytes, began, .. } => {
                let tiers = (tier_name(Tier::Device), tier_name(*tier));
                ("moved", None, &[][..], tiers, (part, tenant, device, bytes, &Cause::WriteBack, began))
            }
            Notice::Dropped { part, tenant, device, bytes, cause, began, for_parts, .. } => {
                let tiers = (tier_name(Tier::Device), NOWHERE);
                ("dropped", None, &for_parts[..], tiers, (part, tenant, device, bytes, cause, began))
            }
            Notice::MoveFailed { part, tenant, device, from, tier, bytes, cause, began, problem } => {
                let tiers = (tier_name(*from), tier_name(*tier));
                let problem = Some(problem.as_str());
                ("failed", problem, &[][..], tiers, (part, tenant, device, bytes, cause, began))
            }
            Notice::MoveStopped { part, tenant, device, from, tier, bytes, cause, began } => {
                let tiers = (tier_name(*from), tier_name(*tier));
                ("stopped", None, &[][..], tiers, (part, tenant, device, bytes, cause, began))
            }
            _ => return None,
        };
        let (from, to) = tiers;
        let direction = if to == tier_name(Tier::Device) { "in" } else { "out" };
        let kind = MoveKind { device: *device, direction, from, to, cause: cause.name(), outcome };
        let sum = match notice {
            Notice::Moved { sum, .. } => *sum,
            _ => None,
        };
        Some(Self { part: *part, tenant, kind, bytes: *bytes, began: *began, problem, for_parts, sum })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::move_counters::tests::{moved, moved_to, part};

    #[test]
    fn only_notices_of_ended_moves_convert() {
        assert!(EndedMove::of(&Notice::Draining { draining: true }).is_none());
        let notice = moved("a");
        let ended = EndedMove::of(&notice).unwrap();
        assert_eq!((ended.tenant, ended.bytes, ended.began), ("a", Bytes::mib(2), Time::START));
        assert!(ended.kind.is_departure() && !ended.kind.is_arrival());
    }

    #[test]
    fn a_dropped_part_departs_and_a_new_one_does_not_arrive() {
        let (part, tenant) = (part(0), "a".into());
        let (device, tier, bytes) = (DeviceIndex(0), Tier::Host, Bytes::mib(2));
        let (cause, began, for_parts) = (Cause::Demand, Time::START, vec![part]);
        let notice = Notice::Dropped { part, tenant, device, tier, bytes, cause, began, for_parts };
        let ended = EndedMove::of(&notice).unwrap();
        assert_eq!(
            (ended.kind.direction, ended.kind.outcome, ended.for_parts),
            ("out", "dropped", &[part][..])
        );
        assert_eq!((ended.kind.from, ended.kind.to), ("device", "none"));
        assert!(ended.kind.is_departure() && !ended.kind.is_arrival());
        let notice = moved_to(Tier::Device, part, "a", Cause::Demand, false);
        let kind = EndedMove::of(&notice).unwrap().kind;
        assert_eq!((kind.direction, kind.outcome), ("in", "made"));
        assert_eq!((kind.from, kind.to), ("none", "device"));
        assert!(!kind.is_arrival() && !kind.is_departure());
    }

    #[test]
    fn a_written_back_part_has_not_departed() {
        let (part, tenant, device, tier) = (part(0), "a".into(), DeviceIndex(0), Tier::Host);
        let (bytes, began, clean) = (Bytes::mib(2), Time::START, true);
        let notice = Notice::WrittenBack { part, tenant, device, tier, bytes, began, clean };
        let kind = EndedMove::of(&notice).unwrap().kind;
        assert_eq!((kind.direction, kind.cause, kind.outcome), ("out", "write_back", "moved"));
        assert_eq!((kind.from, kind.to), ("device", "host"));
        assert!(!kind.is_departure() && !kind.is_arrival());
    }

    #[test]
    fn each_cause_has_a_name_of_its_own() {
        let mut names: Vec<_> = Cause::ALL.into_iter().map(Cause::name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Cause::ALL.len());
    }
}
