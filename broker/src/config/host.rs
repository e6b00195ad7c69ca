//! Computes how much host memory the configuration needs, and checks whether the machine has it.

use std::collections::BTreeMap;

use broker_driver::{Submission, left_to_other_programs};
use thiserror::Error;
use vramd_types::{Bytes, HostNode};

use super::Memory;
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

/// The minimum that the daemon itself needs beside the host tier: 64 MiB and the driver's buffers.
fn left_to_daemon(buffers: Bytes) -> Bytes {
    Bytes::mib(64).saturating_add(buffers)
}

/// The host tiers of all devices together.
pub fn host_total(memory: &Memory, devices: usize) -> Bytes {
    for_all_devices(memory.host_size, devices)
}

/// The sum over all devices.
pub(super) fn for_all_devices(each: Bytes, devices: usize) -> Bytes {
    Bytes::checked_sum(std::iter::repeat_n(each, devices)).unwrap_or(Bytes::MAX)
}

/// Tells the driver how much memory of each host node to pin for the devices near it, in pieces of the ordinary part
/// size. All nodes together get at most `pieces_max` pieces.
pub fn pin_host(memory: &Memory, near: impl Iterator<Item = HostNode>, pieces_max: usize) -> Vec<Submission> {
    let mut nodes: BTreeMap<HostNode, usize> = BTreeMap::new();
    for node in near.filter(|_| !memory.host_size.is_zero()) {
        *nodes.entry(node).or_default() += 1;
    }
    let pieces_max = pieces_max / nodes.len().max(1);
    let keep = |(node, devices): (&HostNode, &usize)| Submission::PinAhead {
        node: *node,
        size: host_total(memory, *devices),
        piece: memory.part_size,
        pieces_max,
    };
    nodes.iter().map(keep).collect()
}

/// Checks the size before any memory is taken. Memory that is free now does not count: it may be more or less later.
pub fn check_host(memory: &Memory, devices: usize, host: Host) -> Result<(), HostTooSmall> {
    let asked = host_total(memory, devices);
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
    use super::*;

    #[test]
    fn each_node_pins_for_the_devices_near_it() {
        let memory = Memory { host_size: Bytes::gib(4), part_size: Bytes::mib(64), ..Memory::default() };
        let near = || [HostNode(1), HostNode(0), HostNode(1)].into_iter();
        let kept: Vec<_> = pin_host(&memory, near(), 100)
            .into_iter()
            .map(|it| match it {
                Submission::PinAhead { node, size, piece, pieces_max } => (node.0, size, piece, pieces_max),
                other => panic!("{other:?}"),
            })
            .collect();
        let piece = Bytes::mib(64);
        assert_eq!(kept, [(0, Bytes::gib(4), piece, 50), (1, Bytes::gib(8), piece, 50)]);
        assert!(pin_host(&Memory::default(), near(), 100).is_empty(), "there is no host tier");
    }

    #[test]
    fn more_host_memory_than_the_machine_has_is_refused() {
        let memory = Memory { host_size: Bytes::gib(4), ..Memory::default() };
        let host = |total, lockable| Host { total: Some(Bytes::gib(total)), lockable, ..Host::default() };
        assert_eq!(check_host(&memory, 2, host(10, None)), Ok(()));
        let refused = check_host(&memory, 2, host(9, None)).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "memory.host_size: 8 GiB for 2 devices is too much: this machine has 9 GiB of memory, of which 2 GiB are left to other programs"
        );
        let refused = check_host(&memory, 2, host(64, Some(Bytes::mib(8)))).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "memory.host_size: 8 GiB for 2 devices is too much: this process may lock 8 MiB (RLIMIT_MEMLOCK)"
        );
        let limited = |mib| Host { in_cgroup: Some(Bytes::mib(mib)), ..host(64, None) };
        assert_eq!(check_host(&memory, 2, limited((8 << 10) + 64)), Ok(()));
        let refused = check_host(&memory, 2, limited(8 << 10)).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "memory.host_size: 8 GiB for 2 devices is too much: the cgroup of this process may have 8 GiB, of which 64 MiB are left to the daemon"
        );
        let buffers = Host { buffers: Bytes::mib(192), ..limited((8 << 10) + 64) };
        let refused = check_host(&memory, 2, buffers).unwrap_err();
        assert!(refused.to_string().ends_with("of which 256 MiB are left to the daemon"), "{refused}");
        let nothing = Host { in_cgroup: Some(Bytes::ZERO), ..host(0, Some(Bytes::ZERO)) };
        assert_eq!(check_host(&Memory::default(), 2, nothing), Ok(()), "nothing is asked");
        let memory = Memory { host_size: Bytes::MAX, ..Memory::default() };
        assert!(check_host(&memory, 2, host(8, None)).is_err(), "and nothing wraps");
    }
}
