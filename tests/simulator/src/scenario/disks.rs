//! Disks as some are: slower than the host's memory, filled by others at times, and damaged for good where they are.

use std::time::Duration;

use crate::dice::Dice;

/// A stream of its own: a world without such disks is what it was before there were any.
const STREAM: u64 = 7;

/// One in so many worlds has such disks.
const ONE_IN: u64 = 3;

#[derive(Clone, Copy, Debug)]
pub struct Disks {
    /// A copy to or from a disk takes so much longer than others, at most.
    pub slower: Duration,
    /// Of a thousand times that others come or go, so often they have all that is left of a disk.
    pub filled: u64,
    /// Of a thousand pieces that cannot be read as they were written, so many never can be.
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
