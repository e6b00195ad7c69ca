//! Counts how often each pressure level was entered, by place.

use std::sync::atomic::{AtomicU64, Ordering};

use broker_core::{Notice, Pressure, Tier};
use vramd_types::DeviceIndex;

const TIERS: [Tier; 3] = [Tier::Device, Tier::Host, Tier::Disk];

/// Of one place, by level.
type PlaceCounts = [AtomicU64; Pressure::ALL.len()];

#[derive(Debug)]
pub(super) struct PressureCounters {
    /// By device, then by tier.
    entered: Box<[[PlaceCounts; TIERS.len()]]>,
}

impl PressureCounters {
    pub(super) fn new(devices: usize) -> Self {
        Self { entered: std::iter::repeat_with(Default::default).take(devices).collect() }
    }

    pub(super) fn count(&self, notice: &Notice) {
        let Notice::PressureChanged { device, tier, to, .. } = notice else { return };
        let of_device = self.entered.get(usize::from(device.0));
        if let Some(count) = of_device.and_then(|tiers| tiers.get(*tier as usize)?.get(*to as usize)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn entered(&self, device: DeviceIndex, tier: Tier, step: Pressure) -> u64 {
        let of_device = self.entered.get(usize::from(device.0));
        let count = of_device.and_then(|tiers| tiers.get(tier as usize)?.get(step as usize));
        count.map_or(0, |count| count.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use vramd_types::Bytes;

    use super::*;

    #[test]
    fn each_place_and_step_has_a_count_of_its_own() {
        let pressures = PressureCounters::new(2);
        let mut times = 0;
        for device in [DeviceIndex(0), DeviceIndex(1), DeviceIndex(9)] {
            for tier in TIERS {
                for to in Pressure::ALL {
                    times += 1;
                    let (from, held, capacity) = (Pressure::Normal, Bytes::ZERO, Bytes::ZERO);
                    let changed = Notice::PressureChanged { device, tier, from, to, charged: held, capacity };
                    (0..times).for_each(|_| pressures.count(&changed));
                }
            }
        }
        assert_eq!(pressures.entered(DeviceIndex(0), Tier::Device, Pressure::Normal), 1);
        assert_eq!(pressures.entered(DeviceIndex(0), Tier::Disk, Pressure::Critical), 12);
        assert_eq!(pressures.entered(DeviceIndex(1), Tier::Host, Pressure::Elevated), 18);
        assert_eq!(
            pressures.entered(DeviceIndex(9), Tier::Host, Pressure::High),
            0,
            "there is no such device"
        );
    }
}
