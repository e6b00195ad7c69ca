//! Draws whether operators fence parts that are being evicted, while sessions pin them.

use crate::dice::Dice;

/// A stream of its own: worlds without such fences are the same as before they existed.
const STREAM: u64 = 9;

/// One in this many worlds has such fences.
const ONE_IN: u64 = 3;

#[derive(Clone, Copy, Debug)]
pub struct Fences {
    /// Of a thousand revocations, how many are fences that join others.
    pub joining: u64,
    /// Of a thousand answers about pin words, how many are late.
    pub late: u64,
    /// The most microseconds by which these are late.
    pub late_micros: u64,
}

impl Fences {
    pub(super) fn draw(seed: u64) -> Option<Self> {
        let mut dice = Dice::new(seed, STREAM);
        let are_there = dice.roll(ONE_IN) == 0;
        let fences = Self {
            joining: dice.one(&[200, 500]),
            late: dice.one(&[100, 400]),
            late_micros: dice.one(&[500, 2_000]),
        };
        are_there.then_some(fences)
    }
}
