//! Draws bad disks: slower than host memory, filled by other programs at times, and damaged for good in
//! places.

use std::time::Duration;

use crate::dice::Dice;

/// A stream of its own: worlds without such disks are the same as before they existed.
const STREAM: u64 = 7;

/// One in this many worlds has such disks.
const ONE_IN: u64 = 3;

#[derive(Clone, Copy, Debug)]
pub struct Disks {
    /// The most that a copy to or from a disk takes longer than others.
    pub slower: Duration,
    /// Of a thousand changes of other programs, how many fill a disk.
    pub filled: u64,
    /// Of a thousand damaged pieces, how many stay damaged.
    pub damaged_for_good: u64,
}

impl Disks {
    pub(super) fn draw(seed: u64) -> Option<Self> {
        let mut dice = Dice::new(seed, STREAM);
        let are_there = dice.roll(ONE_IN) == 0;
        let disks = Self {
            slower: Duration::from_millis(dice.one(&[0, 5, 30])),
            filled: dice.one(&[0, 200, 500]),
            damaged_for_good: dice.one(&[0, 300, 1000]),
        };
        are_there.then_some(disks)
    }

    pub fn slower_micros(&self) -> u64 {
        u64::try_from(self.slower.as_micros()).unwrap_or(u64::MAX)
    }
}
