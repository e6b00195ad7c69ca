//! What handles do that takes a while, as futures.

use vramd_types::Bytes;

use super::client::blocking;
use crate::{
    allocation::{Allocation, SealFailed, Sealed},
    error::Result,
    face::Face,
    handle::Handle,
    session::Released,
    small::{Pool, Small},
};

/// A handle that is being sealed, whatever becomes of who waits for it.
struct Sealing(Option<Box<Handle>>);

impl Allocation {
    /// See [`Self::seal`].
    pub async fn seal_async(self) -> Result<Sealed, SealFailed> {
        let mut sealing = Sealing(Some(self.into_handle()));
        let outcome = match &mut sealing.0 {
            Some(handle) => handle.seal(Face::Async).await,
            None => Ok(()),
        };
        let handle = sealing.0.take().expect("only a drop takes it, and then nobody comes here");
        match outcome {
            Ok(()) => Ok(Sealed::from_handle(handle)),
            Err(error) => Err(SealFailed { allocation: Self::from_handle(handle), error }),
        }
    }

    /// See [`Self::free`].
    pub async fn free_async(self) -> Result<Released> {
        self.into_handle().free(Face::Async).await
    }

    /// See [`Self::copy_to_host`].
    pub async fn copy_to_host_async(&self, offset_bytes: u64, to: &mut [u8]) -> Result<()> {
        self.handle().copy_to_host(Face::Async, offset_bytes, to).await
    }

    /// See [`Self::copy_from_host`].
    pub async fn copy_from_host_async(&mut self, offset_bytes: u64, from: &[u8]) -> Result<()> {
        self.handle().copy_from_host(Face::Async, offset_bytes, from).await
    }
}

impl Sealed {
    /// See [`Self::free`].
    pub async fn free_async(self) -> Result<Released> {
        self.into_handle().free(Face::Async).await
    }

    /// See [`Self::detach`].
    pub async fn detach_async(self) -> Result<()> {
        self.into_handle().detach(Face::Async).await
    }

    /// See [`Self::copy_to_host`].
    pub async fn copy_to_host_async(&self, offset_bytes: u64, to: &mut [u8]) -> Result<()> {
        self.handle().copy_to_host(Face::Async, offset_bytes, to).await
    }
}

impl Pool {
    /// See [`Self::alloc`]: waits only where a chunk must be allocated.
    pub async fn alloc_async(&self, size: Bytes) -> Result<Small> {
        loop {
            if let Some(small) = self.alloc_at_hand(size)? {
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
