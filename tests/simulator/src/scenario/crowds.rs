//! Draws whether threads pin so many parts together that a device has more waiters than the core makes room for at a
//! time.

use std::time::Duration;

use broker_core::Config;
use vramd_types::{Bytes, Quantity};

use super::{Fault, Faults, Script, Seat};
use crate::dice::Dice;

/// A stream of its own: worlds without crowds are the same as before they existed.
const STREAM: u64 = 11;

/// One in this many worlds has a crowd.
const ONE_IN: u64 = 16;

#[derive(Clone, Copy, Debug)]
pub struct Crowds {
    /// Threads of a process that pin.
    pub threads: usize,
    /// The most parts that a thread pins together.
    pub set_max: u64,
    /// With this many allocations a process mostly pins.
    pub known: usize,
}

impl Crowds {
    pub(super) fn draw(seed: u64) -> Option<Self> {
        let mut dice = Dice::new(seed, STREAM);
        let is_there = dice.roll(ONE_IN) == 0;
        let crowds = Self { threads: 1, set_max: dice.one(&[60, 90]), known: 6 };
        is_there.then_some(crowds)
    }

    /// Makes parts small and many, and lets all processes pin what lies anywhere.
    pub(super) fn apply_to(&self, config: &mut Config, seats: &mut [Seat], faults: &mut Faults) {
        config.part_size = Bytes::mib(2);
        config.default_limit = Quantity::Percent(100);
        for device in &mut config.devices {
            device.total = Bytes::mib(256);
            device.share = device.total;
            device.context_bytes = Bytes::ZERO;
            device.host = Bytes::mib(2048);
        }
        let limits = &mut config.limits;
        (limits.pins_waiting_max, limits.pin_parts_waiting_max) = (16, 128);
        (limits.fds_in_flight_max, limits.fds_in_flight_per_tenant_max) = (64, 32);
        (limits.words_per_session_max, limits.extents_max) = (512, 2_000);
        (limits.allocations_per_tenant_max, limits.parts_per_tenant_max) = (200, 1_000);
        // Sessions that end take their waiters with them.
        for fault in [
            Fault::Crash,
            Fault::Stop,
            Fault::ChannelCut,
            Fault::Malformed,
            Fault::Lies,
            Fault::SlowAnswers,
            Fault::DriverLost,
        ] {
            faults.set_rate(fault, 0);
        }
        // A call that waits is an event each time that this has passed.
        limits.pin_stall = Duration::from_millis(10);
        for seat in seats {
            (seat.pins, seat.script) = (true, Script::Turning);
        }
    }
}
