//! Draws whether files can be loaded in a world, and how often they are.

use broker_core::Config;
use vramd_types::Bytes;

use super::{Fault, Faults};
use crate::dice::Dice;

/// A stream of its own: worlds without files are the same as before they existed.
const STREAM: u64 = 5;

/// One in this many worlds has files.
const ONE_IN: u64 = 3;

#[derive(Clone, Copy, Debug)]
pub struct Files {
    /// Of a thousand requests to allocate, how many load instead.
    pub loads: u64,
    /// Of a thousand reads, how many find the file changed.
    changes: u64,
    /// No device has a host or disk tier.
    alone: bool,
}

impl Files {
    pub(super) fn draw(seed: u64) -> Option<Self> {
        let mut dice = Dice::new(seed, STREAM);
        let has_files = dice.roll(ONE_IN) == 0;
        let loads = dice.one(&[100, 300, 600]);
        let changes = dice.one(&[0, 20, 150]);
        let alone = dice.chance(300);
        has_files.then_some(Self { loads, changes, alone })
    }

    pub(super) fn apply_to(&self, config: &mut Config, faults: &mut Faults) {
        config.files = true;
        faults.set_rate(Fault::FileChanges, self.changes);
        if self.alone {
            for device in &mut config.devices {
                (device.host, device.disk) = (Bytes::ZERO, Bytes::ZERO);
            }
        }
    }
}
