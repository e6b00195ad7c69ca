//! Draws whether clients have turns of working sets, and how long these last.

use std::time::Duration;

use broker_core::{Config, TurnLimits};
use vramd_types::{Bytes, Quantity};

use super::Seat;
use crate::dice::Dice;

/// A stream of its own: worlds without working sets are the same as before they existed.
const STREAM: u64 = 25;

/// One in this many worlds has working sets.
const ONE_IN: u64 = 6;

/// The number of seats, from the first, whose processes have large working sets and do little else.
pub(crate) const TURNERS: usize = 4;

#[derive(Clone, Copy, Debug)]
pub struct WorkingSets {
    /// Of a thousand turns of a process without a working set, in how many it declares one.
    pub declares: u64,
    /// Of a thousand turns of a process without a turn of its set, in how many it requests one.
    pub requests: u64,
    /// Of a thousand turns of a process that has the turn of its set, in how many it yields.
    pub yields: u64,
    /// The same of a process that was asked to.
    pub obeys: u64,
    /// Of a thousand turns of a process with a set, in how many it gives it up.
    pub ends: u64,
    /// The most allocations of a set.
    pub allocations_max: u64,
    /// Of a thousand turns of a process with a large working set, in how many it does something else.
    pub others: u64,
    /// Of a thousand turns of a set, after how many its process sends an allocation away, which leaves free room.
    pub vacates: u64,
}

impl WorkingSets {
    pub(super) fn draw(config: &mut Config, seed: u64) -> Option<Self> {
        let mut dice = Dice::new(seed, STREAM);
        if dice.roll(ONE_IN) != 0 {
            return None;
        }
        let millis = |dice: &mut Dice, of: &[u64]| Duration::from_millis(dice.one(of));
        config.limits.turns = TurnLimits {
            quantum: millis(&mut dice, &[2, 10, 40]),
            min_quantum: millis(&mut dice, &[1, 5]),
            overdue_after: millis(&mut dice, &[3, 20]),
            end_after: millis(&mut dice, &[0, 0, 30, 200]),
        };
        Some(Self {
            declares: dice.one(&[200, 500]),
            requests: dice.one(&[300, 800]),
            yields: dice.one(&[0, 20, 100]),
            obeys: dice.one(&[50, 300]),
            ends: dice.one(&[5, 20]),
            allocations_max: dice.one(&[2, 8, 64]),
            others: dice.one(&[5, 50]),
            vacates: dice.one(&[0, 500]),
        })
    }

    /// Has some processes whose sets do not fit together.
    pub(super) fn apply_to(self, config: &mut Config, seats: &mut [Seat]) {
        for device in &mut config.devices {
            device.host = device.host.max(Bytes::new(device.total.get() * 4));
        }
        (config.default_limit, config.default_host_limit) = (Quantity::Percent(100), Quantity::Percent(100));
        let limits = &mut config.limits;
        limits.allocations_per_tenant_max = limits.allocations_per_tenant_max.max(200);
        limits.parts_per_tenant_max = limits.parts_per_tenant_max.max(1_000);
        limits.extents_max = limits.extents_max.max(2_000);
        limits.words_per_session_max = limits.words_per_session_max.max(256);
        for seat in seats.iter_mut().take(TURNERS) {
            seat.pins = true;
        }
    }
}
