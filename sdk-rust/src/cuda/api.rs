//! The driver's functions, looked up by name in a library that is opened at run time.
//!
//! All of them must exist: a missing one is named in the error, and means a driver older than CUDA 11.0. The
//! exception is `cuDeviceGetUuid_v2` of CUDA 11.4, whose predecessor does the same outside of MIG.

#![allow(unsafe_code, reason = "a C library has no safe interface")]

use std::{
    ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void},
    fmt,
    path::Path,
    ptr,
};

use libloading::Library;

use super::fault::{Fault, LoadError};

pub(super) type Device = c_int;
pub(super) type RawContext = *mut c_void;
pub(super) type RawStream = *mut c_void;
pub(super) type RawEvent = *mut c_void;
/// A `CUmemGenericAllocationHandle`.
pub(super) type RawMemory = c_ulonglong;

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Uuid(pub(super) [u8; 16]);

/// `CUipcMemHandle`, which is passed by value.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct IpcHandle(pub(super) [u8; 64]);

/// `CUmemAccessDesc`, with the `CUmemLocation` that it begins with.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct AccessDesc {
    pub(super) location_type: c_uint,
    pub(super) location_id: c_int,
    pub(super) flags: c_uint,
}

pub(super) const LOCATION_DEVICE: c_uint = 1;
pub(super) const ACCESS_READ: c_uint = 1;
pub(super) const ACCESS_READ_WRITE: c_uint = 3;
pub(super) const HANDLE_POSIX_FD: c_uint = 1;
pub(super) const STREAM_NON_BLOCKING: c_uint = 1;
pub(super) const EVENT_DISABLE_TIMING: c_uint = 2;
pub(super) const CAPTURE_MODE_RELAXED: c_uint = 2;
pub(super) const HOST_PORTABLE: c_uint = 1;
pub(super) const IPC_LAZY_ENABLE_PEER_ACCESS: c_uint = 1;

const SUCCESS: u32 = 0;
pub(super) const NOT_READY: u32 = 600;
/// Returned for the default stream while another stream of its context is being captured.
pub(super) const CAPTURE_IMPLICIT: u32 = 906;
/// The codes of a lost context: all work in it is lost too.
const LOST: [u32; 17] = [4, 201, 214, 220, 400, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 720, 721];

type ErrorName = unsafe extern "C" fn(u32, *mut *const c_char) -> u32;

macro_rules! functions {
    ($($name:ident = $symbol:literal ($($arg:ident: $kind:ty),*);)*) => {
        pub(super) struct Api {
            $($name: unsafe extern "C" fn($($kind),*) -> u32,)*
            get_error_name: Option<ErrorName>,
            /// Kept open while the functions found in it are used.
            library: Library,
        }

        impl Api {
            fn find(library: Library, path: &Path) -> Result<Self, LoadError> {
                Ok(Self {
                    $($name: {
                        // SAFETY: needed to find a C function. The type is that of the function in `cuda.h`.
                        let found = unsafe { library.get($symbol) };
                        *found.map_err(|_| too_old(&library, path, $symbol))?
                    },)*
                    // SAFETY: as above.
                    get_error_name: unsafe { library.get::<ErrorName>(c"cuGetErrorName") }.ok().map(|found| *found),
                    library,
                })
            }

            $(
                /// # Safety
                /// The caller follows the rules of the driver's function of that name.
                pub(super) unsafe fn $name(&self, $($arg: $kind),*) -> Result<(), Fault> {
                    // SAFETY: the caller keeps the function's rules; the library is open as long as this table.
                    self.check($symbol, unsafe { (self.$name)($($arg),*) })
                }
            )*
        }
    };
}

functions! {
    init = c"cuInit" (flags: c_uint);
    device_get_count = c"cuDeviceGetCount" (count: *mut c_int);
    device_get = c"cuDeviceGet" (device: *mut Device, ordinal: c_int);
    primary_ctx_retain = c"cuDevicePrimaryCtxRetain" (context: *mut RawContext, device: Device);
    primary_ctx_release = c"cuDevicePrimaryCtxRelease_v2" (device: Device);
    ctx_push_current = c"cuCtxPushCurrent_v2" (context: RawContext);
    ctx_pop_current = c"cuCtxPopCurrent_v2" (context: *mut RawContext);
    mem_address_reserve = c"cuMemAddressReserve"
        (address: *mut u64, size: usize, alignment: usize, wanted: u64, flags: c_ulonglong);
    mem_address_free = c"cuMemAddressFree" (address: u64, size: usize);
    mem_import = c"cuMemImportFromShareableHandle" (memory: *mut RawMemory, fd: *mut c_void, kind: c_uint);
    mem_map = c"cuMemMap" (address: u64, size: usize, offset: usize, memory: RawMemory, flags: c_ulonglong);
    mem_unmap = c"cuMemUnmap" (address: u64, size: usize);
    mem_set_access = c"cuMemSetAccess" (address: u64, size: usize, access: *const AccessDesc, count: usize);
    mem_release = c"cuMemRelease" (memory: RawMemory);
    ipc_open_mem_handle = c"cuIpcOpenMemHandle_v2" (address: *mut u64, handle: IpcHandle, flags: c_uint);
    ipc_close_mem_handle = c"cuIpcCloseMemHandle" (address: u64);
    memcpy_htod_async = c"cuMemcpyHtoDAsync_v2"
        (device: u64, host: *const c_void, size: usize, stream: RawStream);
    memcpy_dtoh_async = c"cuMemcpyDtoHAsync_v2"
        (host: *mut c_void, device: u64, size: usize, stream: RawStream);
    mem_host_register = c"cuMemHostRegister_v2" (start: *mut c_void, size: usize, flags: c_uint);
    mem_host_unregister = c"cuMemHostUnregister" (start: *mut c_void);
    stream_create = c"cuStreamCreate" (stream: *mut RawStream, flags: c_uint);
    stream_destroy = c"cuStreamDestroy_v2" (stream: RawStream);
    stream_is_capturing = c"cuStreamIsCapturing" (stream: RawStream, status: *mut c_uint);
    stream_get_ctx = c"cuStreamGetCtx" (stream: RawStream, context: *mut RawContext);
    thread_exchange_capture_mode = c"cuThreadExchangeStreamCaptureMode" (mode: *mut c_uint);
    event_create = c"cuEventCreate" (event: *mut RawEvent, flags: c_uint);
    event_record = c"cuEventRecord" (event: RawEvent, stream: RawStream);
    event_query = c"cuEventQuery" (event: RawEvent);
    event_destroy = c"cuEventDestroy_v2" (event: RawEvent);
}

