//! The memory of one host extent.
//!
//! If the driver has pinned memory that is shared by descriptor, the extent uses that (`HOST_NUMA`); elsewhere
//! it is a memfd registered with the driver. Either is mapped here once, for the CPU and for every device.

use std::{
    mem,
    os::fd::{AsFd, OwnedFd},
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use rustix::{
    fs::{FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, memfd_create},
    io::Errno,
};
use vramd_types::{Bytes, HostNode};

use crate::cuda::{
    api::{Access, CudaError, HostView, KeepAlive, Physical},
    copies::pinned,
    device::Device,
    host::headroom,
    start::facts::HostKind,
};
use crate::{DriverError, Export, HostLimit, SharedFd, free_pinned::FreeMemory};

/// Pins host memory.
#[derive(Debug)]
pub(crate) struct Pinner {
    pub(crate) kind: HostKind,
    /// All of them can access it.
    pub(crate) devices: Vec<Arc<Device>>,
    /// Whether fresh memory from the driver is zero.
    pub(crate) is_zero: bool,
}

impl Pinner {
    pub(crate) fn pin(&self, node: HostNode, size: Bytes) -> Result<FreeMemory<HostMemory>, DriverError> {
        let memory = HostMemory::new(self.kind, &self.devices, node, size)?;
        Ok(FreeMemory { memory, is_zero: self.is_zero })
    }
}

/// Dropping it frees the memory: first the mapping, then the driver's handle, then the descriptor.
#[derive(Debug)]
pub(crate) struct HostMemory {
    view: HostView,
    _physical: Option<Physical>,
    fd: Arc<SharedFd>,
    kind: HostKind,
    node: HostNode,
    size: Bytes,
    /// Set if work on the memory may never end.
    leaked: AtomicBool,
    /// Last: their contexts may end with them.
    devices: Vec<Arc<Device>>,
}

impl KeepAlive for Arc<HostMemory> {
    fn leak(self) {
        self.leaked.store(true, Ordering::Release);
        mem::forget(self);
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        self.devices.iter().for_each(|device| device.remove_host_mapping(self.size));
    }
}

impl HostMemory {
    /// Not zeroed, unless the driver does it.
    fn new(
        kind: HostKind,
        devices: &[Arc<Device>],
        node: HostNode,
        size: Bytes,
    ) -> Result<Self, DriverError> {
        // Memory that the driver's kernel module allocates is in no cgroup.
        let _lock = (kind == HostKind::Registered).then(headroom::lock_requests);
        if let Some(limit) = headroom::limit_below(size, kind == HostKind::Registered) {
            return Err(DriverError::OutOfHostMemory(limit));
        }
        let (view, physical, fd) = match kind {
            HostKind::Numa => numa(devices, node, size)?,
            HostKind::Registered => registered(devices, size)?,
        };
        let (fd, devices) = (Arc::new(fd.into()), devices.to_vec());
        devices.iter().for_each(|device| device.add_host_mapping(size));
        let leaked = AtomicBool::new(false);
        Ok(Self { view, _physical: physical, fd, kind, node, size, leaked, devices })
    }

    pub(crate) fn node(&self) -> HostNode {
        self.node
    }

    /// Whether this process will never have the memory alone again.
    pub(crate) fn is_leaked(&self) -> bool {
        self.leaked.load(Ordering::Acquire)
    }

    /// Whether no other process has or will get the memory, since no caller borrowed its descriptor.
    pub(crate) fn is_sole(&self) -> bool {
        self.fd.is_sole()
    }

    /// Zeroes on several threads, bound to CPUs like this one; other orders wait meanwhile.
    pub(crate) fn zero(&self) {
        const THREADS: usize = 4;
        const SHARE_MIN: usize = 16 << 20;
        let length = self.view.length();
        let share = length.div_ceil(THREADS).max(SHARE_MIN);
        thread::scope(|scope| {
            for at in (share..length).step_by(share) {
                let zero = move || self.view.zero(at, share.min(length - at));
                if thread::Builder::new().name("cuda-zero".to_owned()).spawn_scoped(scope, zero).is_err() {
                    zero();
                }
            }
            self.view.zero(0, share.min(length));
        });
    }

    pub(crate) fn size(&self) -> Bytes {
        self.size
    }

    pub(crate) fn view(&self) -> &HostView {
        &self.view
    }

    pub(crate) fn export(&self) -> Export {
        match self.kind {
            HostKind::Numa => Export::VmmFd(Arc::clone(&self.fd)),
            HostKind::Registered => Export::Memfd(Arc::clone(&self.fd)),
        }
    }
}

/// A range that the disk reads or writes, which keeps the memory in place.
#[derive(Debug)]
pub(crate) struct HostSpan {
    memory: Arc<HostMemory>,
    at: usize,
    length: usize,
}

impl HostSpan {
    /// None if the range is outside the memory.
    pub(crate) fn of(memory: &Arc<HostMemory>, at: u64, length: usize) -> Option<Self> {
        let at = usize::try_from(at).ok()?;
        let fits = at.checked_add(length).is_some_and(|end| end <= memory.view.length());
        fits.then(|| Self { memory: Arc::clone(memory), at, length })
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.memory.view.start_of(self.at, self.length)
    }

    pub(crate) fn length(&self) -> usize {
        self.length
    }
}

type Parts = (HostView, Option<Physical>, OwnedFd);

fn numa(devices: &[Arc<Device>], node: HostNode, size: Bytes) -> Result<Parts, DriverError> {
    let context = first(devices)?.context();
    let physical = Physical::create_in_host(context.api(), node, size).map_err(CudaError::of_pinned)?;
    let fd = physical.export()?;
    let ordinals = devices.iter().map(|device| device.context().device());
    let mapping = physical.map_in_host(node, ordinals, Access::ReadWrite)?;
    Ok((HostView::of_vmm(mapping, true), Some(physical), fd))
}

/// Its pages belong to the node that the calling thread runs on.
fn registered(devices: &[Arc<Device>], size: Bytes) -> Result<Parts, DriverError> {
    let length = usize::try_from(size.get()).map_err(|error| failed("map host memory", &error))?;
    let fd = open_memfd().map_err(|error| failed("create a memfd", &error))?;
    // Allocates the pages here, where running out of them is an answer, and not at the first access.
    match fallocate(&fd, FallocateFlags::empty(), 0, size.get()) {
        Err(Errno::NOMEM | Errno::NOSPC) => return Err(DriverError::OutOfHostMemory(HostLimit::Pinned)),
        made => made.map_err(|error| failed("allocate a memfd", &error))?,
    }
    // Clients get the descriptor: none can truncate it under the others.
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
        .map_err(|error| failed("seal a memfd", &error))?;
    let view = HostView::of_file(fd.as_fd(), length, true).map_err(|error| failed("map a memfd", &error))?;
    let context = first(devices)?.context();
    let view = view.register(context).map_err(|error| pinned::pin_error(context.api(), size, error))?;
    Ok((view, None, fd))
}

/// Kernels before 6.3 do not know the flag that forbids execution.
fn open_memfd() -> Result<OwnedFd, Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    match memfd_create("vramd-host", flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => memfd_create("vramd-host", flags),
        made => made,
    }
}

fn first(devices: &[Arc<Device>]) -> Result<&Arc<Device>, DriverError> {
    devices.first().ok_or_else(|| DriverError::Failed("no device can access host memory".to_owned()))
}

fn failed(what: &str, error: &dyn std::error::Error) -> DriverError {
    DriverError::Failed(format!("cannot {what}: {error}"))
}
