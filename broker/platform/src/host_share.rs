//! The size of the automatic host tier: a share of the memory that is free now.
//!
//! Free is what the kernel could give without swapping (`MemAvailable`), less the reserve for other programs and less
//! the memory of devices that the kernel counts as its own. The daemon's cgroups bound it too, even where the driver
//! pins memory outside of them: their limit says how much of the node the daemon may have.

use vramd_types::Bytes;

use crate::{Platform, left_to_other_programs, platform, readings::Readings};

/// The share of the free memory that all host tiers together get by themselves.
pub const SHARE_PERCENT: u8 = 50;

/// The bound of the free memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostBound {
    /// The memory of the machine that is free.
    Free,
    /// The cgroup of the process, or one above it.
    Cgroup,
    /// RLIMIT_MEMLOCK.
    Locked,
    /// Host memory is device memory: a second copy would take the room of the first.
    OnePool,
    /// The free memory is not known.
    Unknown,
}

/// The automatic host tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostShare {
    /// For each device, in whole parts; zero if there is no room for one.
    pub each: Bytes,
    /// The free memory that it is a share of.
    pub free: Bytes,
    pub bound: HostBound,
}

/// Facts that the daemon knows of the memory that it would take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostNeed {
    pub devices: usize,
    pub part_size: Bytes,
    /// The daemon's own memory and the driver's buffers, which its cgroup must leave.
    pub daemon: Bytes,
    /// Whether the driver pins the memory in the daemon's name.
    pub locked: bool,
}

/// Computes the host tier of each device.
pub fn host_share(readings: &Readings, need: HostNeed) -> HostShare {
    if platform(readings).platform == Platform::OnePool {
        return HostShare { each: Bytes::ZERO, free: Bytes::ZERO, bound: HostBound::OnePool };
    }
    let (Some(total), Some(available)) = (readings.memory.total_bytes, readings.memory.available_bytes)
    else {
        return HostShare { each: Bytes::ZERO, free: Bytes::ZERO, bound: HostBound::Unknown };
    };
    // The kernel counts such a node in both figures.
    let (mut of_devices, mut free_of_devices) = (Bytes::ZERO, Bytes::ZERO);
    for node in readings.device_memory_nodes() {
        of_devices = of_devices.saturating_add(Bytes::new(node.total_bytes));
        free_of_devices = free_of_devices.saturating_add(Bytes::new(node.free_bytes));
    }
    let reserve = left_to_other_programs(Bytes::new(total).saturating_sub(of_devices));
    let free = Bytes::new(available).saturating_sub(free_of_devices).saturating_sub(reserve);
    let process = &readings.process;
    let cgroup = process.cgroup_memory_left_bytes.map(|left| Bytes::new(left).saturating_sub(need.daemon));
    let locked = process.locked_memory_bytes.filter(|_| need.locked && !process.may_lock_all).map(Bytes::new);
    let bounds = [(HostBound::Free, Some(free)), (HostBound::Cgroup, cgroup), (HostBound::Locked, locked)];
    let tightest = bounds.into_iter().filter_map(|(bound, free)| Some((bound, free?)));
    let (bound, free) = tightest.min_by_key(|(_, free)| *free).unwrap_or((HostBound::Unknown, Bytes::ZERO));
    let devices = u64::try_from(need.devices).unwrap_or(u64::MAX).max(1);
    let each = free.percent(SHARE_PERCENT).get() / devices;
    let part = need.part_size.get().max(1);
    HostShare { each: Bytes::new(each / part * part), free, bound }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::readings::{DeviceReadings, MemoryReadings, NumaNode};

    const GIB: u64 = 1 << 30;

    const ONE: HostNeed =
        HostNeed { devices: 1, part_size: Bytes::mib(256), daemon: Bytes::mib(64), locked: false };

    fn machine(total: u64, available: u64) -> Readings {
        let memory = MemoryReadings {
            total_bytes: Some(total * GIB),
            available_bytes: Some(available * GIB),
            swap_bytes: None,
        };
        Readings { memory, ..Readings::default() }
    }

    fn each(readings: &Readings, need: HostNeed) -> (u64, HostBound) {
        let share = host_share(readings, need);
        (share.each.get() >> 20, share.bound)
    }

    #[test]
    fn half_of_the_free_memory_is_divided_in_whole_parts() {
        let machine = machine(64, 50);
        // 50 GiB less a tenth of 64.
        assert_eq!(host_share(&machine, ONE).free, Bytes::gib(50).saturating_sub(Bytes::new(64 * GIB / 10)));
        assert_eq!(each(&machine, ONE), (22_272, HostBound::Free));
        assert_eq!(each(&machine, HostNeed { devices: 8, ..ONE }), (2_560, HostBound::Free));
    }

    #[test]
    fn too_little_memory_gives_no_tier() {
        assert_eq!(each(&machine(8, 2), ONE), (0, HostBound::Free), "all of it is left to other programs");
        assert_eq!(each(&machine(64, 7), ONE), (256, HostBound::Free));
        assert_eq!(each(&machine(64, 7), HostNeed { devices: 2, ..ONE }).0, 0, "half a part each");
        assert_eq!(each(&Readings::default(), ONE), (0, HostBound::Unknown));
    }

    #[test]
    fn the_cgroup_and_the_memory_lock_bound_it() {
        let mut readings = machine(64, 50);
        readings.process.cgroup_memory_left_bytes = Some(2 * GIB + (64 << 20));
        readings.process.locked_memory_bytes = Some(GIB);
        assert_eq!(each(&readings, ONE), (1024, HostBound::Cgroup));
        assert_eq!(each(&readings, HostNeed { locked: true, ..ONE }), (512, HostBound::Locked));
        readings.process.may_lock_all = true;
        assert_eq!(each(&readings, HostNeed { locked: true, ..ONE }), (1024, HostBound::Cgroup));
        readings.process.cgroup_memory_left_bytes = Some(32 << 20);
        assert_eq!(each(&readings, ONE), (0, HostBound::Cgroup), "the daemon itself needs that");
    }

    #[test]
    fn memory_of_devices_is_no_host_memory() {
        let mut readings = machine(576, 560);
        readings.numa_nodes =
            vec![NumaNode { id: 1, total_bytes: 96 * GIB, free_bytes: 95 * GIB, cpus: String::new() }];
        assert_eq!(host_share(&readings, ONE).free.get() >> 30, 560 - 95 - 48);
    }

    #[test]
    fn one_pool_has_no_second_copy() {
        let mut readings = machine(120, 100);
        let device = |platform| DeviceReadings::simulated(String::new(), String::new(), 1, platform);
        readings.devices = Some(vec![device(Platform::OnePool)]);
        assert_eq!(each(&readings, ONE), (0, HostBound::OnePool));
        readings.devices = Some(vec![device(Platform::CoherentCdmm)]);
        assert_eq!(each(&readings, ONE).1, HostBound::Free);
    }
}
