//! The driver's calls as safe Rust functions that return their results.
//!
//! They are safe because of the values that they take. Device addresses are numbers that no safe code can follow. Raw
//! values of contexts, streams, events and imported memory never leave this folder, and each owner gives its own up
//! once. Host memory comes as slices, and [`super::stream`] waits for a copy before it returns them. The driver
//! refuses a wrong number.

#![allow(unsafe_code, reason = "calls of a C library")]

use std::{
    ffi::{c_int, c_uint},
    os::fd::{AsRawFd as _, BorrowedFd},
    ptr,
};

use super::{
    api::{
        self, ACCESS_READ, ACCESS_READ_WRITE, AccessDesc, Api, Device, HANDLE_POSIX_FD, IpcHandle,
        RawContext, RawEvent, RawMemory, RawStream,
    },
    fault::Fault,
};

/// An opaque pointer of the driver's, valid on every thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Opaque(*mut std::ffi::c_void);

impl Opaque {
    /// Makes a stream of the number that the program has for it.
    pub(super) fn from_number(number: u64) -> Self {
        Self(ptr::without_provenance_mut(usize::try_from(number).unwrap_or(usize::MAX)))
    }

    pub(super) const fn as_raw(self) -> *mut std::ffi::c_void {
        self.0
    }
}

// SAFETY: needed for the pointer, which this process never follows. The driver takes it from any thread.
unsafe impl Send for Opaque {}
// SAFETY: as above.
unsafe impl Sync for Opaque {}

impl Api {
    pub(super) fn initialise(&self) -> Result<(), Fault> {
        // SAFETY: needed to call it. It asks for nothing.
        unsafe { self.init(0) }
    }

    pub(super) fn devices(&self) -> Result<Vec<Device>, Fault> {
        let mut count: c_int = 0;
        // SAFETY: needed to call it. It writes one number.
        unsafe { self.device_get_count(&raw mut count)? };
        let device = |ordinal| {
            let mut device: Device = 0;
            // SAFETY: as above.
            unsafe { self.device_get(&raw mut device, ordinal)? };
            Ok(device)
        };
        (0..count).map(device).collect()
    }

    pub(super) fn retain(&self, device: Device) -> Result<Opaque, Fault> {
        let mut context: RawContext = ptr::null_mut();
        // SAFETY: needed to call it. It writes one handle.
        unsafe { self.primary_ctx_retain(&raw mut context, device)? };
        Ok(Opaque(context))
    }

    pub(super) fn release(&self, device: Device) -> Result<(), Fault> {
        // SAFETY: needed to call it. Each release follows one retain; a context that others retain as well stays.
        unsafe { self.primary_ctx_release(device) }
    }

    pub(super) fn push(&self, context: Opaque) -> Result<(), Fault> {
        // SAFETY: needed to call it. The context is retained by the caller, and popped by the same thread.
        unsafe { self.ctx_push_current(context.0) }
    }

    pub(super) fn pop(&self) -> Result<(), Fault> {
        let mut context: RawContext = ptr::null_mut();
        // SAFETY: needed to call it. It writes one handle, of the context that this thread pushed.
        unsafe { self.ctx_pop_current(&raw mut context) }
    }

    pub(super) fn synchronize(&self) -> Result<(), Fault> {
        const SYMBOL: &std::ffi::CStr = c"cuCtxSynchronize";
        // SAFETY: needed to find a C function. It has no arguments and returns a code, as in `cuda.h`, and is called while
        // this table exists.
        let Some(wait) = (unsafe { self.find_extra::<unsafe extern "C" fn() -> u32>(SYMBOL) }) else {
            let name = "the driver lacks this function".to_owned();
            return Err(Fault { call: "cuCtxSynchronize", code: 0, name });
        };
        // SAFETY: needed to call it. It waits for the context that is current.
        self.check(SYMBOL, unsafe { wait() })
    }

    pub(super) fn reserve(&self, size: usize) -> Result<u64, Fault> {
        let mut address = 0;
        // SAFETY: needed to call it. It writes one address, of a range that nothing else uses.
        unsafe { self.mem_address_reserve(&raw mut address, size, 0, 0, 0)? };
        Ok(address)
    }

