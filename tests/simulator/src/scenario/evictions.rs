//! Draws whether owners evict their own memory, and how often.

use crate::dice::Dice;

/// A stream of its own: worlds without such evictions are the same as before they existed.
const STREAM: u64 = 24;

/// One in this many worlds has owners that evict their memory.
const ONE_IN: u64 = 3;

#[derive(Clone, Copy, Debug)]
pub struct Evictions {
    /// Of a thousand requests, how many are evictions.
    pub rate: u64,
}

impl Evictions {
    pub(super) fn draw(seed: u64) -> Option<Self> {
        let mut dice = Dice::new(seed, STREAM);
        (dice.roll(ONE_IN) == 0).then(|| Self { rate: dice.one(&[50, 150, 300]) })
    }
}
