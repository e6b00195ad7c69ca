//! Least recently used first. An update costs O(log n).

use std::{collections::BTreeSet, ops::Bound};

use vramd_types::DeviceIndex;

use super::Policy;
use crate::{event::PartRef, time::Time};

#[derive(Debug, Default)]
pub(super) struct Lru(BTreeSet<(DeviceIndex, Time, PartRef)>);

impl Policy for Lru {
    fn insert(&mut self, device: DeviceIndex, part: PartRef, used: Time) {
        self.0.insert((device, used, part));
    }

    fn remove(&mut self, device: DeviceIndex, part: PartRef, used: Time) {
        self.0.remove(&(device, used, part));
    }

    fn order(
        &self,
        device: DeviceIndex,
        behind: Option<(PartRef, Time)>,
    ) -> Box<dyn Iterator<Item = PartRef> + '_> {
        let from = match behind {
            Some((part, when)) => Bound::Excluded((device, when, part)),
            None => Bound::Included((device, Time::START, PartRef::FIRST)),
        };
        let of = self.0.range((from, Bound::Unbounded)).take_while(move |(of, ..)| *of == device);
        Box::new(of.map(|(.., part)| *part))
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
