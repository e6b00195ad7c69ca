//! The memory of one extent on a device, movable or fixed.

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
    api::{Access, Block, CudaError, KeepAlive, Mapping, Physical},
    device::Device,
    host::memory::HostMemory,
};
use crate::{Export, ExtentKind, SharedFd};

/// The memory of an extent, on a device or in the host.
#[derive(Clone, Debug)]
pub(crate) enum ExtentMemory {
    Device(Arc<DeviceMemory>),
    Host(Arc<HostMemory>),
}

impl ExtentMemory {
    pub(crate) fn size(&self) -> Bytes {
        match self {
            Self::Device(memory) => memory.size(),
            Self::Host(memory) => memory.size(),
        }
    }

    /// The daemon's own address for reading and writing it.
    pub(crate) fn address(&self) -> Result<u64, CudaError> {
        match self {
            Self::Device(memory) => memory.address(),
            Self::Host(memory) => Ok(memory.view().address()),
        }
    }
}

impl KeepAlive for ExtentMemory {
    fn leak(self) {
        match self {
            Self::Device(memory) => memory.leak(),
            Self::Host(memory) => memory.leak(),
        }
    }
}

impl KeepAlive for Arc<DeviceMemory> {
    fn leak(self) {
        self.leaked.store(true, Ordering::Release);
        mem::forget(self);
    }
}

/// Dropping it frees the memory: first the mapping, then the driver's handle, then the descriptor.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    size: Bytes,
    /// Set if work on the memory may never end.
    leaked: AtomicBool,
    memory_kind: MemoryKind,
    /// Last: its context may end with it.
    device: Arc<Device>,
}

#[derive(Debug)]
enum MemoryKind {
    Movable {
        /// Made at the first access, and kept: creating an extent includes no mapping.
        mapping: OnceLock<Mapping>,
        mapper: Mutex<()>,
        physical: Physical,
        /// Exported once; every client gets this descriptor.
        fd: Arc<SharedFd>,
    },
    Fixed {
        block: Block,
        handle: [u8; 64],
    },
}

impl DeviceMemory {
    pub(crate) fn movable(device: Arc<Device>, size: Bytes, physical: Physical, fd: OwnedFd) -> Self {
        let (mapping, mapper) = (OnceLock::new(), Mutex::new(()));
        Self {
            size,
            leaked: AtomicBool::new(false),
            memory_kind: MemoryKind::Movable { mapping, mapper, physical, fd: Arc::new(fd.into()) },
            device,
        }
    }

    pub(crate) fn fixed(device: Arc<Device>, size: Bytes, block: Block, handle: [u8; 64]) -> Self {
        Self {
            size,
            leaked: AtomicBool::new(false),
            memory_kind: MemoryKind::Fixed { block, handle },
            device,
        }
    }

    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub(crate) fn size(&self) -> Bytes {
        self.size
    }

    pub(crate) fn kind(&self) -> ExtentKind {
        match self.memory_kind {
            MemoryKind::Movable { .. } => ExtentKind::Movable,
            MemoryKind::Fixed { .. } => ExtentKind::Fixed,
        }
    }

    pub(crate) fn export(&self) -> Export {
        match &self.memory_kind {
            MemoryKind::Movable { fd, .. } => Export::VmmFd(Arc::clone(fd)),
            MemoryKind::Fixed { handle, .. } => Export::CudaIpc(*handle),
        }
    }

    /// The daemon's own address for reading and writing it.
    pub(crate) fn address(&self) -> Result<u64, CudaError> {
        match &self.memory_kind {
            MemoryKind::Fixed { block, .. } => Ok(block.address()),
            MemoryKind::Movable { mapping, mapper, physical, .. } => {
                let _one_maps = mapper.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(mapping) = mapping.get() {
                    return Ok(mapping.address());
                }
                let made = physical.map(self.device.context().device(), Access::ReadWrite)?;
                Ok(mapping.get_or_init(|| made).address())
            }
        }
    }

    /// Removes the mapping. The caller has the memory alone, so that no work uses it.
    pub(crate) fn unmap(&mut self) {
        if let MemoryKind::Movable { mapping, .. } = &mut self.memory_kind {
            drop(mapping.take());
        }
    }

    /// Whether this process will never have the memory alone again.
    pub(crate) fn is_leaked(&self) -> bool {
        self.leaked.load(Ordering::Acquire)
    }

    /// Tells after the release whether this process still holds the memory.
    pub(crate) fn trace(self: &Arc<Self>) -> Trace {
        let fd = match &self.memory_kind {
            MemoryKind::Movable { fd, .. } => Arc::downgrade(fd),
            MemoryKind::Fixed { .. } => Weak::new(),
        };
        Trace { memory: Arc::downgrade(self), fd }
    }
}

/// The trace of released memory.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    memory: Weak<DeviceMemory>,
    fd: Weak<SharedFd>,
}

impl Trace {
    /// Whether a digest goes on, or the caller has a clone of the export.
    pub(crate) fn is_alive(&self) -> bool {
        self.memory.strong_count() > 0 || self.fd.strong_count() > 0
    }
}
