//! The client's side of an export, for test suites.
//!
//! Real clients have their own few calls (`vramd-client`). With this module a machine that has only this
//! crate's binaries can show that the driver keeps its contract.

use std::{io, os::fd::BorrowedFd, path::Path, sync::Arc};

use vramd_types::Bytes;

use super::{
    ProbeError,
    api::{self, Api, Block, Context, CudaError, HostView, Mapping, OpenBlock, Ordinal, Physical},
};

/// A process with a context on one device.
#[derive(Debug)]
pub struct Peer {
    context: Arc<Context>,
    device: Ordinal,
}

/// Memory mapped in this process.
#[derive(Debug)]
pub enum Mapped {
    Movable(PeerMapping),
    Fixed(PeerBlock),
    Host(PeerHost),
}

/// A mapped movable extent of another process.
#[derive(Debug)]
pub struct PeerMapping(Mapping);

/// Host memory of another process, accessed by the CPU.
#[derive(Debug)]
pub struct PeerHost(HostView);

/// A block of another process.
#[derive(Debug)]
pub struct PeerBlock(OpenBlock);

/// An imported extent that is not mapped.
#[derive(Debug)]
pub struct Imported(Physical);

/// Memory that this process allocated itself.
#[derive(Debug)]
pub struct Own(#[expect(dead_code, reason = "held, and freed with its owner")] Block);

impl Peer {
    /// On the device of that index, as CUDA numbers them.
    pub fn open(library: Option<&Path>, index: usize) -> Result<Self, ProbeError> {
        let api = Api::load(library)?;
        let device = *api.devices()?.get(index).ok_or(ProbeError::NoDevice)?;
        Ok(Self { context: Arc::new(Context::retain(&api, device)?), device })
    }

    pub fn import(&self, fd: BorrowedFd<'_>, size: Bytes) -> Result<Imported, CudaError> {
        Physical::import(self.context.api(), fd, size).map(Imported)
    }

    pub fn map(&self, imported: &Imported, writable: bool) -> Result<Mapped, CudaError> {
        let access = if writable { api::Access::ReadWrite } else { api::Access::ReadOnly };
        let Some(node) = imported.0.host_node()? else {
            return imported.0.map(self.device, access).map(|mapping| Mapped::Movable(PeerMapping(mapping)));
        };
        let mapping = imported.0.map_in_host(node, [self.device].into_iter(), access)?;
        Ok(Mapped::Host(PeerHost(HostView::of_vmm(mapping, writable))))
    }

    /// Maps host memory that comes as a file.
    pub fn map_file(&self, fd: BorrowedFd<'_>, size: Bytes, writable: bool) -> io::Result<Mapped> {
        let length = usize::try_from(size.get()).map_err(io::Error::other)?;
        HostView::of_file(fd, length, writable).map(|view| Mapped::Host(PeerHost(view)))
    }

    pub fn open_block(&self, handle: &[u8; 64]) -> Result<Mapped, CudaError> {
        OpenBlock::open(&self.context, handle).map(|block| Mapped::Fixed(PeerBlock(block)))
    }

    pub fn read(&self, from: &Mapped, offset: u64, into: &mut [u8]) -> Result<(), CudaError> {
        match from.reached() {
            Reached::Device(address) => self.context.read(address + offset, into),
            Reached::Cpu(view) => {
                view.read(at(offset), into);
                Ok(())
            }
        }
    }

    /// `false` if the CPU may only read it. For a read-only device mapping the driver returns an error.
    pub fn write(&self, to: &Mapped, offset: u64, bytes: &[u8]) -> Result<bool, CudaError> {
        match to.reached() {
            Reached::Device(address) => self.context.write(address + offset, bytes).map(|()| true),
            Reached::Cpu(view) => Ok(view.write(at(offset), bytes)),
        }
    }

    /// Allocates memory behind the daemon's back.
    pub fn allocate(&self, size: Bytes) -> Result<Own, CudaError> {
        Block::allocate(&self.context, size).map(Own)
    }
}

/// The processor that reads and writes the memory.
enum Reached<'a> {
    Device(u64),
    Cpu(&'a HostView),
}

impl Mapped {
    fn reached(&self) -> Reached<'_> {
        match self {
            Self::Movable(mapping) => Reached::Device(mapping.0.address()),
            Self::Fixed(block) => Reached::Device(block.0.address()),
            Self::Host(host) => Reached::Cpu(&host.0),
        }
    }
}

fn at(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}
