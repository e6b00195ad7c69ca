//! Least recently used first.

use vramd_types::DeviceIndex;

use super::{Part, Policy, Removal, ranking::Ranking};
use crate::{event::PartRef, time::Time};

#[derive(Debug, Default)]
pub(super) struct Lru {
    parts: Ranking<Time>,
}

impl Policy for Lru {
    fn insert(&mut self, Part { device, part, used, .. }: Part) {
        self.parts.insert(device, used, part);
    }

    fn record_use(&mut self, Part { device, part, used, .. }: Part, now: Time, _: bool) {
        self.parts.remove(device, used, part);
        self.parts.insert(device, now, part);
    }

    fn remove(&mut self, Part { device, part, used, .. }: Part, _: Removal) {
        self.parts.remove(device, used, part);
    }

    fn order(&self, device: DeviceIndex) -> Box<dyn Iterator<Item = PartRef> + '_> {
        Box::new(self.parts.order(device, None))
    }

    fn order_by_use(
        &self,
        device: DeviceIndex,
        behind: Option<(PartRef, Time)>,
    ) -> Option<Box<dyn Iterator<Item = PartRef> + '_>> {
        Some(Box::new(self.parts.order(device, behind.map(|(part, used)| (used, part)))))
    }
}

#[cfg(test)]
mod tests {
    use crate::eviction::{EvictionPolicy, tests::*};

    #[test]
    fn lru_orders_the_last_used_part_last() {
        let mut residents = TestDevice::new(EvictionPolicy::Lru);
        residents.arrive_at(0, &[0, 1, 2]);
        residents.leave(0);
        residents.arrive_at(5, &[0]);
        residents.free(2);
        assert_eq!(residents.order(), [1, 0]);
        // Behind a part that is there, and behind one that was there.
        let behind =
            [(1, 1), (2, 2), (0, 0), (0, 5)].map(|(number, micros)| residents.order_after(number, micros));
        assert_eq!(behind, [vec![0], vec![0], vec![1, 0], vec![]]);
    }
}
