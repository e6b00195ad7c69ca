//! Physical memory that is shared as a descriptor, and its mappings in this process.
#![allow(unsafe_code, reason = "calls of the CUDA driver")]

use std::{
    ffi::{c_int, c_void},
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    ptr,
    sync::Arc,
};

use cudarc::driver::sys::{
    CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationGranularity_flags, CUmemAllocationHandleType,
    CUmemAllocationProp, CUmemAllocationProp_st__bindgen_ty_1, CUmemAllocationType, CUmemLocation,
    CUmemLocation_st__bindgen_ty_1, CUmemLocationType,
};
use rustix::io::{FdFlags, fcntl_setfd};
use vramd_types::{Bytes, HostNode};

use super::{Api, CudaError, Ordinal};

const BY_DESCRIPTOR: CUmemAllocationHandleType =
    CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

fn on(device: Ordinal) -> CUmemLocation {
    CUmemLocation {
        type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
        __bindgen_anon_1: CUmemLocation_st__bindgen_ty_1 { id: device.0 },
    }
}

fn in_host(node: HostNode) -> CUmemLocation {
    CUmemLocation {
        type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA,
        __bindgen_anon_1: CUmemLocation_st__bindgen_ty_1 { id: c_int::from(node.0) },
    }
}

/// `CUmemAllocationProp` as the driver returns it: a newer driver may use kinds that cudarc's enums lack.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct AllocationAnswer {
    kind: u32,
    handle_types: u32,
    location_kind: u32,
    location_id: c_int,
    windows: usize,
    flags: [u8; 8],
}

fn properties(location: CUmemLocation, rdma: bool) -> CUmemAllocationProp {
    CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: BY_DESCRIPTOR,
        location,
        win32HandleMetaData: ptr::null_mut(),
        allocFlags: CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: u8::from(rdma),
            usage: 0,
            reserved: [0; 4],
        },
    }
}

/// Sizes as [`Bytes`] are sizes of memory, and CUDA runs in 64-bit processes.
pub(super) fn size_of(size: Bytes) -> usize {
    usize::try_from(size.get()).unwrap_or(usize::MAX)
}

/// Likewise for addresses.
pub(super) fn number(address: u64) -> usize {
    usize::try_from(address).unwrap_or(usize::MAX)
}

/// A handle on physical memory, which keeps the memory alive.
#[derive(Debug)]
pub(crate) struct Physical {
    api: Arc<Api>,
    raw: u64,
    size: Bytes,
}

impl Physical {
    /// Sizes must be multiples of this.
    pub(crate) fn granularity(api: &Api, device: Ordinal, rdma: bool) -> Result<Bytes, CudaError> {
        let mut granularity = 0_usize;
        let properties = properties(on(device), rdma);
        let minimum = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        // SAFETY: A foreign call, which reads the properties and writes one size where it is told to.
        let code = unsafe {
            (api.functions.cuMemGetAllocationGranularity)(
                &raw mut granularity,
                &raw const properties,
                minimum as u32,
            )
        };
        api.check("cuMemGetAllocationGranularity", code).map(|()| Bytes::new(granularity as u64))
    }

    pub(crate) fn create(
        api: &Arc<Api>,
        device: Ordinal,
        size: Bytes,
        rdma: bool,
    ) -> Result<Self, CudaError> {
        Self::of(api, size, &properties(on(device), rdma))
    }

    /// Creates pinned host memory.
    pub(crate) fn create_in_host(api: &Arc<Api>, node: HostNode, size: Bytes) -> Result<Self, CudaError> {
        Self::of(api, size, &properties(in_host(node), false))
    }

    fn of(api: &Arc<Api>, size: Bytes, properties: &CUmemAllocationProp) -> Result<Self, CudaError> {
        let mut raw = 0;
        // SAFETY: A foreign call, which reads the properties and writes one handle where it is told to.
        let code =
            unsafe { (api.functions.cuMemCreate)(&raw mut raw, size_of(size), ptr::from_ref(properties), 0) };
        api.check("cuMemCreate", code)?;
        Ok(Self { api: Arc::clone(api), raw, size })
    }

    /// The descriptor for other processes.
    pub(crate) fn export(&self) -> Result<OwnedFd, CudaError> {
        let mut fd: c_int = -1;
        // SAFETY: A foreign call. For this type of handle it writes an `int` where it is told to.
        let code = unsafe {
            let target = (&raw mut fd).cast::<c_void>();
            (self.api.functions.cuMemExportToShareableHandle)(target, self.raw, BY_DESCRIPTOR, 0)
        };
        self.api.check("cuMemExportToShareableHandle", code)?;
        if fd < 0 {
            let name = "success without a descriptor".to_owned();
            return Err(CudaError::new("cuMemExportToShareableHandle", super::error::Code::new(0), name));
        }
        // SAFETY: The driver has just made this descriptor for this caller alone.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // A child that inherited it would hold the memory. The call fails only without a descriptor.
        let _ = fcntl_setfd(&fd, FdFlags::CLOEXEC);
        Ok(fd)
    }

