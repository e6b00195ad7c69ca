//! Least recently used first. An update costs O(log n).

use std::{collections::BTreeSet, ops::Bound};

use vramd_types::DeviceIndex;

use super::Policy;
use crate::{event::PartRef, time::Time};

#[derive(Debug, Default)]
pub(super) struct Lru {
    /// The parts of each device, by its number.
    devices: Vec<BTreeSet<(Time, PartRef)>>,
}

impl Policy for Lru {
    fn insert(&mut self, device: DeviceIndex, part: PartRef, used: Time) {
        let at = usize::from(device.0);
        if at >= self.devices.len() {
            self.devices.resize_with(at.saturating_add(1), BTreeSet::new);
        }
        if let Some(parts) = self.devices.get_mut(at) {
            parts.insert((used, part));
        }
    }

    fn remove(&mut self, device: DeviceIndex, part: PartRef, used: Time) {
        if let Some(parts) = self.devices.get_mut(usize::from(device.0)) {
            parts.remove(&(used, part));
        }
    }

    fn order(
        &self,
        device: DeviceIndex,
        behind: Option<(PartRef, Time)>,
    ) -> Box<dyn Iterator<Item = PartRef> + '_> {
        let from = behind.map_or(Bound::Unbounded, |(part, when)| Bound::Excluded((when, part)));
        let parts = self.devices.get(usize::from(device.0)).into_iter();
        Box::new(parts.flat_map(move |parts| parts.range((from, Bound::Unbounded))).map(|(_, part)| *part))
    }
}

#[cfg(test)]
mod tests {
    use vramd_types::{AllocationId, PartIndex};

    use super::*;

    #[test]
    fn lru_orders_the_last_used_part_last() {
        let part = |index| PartRef { allocation: AllocationId::from_raw(7), part: PartIndex(index) };
        let (one, other) = (DeviceIndex(0), DeviceIndex(1));
        let mut lru = Lru::default();
        for index in 0..3 {
            lru.insert(one, part(index), Time::from_micros(u64::from(index)));
        }
        lru.insert(other, part(9), Time::from_micros(1));
        lru.remove(one, part(0), Time::START);
        lru.insert(one, part(0), Time::from_micros(5));
        lru.remove(one, part(2), Time::from_micros(2));
        let order = |device| lru.order(device, None).collect::<Vec<_>>();
        assert_eq!((order(one), order(other)), (vec![part(1), part(0)], vec![part(9)]));
        // Behind a part that is there, and behind one that was there.
        let behind = |index, micros| lru.order(one, Some((part(index), Time::from_micros(micros)))).collect();
        let all: [Vec<_>; 4] = [behind(1, 1), behind(2, 2), behind(0, 0), behind(0, 5)];
        assert_eq!(all, [vec![part(0)], vec![part(0)], vec![part(1), part(0)], vec![]]);
    }
}
