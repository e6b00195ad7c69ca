//! S3-FIFO: a part arrives in a small queue. If it is used again there, it moves to the main queue; otherwise it leaves
//! once the small queue has more than a tenth of the device's bytes. A part that comes back soon after it left the
//! small queue goes to the main queue at once. The main queue takes its parts in turns; each use, up to three, spares a part once.
//!
//! In the published algorithm a part moves to the main queue when it reaches the end of the small one, if it was used
//! more than once again. Here it moves with its first use there, so that the order is known at any time without walking
//! along either queue. A second use as the condition fetched more on the traces of `tests/policy-bench`.

use vramd_types::{AllocationId, DeviceIndex};

use super::{
    Part, Policy, Removal,
    ghosts::Ghosts,
    ranking::{EachDevice, Ranking},
};
use crate::{collections::PartMap, event::PartRef, time::Time};

/// A part leaves the small queue while this has more than one in so many bytes of the device.
const SMALL_ONE_IN: u64 = 10;
/// The main queue spares a part for this many turns at most.
const SPARED_MAX: u64 = 3;

/// A turn, and the number of an arrival.
type Rank = (u64, u64);

#[derive(Debug, Default)]
pub(super) struct S3Fifo {
    small: Ranking<u64>,
    main: Ranking<Rank>,
    parts: PartMap<State>,
    devices: EachDevice<Queues>,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Small { arrival: u64, granules: u64 },
    Main { rank: Rank, granules: u64 },
}

impl State {
    const fn granules(self) -> u64 {
        match self {
            Self::Small { granules, .. } | Self::Main { granules, .. } => granules,
        }
    }
}

#[derive(Debug, Default)]
struct Queues {
    arrivals: u64,
    /// The turn of the main queue.
    turn: u64,
    small_granules: u64,
    granules: u64,
    parts: usize,
    left_small: Ghosts<()>,
}

impl S3Fifo {
    fn put_in_main(&mut self, device: DeviceIndex, part: PartRef, granules: u64) {
        let Some(queues) = self.devices.entry(device) else { return };
        queues.arrivals = queues.arrivals.saturating_add(1);
        let rank = (queues.turn, queues.arrivals);
        self.main.insert(device, rank, part);
        self.parts.insert(part, State::Main { rank, granules });
    }
}

impl Policy for S3Fifo {
    fn insert(&mut self, Part { device, part, weight, .. }: Part) {
        let granules = weight.granules();
        let Some(queues) = self.devices.entry(device) else { return };
        queues.granules = queues.granules.saturating_add(granules);
        queues.parts = queues.parts.saturating_add(1);
        if queues.left_small.remove(part).is_some() {
            return self.put_in_main(device, part, granules);
        }
        queues.small_granules = queues.small_granules.saturating_add(granules);
        queues.arrivals = queues.arrivals.saturating_add(1);
        self.small.insert(device, queues.arrivals, part);
        self.parts.insert(part, State::Small { arrival: queues.arrivals, granules });
    }

    fn record_use(&mut self, Part { device, part, .. }: Part, _: Time, again: bool) {
        let (Some(state), Some(queues)) =
            (self.parts.get_mut(part).filter(|_| again), self.devices.entry(device))
        else {
            return;
        };
        match state {
            State::Small { arrival, granules } => {
                let (arrival, granules) = (*arrival, *granules);
                queues.small_granules = queues.small_granules.saturating_sub(granules);
                self.small.remove(device, arrival, part);
                self.put_in_main(device, part, granules);
            }
            State::Main { rank, .. } => {
                let spared = rank.0.max(queues.turn).saturating_add(1);
                let after = (spared.min(queues.turn.saturating_add(SPARED_MAX)), rank.1);
                if after != *rank {
                    self.main.remove(device, *rank, part);
                    self.main.insert(device, after, part);
                    *rank = after;
                }
            }
        }
    }

