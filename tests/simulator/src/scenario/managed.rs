//! Draws whether processes have much managed memory, which is ordered to and fro.

use crate::dice::Dice;

/// A stream of its own: worlds without such orders are the same as before they existed.
const STREAM: u64 = 26;

/// One in this many worlds has orders for managed memory.
const ONE_IN: u64 = 4;

/// Rates in thousandths.
#[derive(Clone, Copy, Debug)]
pub struct ManagedOrdering {
    /// Of acts, how many allocate managed memory, order it or free it.
    pub rate: u64,
    /// Of these, how many lower the limit of the tenant or raise it again.
    pub limits: u64,
    /// Of orders, how many fail.
    pub failures: u64,
    /// Of batches, how many are never answered.
    pub silences: u64,
    /// The most microseconds that a client takes for a batch.
    pub slow_micros: u64,
}

impl ManagedOrdering {
    pub(super) fn draw(seed: u64) -> Option<Self> {
        let mut dice = Dice::new(seed, STREAM);
        (dice.roll(ONE_IN) == 0).then(|| Self {
            rate: dice.one(&[150, 400, 700]),
            limits: dice.one(&[20, 60, 120]),
            failures: dice.one(&[0, 100, 400]),
            silences: dice.one(&[0, 0, 30]),
            slow_micros: dice.one(&[500, 5_000, 40_000]),
        })
    }
}
