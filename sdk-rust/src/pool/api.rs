//! The public types of a pool.

#![allow(unsafe_code, reason = "slices over blocks of shared mappings")]

use std::{ptr, slice, sync::Arc};

use vramd_types::{AllocationId, Bytes};

use super::{
    config::PoolConfig,
    core::PoolCore,
    slab::{Block, Slab},
    source::Source,
};
use crate::{
    client::Client,
    error::{Error, Result},
    session::call_style::{CallStyle, run_ready},
};

/// A source of small allocations; clones share one pool. Made by [`Client::pool`].
///
/// Threads may share it. Blocks outlive it, and keep the session open.
#[derive(Clone, Debug)]
pub struct Pool {
    owner: Arc<Owner>,
}

/// Closes the pool when no clone is left.
#[derive(Debug)]
struct Owner(Arc<PoolCore>);

/// A block of a pool, owned by this value. Dropping it frees it for reuse; any thread may drop it, and never waits
/// for the daemon.
#[derive(Debug)]
pub struct PoolBlock {
    /// Only Drop takes it.
    block: Option<Block>,
    address: u64,
    size: usize,
}

impl Pool {
    pub(crate) fn new(client: Client, config: PoolConfig) -> Result<Self> {
        let config = config.check()?;
        let core = PoolCore::new(Source::new(client)?, config);
        Ok(Self { owner: Arc::new(Owner(core)) })
    }

    /// Allocates a block of at least `size` bytes, with arbitrary content. It fails with [`Error::BlockTooLarge`] if
    /// `size` is larger than a quarter of a chunk, and as [`Client::allocate`] does if the pool needs another chunk.
    #[inline]
    pub fn alloc(&self, size: Bytes) -> Result<PoolBlock> {
        let size = number(size);
        self.owner.0.alloc(size).map(|block| PoolBlock::new(block, size))
    }

    /// Allocates a block if that needs no new chunk.
    pub(crate) fn try_alloc(&self, size: Bytes) -> Result<Option<PoolBlock>> {
        let size = number(size);
        Ok(self.owner.0.try_alloc(size)?.map(|block| PoolBlock::new(block, size)))
    }

    /// Makes room for a block of that size, by a new chunk.
    pub(crate) fn grow(&self, size: Bytes) -> Result<()> {
        self.owner.0.grow(number(size))
    }

    /// The size of the largest block.
    pub fn max_block_size(&self) -> Bytes {
        self.owner.0.max_block_size()
    }

    /// The bytes of all its chunks, which the daemon has allocated.
    pub fn chunk_bytes(&self) -> Bytes {
        self.owner.0.chunk_bytes()
    }

    /// Frees all unused chunks at once, after emptying the caches of threads.
    pub fn trim(&self) {
        if self.owner.0.source().is_own_process() {
            self.owner.0.tidy(true);
        }
    }
}

/// A size that does not fit in this machine's numbers is too large in any case.
#[inline]
fn number(size: Bytes) -> usize {
    usize::try_from(size.get()).unwrap_or(usize::MAX)
}

impl PoolBlock {
    #[inline]
    fn new(block: Block, size: usize) -> Self {
        let address = block.slab.chunk.address + block.offset() as u64;
        Self { block: Some(block), address, size }
    }

    /// Its address, a multiple of 256: a device pointer if it [is device memory](Self::is_device_memory), otherwise
    /// an address of this process.
    pub fn as_device_ptr(&self) -> u64 {
        self.address
    }

    pub fn is_device_memory(&self) -> bool {
        self.slab().chunk.allocation.is_device_memory()
    }

    /// The requested size.
    pub fn size(&self) -> Bytes {
        Bytes::new(self.size as u64)
    }

    /// The size of the whole block.
    pub fn capacity(&self) -> Bytes {
        Bytes::new(self.block().size() as u64)
    }

    /// The chunk in which it lies.
    pub fn allocation(&self) -> AllocationId {
        self.slab().chunk.allocation.id()
    }

    /// Its offset in the chunk.
    pub fn offset(&self) -> Bytes {
        Bytes::new(self.block().offset() as u64)
    }

    /// Whether it is still mapped: an operator may have taken the chunk away.
    pub fn is_mapped(&self) -> bool {
        self.slab().chunk.allocation.is_mapped()
    }

    /// The requested bytes, in place. Refused for device memory, for memory that is no longer mapped, and in a forked
    /// child.
    pub fn as_slice(&self) -> Result<&[u8]> {
        let address = self.cpu_address()?;
        // SAFETY: needed to read shared memory. `cpu_address` has checked that the chunk is mapped where the CPU can
        // access it. The block lies in it, is at least `size` long, and is this value's alone, which is borrowed.
        // `detach_all` leaves a chunk with a slice where it is (`lend_block`).
        Ok(unsafe { slice::from_raw_parts(ptr::with_exposed_provenance(address), self.size) })
    }

    /// The requested bytes, writable in place. Refused as [`Self::as_slice`] is.
    pub fn as_mut_slice(&mut self) -> Result<&mut [u8]> {
        let address = self.cpu_address()?;
        // SAFETY: needed to write shared memory. As for `as_slice`; chunks are never sealed, so they are mapped
        // writably, and this value is borrowed mutably.
        Ok(unsafe { slice::from_raw_parts_mut(ptr::with_exposed_provenance_mut(address), self.size) })
    }

    /// Copies bytes to host memory, from any tier.
    pub fn copy_to_host(&self, offset_bytes: u64, to: &mut [u8]) -> Result<()> {
        let at = self.check_range(offset_bytes, to.len())?;
        self.slab().chunk.allocation.copy_to_host(at, to)
    }

    /// Copies bytes from host memory, to any tier.
    pub fn copy_from_host(&mut self, offset_bytes: u64, from: &[u8]) -> Result<()> {
        let at = self.check_range(offset_bytes, from.len())?;
        run_ready(self.slab().chunk.allocation.handle().copy_from_host(CallStyle::Blocking, at, from))
    }

    fn cpu_address(&self) -> Result<usize> {
        let chunk = &self.slab().chunk;
        let allocation = || chunk.allocation.id().to_string();
        let source = self.slab().pool.source();
        if !source.is_own_process() {
            return Err(source.forked_error());
        }
        if chunk.allocation.is_device_memory() {
            return Err(Error::DeviceMemory { allocation: allocation() });
        }
        // `detach_all` sees the slice, or this call sees that it has begun.
        chunk.allocation.handle().anchor().views().lend_block();
        source.check_here()?;
        let address = usize::try_from(self.address).ok().filter(|_| chunk.allocation.is_mapped());
        address.ok_or_else(|| Error::NotMapped { allocation: allocation() })
    }

    /// The offset in the chunk, if `len` bytes from `offset_bytes` are among the requested ones.
    fn check_range(&self, offset_bytes: u64, len: usize) -> Result<u64> {
        let end = offset_bytes.checked_add(len as u64).filter(|end| *end <= self.size as u64);
        end.map(|_| self.offset().get() + offset_bytes).ok_or_else(|| Error::CopyFailed {
            allocation: self.allocation().to_string(),
            problem: format!("{len} bytes at offset {offset_bytes} exceed the block of {} bytes", self.size),
        })
    }

    fn block(&self) -> &Block {
        self.block.as_ref().expect("only Drop takes the block")
    }

    fn slab(&self) -> &Slab {
        &self.block().slab
    }
}

impl Drop for PoolBlock {
    #[inline]
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            PoolCore::free(block);
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if self.0.source().is_own_process() {
            self.0.close();
        }
    }
}
