//! Draws whether operators write back parts whose backing is clean already, and how often such copies fail.

use crate::dice::Dice;

/// A stream of its own: worlds without such write-backs are the same as before they existed.
const STREAM: u64 = 13;

/// One in this many worlds has such write-backs.
const ONE_IN: u64 = 3;

#[derive(Clone, Copy, Debug)]
pub struct WriteBacks {
    /// Of a thousand write-backs by operators, how many are done twice.
    pub twice: u64,
    /// By which factor copies without a waiter fail more often than others.
    pub fail_factor: u64,
}

impl WriteBacks {
    pub(super) fn draw(seed: u64) -> Option<Self> {
        let mut dice = Dice::new(seed, STREAM);
        let are_there = dice.roll(ONE_IN) == 0;
        let write_backs = Self { twice: dice.one(&[400, 800]), fail_factor: dice.one(&[5, 8]) };
        are_there.then_some(write_backs)
    }
}