type GetUuid = unsafe extern "C" fn(*mut Uuid, Device) -> u32;

impl Api {
    /// Opens a library and finds everything in it. Nothing is initialised yet.
    pub(super) fn open(path: &Path) -> Result<Self, LoadError> {
        // SAFETY: opening a library runs its initialisers. This one is the system's CUDA driver, or what the
        // environment of this very process names in its place.
        let library = unsafe { Library::new(path) }
            .map_err(|error| LoadError::Missing { problem: loader_message(&error) })?;
        Self::find(library, path)
    }

    /// The device's UUID: a MIG instance's own, where the driver knows the difference.
    pub(super) fn uuid(&self, device: Device) -> Result<[u8; 16], Fault> {
        let mut uuid = Uuid::default();
        let (symbol, get) = [c"cuDeviceGetUuid_v2", c"cuDeviceGetUuid"]
            .into_iter()
            // SAFETY: needed to find a C function; both have the type that `cuda.h` gives them.
            .find_map(|symbol| Some((symbol, *unsafe { self.library.get::<GetUuid>(symbol) }.ok()?)))
            .ok_or_else(|| Fault { call: "cuDeviceGetUuid", code: 0, name: "no such function".to_owned() })?;
        // SAFETY: needed to call it. It writes 16 bytes, which is what there is room for.
        self.check(symbol, unsafe { get(&raw mut uuid, device) })?;
        Ok(uuid.0)
    }

    /// Finds a function that not every driver has. `None` if this one has not.
    ///
    /// # Safety
    /// `F` is the type that `cuda.h` gives the function, and what is found is called only while this table exists.
    pub(super) unsafe fn find_extra<F: Copy>(&self, symbol: &'static CStr) -> Option<F> {
        // SAFETY: the caller names the function's own type.
        unsafe { self.library.get::<F>(symbol) }.ok().map(|found| *found)
    }

    pub(super) fn check(&self, call: &'static CStr, code: u32) -> Result<(), Fault> {
        if code == SUCCESS {
            return Ok(());
        }
        Err(Fault { call: call.to_str().unwrap_or_default(), code, name: self.name_of(code) })
    }

    fn name_of(&self, code: u32) -> String {
        let mut name: *const c_char = ptr::null();
        if let Some(get) = self.get_error_name {
            // SAFETY: needed to call it. It writes one pointer: to a constant string, or null if it knows no name.
            unsafe { get(code, &raw mut name) };
        }
        if name.is_null() {
            return "an error without a name".to_owned();
        }
        // SAFETY: needed to read it. The driver's names end with a zero and stay as long as the library, which is open.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }
}

/// Whether the code says that the context is lost, so that a pending event never happens: deinitialised, destroyed,
/// or ended by an error of a kernel or of the hardware.
pub(super) fn is_lost(code: u32) -> bool {
    LOST.contains(&code)
}

impl fmt::Debug for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Api").finish_non_exhaustive()
    }
}

/// The loader's own message, which names the library, or one that it needs.
fn loader_message(error: &libloading::Error) -> String {
    let source = std::error::Error::source(error);
    source.map_or_else(|| error.to_string(), ToString::to_string)
}

fn too_old(library: &Library, path: &Path, symbol: &'static CStr) -> LoadError {
    let mut number = 0;
    type GetVersion = unsafe extern "C" fn(*mut c_int) -> u32;
    // SAFETY: needed to find a C function, of the type that `cuda.h` gives it.
    if let Ok(get) = unsafe { library.get::<GetVersion>(c"cuDriverGetVersion") } {
        // SAFETY: needed to call it, which is allowed before `cuInit`. It writes one number.
        unsafe { get(&raw mut number) };
    }
    let version = match number {
        0 => String::new(),
        number => format!(" (of CUDA {}.{})", number / 1000, number % 1000 / 10),
    };
    LoadError::TooOld { library: path.to_owned(), symbol: symbol.to_str().unwrap_or_default(), version }
}
