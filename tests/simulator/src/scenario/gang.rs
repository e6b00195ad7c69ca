//! Draws seats whose processes are one process to the daemon, with a session each, and stop answering together.

use std::time::Duration;

use broker_core::Config;

use super::{Script, Seat};
use crate::dice::Dice;

/// A stream of its own: worlds without such seats are the same as before they existed.
const STREAM: u64 = 15;

/// One in this many worlds has such seats.
const ONE_IN: u64 = 4;

const PIN_STALL: Duration = Duration::from_millis(10);

/// The pid of all their processes. No other process has it.
pub const GANG_PID: u32 = 50;

#[derive(Clone, Copy, Debug)]
pub struct Gang {
    /// The first seats.
    pub seats: usize,
    /// Of a thousand acts of its processes, how many stop all of them.
    pub stops: u64,
    /// The most microseconds for which they stop.
    pub stop_micros: u64,
    unmap_answer: Duration,
}

impl Gang {
    pub(super) fn draw(seed: u64) -> Option<Self> {
        let mut dice = Dice::new(seed, STREAM);
        let is_there = dice.roll(ONE_IN) == 0;
        let gang = Self {
            seats: 3 + dice.index(3),
            stops: dice.one(&[3, 10]),
            stop_micros: dice.one(&[20_000, 60_000]),
            unmap_answer: Duration::from_millis(dice.one(&[2, 4])),
        };
        is_there.then_some(gang)
    }

    /// Takes the first seats, or adds them, and gives the memory a tier to go to.
    pub(super) fn apply_to(&self, config: &mut Config, seats: &mut Vec<Seat>) {
        while seats.len() < self.seats + 2 {
            seats.push(seats[0].clone());
        }
        for seat in seats.iter_mut().take(self.seats) {
            (seat.pins, seat.script, seat.devices) = (true, Script::Turning, None);
        }
        for device in &mut config.devices {
            device.host = device.host.max(device.total);
        }
        config.limits.unmap_answer_timeout = self.unmap_answer;
        // Many of its calls may wait for memory that another process does not return.
        config.limits.pin_stall = config.limits.pin_stall.max(PIN_STALL);
    }

    pub fn has(&self, seat: usize) -> bool {
        seat < self.seats
    }
}
