//! Computes how much host memory the daemon takes, and checks whether the machine has it.

use std::collections::BTreeMap;

use broker_driver::{PinPace, Submission, left_to_other_programs};
use broker_platform::{HostBound, HostNeed, Readings, host_reason, host_share};
use thiserror::Error;
use vramd_types::{Bytes, HostNode};

use super::{HostSize, Memory};
use crate::platform::host::Host;

/// The configuration needs more than the host can give.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum HostTooSmall {
    #[error(
        "memory.host_size: {asked} for {devices} devices is too much: this machine has {total} of memory, of which {left} are left to other programs"
    )]
    Memory { asked: Bytes, devices: usize, total: Bytes, left: Bytes },
    #[error(
        "memory.host_size: {asked} for {devices} devices is too much: this process may lock {limit} (RLIMIT_MEMLOCK)"
    )]
    Locked { asked: Bytes, devices: usize, limit: Bytes },
    #[error(
        "memory.host_size: {asked} for {devices} devices is too much: the cgroup of this process may have {limit}, of which {left} are left to the daemon"
    )]
    Cgroup { asked: Bytes, devices: usize, limit: Bytes, left: Bytes },
}

/// The host tier of a running daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostTier {
    /// The size for each device.
    pub each: Bytes,
    pub pace: PinPace,
    pub reason: HostReason,
}

/// Why the host tier has its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostReason {
    Configured,
    Share(broker_platform::HostShare),
}

impl std::fmt::Display for HostReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Configured => f.write_str(broker_platform::CONFIGURED),
            Self::Share(share) => f.write_str(&host_reason(*share)),
        }
    }
}

impl HostTier {
    /// No host tier, as configured.
    pub const NONE: Self =
        Self { each: Bytes::ZERO, pace: PinPace::FromStart, reason: HostReason::Configured };

    /// The host tiers of all devices together.
    pub fn total(self, devices: usize) -> Bytes {
        for_all_devices(self.each, devices)
    }

    /// Whether there is none because too little memory is free.
    pub fn is_missing(self) -> bool {
        let HostReason::Share(share) = self.reason else { return false };
        self.each.is_zero() && share.bound != HostBound::OnePool
    }
}

/// The minimum that the daemon itself needs beside the host tier: 64 MiB and the driver's buffers.
fn left_to_daemon(buffers: Bytes) -> Bytes {
    Bytes::mib(64).saturating_add(buffers)
}

/// The sum over all devices.
pub(super) fn for_all_devices(each: Bytes, devices: usize) -> Bytes {
    Bytes::checked_sum(std::iter::repeat_n(each, devices)).unwrap_or(Bytes::MAX)
}

/// Chooses the host tier of each device. A configured size is checked against the machine, and pinned from the start.
/// An automatic one is a share of what is free now, and pinned as parts arrive, so that an idle daemon takes nothing.
pub fn host_tier(
    memory: &Memory,
    devices: usize,
    host: Host,
    readings: &Readings,
) -> Result<HostTier, HostTooSmall> {
    let HostSize::Bytes(each) = memory.host_size else {
        let need = HostNeed {
            devices,
            part_size: memory.part_size,
            daemon: left_to_daemon(host.buffers),
            locked: host.lockable.is_some(),
        };
        let share = host_share(readings, need);
        return Ok(HostTier { each: share.each, pace: PinPace::WithUse, reason: HostReason::Share(share) });
    };
    let tier = HostTier { each, ..HostTier::NONE };
    check_host(tier.total(devices), devices, host).map(|()| tier)
}

/// Tells the driver how much memory of each host node to pin for the devices near it, in pieces of the ordinary part
/// size. All nodes together get at most `pieces_max` pieces.
pub fn pin_host(
    tier: HostTier,
    piece: Bytes,
    near: impl Iterator<Item = HostNode>,
    pieces_max: usize,
) -> Vec<Submission> {
    let mut nodes: BTreeMap<HostNode, usize> = BTreeMap::new();
    for node in near.filter(|_| !tier.each.is_zero()) {
        *nodes.entry(node).or_default() += 1;
    }
    let pieces_max = pieces_max / nodes.len().max(1);
    let keep = |(node, devices): (&HostNode, &usize)| Submission::PinAhead {
        node: *node,
        size: tier.total(*devices),
        piece,
        pieces_max,
        pace: tier.pace,
    };
    nodes.iter().map(keep).collect()
}

