//! The operations of handles that wait, as futures.

use std::{ops::Range, time::Duration};

use vramd_types::Bytes;
use vramd_words::Access;

use super::client::blocking;
use crate::{
    error::Result,
    handles::{
        advice::Advice,
        allocation::{Allocation, FreeFailed, SealFailed, Sealed},
        handle::Handle,
        info::Tier,
    },
    pins::Pinned,
    pool::{Pool, PoolBlock},
    session::{Released, call_style::CallStyle},
};

/// Owns a handle while it is being sealed, so that the seal ends even if its future is dropped.
struct Sealing(Option<Box<Handle>>);

impl Allocation {
    /// See [`Self::pin`].
    pub async fn pin_async(&self, access: Access) -> Result<Pinned> {
        self.handle().pin_async(None, access, None).await
    }

    /// See [`Self::pin_parts`].
    pub async fn pin_parts_async(&self, parts: Range<u32>, access: Access) -> Result<Pinned> {
        self.handle().pin_async(Some(parts), access, None).await
    }

    /// See [`Self::pin_timeout`].
    pub async fn pin_timeout_async(
        &self,
        parts: Range<u32>,
        access: Access,
        wait: Duration,
    ) -> Result<Pinned> {
        self.handle().pin_async(Some(parts), access, Some(wait)).await
    }

    /// See [`Self::repin`].
    pub async fn repin_async(&mut self) -> Result<()> {
        self.handle_mut().hold(CallStyle::Async).await
    }

    /// See [`Self::seal`].
    pub async fn seal_async(self) -> Result<Sealed, SealFailed> {
        let mut sealing = Sealing(Some(self.into_handle()));
        let outcome = match &mut sealing.0 {
            Some(handle) => handle.seal(CallStyle::Async).await,
            None => Ok(()),
        };
        let handle = sealing.0.take().expect("only the drop takes it");
        match outcome {
            Ok(()) => Ok(Sealed::from_handle(handle)),
            Err(error) => Err(SealFailed { allocation: Self::from_handle(handle), error }),
        }
    }

    /// See [`Self::advise`].
    pub async fn advise_async(&self, advice: Advice) -> Result<()> {
        self.handle().advise(CallStyle::Async, None, advice).await
    }

    /// See [`Self::advise_parts`].
    pub async fn advise_parts_async(&self, parts: Range<u32>, advice: Advice) -> Result<()> {
        self.handle().advise(CallStyle::Async, Some(parts), advice).await
    }

    /// See [`Self::evict`].
    pub async fn evict_async(&self, tier: Tier) -> Result<()> {
        self.handle().evict(CallStyle::Async, tier).await
    }

    /// See [`Self::free`].
    pub async fn free_async(self) -> Result<Released, FreeFailed<Self>> {
        let mut handle = self.into_handle();
        let outcome = handle.free(CallStyle::Async).await;
        outcome.map_err(|error| FreeFailed { handle: Self::from_handle(handle), error })
    }

    /// See [`Self::copy_to_host`].
    pub async fn copy_to_host_async(&self, offset_bytes: u64, to: &mut [u8]) -> Result<()> {
        self.handle().copy_to_host(CallStyle::Async, offset_bytes, to).await
    }

    /// See [`Self::copy_from_host`].
    pub async fn copy_from_host_async(&mut self, offset_bytes: u64, from: &[u8]) -> Result<()> {
        self.handle().copy_from_host(CallStyle::Async, offset_bytes, from).await
    }
}

impl Sealed {
    /// See [`Self::pin`].
    pub async fn pin_async(&self, access: Access) -> Result<Pinned> {
        self.handle().pin_async(None, access, None).await
    }

    /// See [`Self::pin_parts`].
    pub async fn pin_parts_async(&self, parts: Range<u32>, access: Access) -> Result<Pinned> {
        self.handle().pin_async(Some(parts), access, None).await
    }

    /// See [`Self::pin_timeout`].
    pub async fn pin_timeout_async(
        &self,
        parts: Range<u32>,
        access: Access,
        wait: Duration,
    ) -> Result<Pinned> {
        self.handle().pin_async(Some(parts), access, Some(wait)).await
    }

    /// See [`Self::repin`].
    pub async fn repin_async(&mut self) -> Result<()> {
        self.handle_mut().hold(CallStyle::Async).await
    }

    /// See [`Self::advise`].
    pub async fn advise_async(&self, advice: Advice) -> Result<()> {
        self.handle().advise(CallStyle::Async, None, advice).await
    }

    /// See [`Self::advise_parts`].
    pub async fn advise_parts_async(&self, parts: Range<u32>, advice: Advice) -> Result<()> {
        self.handle().advise(CallStyle::Async, Some(parts), advice).await
    }

    /// See [`Self::evict`].
    pub async fn evict_async(&self, tier: Tier) -> Result<()> {
        self.handle().evict(CallStyle::Async, tier).await
    }

    /// See [`Self::free`].
    pub async fn free_async(self) -> Result<Released, FreeFailed<Self>> {
        let mut handle = self.into_handle();
        let outcome = handle.free(CallStyle::Async).await;
        outcome.map_err(|error| FreeFailed { handle: Self::from_handle(handle), error })
    }

    /// See [`Self::detach`].
    pub async fn detach_async(self) -> Result<(), FreeFailed<Self>> {
        let mut handle = self.into_handle();
        let outcome = handle.detach(CallStyle::Async).await;
        outcome.map_err(|error| FreeFailed { handle: Self::from_handle(handle), error })
    }

    /// See [`Self::copy_to_host`].
    pub async fn copy_to_host_async(&self, offset_bytes: u64, to: &mut [u8]) -> Result<()> {
        self.handle().copy_to_host(CallStyle::Async, offset_bytes, to).await
    }
}

impl Pool {
    /// See [`Self::alloc`]. It waits only if the pool needs another chunk.
    pub async fn alloc_async(&self, size: Bytes) -> Result<PoolBlock> {
        loop {
            if let Some(small) = self.try_alloc(size)? {
                return Ok(small);
            }
            let pool = self.clone();
            blocking(move || pool.grow(size)).await?;
        }
    }
}

impl Drop for Sealing {
    fn drop(&mut self) {
        if let Some(handle) = self.0.take() {
            handle.finish_seal();
        }
    }
}