    pub(super) fn free_addresses(&self, address: u64, size: usize) -> Result<(), Fault> {
        // SAFETY: needed to call it. The range was reserved as it is, and nothing is mapped there any more.
        unsafe { self.mem_address_free(address, size) }
    }

    pub(super) fn import(&self, fd: BorrowedFd<'_>) -> Result<RawMemory, Fault> {
        let mut memory = 0;
        // The function takes the number itself where other kinds of exports have a pointer.
        let number = ptr::without_provenance_mut(usize::try_from(fd.as_raw_fd()).unwrap_or(usize::MAX));
        // SAFETY: needed to call it. It writes one handle; the descriptor is open, and stays the caller's.
        unsafe { self.mem_import(&raw mut memory, number, HANDLE_POSIX_FD)? };
        Ok(memory)
    }

    pub(super) fn map(&self, address: u64, size: usize, memory: RawMemory) -> Result<(), Fault> {
        // SAFETY: needed to call it. The range lies in a reservation of the caller, which has the handle.
        unsafe { self.mem_map(address, size, 0, memory, 0) }
    }

    pub(super) fn unmap(&self, address: u64, size: usize) -> Result<(), Fault> {
        // SAFETY: needed to call it. The range was mapped by the caller, as it is; kernels that use it have ended, or
        // their owner was told that they fault.
        unsafe { self.mem_unmap(address, size) }
    }

    pub(super) fn set_access(
        &self,
        address: u64,
        size: usize,
        device: Device,
        writable: bool,
    ) -> Result<(), Fault> {
        let access = AccessDesc {
            location_type: api::LOCATION_DEVICE,
            location_id: device,
            flags: if writable { ACCESS_READ_WRITE } else { ACCESS_READ },
        };
        // SAFETY: needed to call it. It reads one description; the range is mapped by the caller.
        unsafe { self.mem_set_access(address, size, &raw const access, 1) }
    }

    pub(super) fn release_memory(&self, memory: RawMemory) -> Result<(), Fault> {
        // SAFETY: needed to call it. The caller owns the handle and does not use it again; mappings stay.
        unsafe { self.mem_release(memory) }
    }

    pub(super) fn open_legacy(&self, handle: [u8; 64]) -> Result<u64, Fault> {
        let mut address = 0;
        // SAFETY: needed to call it. It writes one address; the handle is bytes that the driver checks.
        unsafe {
            self.ipc_open_mem_handle(&raw mut address, IpcHandle(handle), api::IPC_LAZY_ENABLE_PEER_ACCESS)?;
        }
        Ok(address)
    }

    pub(super) fn close_legacy(&self, address: u64) -> Result<(), Fault> {
        // SAFETY: needed to call it. The address came of one opening, and is closed once.
        unsafe { self.ipc_close_mem_handle(address) }
    }

    pub(super) fn create_stream(&self) -> Result<Opaque, Fault> {
        let mut stream: RawStream = ptr::null_mut();
        // SAFETY: needed to call it. It writes one handle.
        unsafe { self.stream_create(&raw mut stream, api::STREAM_NON_BLOCKING)? };
        Ok(Opaque(stream))
    }

    pub(super) fn destroy_stream(&self, stream: Opaque) -> Result<(), Fault> {
        // SAFETY: needed to call it. The caller owns the stream and does not use it again.
        unsafe { self.stream_destroy(stream.0) }
    }

    /// Lets all calls of this thread run during a capture, its own or a global one of another thread. Returns the
    /// mode before.
    pub(super) fn relax_capture(&self) -> Result<u32, Fault> {
        self.exchange_capture_mode(api::CAPTURE_MODE_RELAXED)
    }

    pub(super) fn exchange_capture_mode(&self, mut mode: u32) -> Result<u32, Fault> {
        // SAFETY: needed to call it. It reads and writes one number, of this thread alone.
        unsafe { self.thread_exchange_capture_mode(&raw mut mode)? };
        Ok(mode)
    }

