//! Whether files can be loaded in a world, and how often that is done.

use broker_core::Config;
use vramd_types::Bytes;

use super::{Fault, Faults};
use crate::dice::Dice;

/// A stream of its own: a world without files is what it was before there were any.
const STREAM: u64 = 5;

/// One in so many worlds has files.
const ONE_IN: u64 = 3;

#[derive(Clone, Copy, Debug)]
pub struct Files {
    /// Of a thousand who would allocate, so many load.
    pub loads: u64,
    /// How often a file is found changed, of a thousand times that it is read.
    changes: u64,
    /// There is nothing else below any device.
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
