//! The other side of the hand-over, as a client's process does it: for suites that need one.
//!
//! Clients proper bring their own few calls (`vramd-client`); this is so that the driver can be shown to keep its
//! contract on a machine that has nothing but this crate's binaries.

use std::{os::fd::BorrowedFd, path::Path, sync::Arc};

use vramd_types::Bytes;

use super::{
    Why,
    api::{self, Api, Block, Context, CudaError, Mapping, OpenBlock, Ordinal, Physical},
};

/// A process with a context on one device.
#[derive(Debug)]
pub struct Peer {
    context: Arc<Context>,
    device: Ordinal,
}

/// Memory at an address of this process.
#[derive(Debug)]
pub enum Mapped {
    Movable(PeerMapping),
    Fixed(PeerBlock),
}

/// Another process's extent.
#[derive(Debug)]
pub struct PeerMapping(Mapping);

/// Another process's block.
#[derive(Debug)]
pub struct PeerBlock(OpenBlock);

/// An imported extent that is not mapped.
#[derive(Debug)]
pub struct Imported(Physical);

/// Memory of this process's own.
#[derive(Debug)]
pub struct Own(#[expect(dead_code, reason = "held, and freed with its owner")] Block);

impl Peer {
    /// On the device of that index, as CUDA numbers them.
    pub fn open(library: Option<&Path>, index: usize) -> Result<Self, Why> {
        let api = Api::load(library)?;
        let device = *api.devices()?.get(index).ok_or(Why::NoDevice)?;
        Ok(Self { context: Arc::new(Context::retain(&api, device)?), device })
    }

    pub fn import(&self, fd: BorrowedFd<'_>, size: Bytes) -> Result<Imported, CudaError> {
        Physical::import(self.context.api(), fd, size).map(Imported)
    }

    pub fn map(&self, imported: &Imported, writable: bool) -> Result<Mapped, CudaError> {
        let access = if writable { api::Access::ReadWrite } else { api::Access::ReadOnly };
        imported.0.map(self.device, access).map(|mapping| Mapped::Movable(PeerMapping(mapping)))
    }

    pub fn open_block(&self, handle: &[u8; 64]) -> Result<Mapped, CudaError> {
        OpenBlock::open(&self.context, handle).map(|block| Mapped::Fixed(PeerBlock(block)))
    }

    pub fn read(&self, from: &Mapped, offset: u64, into: &mut [u8]) -> Result<(), CudaError> {
        self.context.read(from.address() + offset, into)
    }

    pub fn write(&self, to: &Mapped, offset: u64, bytes: &[u8]) -> Result<(), CudaError> {
        self.context.write(to.address() + offset, bytes)
    }

    /// Takes memory behind the daemon's back.
    pub fn allocate(&self, size: Bytes) -> Result<Own, CudaError> {
        Block::allocate(&self.context, size).map(Own)
    }
}

impl Mapped {
    fn address(&self) -> u64 {
        match self {
            Self::Movable(mapping) => mapping.0.address(),
            Self::Fixed(block) => block.0.address(),
        }
    }
}
