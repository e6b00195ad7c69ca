//! Draws whether clients and operators rest for a while, so that parts grow cold on full devices.

use std::time::Duration;

use broker_core::Time;

use crate::dice::Dice;

/// A stream of its own: worlds without a lull are the same as before it existed.
const STREAM: u64 = 10;

/// One in this many worlds has a lull.
const ONE_IN: u64 = 3;

#[derive(Clone, Copy, Debug)]
pub struct Lull {
    begins: Time,
    ends: Time,
}

impl Lull {
    pub(super) fn draw(seed: u64) -> Option<Self> {
        let mut dice = Dice::new(seed, STREAM);
        let is_there = dice.roll(ONE_IN) == 0;
        let begins = Time::from_micros(dice.between(20_000, 200_000));
        let ends = begins.after(Duration::from_millis(dice.between(1_000, 2_000)));
        is_there.then_some(Self { begins, ends })
    }

    /// When the lull ends that is under way.
    pub fn end_at(&self, now: Time) -> Option<Time> {
        (self.begins <= now && now < self.ends).then_some(self.ends)
    }
}
