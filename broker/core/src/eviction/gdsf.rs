//! GDSF, greedy dual by size and frequency: the value of a part is its uses, times what it costs to bring back, by its
//! size. With each eviction the value of the victim is added to what parts arrive or are used with from then on, so
//! that old uses count ever less.

use vramd_types::DeviceIndex;

use super::{
    Part, Policy, Removal,
    ranking::{EachDevice, Ranking},
};
use crate::{collections::PartMap, event::PartRef, time::Time};

/// A value, and among equal ones the number of the last use.
type Rank = (u64, u64);

#[derive(Debug, Default)]
pub(super) struct Gdsf {
    order: Ranking<Rank>,
    parts: PartMap<State>,
    devices: EachDevice<Level>,
}

#[derive(Clone, Copy, Debug)]
struct State {
    rank: Rank,
    uses: u64,
}

/// The value that every use now begins with, and the number of uses so far.
#[derive(Debug, Default)]
struct Level {
    value: u64,
    uses: u64,
}

impl Gdsf {
    fn put(&mut self, Part { device, part, weight, .. }: Part, uses: u64) {
        let Some(level) = self.devices.entry(device) else { return };
        level.uses = level.uses.saturating_add(1);
        let value = level.value.saturating_add(uses.saturating_mul(weight.cost_per_granule()));
        let rank = (value, level.uses);
        self.order.insert(device, rank, part);
        self.parts.insert(part, State { rank, uses });
    }
}

impl Policy for Gdsf {
    fn insert(&mut self, part: Part) {
        self.put(part, 1);
    }

    fn record_use(&mut self, part: Part, _: Time, again: bool) {
        let Some(State { rank, uses }) = self.parts.get(part.part).copied() else { return };
        self.order.remove(part.device, rank, part.part);
        self.put(part, uses.saturating_add(u64::from(again)));
    }

    fn remove(&mut self, Part { device, part, .. }: Part, why: Removal) {
        let Some(State { rank, .. }) = self.parts.remove(part) else { return };
        self.order.remove(device, rank, part);
        if let Some(level) = self.devices.entry(device).filter(|_| why == Removal::Leaves) {
            level.value = level.value.max(rank.0);
        }
    }

    fn order(&self, device: DeviceIndex) -> Box<dyn Iterator<Item = PartRef> + '_> {
        Box::new(self.order.order(device, None))
    }
}

#[cfg(test)]
mod tests {
    use crate::eviction::{EvictionPolicy, Source, tests::*};

    #[test]
    fn gdsf_keeps_the_often_used_until_it_has_aged() {
        let mut residents = TestDevice::new(EvictionPolicy::Gdsf);
        residents.arrive_at(0, &[0, 1, 2]);
        residents.use_each(&[0, 1, 2, 0, 0, 1]);
        assert_eq!(residents.order(), [2, 1, 0]);
        // Each newcomer is worth one use more than the last victim.
        for number in 3..6 {
            let victim = residents.order()[0];
            residents.leave(victim);
            residents.arrive_at(100 + u64::from(number), &[number]);
        }
        assert_eq!(residents.order(), [0, 4, 5]);
    }

    #[test]
    fn gdsf_keeps_what_comes_back_from_disk() {
        let mut residents = TestDevice::new(EvictionPolicy::Gdsf);
        residents.arrive_with(0, 8, Source::Disk);
        residents.arrive_with(1, 8, Source::Host);
        residents.arrive_with(2, 8, Source::Nothing);
        residents.use_each(&[0, 1, 2, 1, 1]);
        assert_eq!(residents.order(), [2, 1, 0]);
    }
}
