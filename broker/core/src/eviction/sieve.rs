//! SIEVE: parts stay in the order of their arrival, and a hand passes over them in turns. It takes parts that were not
//! used since it last passed, and spares the others once.
//!
//! The hand need not walk: a part's rank is the lap in which the hand takes it if it is not used again, and then its
//! place. A use changes only the rank of its part.

use vramd_types::DeviceIndex;

use super::{
    Part, Policy, Removal,
    ranking::{EachDevice, Ranking},
};
use crate::{collections::PartMap, event::PartRef, time::Time};

/// A lap, and the number of an arrival.
type Rank = (u64, u64);

#[derive(Debug, Default)]
pub(super) struct Sieve {
    order: Ranking<Rank>,
    ranks: PartMap<Rank>,
    devices: EachDevice<Hand>,
}

#[derive(Debug, Default)]
struct Hand {
    /// Where it took the last part.
    at: Rank,
    arrivals: u64,
}

impl Policy for Sieve {
    fn insert(&mut self, Part { device, part, .. }: Part) {
        let Some(hand) = self.devices.entry(device) else { return };
        hand.arrivals = hand.arrivals.saturating_add(1);
        let rank = (hand.at.0, hand.arrivals);
        self.ranks.insert(part, rank);
        self.order.insert(device, rank, part);
    }

    fn record_use(&mut self, Part { device, part, .. }: Part, _: Time, again: bool) {
        let (Some(rank), Some(hand)) = (self.ranks.get_mut(part).filter(|_| again), self.devices.get(device))
        else {
            return;
        };
        let (lap, place) = hand.at;
        // Behind the hand it is passed only in the next lap.
        let laps = if rank.1 > place { 1 } else { 2 };
        let spared = (lap.saturating_add(laps), rank.1);
        if spared != *rank {
            self.order.remove(device, *rank, part);
            self.order.insert(device, spared, part);
            *rank = spared;
        }
    }

    fn remove(&mut self, Part { device, part, .. }: Part, why: Removal) {
        let Some(rank) = self.ranks.remove(part) else { return };
        self.order.remove(device, rank, part);
        if let Some(hand) = self.devices.entry(device).filter(|_| why == Removal::Leaves) {
            // Behind the newest part the next lap begins.
            let (lap, place) = rank;
            let next = if place == hand.arrivals { (lap.saturating_add(1), 0) } else { rank };
            // A part that the hand would take later may leave for another reason.
            hand.at = hand.at.max(next);
        }
    }

    fn order(&self, device: DeviceIndex) -> Box<dyn Iterator<Item = PartRef> + '_> {
        Box::new(self.order.order(device, None))
    }
}

#[cfg(test)]
mod tests {
    use crate::eviction::{EvictionPolicy, tests::*};

    #[test]
    fn sieve_spares_a_used_part_for_one_turn() {
        let mut residents = TestDevice::new(EvictionPolicy::Sieve);
        residents.arrive_at(0, &[0, 1, 2, 3]);
        // The first use is the one that it arrived for.
        residents.use_each(&[0, 1, 2, 3]);
        assert_eq!(residents.order(), [0, 1, 2, 3]);
        residents.use_each(&[0, 2, 2]);
        assert_eq!(residents.order(), [1, 3, 0, 2]);
        residents.leave(1);
        residents.arrive_at(20, &[4]);
        // The hand is behind 0 and before 2: 0 is spared until it has passed the newcomer and 2.
        assert_eq!(residents.order(), [3, 4, 0, 2]);
        residents.use_each(&[0]);
        assert_eq!(residents.order(), [3, 4, 2, 0]);
    }

    /// Takes victims and uses parts at random, and compares with the algorithm as it is published: a list with marks.
    #[test]
    fn sieve_orders_as_a_walking_hand() {
        let mut dice = Dice(7);
        let mut residents = TestDevice::new(EvictionPolicy::Sieve);
        let (mut list, mut hand): (Vec<(u32, bool)>, usize) = (Vec::new(), 0);
        for number in 0..2000 {
            residents.arrive_at(u64::from(number) * 10, &[number]);
            residents.use_each(&[number]);
            list.push((number, false));
            for _ in 0..dice.roll(4) {
                let at = dice.roll(list.len());
                residents.use_each(&[list[at].0]);
                list[at].1 = true;
            }
            if list.len() > 20 {
                while std::mem::take(&mut list[hand].1) {
                    hand = (hand + 1) % list.len();
                }
                let (victim, _) = list.remove(hand);
                hand %= list.len();
                assert_eq!(residents.order()[0], victim);
                residents.leave(victim);
            }
        }
    }
}
