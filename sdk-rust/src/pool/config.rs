//! How large a pool may become, and when it gives back.

use std::time::Duration;

use vramd_types::{Bytes, Reason};

use crate::error::{Error, Result};

/// The daemon's own unit: no part is smaller.
const CHUNK_STEP: u64 = 2 << 20;
const CHUNK_MAX: u64 = 1 << 40;
/// A block is no larger than this part of a chunk.
const LARGEST_BLOCK_DIVISOR: u64 = 4;

/// Settings of a [`super::Pool`]: chunks of 32 MiB, without a limit, on the first device that the session sees, given
/// back when idle for ten seconds.
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

    /// What is allocated at once, as one part: a multiple of 2 MiB, within what the daemon allows. The largest block is
    /// a quarter of it.
    #[must_use]
    pub fn chunk_size(mut self, size: Bytes) -> Self {
        self.chunk_size = size;
        self
    }

    /// What all chunks together may have.
    #[must_use]
    pub fn max_bytes(mut self, max: Bytes) -> Self {
        self.max_bytes = max;
        self
    }

    /// What nobody has used for so long goes back to the daemon, at the latest when it is twice as long.
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
            let problem = "less than one chunk";
            let facts: [(&str, &dyn ToString); 2] = [("field", &"max_bytes"), ("problem", &problem)];
            return Err(Error::refused(Reason::RequestInvalid, &facts));
        }
        // One that is never idle would keep a thread busy.
        Ok(Self { idle_after: self.idle_after.max(Duration::from_millis(1)), ..self })
    }

    /// What no block is larger than.
    pub(super) fn largest_block(&self) -> usize {
        usize::try_from(self.chunk_size.get() / LARGEST_BLOCK_DIVISOR).unwrap_or(usize::MAX)
    }
}
