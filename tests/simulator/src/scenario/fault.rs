//! Faults, and how often they happen in a world.

use std::collections::{BTreeMap, BTreeSet};

use crate::dice::Dice;

macro_rules! faults {
    ($($fault:ident = $name:literal, $usual:literal;)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Fault {
            $($fault,)*
        }

        impl Fault {
            pub const ALL: &'static [Self] = &[$(Self::$fault),*];

            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$fault => $name,)*
                }
            }

            /// Usual rate of a thousand chances, where the fault happens at all. Zero means that it is drawn
            /// elsewhere.
            const fn usual(self) -> u64 {
                match self {
                    $(Self::$fault => $usual,)*
                }
            }
        }
    };
}

faults! {
    OutOfMemory = "out-of-memory", 30;
    CreateFails = "create-fails", 20;
    DigestFails = "digest-fails", 80;
    StoreFails = "store-fails", 150;
    Delayed = "delayed", 50;
    LostCompletion = "lost-completion", 4;
    CopyFails = "copy-fails", 60;
    DiskDamaged = "disk-damaged", 250;
    Clung = "clung", 60;
    OtherPrograms = "other-programs", 500;
    MapFails = "map-fails", 30;
    Crash = "crash", 4;
    Stop = "stop", 10;
    ChannelCut = "channel-cut", 4;
    Malformed = "malformed", 2;
    Lies = "lies", 60;
    DriverLost = "driver-lost", 1;
    SlowAnswers = "slow-answers", 30;
    FileChanges = "file-changes", 0;
}

/// The rates of one world. A third of all kinds does not happen in it at all, so that worlds differ.
#[derive(Clone, Debug)]
pub struct Faults {
    rates: BTreeMap<Fault, u64>,
    without: BTreeSet<Fault>,
}

impl Faults {
    pub(super) fn draw(dice: &mut Dice, without: &BTreeSet<Fault>) -> Self {
        let calm = dice.chance(100);
        let drawn = Fault::ALL.iter().filter(|fault| fault.usual() > 0).map(|fault| {
            let rate = match dice.roll(3) {
                0 => 0,
                1 => fault.usual(),
                _ => fault.usual().div_ceil(3),
            };
            (*fault, if calm || without.contains(fault) { 0 } else { rate })
        });
        Self { rates: drawn.collect(), without: without.clone() }
    }

    pub fn rate(&self, fault: Fault) -> u64 {
        self.rates.get(&fault).copied().unwrap_or_default()
    }

    /// Sets the rate of a fault that is drawn elsewhere.
    pub(super) fn set_rate(&mut self, fault: Fault, rate: u64) {
        if !self.without.contains(&fault) {
            self.rates.insert(fault, rate);
        }
    }

    /// Stops all faults.
    pub fn stop(&mut self) {
        self.rates.clear();
    }
}
