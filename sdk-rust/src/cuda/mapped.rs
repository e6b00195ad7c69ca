//! Files that this process maps and a device reads after the driver has registered the mapping.

#![allow(unsafe_code, reason = "calls of a C library")]

use std::{
    ffi::{c_uint, c_void},
    ptr::NonNull,
};

use super::{api::HOST_PORTABLE, context::Context, fault::Fault};

/// The device gets an address of the memory.
const HOST_DEVICEMAP: c_uint = 2;
/// The device reads it only, so that a mapping without the right to write can be registered.
const HOST_READ_ONLY: c_uint = 8;

type GetDevicePointer = unsafe extern "C" fn(*mut u64, *mut c_void, c_uint) -> u32;

impl Context {
    /// Registers a mapping that may be read only, and returns the address at which the device reads it. The pages are
    /// pinned until [`Context::unregister_host`].
    pub(crate) fn register_read_only(&self, start: NonNull<u8>, len: usize) -> Result<u64, Fault> {
        let current = self.enter()?;
        let api = current.api();
        // SAFETY: needed to find a C function. The type is that of the function in `cuda.h`, and the table lives as long as
        // this context.
        let find = unsafe { api.find_extra::<GetDevicePointer>(c"cuMemHostGetDevicePointer_v2") };
        let lacks = || Fault {
            call: "cuMemHostGetDevicePointer",
            code: 0,
            name: "the driver lacks this function".to_owned(),
        };
        let get_address = find.ok_or_else(lacks)?;
        let flags = HOST_PORTABLE | HOST_DEVICEMAP | HOST_READ_ONLY;
        api.register_host_as(start, len, flags)?;
        let mut address = 0;
        // SAFETY: needed to call it. It writes one address, of memory that was registered above.
        let code = unsafe { get_address(&raw mut address, start.as_ptr().cast(), 0) };
        match api.check(c"cuMemHostGetDevicePointer_v2", code) {
            Ok(()) => Ok(address),
            Err(fault) => {
                // The first failure is the one to report.
                let _ = api.unregister_host(start);
                Err(fault)
            }
        }
    }
}
