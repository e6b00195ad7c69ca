//! Draws whether clients ask for parts ahead of their use, and how often.

use broker_core::Config;
use vramd_types::Bytes;

use crate::dice::Dice;

/// A stream of its own: worlds without prefetch requests are the same as before they existed.
const STREAM: u64 = 18;

/// One in this many worlds has prefetch requests.
const ONE_IN: u64 = 3;

#[derive(Clone, Copy, Debug)]
pub struct Prefetching {
    /// Of a thousand turns of a process, in how many it asks for parts.
    pub rate: u64,
    /// Of a thousand turns of a process with requests, in how many it cancels one.
    pub cancels: u64,
    /// The most parts of a request.
    pub parts_max: u64,
    /// Of a thousand requests, how many have a deadline.
    pub deadlines: u64,
    /// The latest deadline in microseconds.
    pub within_max: u64,
}

impl Prefetching {
    /// `often`: all tenants ask ahead all the time.
    pub(super) fn draw(config: &mut Config, seed: u64, often: bool) -> Option<Self> {
        let mut dice = Dice::new(seed, STREAM);
        if dice.roll(ONE_IN) != 0 && !often {
            return None;
        }
        let mut prefetching = Self {
            rate: if often { 600 } else { dice.one(&[50, 150, 400]) },
            cancels: dice.one(&[10, 40]),
            parts_max: dice.one(&[2, 4, 8]),
            // Between tenants a deadline comes before the weight.
            deadlines: if often { 200 } else { 600 },
            within_max: dice.one(&[2_000, 20_000, 200_000]),
        };
        if dice.chance(500) && !often {
            config.limits.prefetches_per_session_max = dice.one(&[1, 2]);
        }
        // Parts have a few MiB here.
        config.limits.prefetch_bytes_copied_max = Bytes::mib(dice.one(&[1, 8, 64]));
        // One copy at a time, large requests and deadlines that can be met: parts wait for the link.
        if dice.chance(400) && !often {
            config.limits.prefetch_bytes_copied_max = Bytes::mib(1);
            prefetching =
                Self { rate: 600, parts_max: 8, deadlines: 800, within_max: 1_000_000, ..prefetching };
        }
        Some(prefetching)
    }
}
