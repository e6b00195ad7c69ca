//! Draws whether clients declare in which order they use their parts.

use crate::dice::Dice;

/// A stream of its own: worlds without sequences are the same as before they existed.
const STREAM: u64 = 21;

/// One in this many worlds has sequences.
const ONE_IN: u64 = 3;

#[derive(Clone, Copy, Debug)]
pub struct Sequencing {
    /// Of a thousand turns of a process without a sequence, in how many it declares one.
    pub rate: u64,
    /// Of a thousand turns of a process with a sequence, in how many it begins the next step.
    pub pace: u64,
    /// Of a thousand turns of a process with a sequence, in how many it ends it.
    pub ends: u64,
    pub steps_max: u64,
    /// The most parts of a step.
    pub parts_max: u64,
}

impl Sequencing {
    pub(super) fn draw(seed: u64) -> Option<Self> {
        let mut dice = Dice::new(seed, STREAM);
        if dice.roll(ONE_IN) != 0 {
            return None;
        }
        Some(Self {
            rate: dice.one(&[100, 300]),
            pace: dice.one(&[300, 700]),
            ends: dice.one(&[5, 30]),
            steps_max: dice.one(&[3, 6, 12]),
            parts_max: dice.one(&[1, 2, 4]),
        })
    }
}
