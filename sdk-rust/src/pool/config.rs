//! The settings of a pool: how large it may become, and when it frees chunks.

use std::time::Duration;

use vramd_types::{Bytes, Reason};

use crate::error::{Error, Result};

/// The daemon's own unit: every part is a multiple of it.
const CHUNK_STEP: u64 = 2 << 20;
const CHUNK_MAX: u64 = 1 << 40;
/// The largest block is a chunk divided by this.
const LARGEST_BLOCK_DIVISOR: u64 = 4;

/// Settings of a [`super::Pool`]. By default: chunks of 32 MiB, without a limit, on the first device that the session
/// sees, freed when idle for ten seconds.
#[derive(Clone, Debug)]
pub struct PoolConfig {
    pub(super) device: Option<String>,
    pub(super) chunk_size: Bytes,
    pub(super) max_bytes: Bytes,
    pub(super) idle_after: Duration,
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self {
            device: None,
            chunk_size: Bytes::mib(32),
            max_bytes: Bytes::new(u64::MAX),
            idle_after: Duration::from_secs(10),
        }
    }
}

impl PoolConfig {
    /// UUID or index.
    #[must_use]
    pub fn device(mut self, device: impl Into<String>) -> Self {
        self.device = Some(device.into());
        self
    }

    /// The size of a chunk, which is one part: a multiple of 2 MiB, within what the daemon allows. The largest block
    /// is a quarter of it.
    #[must_use]
    pub fn chunk_size(mut self, size: Bytes) -> Self {
        self.chunk_size = size;
        self
    }

    /// The bytes that all chunks together may have.
    #[must_use]
    pub fn max_bytes(mut self, max: Bytes) -> Self {
        self.max_bytes = max;
        self
    }

    /// How long memory is unused before it is freed; it may take twice as long.
    #[must_use]
    pub fn idle_after(mut self, idle: Duration) -> Self {
        self.idle_after = idle;
        self
    }

    pub(super) fn check(self) -> Result<Self> {
        let size = self.chunk_size.get();
        if size == 0 || !size.is_multiple_of(CHUNK_STEP) || size > CHUNK_MAX {
            return Err(Error::refused(
                Reason::PartSizeInvalid,
                &[("field", &"chunk_size"), ("size", &size)],
            ));
        }
        if self.max_bytes < self.chunk_size {
            let problem = "the limit is less than one chunk";
            let facts: [(&str, &dyn ToString); 2] = [("field", &"max_bytes"), ("problem", &problem)];
            return Err(Error::refused(Reason::RequestInvalid, &facts));
        }
        // A pause of zero would keep a thread busy.
        Ok(Self { idle_after: self.idle_after.max(Duration::from_millis(1)), ..self })
    }

    /// The size that no block exceeds.
    pub(super) fn largest_block(&self) -> usize {
        usize::try_from(self.chunk_size.get() / LARGEST_BLOCK_DIVISOR).unwrap_or(usize::MAX)
    }
}