/// Checks the size before any memory is taken. Memory that is free now does not count: it may be more or less later.
fn check_host(asked: Bytes, devices: usize, host: Host) -> Result<(), HostTooSmall> {
    if let Some(total) = host.total.filter(|_| !asked.is_zero()) {
        let left = left_to_other_programs(total);
        if asked > total.saturating_sub(left) {
            return Err(HostTooSmall::Memory { asked, devices, total, left });
        }
    }
    if let Some(limit) = host.lockable.filter(|limit| asked > *limit) {
        return Err(HostTooSmall::Locked { asked, devices, limit });
    }
    let left = left_to_daemon(host.buffers);
    let is_more = |limit: &Bytes| !asked.is_zero() && asked > limit.saturating_sub(left);
    match host.in_cgroup.filter(is_more) {
        Some(limit) => Err(HostTooSmall::Cgroup { asked, devices, limit, left }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use broker_platform::{Platform, readings::DeviceReadings};

    use super::*;

    /// A tier of that size.
    fn sized(each: Bytes) -> HostTier {
        HostTier { each, ..HostTier::NONE }
    }

    fn memory(each: Bytes) -> Memory {
        Memory { host_size: HostSize::Bytes(each), ..Memory::default() }
    }

    #[test]
    fn each_node_pins_for_the_devices_near_it() {
        let near = || [HostNode(1), HostNode(0), HostNode(1)].into_iter();
        let piece = Bytes::mib(64);
        let kept: Vec<_> = pin_host(sized(Bytes::gib(4)), piece, near(), 100)
            .into_iter()
            .map(|it| match it {
                Submission::PinAhead { node, size, piece, pieces_max, pace: PinPace::FromStart } => {
                    (node.0, size, piece, pieces_max)
                }
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(kept, [(0, Bytes::gib(4), piece, 50), (1, Bytes::gib(8), piece, 50)]);
        assert!(pin_host(HostTier::NONE, piece, near(), 100).is_empty(), "there is no host tier");
    }

    #[test]
    fn an_automatic_tier_is_a_share_that_is_pinned_with_use() {
        let mut readings = Readings::default();
        readings.memory.total_bytes = Some(64 << 30);
        readings.memory.available_bytes = Some(40 << 30);
        let auto = |readings: &Readings| {
            host_tier(&Memory::default(), 2, Host::default(), readings).expect("it fits by itself")
        };
        let tier = auto(&readings);
        assert_eq!((tier.each, tier.pace), (Bytes::mib(8448), PinPace::WithUse));
        assert_eq!(tier.reason.to_string(), "50 % of the 33.60 GiB that is free, in whole parts");
        readings.memory.available_bytes = Some(1 << 30);
        assert!(auto(&readings).each.is_zero() && auto(&readings).is_missing());
        let device = DeviceReadings::simulated("GPU-1".into(), "one".into(), 1, Platform::OnePool);
        readings.devices = Some(vec![device]);
        assert!(auto(&readings).each.is_zero() && !auto(&readings).is_missing(), "it would be a second copy");
        let configured = host_tier(&memory(Bytes::gib(1)), 2, Host::default(), &readings).unwrap();
        assert_eq!(configured, sized(Bytes::gib(1)), "a configured size is taken as it is");
    }

    #[test]
    fn more_host_memory_than_the_machine_has_is_refused() {
        let check =
            |each, host| host_tier(&memory(each), 2, host, &Readings::default()).map(|tier| tier.each);
        let four = Bytes::gib(4);
        let host = |total, lockable| Host { total: Some(Bytes::gib(total)), lockable, ..Host::default() };
        assert_eq!(check(four, host(10, None)), Ok(four));
        let refused = check(four, host(9, None)).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "memory.host_size: 8 GiB for 2 devices is too much: this machine has 9 GiB of memory, of which 2 GiB are left to other programs"
        );
        let refused = check(four, host(64, Some(Bytes::mib(8)))).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "memory.host_size: 8 GiB for 2 devices is too much: this process may lock 8 MiB (RLIMIT_MEMLOCK)"
        );
        let limited = |mib| Host { in_cgroup: Some(Bytes::mib(mib)), ..host(64, None) };
        assert_eq!(check(four, limited((8 << 10) + 64)), Ok(four));
        let refused = check(four, limited(8 << 10)).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "memory.host_size: 8 GiB for 2 devices is too much: the cgroup of this process may have 8 GiB, of which 64 MiB are left to the daemon"
        );
        let buffers = Host { buffers: Bytes::mib(192), ..limited((8 << 10) + 64) };
        let refused = check(four, buffers).unwrap_err();
        assert!(refused.to_string().ends_with("of which 256 MiB are left to the daemon"), "{refused}");
        let nothing = Host { in_cgroup: Some(Bytes::ZERO), ..host(0, Some(Bytes::ZERO)) };
        assert_eq!(check(Bytes::ZERO, nothing), Ok(Bytes::ZERO), "nothing is asked");
        assert!(check(Bytes::MAX, host(8, None)).is_err(), "and nothing wraps");
    }
}
