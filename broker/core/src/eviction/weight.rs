//! The weight of a part: its size, and the tier that it comes back from.

use vramd_types::{Bytes, GRANULARITY};

/// Where a part that leaves its device comes back from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// From nowhere: its content is dropped.
    Nothing,
    #[default]
    Host,
    /// From the disk tier, or from a file.
    Disk,
}

impl Source {
    /// Microseconds to bring back a granule of 2 MiB, and for each part beside. These are typical figures, not measured
    /// ones: policies need the ratio only, and the ratio of two tiers varies little.
    pub(super) const fn micros(self) -> (u64, u64) {
        match self {
            // Zeroed on the device.
            Self::Nothing => (2, 10),
            // 25 GB/s.
            Self::Host => (84, 10),
            // 3 GB/s.
            Self::Disk => (700, 100),
        }
    }

    /// The bandwidth of a device over that of the way back, as a binary logarithm in 256ths, less that of `Nothing`.
    pub(super) const fn log_transfer(self) -> u64 {
        match self {
            Self::Nothing => 0,
            Self::Host => 5 * 256 + 100,
            Self::Disk => 8 * 256 + 115,
        }
    }
}

/// The weight of a part. It stays as it was when the part arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weight {
    /// The size, in units of [`GRANULARITY`].
    granules: u32,
    source: Source,
}

impl Weight {
    pub fn new(size: Bytes, source: Source) -> Self {
        let granules = size.get().div_ceil(GRANULARITY.get());
        Self { granules: u32::try_from(granules).unwrap_or(u32::MAX), source }
    }

    /// At least 1.
    pub(super) fn granules(self) -> u64 {
        u64::from(self.granules.max(1))
    }

    pub(super) const fn source(self) -> Source {
        self.source
    }

    /// Nanoseconds to bring it back, for each granule.
    pub(super) fn cost_per_granule(self) -> u64 {
        let (each, fixed) = self.source.micros();
        each.saturating_mul(1000).saturating_add(fixed.saturating_mul(1000) / self.granules())
    }
}
