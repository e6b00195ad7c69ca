//! Draws owners without pins that detach their memory and attach it again, while operators move it.

use broker_core::Config;

use super::{Script, Seat};
use crate::dice::Dice;

/// A stream of its own: worlds without such owners are the same as before they existed.
const STREAM: u64 = 12;

/// One in this many worlds has such owners.
const ONE_IN: u64 = 4;

#[derive(Clone, Copy, Debug)]
pub struct Returning {
    /// Of a thousand acts of operators, how many also move memory of such an owner.
    pub moves: u64,
    seats: usize,
}

impl Returning {
    pub(super) fn draw(seed: u64) -> Option<Self> {
        let mut dice = Dice::new(seed, STREAM);
        let is_there = dice.roll(ONE_IN) == 0;
        let returning = Self { moves: dice.one(&[500, 900]), seats: 1 + dice.index(2) };
        is_there.then_some(returning)
    }

    /// Takes seats from the end, and gives the memory a tier to go to.
    pub(super) fn apply_to(&self, config: &mut Config, seats: &mut [Seat]) {
        for device in &mut config.devices {
            device.host = device.host.max(device.total);
        }
        for seat in seats.iter_mut().rev().take(self.seats) {
            (seat.pins, seat.script) = (false, Script::Returning);
        }
    }
}
