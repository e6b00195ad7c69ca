//! The structures of `dlpack.h`, of version 1.1.

use std::ffi::c_void;

pub(super) const CPU: i32 = 1;
pub(super) const CUDA: i32 = 2;
/// The version of the type codes: those of fp8 came with 1.1.
pub(super) const VERSION: Version = Version { major: 1, minor: 1 };
pub(super) const FLAG_READ_ONLY: u64 = 1;

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Version {
    pub(super) major: u32,
    pub(super) minor: u32,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Device {
    pub(super) kind: i32,
    pub(super) number: i32,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct DataType {
    pub(super) code: u8,
    pub(super) bits: u8,
    pub(super) lanes: u16,
}

#[derive(Debug)]
#[repr(C)]
pub(super) struct Tensor {
    pub(super) data: *mut c_void,
    pub(super) device: Device,
    pub(super) ndim: i32,
    pub(super) dtype: DataType,
    pub(super) shape: *mut i64,
    pub(super) strides: *mut i64,
    pub(super) byte_offset: u64,
}

/// `DLManagedTensor`, which old consumers take.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Managed {
    pub(super) tensor: Tensor,
    pub(super) context: *mut c_void,
    pub(super) deleter: unsafe extern "C" fn(*mut Self),
}

/// `DLManagedTensorVersioned`, which can say that memory is read-only.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Versioned {
    pub(super) version: Version,
    pub(super) context: *mut c_void,
    pub(super) deleter: unsafe extern "C" fn(*mut Self),
    pub(super) flags: u64,
    pub(super) tensor: Tensor,
}