    fn remove(&mut self, Part { device, part, .. }: Part, why: Removal) {
        let (Some(state), Some(queues)) = (self.parts.remove(part), self.devices.entry(device)) else {
            return;
        };
        queues.granules = queues.granules.saturating_sub(state.granules());
        queues.parts = queues.parts.saturating_sub(1);
        match state {
            State::Small { arrival, granules } => {
                self.small.remove(device, arrival, part);
                queues.small_granules = queues.small_granules.saturating_sub(granules);
                if why == Removal::Leaves {
                    queues.left_small.insert(part, ());
                }
            }
            State::Main { rank, .. } => {
                self.main.remove(device, rank, part);
                if why == Removal::Leaves {
                    queues.turn = queues.turn.max(rank.0);
                }
            }
        }
        while queues.left_small.expire(queues.parts.max(1)).is_some() {}
    }

    fn forget(&mut self, allocation: AllocationId) {
        self.devices.iter_mut().for_each(|queues| _ = queues.left_small.forget(allocation));
    }

    fn order(&self, device: DeviceIndex) -> Box<dyn Iterator<Item = PartRef> + '_> {
        let Some(queues) = self.devices.get(device) else { return Box::new(std::iter::empty()) };
        let (mut small, mut main) = (self.small.order(device, None), self.main.order(device, None));
        let (mut in_small, mut all) = (queues.small_granules, queues.granules);
        Box::new(std::iter::from_fn(move || {
            let is_small_full = in_small.saturating_mul(SMALL_ONE_IN) > all;
            let from_small = if is_small_full { small.next() } else { None };
            if let Some(part) = from_small {
                let granules = self.parts.get(part).map_or(0, |state| state.granules());
                (in_small, all) = (in_small.saturating_sub(granules), all.saturating_sub(granules));
                return Some(part);
            }
            match main.next() {
                Some(part) => {
                    all = all.saturating_sub(self.parts.get(part).map_or(0, |state| state.granules()));
                    Some(part)
                }
                None => small.next(),
            }
        }))
    }

    fn remembered(&self) -> Box<dyn Iterator<Item = PartRef> + '_> {
        Box::new(self.devices.iter().flat_map(|queues| queues.left_small.iter()))
    }
}

#[cfg(test)]
mod tests {
    use crate::eviction::{EvictionPolicy, tests::*};

    #[test]
    fn s3_fifo_takes_what_was_used_once_before_what_was_used_again() {
        let mut residents = TestDevice::new(EvictionPolicy::S3Fifo);
        residents.arrive_at(0, &[0, 1, 2, 3]);
        residents.use_each(&[0, 1, 2, 3, 0, 2, 2]);
        assert_eq!(residents.order(), [1, 3, 0, 2]);
        // All of the small queue leaves before the main queue, as long as it has more than a tenth.
        residents.use_each(&[1]);
        assert_eq!(residents.order(), [3, 0, 1, 2]);
    }

    #[test]
    fn part_that_comes_back_soon_goes_to_the_main_queue() {
        let mut residents = TestDevice::new(EvictionPolicy::S3Fifo);
        residents.arrive_at(0, &[0, 1, 2]);
        residents.leave(0);
        assert_eq!(residents.remembered(), [0]);
        residents.arrive_at(10, &[0, 3]);
        assert_eq!(residents.order(), [1, 2, 3, 0]);
        assert_eq!(residents.remembered(), []);
    }

    #[test]
    fn small_queue_below_its_share_keeps_its_parts() {
        let mut residents = TestDevice::new(EvictionPolicy::S3Fifo);
        let main: Vec<u32> = (0..20).collect();
        residents.arrive_at(0, &main);
        residents.use_each(&main);
        residents.use_each(&main);
        residents.arrive_at(100, &[20, 21]);
        // Two in 22 are no tenth; one in 10 is.
        let order = residents.order();
        assert_eq!(order[..3], [0, 1, 2]);
        assert_eq!(order.iter().position(|it| *it == 20), Some(3));
    }

    #[test]
    fn ghosts_are_bounded_and_end_with_their_allocation() {
        ghosts_are_bounded_by_residents(EvictionPolicy::S3Fifo, 1);
    }
}
