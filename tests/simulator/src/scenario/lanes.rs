//! Draws whether copies go by lanes in a world, and how fast these are. Otherwise each copy takes its time by
//! itself, and copies end in any order.

use broker_core::{Config, DeviceConfig};
use vramd_types::{Bytes, Shares};

use crate::dice::Dice;

/// A stream of its own: worlds without lanes are the same as before they existed.
const STREAM: u64 = 3;

/// One in this many worlds has lanes.
const ONE_IN: u64 = 3;

/// Bytes that a lane carries in a microsecond.
const BYTES_A_MICRO: u64 = 1024;

const DEVICES_CROWDED: usize = 3;

#[derive(Clone, Copy, Debug)]
pub struct Lanes {
    pub shares: Shares,
    /// How long a chunk takes at most.
    pub chunk_micros_max: u64,
    /// Where lanes share a link: what all lanes into and out of devices carry together, in percent of one of
    /// them.
    pub shared_percent: Option<u64>,
    /// Copies are long, and the lanes of three devices share the link. One device is filled while the others
    /// are emptied, so that each class waits in lanes of its own.
    pub is_crowded: bool,
    /// Mean microseconds between two acts of one process: short enough for copies to compete.
    pub think_micros: u64,
}

impl Lanes {
    pub(super) fn draw(seed: u64) -> Option<Self> {
        let mut dice = Dice::new(seed, STREAM);
        let has_lanes = dice.roll(ONE_IN) == 0;
        let (demand, prefetch, write_back) = dice.one(&[
            (30, 50, 20),
            (30, 50, 20),
            (10, 20, 70),
            (10, 20, 70),
            (30, 0, 70),
            (20, 60, 20),
            (0, 50, 50),
            (0, 0, 0),
        ]);
        let shares = Shares::new(demand, prefetch, write_back).unwrap_or_default();
        let chunk_micros_max = dice.one(&[100, 400, 400]);
        let shared_percent = dice.chance(500).then(|| dice.between(60, 180));
        let think_micros = dice.one(&[100, 300]);
        let is_crowded = shared_percent.is_some() && dice.chance(500);
        let think_micros = if is_crowded { 1_000 } else { think_micros };
        has_lanes.then_some(Self { shares, chunk_micros_max, shared_percent, is_crowded, think_micros })
    }

    /// Gives the devices room to copy to, and adds devices where many are needed.
    pub(super) fn apply_to(&self, config: &mut Config) {
        config.shares = self.shares;
        while let (devices, Some(last)) = (config.devices.len(), config.devices.last())
            && devices < DEVICES_CROWDED
            && self.is_crowded
        {
            config.devices.push(DeviceConfig { uuid: format!("GPU-{devices}"), ..last.clone() });
        }
        for device in &mut config.devices {
            let room = device.total.saturating_add(device.total);
            (device.host, device.disk) = (device.host.max(room), device.disk.max(room));
        }
    }

    /// The most chunks that a copy is cut into.
    pub const fn chunks_max(&self) -> u64 {
        if self.is_crowded { 64 } else { 8 }
    }

    /// How long a chunk takes, in percent of its time alone, while chunks are under way in that many lanes of
    /// a shared link.
    pub fn slowed_percent(&self, lanes: usize) -> u64 {
        self.shared_percent.map_or(100, |percent| (lanes as u64 * 10_000 / percent).max(100))
    }

    /// Bytes that a lane copies in a second.
    pub fn carries() -> u64 {
        Self::bytes_in(1_000_000).get()
    }

    /// Bytes that a lane copies in that time.
    pub fn bytes_in(micros: u64) -> Bytes {
        Bytes::new(micros.saturating_mul(BYTES_A_MICRO))
    }

    /// The largest chunk.
    pub fn chunk(&self) -> Bytes {
        Self::bytes_in(self.chunk_micros_max)
    }
}
