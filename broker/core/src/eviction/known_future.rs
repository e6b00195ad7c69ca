//! Evicts the part that is needed furthest ahead, for replays of a trace: there the whole future is known.
//!
//! The cost is counted in bytes fetched, so sizes decide only between parts that are needed at the same time, as parts
//! that are never used again are. There the larger part leaves first: fewer parts have to leave. A larger part that
//! makes the same room for the same time costs as many bytes to bring back as smaller ones together.

use std::{cmp::Reverse, collections::BTreeMap};

use vramd_types::DeviceIndex;

use super::{Part, Policy, Removal, ranking::Ranking};
use crate::{event::PartRef, time::Time};

#[derive(Debug, Default)]
pub(super) struct KnownFuture {
    /// The times of all uses of a part, ascending.
    uses: BTreeMap<PartRef, Vec<Time>>,
    order: Ranking<Rank>,
}

/// First the part that is used last, then the largest one.
type Rank = (Reverse<u64>, Reverse<u64>);

impl KnownFuture {
    /// The rank of a part that was last used at that time.
    fn rank(&self, Part { part, used, weight, .. }: Part) -> Rank {
        let later = |uses: &Vec<Time>| uses.get(uses.partition_point(|time| *time <= used)).copied();
        // A part that is never used again comes before every other one.
        let next = self.uses.get(&part).and_then(later).map_or(u64::MAX, Time::as_micros);
        (Reverse(next), Reverse(weight.granules()))
    }
}

impl Policy for KnownFuture {
    fn insert(&mut self, part: Part) {
        self.order.insert(part.device, self.rank(part), part.part);
    }

    fn record_use(&mut self, part: Part, now: Time, _: bool) {
        self.order.remove(part.device, self.rank(part), part.part);
        self.insert(Part { used: now, ..part });
    }

    fn remove(&mut self, part: Part, _: Removal) {
        self.order.remove(part.device, self.rank(part), part.part);
    }

    fn order(&self, device: DeviceIndex) -> Box<dyn Iterator<Item = PartRef> + '_> {
        Box::new(self.order.order(device, None))
    }

    fn foretell(&mut self, part: PartRef, listed: Option<Part>, uses: Vec<Time>) {
        if let Some(listed) = listed {
            self.remove(listed, Removal::Leaves);
        }
        self.uses.insert(part, uses);
        if let Some(listed) = listed {
            self.insert(listed);
        }
    }
}

#[cfg(test)]
mod tests {
    use vramd_types::{AllocationId, Bytes, PartIndex};

    use super::*;
    use crate::{
        eviction::{Residents, Source, Weight},
        tenancy::TenantClass,
    };

    const ON: DeviceIndex = DeviceIndex(0);

    fn part(number: u32) -> PartRef {
        PartRef { allocation: AllocationId::from_raw(7), part: PartIndex(number) }
    }

    fn order(residents: &Residents) -> Vec<u32> {
        residents.order(ON).map(|part| part.part.0).collect()
    }

    #[test]
    fn part_that_is_needed_furthest_ahead_leaves_first() {
        let mut residents = Residents::knowing_the_future();
        let arrive = |residents: &mut Residents, number, mib, micros: u64| {
            let weight = Weight::new(Bytes::mib(mib), Source::Host);
            let class = TenantClass::default();
            residents.arrive(ON, part(number), (weight, class), Time::from_micros(micros));
        };
        let foretell = |residents: &mut Residents, number, uses: &[u64]| {
            residents.foretell(part(number), uses.iter().copied().map(Time::from_micros).collect());
        };
        foretell(&mut residents, 0, &[5, 30]);
        arrive(&mut residents, 0, 8, 1);
        arrive(&mut residents, 1, 8, 2);
        arrive(&mut residents, 2, 8, 3);
        arrive(&mut residents, 3, 64, 4);
        // Two parts were there before their future was told, and two are never used again.
        foretell(&mut residents, 1, &[20]);
        assert_eq!(order(&residents), [3, 2, 1, 0]);
        residents.record_use(part(0), Time::from_micros(5));
        assert_eq!(order(&residents), [3, 2, 0, 1]);
        residents.exclude(part(0));
        residents.record_use(part(1), Time::from_micros(20));
        assert_eq!(order(&residents), [3, 1, 2], "equal parts leave in the order of their ids");
        arrive(&mut residents, 0, 8, 21);
        assert_eq!(order(&residents), [3, 1, 2, 0]);
        residents.remove(part(3));
        assert_eq!(order(&residents), [1, 2, 0]);
    }
}
