//! Weight-aware LRU: the value of a part is its recency, times a size factor, times a transfer factor.
//!
//! Recency falls by half in each half-life, so the order of two parts does not change while they are not used, and the
//! logarithm of the value is a time: that of the last use, later by a half-life for each doubling of the factors.

use vramd_types::DeviceIndex;

use super::{
    Part, Policy, Removal, Weight,
    log::{ln, log2},
    ranking::{EachDevice, Ranking},
};
use crate::{collections::PartMap, event::PartRef, time::Time};

/// The half-life of recency in microseconds.
const HALF_LIFE: u64 = 1_000_000;
/// One, in the fixed point of the logarithms.
const ONE: u64 = 256;
/// No size factor is smaller than two to the power of minus this.
const SIZE_LOG_MAX: u64 = 6 * ONE;

#[derive(Debug, Default)]
pub(super) struct WeightedLru {
    order: Ranking<u64>,
    ranks: PartMap<u64>,
    devices: EachDevice<Sizes>,
}

/// The sum of the sizes of all parts of a device, and their number.
#[derive(Debug, Default)]
struct Sizes {
    granules: u64,
    parts: u64,
}

impl Sizes {
    /// The binary logarithm of the size factor, `1 / (1 + ln(1 + size / mean size))`, without its sign.
    fn log_factor(&self, weight: Weight) -> u64 {
        let sum = self.granules.max(1);
        // In 256ths, so that its logarithm has that of 256 to be taken off.
        let ratio = weight.granules().saturating_mul(self.parts).saturating_mul(ONE) / sum;
        let denominator = ONE.saturating_add(ln(ratio.saturating_add(ONE)).saturating_sub(ln(ONE)));
        log2(denominator).saturating_sub(log2(ONE)).min(SIZE_LOG_MAX)
    }
}

impl WeightedLru {
    fn put(&mut self, Part { device, part, weight, .. }: Part, used: Time) {
        let Some(sizes) = self.devices.get(device) else { return };
        let doublings = weight
            .source()
            .log_transfer()
            .saturating_add(SIZE_LOG_MAX)
            .saturating_sub(sizes.log_factor(weight));
        let rank = used.as_micros().saturating_add(doublings.saturating_mul(HALF_LIFE) / ONE);
        self.order.insert(device, rank, part);
        self.ranks.insert(part, rank);
    }
}

impl Policy for WeightedLru {
    fn insert(&mut self, part: Part) {
        if let Some(sizes) = self.devices.entry(part.device) {
            sizes.granules = sizes.granules.saturating_add(part.weight.granules());
            sizes.parts = sizes.parts.saturating_add(1);
        }
        self.put(part, part.used);
    }

    fn record_use(&mut self, part: Part, now: Time, _: bool) {
        if let Some(rank) = self.ranks.get(part.part) {
            self.order.remove(part.device, *rank, part.part);
            self.put(part, now);
        }
    }

    fn remove(&mut self, Part { device, part, weight, .. }: Part, _: Removal) {
        let Some(rank) = self.ranks.remove(part) else { return };
        self.order.remove(device, rank, part);
        if let Some(sizes) = self.devices.entry(device) {
            sizes.granules = sizes.granules.saturating_sub(weight.granules());
            sizes.parts = sizes.parts.saturating_sub(1);
        }
    }

    fn order(&self, device: DeviceIndex) -> Box<dyn Iterator<Item = PartRef> + '_> {
        Box::new(self.order.order(device, None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eviction::{EvictionPolicy, Source, tests::*};

    #[test]
    fn weighted_lru_is_lru_among_equal_parts() {
        let mut residents = TestDevice::new(EvictionPolicy::WeightedLru);
        residents.arrive_at(0, &[0, 1, 2]);
        residents.leave(2);
        residents.arrive_at(50, &[2]);
        residents.use_each(&[0]);
        assert_eq!(residents.order(), [1, 2, 0]);
    }

    #[test]
    fn large_part_counts_as_used_earlier_for_some_half_lives() {
        let mut residents = TestDevice::new(EvictionPolicy::WeightedLru);
        residents.arrive_with(0, 2, Source::Host);
        residents.arrive_with(1, 200, Source::Host);
        assert_eq!(residents.order(), [1, 0]);
        residents.pass(3 * HALF_LIFE);
        residents.use_each(&[1]);
        assert_eq!(residents.order(), [0, 1]);
    }

    #[test]
    fn part_that_comes_back_from_disk_stays_for_some_half_lives() {
        let mut residents = TestDevice::new(EvictionPolicy::WeightedLru);
        residents.arrive_with(0, 8, Source::Disk);
        residents.pass(2 * HALF_LIFE);
        residents.arrive_with(1, 8, Source::Host);
        assert_eq!(residents.order(), [1, 0]);
        residents.pass(2 * HALF_LIFE);
        residents.use_each(&[1]);
        assert_eq!(residents.order(), [0, 1]);
    }
}
