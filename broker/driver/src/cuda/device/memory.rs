//! The memory of one extent; on a device, of either kind.

use std::{
    mem,
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use vramd_types::Bytes;

use crate::cuda::{
    api::{Access, Block, CudaError, Mapping, Physical, Used},
    device::Device,
    host::memory::HostMemory,
};
use crate::{ExtentKind, Handle, SharedFd};

/// The memory of an extent, wherever it lies.
#[derive(Clone, Debug)]
pub(crate) enum Held {
    Device(Arc<Memory>),
    Host(Arc<HostMemory>),
}

impl Held {
    pub(crate) fn size(&self) -> Bytes {
        match self {
            Self::Device(memory) => memory.size(),
            Self::Host(memory) => memory.size(),
        }
    }

    /// Where the daemon itself reads and writes it.
    pub(crate) fn address(&self) -> Result<u64, CudaError> {
        match self {
            Self::Device(memory) => memory.address(),
            Self::Host(memory) => Ok(memory.view().address()),
        }
    }
}

impl Used for Held {
    fn keep_for_ever(self) {
        match self {
            Self::Device(memory) => memory.keep_for_ever(),
            Self::Host(memory) => memory.keep_for_ever(),
        }
    }
}

impl Used for Arc<Memory> {
    fn keep_for_ever(self) {
        self.kept.store(true, Ordering::Release);
        mem::forget(self);
    }
}

/// Dropping it gives the memory up: the mapping first, then the driver's handle, then the descriptor.
#[derive(Debug)]
pub(crate) struct Memory {
    size: Bytes,
    /// Work on it may be under way for ever.
    kept: AtomicBool,
    backing: Backing,
    /// Last: its context may end with it.
    device: Arc<Device>,
}

#[derive(Debug)]
enum Backing {
    Movable {
        /// Made when bytes are first looked at, and kept: mapping is no part of making an extent.
        mapping: OnceLock<Mapping>,
        mapper: Mutex<()>,
        physical: Physical,
        /// Exported once; every client gets this one.
        fd: Arc<SharedFd>,
    },
    Fixed {
        block: Block,
        handle: [u8; 64],
    },
}

impl Memory {
    pub(crate) fn movable(device: Arc<Device>, size: Bytes, physical: Physical, fd: OwnedFd) -> Self {
        let (mapping, mapper) = (OnceLock::new(), Mutex::new(()));
        Self {
            size,
            kept: AtomicBool::new(false),
            backing: Backing::Movable { mapping, mapper, physical, fd: Arc::new(fd.into()) },
            device,
        }
    }

    pub(crate) fn fixed(device: Arc<Device>, size: Bytes, block: Block, handle: [u8; 64]) -> Self {
        Self { size, kept: AtomicBool::new(false), backing: Backing::Fixed { block, handle }, device }
    }

    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub(crate) fn size(&self) -> Bytes {
        self.size
    }

    pub(crate) fn kind(&self) -> ExtentKind {
        match self.backing {
            Backing::Movable { .. } => ExtentKind::Movable,
            Backing::Fixed { .. } => ExtentKind::Fixed,
        }
    }

    pub(crate) fn handle(&self) -> Handle {
        match &self.backing {
            Backing::Movable { fd, .. } => Handle::VmmFd(Arc::clone(fd)),
            Backing::Fixed { handle, .. } => Handle::CudaIpc(*handle),
        }
    }

    /// Where the daemon itself reads and writes it.
    pub(crate) fn address(&self) -> Result<u64, CudaError> {
        match &self.backing {
            Backing::Fixed { block, .. } => Ok(block.address()),
            Backing::Movable { mapping, mapper, physical, .. } => {
                let _one_maps = mapper.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(mapping) = mapping.get() {
                    return Ok(mapping.address());
                }
                let made = physical.map(self.device.context().device(), Access::ReadWrite)?;
                Ok(mapping.get_or_init(|| made).address())
            }
        }
    }

    /// Undoes the mapping, which nobody may be using: the caller has the memory for itself.
    pub(crate) fn unmap(&mut self) {
        if let Backing::Movable { mapping, .. } = &mut self.backing {
            drop(mapping.take());
        }
    }

    /// Whether nobody will ever have it alone.
    pub(crate) fn is_kept(&self) -> bool {
        self.kept.load(Ordering::Acquire)
    }

    /// What tells whether this process holds it, after its release.
    pub(crate) fn trace(self: &Arc<Self>) -> Trace {
        let fd = match &self.backing {
            Backing::Movable { fd, .. } => Arc::downgrade(fd),
            Backing::Fixed { .. } => Weak::new(),
        };
        Trace { memory: Arc::downgrade(self), fd }
    }
}

/// Of memory that was released.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    memory: Weak<Memory>,
    fd: Weak<SharedFd>,
}

impl Trace {
    /// A digest has not ended, or the caller has a clone of the handle.
    pub(crate) fn is_alive(&self) -> bool {
        self.memory.strong_count() > 0 || self.fd.strong_count() > 0
    }
}
