//! Draws whether clients pin the parts of an allocation one after the other, in an order that the daemon can learn.

use broker_core::Config;
use vramd_types::{Bytes, Quantity};

use super::Seat;
use crate::dice::Dice;

/// A stream of its own: worlds without such clients are the same as before they existed.
const STREAM: u64 = 23;

/// One in this many worlds has such clients.
const ONE_IN: u64 = 4;

/// The number of seats, from the first, whose processes stroll.
pub(crate) const STROLLERS: usize = 2;

#[derive(Clone, Copy, Debug)]
pub struct Strolls {
    /// Of a thousand turns of a strolling process, in how many it does something else.
    pub others: u64,
    /// Of a thousand steps, how many go elsewhere.
    pub leaps: u64,
    /// Of a thousand begins of a pass, how many find the allocation in host memory.
    pub demoted: u64,
    /// Of a thousand strolls, in how many its owner advises a pattern first.
    pub advised: u64,
    pub parts: u64,
}

impl Strolls {
    pub(super) fn draw(seed: u64) -> Option<Self> {
        let mut dice = Dice::new(seed, STREAM);
        (dice.roll(ONE_IN) == 0).then(|| Self {
            others: dice.one(&[5, 50]),
            leaps: dice.one(&[0, 30, 100, 150, 250]),
            demoted: dice.one(&[500, 900]),
            advised: dice.one(&[0, 300, 900]),
            parts: dice.one(&[6, 12]),
        })
    }

    /// Leaves room on the devices, since only free room is used unasked.
    pub(super) fn apply_to(self, config: &mut Config, seats: &mut [Seat]) {
        for device in &mut config.devices {
            device.total = device.total.max(Bytes::mib(256));
            device.share = device.total;
            device.host = device.host.max(Bytes::new(device.total.get() * 2));
        }
        (config.default_limit, config.default_host_limit) = (Quantity::Percent(100), Quantity::Percent(100));
        let limits = &mut config.limits;
        limits.allocations_per_tenant_max = limits.allocations_per_tenant_max.max(200);
        limits.parts_per_tenant_max = limits.parts_per_tenant_max.max(1_000);
        limits.extents_max = limits.extents_max.max(2_000);
        limits.words_per_session_max = limits.words_per_session_max.max(128);
        (config.pressure.elevated_percent, config.pressure.high_percent) = (80, 90);
        (config.pressure.critical_percent, config.pressure.evict_to_percent) = (95, 85);
        for seat in seats.iter_mut().take(STROLLERS) {
            seat.pins = true;
        }
    }
}
