//! What the configuration takes of the host's memory, and whether the machine has it.

use thiserror::Error;
use vramd_types::Bytes;

use super::Memory;
use crate::platform::host::Host;

/// More than the host can give.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum HostTooSmall {
    #[error("memory.host_size: {asked} for {devices} devices, and this machine has {total} of memory")]
    Memory { asked: Bytes, devices: usize, total: Bytes },
    #[error(
        "memory.host_size: {asked} for {devices} devices, and this process may lock {limit} of memory, RLIMIT_MEMLOCK"
    )]
    Locked { asked: Bytes, devices: usize, limit: Bytes },
}

/// For all devices.
pub fn host_total(memory: &Memory, devices: usize) -> Bytes {
    Bytes::checked_sum(std::iter::repeat_n(memory.host_size, devices)).unwrap_or(Bytes::MAX)
}

/// What can be said before any of it is taken. What is free at the time is not looked at: it may be more or less later.
pub fn check_host(memory: &Memory, devices: usize, host: Host) -> Result<(), HostTooSmall> {
    let asked = host_total(memory, devices);
    if let Some(total) = host.total.filter(|total| asked > *total) {
        return Err(HostTooSmall::Memory { asked, devices, total });
    }
    match host.lockable.filter(|limit| asked > *limit) {
        Some(limit) => Err(HostTooSmall::Locked { asked, devices, limit }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_machine_has_not_is_refused_with_its_figures() {
        let memory = Memory { host_size: Bytes::gib(4), ..Memory::default() };
        let host = |total, lockable| Host { total: Some(Bytes::gib(total)), lockable };
        assert_eq!(check_host(&memory, 2, host(8, None)), Ok(()));
        let refused = check_host(&memory, 2, host(7, None)).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "memory.host_size: 8 GiB for 2 devices, and this machine has 7 GiB of memory"
        );
        let refused = check_host(&memory, 2, host(64, Some(Bytes::mib(8)))).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "memory.host_size: 8 GiB for 2 devices, and this process may lock 8 MiB of memory, RLIMIT_MEMLOCK"
        );
        assert_eq!(check_host(&Memory::default(), 2, host(0, Some(Bytes::ZERO))), Ok(()), "nothing is asked");
        let memory = Memory { host_size: Bytes::MAX, ..Memory::default() };
        assert!(check_host(&memory, 2, host(8, None)).is_err(), "and nothing wraps");
    }
}