    /// Whether work that is launched on a stream of the program becomes part of a graph instead of running.
    pub(super) fn is_capturing(&self, stream: Opaque) -> Result<bool, Fault> {
        let mut status = 0;
        // SAFETY: needed to call it. It writes one number; the program promises that its stream lives.
        match unsafe { self.stream_is_capturing(stream.0, &raw mut status) } {
            Ok(()) => Ok(status != 0),
            Err(fault) if fault.code == api::CAPTURE_IMPLICIT => Ok(true),
            Err(fault) => Err(fault),
        }
    }

    pub(super) fn context_of(&self, stream: Opaque) -> Result<Opaque, Fault> {
        let mut context: RawContext = ptr::null_mut();
        // SAFETY: needed to call it. It writes one handle; the program promises that its stream lives.
        unsafe { self.stream_get_ctx(stream.0, &raw mut context)? };
        Ok(Opaque(context))
    }

    pub(super) fn create_event(&self) -> Result<Opaque, Fault> {
        let mut event: RawEvent = ptr::null_mut();
        // SAFETY: needed to call it. It writes one handle.
        unsafe { self.event_create(&raw mut event, api::EVENT_DISABLE_TIMING)? };
        Ok(Opaque(event))
    }

    pub(super) fn destroy_event(&self, event: Opaque) -> Result<(), Fault> {
        // SAFETY: needed to call it. The caller owns the event and does not use it again.
        unsafe { self.event_destroy(event.0) }
    }

    pub(super) fn record(&self, event: Opaque, stream: Opaque) -> Result<(), Fault> {
        // SAFETY: needed to call it. Both are the caller's, of one context.
        unsafe { self.event_record(event.0, stream.0) }
    }

    /// Whether all work before the event is done.
    pub(super) fn has_happened(&self, event: Opaque) -> Result<bool, Fault> {
        // SAFETY: needed to call it. The event is the caller's.
        match unsafe { self.event_query(event.0) } {
            Ok(()) => Ok(true),
            Err(fault) if fault.code == api::NOT_READY => Ok(false),
            Err(fault) => Err(fault),
        }
    }

    /// Page-locks host memory, for all contexts of the process.
    pub(super) fn register_host(&self, start: ptr::NonNull<u8>, len: usize) -> Result<(), Fault> {
        self.register_host_as(start, len, api::HOST_PORTABLE)
    }

    /// The same with other flags of `cuMemHostRegister`.
    pub(super) fn register_host_as(
        &self,
        start: ptr::NonNull<u8>,
        len: usize,
        flags: c_uint,
    ) -> Result<(), Fault> {
        // SAFETY: needed to call it. The caller owns these bytes, and unregisters them before it frees them.
        unsafe { self.mem_host_register(start.as_ptr().cast(), len, flags) }
    }

    pub(super) fn unregister_host(&self, start: ptr::NonNull<u8>) -> Result<(), Fault> {
        // SAFETY: needed to call it. The caller registered this memory and has no copy of it under way.
        unsafe { self.mem_host_unregister(start.as_ptr().cast()) }
    }

    /// Begins a copy. The caller keeps `from` until the stream has passed it.
    pub(super) fn begin_to_device(&self, to: u64, from: &[u8], stream: Opaque) -> Result<(), Fault> {
        // SAFETY: needed to call it. It reads `from.len()` bytes there, which `super::stream` keeps borrowed until an
        // event after the copy has happened or the context is lost.
        unsafe { self.memcpy_htod_async(to, from.as_ptr().cast(), from.len(), stream.0) }
    }

    /// Begins a copy. The caller keeps `to` until the stream has passed it.
    pub(super) fn begin_to_host(&self, to: &mut [u8], from: u64, stream: Opaque) -> Result<(), Fault> {
        // SAFETY: needed to call it. It writes `to.len()` bytes there, which `super::stream` keeps borrowed until an
        // event after the copy has happened or the context is lost.
        unsafe { self.memcpy_dtoh_async(to.as_mut_ptr().cast(), from, to.len(), stream.0) }
    }
}
