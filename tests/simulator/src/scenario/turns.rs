//! Draws whether a waiter that nothing helps lets others pass, and for how long at first.

use std::time::Duration;

use broker_core::Config;

use crate::dice::Dice;

/// A stream of its own: worlds in which such waiters always hold are the same as before they let others pass.
const STREAM: u64 = 14;

/// One in this many worlds has such waiters.
const ONE_IN: u64 = 3;

pub(super) fn draw_into(config: &mut Config, seed: u64) {
    let mut dice = Dice::new(seed, STREAM);
    let lets_pass = dice.roll(ONE_IN) == 0;
    let first = Duration::from_millis(dice.one(&[1, 4, 20]));
    config.limits.hold_after = if lets_pass { first } else { Duration::ZERO };
}