    /// `size` comes from the exporter; mapping fails if it is larger than the memory.
    pub(crate) fn import(api: &Arc<Api>, fd: BorrowedFd<'_>, size: Bytes) -> Result<Self, CudaError> {
        let mut raw = 0;
        // SAFETY: A foreign call, which writes one handle where it is told to. For this type of handle the second
        // argument is no address but the descriptor itself, which the call borrows.
        let code = unsafe {
            let descriptor =
                ptr::without_provenance_mut(usize::try_from(fd.as_raw_fd()).unwrap_or(usize::MAX));
            (api.functions.cuMemImportFromShareableHandle)(&raw mut raw, descriptor, BY_DESCRIPTOR)
        };
        api.check("cuMemImportFromShareableHandle", code)?;
        Ok(Self { api: Arc::clone(api), raw, size })
    }

    /// The node of host memory; none for device memory.
    pub(crate) fn host_node(&self) -> Result<Option<HostNode>, CudaError> {
        const IN_HOST: u32 = CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA as u32;
        let mut answer = AllocationAnswer::default();
        // SAFETY: A foreign call, which writes one description, as large as ours, where it is told to.
        let code =
            unsafe { (self.api.functions.cuMemGetAllocationPropertiesFromHandle)(&raw mut answer, self.raw) };
        self.api.check("cuMemGetAllocationPropertiesFromHandle", code)?;
        let node = u16::try_from(answer.location_id).unwrap_or(0);
        Ok((answer.location_kind == IN_HOST).then_some(HostNode(node)))
    }

    /// Maps the memory for a device, at an address of the driver's choice.
    pub(crate) fn map(&self, device: Ordinal, access: Access) -> Result<Mapping, CudaError> {
        self.map_for(&[CUmemAccessDesc { location: on(device), flags: access.flags() }])
    }

    /// Maps host memory for these devices and the CPU.
    pub(crate) fn map_in_host(
        &self,
        node: HostNode,
        devices: impl Iterator<Item = Ordinal>,
        access: Access,
    ) -> Result<Mapping, CudaError> {
        let flags = access.flags();
        let cpu = CUmemAccessDesc { location: in_host(node), flags };
        let devices = devices.map(|device| CUmemAccessDesc { location: on(device), flags });
        self.map_for(&devices.chain([cpu]).collect::<Vec<_>>())
    }

    fn map_for(&self, access: &[CUmemAccessDesc]) -> Result<Mapping, CudaError> {
        let size = size_of(self.size);
        let functions = &self.api.functions;
        let mut address = 0;
        // SAFETY: A foreign call, which writes one address where it is told to.
        let code = unsafe { (functions.cuMemAddressReserve)(&raw mut address, size, 0, 0, 0) };
        self.api.check("cuMemAddressReserve", code)?;
        let mut mapping = Mapping { api: Arc::clone(&self.api), address, size, mapped: false };
        // SAFETY: A foreign call on addresses that were reserved above, for this alone, and are as long.
        let code = unsafe { (functions.cuMemMap)(address, size, 0, self.raw, 0) };
        self.api.check("cuMemMap", code)?;
        mapping.mapped = true;
        // SAFETY: A foreign call on addresses that were mapped above. It reads as many descriptions as the slice has.
        let code = unsafe { (functions.cuMemSetAccess)(address, size, access.as_ptr(), access.len()) };
        self.api.check("cuMemSetAccess", code)?;
        Ok(mapping)
    }
}

impl Drop for Physical {
    fn drop(&mut self) {
        // SAFETY: A foreign call, once for the one handle that this value stands for. Mappings and descriptors keep
        // the memory by themselves.
        let code = unsafe { (self.api.functions.cuMemRelease)(self.raw) };
        // An error that ends the context is remembered; otherwise nothing can be done about it.
        let _ = self.api.check("cuMemRelease", code);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    ReadOnly,
    ReadWrite,
}

impl Access {
    fn flags(self) -> CUmemAccess_flags {
        match self {
            Self::ReadOnly => CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ,
            Self::ReadWrite => CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        }
    }
}

/// A mapping, which keeps its memory alive. It is dropped only when no work uses it.
#[derive(Debug)]
pub(crate) struct Mapping {
    api: Arc<Api>,
    address: u64,
    size: usize,
    mapped: bool,
}

impl Mapping {
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    pub(super) fn size(&self) -> usize {
        self.size
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.mapped {
            // SAFETY: A foreign call on the range that this value stands for, mapped once and whole.
            let code = unsafe { (self.api.functions.cuMemUnmap)(self.address, self.size) };
            let _ = self.api.check("cuMemUnmap", code);
        }
        // SAFETY: A foreign call on the range that was reserved for this value, and has been unmapped.
        let code = unsafe { (self.api.functions.cuMemAddressFree)(self.address, self.size) };
        let _ = self.api.check("cuMemAddressFree", code);
    }
}
