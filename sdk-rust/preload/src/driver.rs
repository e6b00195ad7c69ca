//! The driver's functions that this library calls itself, found without the doors.

#![allow(unsafe_code, reason = "a C library has no safe interface")]

use std::{
    env,
    ffi::{CStr, CString, c_int, c_uint, c_void},
    os::unix::ffi::OsStringExt,
    ptr,
    sync::OnceLock,
};

use crate::doors::real_dlsym;

/// The default stream of a context, and that of the calling thread.
pub(crate) const LEGACY_STREAM: u64 = 1;
pub(crate) const OWN_STREAM: u64 = 2;

pub(crate) const INVALID_VALUE: u32 = 1;
pub(crate) const OUT_OF_MEMORY: u32 = 2;
pub(crate) const NOT_SUPPORTED: u32 = 801;
const NOT_READY: u32 = 600;
/// A stream that the default stream waits for is being captured.
const CAPTURE_IMPLICIT: u32 = 906;

const RELAXED: c_uint = 2;
const DISABLE_TIMING: c_uint = 2;

/// `CUmemAccessDesc`.
#[repr(C)]
struct Access {
    location_kind: c_uint,
    location_id: c_int,
    flags: c_uint,
}

macro_rules! functions {
    ($($name:ident = $symbol:literal ($($arg:ident: $type:ty),*);)*) => {
        struct Functions { $($name: unsafe extern "C" fn($($type),*) -> u32),* }

        impl Functions {
            /// Fails with the name of the first that the driver does not have.
            fn find() -> Result<Self, &'static CStr> {
                Ok(Self {
                    $($name: {
                        let found = find_loaded($symbol);
                        if found.is_null() {
                            return Err($symbol);
                        }
                        // SAFETY: needed to call it. The type is that of the function in `cuda.h`.
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> u32>(found) }
                    }),*
                })
            }
        }
    };
}

functions! {
    ctx_get_current = c"cuCtxGetCurrent" (context: *mut u64);
    ctx_get_device = c"cuCtxGetDevice" (device: *mut c_int);
    ctx_push = c"cuCtxPushCurrent_v2" (context: u64);
    ctx_pop = c"cuCtxPopCurrent_v2" (context: *mut u64);
    primary_state = c"cuDevicePrimaryCtxGetState" (device: c_int, flags: *mut c_uint, active: *mut c_int);
    primary_retain = c"cuDevicePrimaryCtxRetain" (context: *mut u64, device: c_int);
    total_mem = c"cuDeviceTotalMem_v2" (total: *mut usize, device: c_int);
    get_pool = c"cuDeviceGetMemPool" (pool: *mut u64, device: c_int);
    get_default_pool = c"cuDeviceGetDefaultMemPool" (pool: *mut u64, device: c_int);
    exchange_capture_mode = c"cuThreadExchangeStreamCaptureMode" (mode: *mut c_uint);
    is_capturing = c"cuStreamIsCapturing" (stream: u64, status: *mut c_uint);
    stream_query = c"cuStreamQuery" (stream: u64);
    event_create = c"cuEventCreate" (event: *mut u64, flags: c_uint);
    event_record = c"cuEventRecord" (event: u64, stream: u64);
    event_query = c"cuEventQuery" (event: u64);
    event_destroy = c"cuEventDestroy_v2" (event: u64);
    set_access = c"cuMemSetAccess" (address: u64, size: usize, access: *const Access, count: usize);
}

/// The name of the driver's library: the one that the program's own lookups lead to.
fn library_name() -> CString {
    let name = env::var_os("VRAMD_LIBCUDA").map(OsStringExt::into_vec);
    name.and_then(|name| CString::new(name).ok()).unwrap_or_else(|| c"libcuda.so.1".to_owned())
}

/// A function of the driver's library or of NVML's, if the process has loaded them. Null if there is none. The library
/// stays loaded from then on.
pub(crate) fn find_loaded(name: &CStr) -> *mut c_void {
    let library = match name.to_bytes().starts_with(b"nvml") {
        true => c"libnvidia-ml.so.1".to_owned(),
        false => library_name(),
    };
    let library = pinned(&library);
    if library.is_null() {
        return ptr::null_mut();
    }
    let found = real_dlsym(library, name);
    // SAFETY: needed so that handles do not pile up. It was opened above, and the library stays.
    unsafe { libc::dlclose(library) };
    found
}

/// Has a loaded library stay loaded, and opens it.
fn pinned(library: &CStr) -> *mut c_void {
    // SAFETY: needed to find the library. The name is terminated, and nothing is loaded that was not before.
    unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE) }
}

/// Has the library of a function stay loaded, though the program may close it.
pub(crate) fn pin(function: *mut c_void) {
    // SAFETY: needed to find the library's path. Both are C structures of numbers and addresses, for which zero is valid,
    // and the loader writes the path of the library, which is open now.
    let library = unsafe {
        let mut found: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr(function, &raw mut found) == 0 || found.dli_fname.is_null() {
            return;
        }
        pinned(CStr::from_ptr(found.dli_fname))
    };
    if !library.is_null() {
        // SAFETY: needed so that handles do not pile up. It was opened above, and the library stays.
        unsafe { libc::dlclose(library) };
    }
}

/// The table, once the program has loaded a driver that has all of it.
fn functions() -> Option<&'static Functions> {
    static FUNCTIONS: OnceLock<Functions> = OnceLock::new();
    if let Some(known) = FUNCTIONS.get() {
        return Some(known);
    }
    let found = Functions::find().ok()?;
    Some(FUNCTIONS.get_or_init(|| found))
}

/// The outcome of a call.
fn checked(code: u32) -> Result<(), u32> {
    if code == 0 { Ok(()) } else { Err(code) }
}

macro_rules! call {
    ($name:ident($($arg:expr),*)) => {{
        let functions = functions().ok_or(NOT_SUPPORTED)?;
        // SAFETY: needed to call the driver. It reads and writes its arguments, which live during the call, and checks
        // the handles.
        checked(unsafe { (functions.$name)($($arg),*) })
    }};
}

/// The function that this library needs and the driver does not have.
pub(crate) fn missing() -> Option<&'static CStr> {
    if functions().is_some() { None } else { Functions::find().err() }
}

/// Whether the driver has what this library needs.
pub(crate) fn is_usable() -> bool {
    functions().is_some()
}

/// The context that is current on this thread, with its device. `None` without one.
pub(crate) fn current() -> Result<Option<(u64, c_int)>, u32> {
    let (mut context, mut device) = (0, 0);
    call!(ctx_get_current(&raw mut context))?;
    if context == 0 {
        return Ok(None);
    }
    call!(ctx_get_device(&raw mut device))?;
    Ok(Some((context, device)))
}

/// The primary context of a device, retained. `None` if nothing of the program uses it: retaining would create it.
pub(crate) fn primary_context(device: c_int) -> Result<Option<u64>, u32> {
    let (mut flags, mut active, mut context) = (0, 0, 0);
    call!(primary_state(device, &raw mut flags, &raw mut active))?;
    if active == 0 {
        return Ok(None);
    }
    call!(primary_retain(&raw mut context, device))?;
    Ok(Some(context))
}

pub(crate) fn total_memory(device: c_int) -> Result<usize, u32> {
    let mut total = 0;
    call!(total_mem(&raw mut total, device))?;
    Ok(total)
}

/// The pool that a device's ordered allocations come from now.
pub(crate) fn current_pool(device: c_int) -> Result<u64, u32> {
    let mut pool = 0;
    call!(get_pool(&raw mut pool, device))?;
    Ok(pool)
}

pub(crate) fn default_pool(device: c_int) -> Result<u64, u32> {
    let mut pool = 0;
    call!(get_default_pool(&raw mut pool, device))?;
    Ok(pool)
}

/// Has another device access a range of served memory.
pub(crate) fn let_access((address, size): (u64, usize), device: c_int) -> Result<(), u32> {
    const DEVICE: c_uint = 1;
    const READ_WRITE: c_uint = 3;
    let access = Access { location_kind: DEVICE, location_id: device, flags: READ_WRITE };
    call!(set_access(address, size, &raw const access, 1))
}

/// Whether work on the stream becomes part of a graph. The default stream counts as captured while a stream that it waits
/// for is.
pub(crate) fn is_capturing(stream: u64) -> Result<bool, u32> {
    let mut status = 0;
    match call!(is_capturing(stream, &raw mut status)) {
        Err(CAPTURE_IMPLICIT) => Ok(true),
        outcome => outcome.map(|()| status != 0),
    }
}

/// Whether all work of the stream is done.
pub(crate) fn is_ready(stream: u64) -> Result<bool, u32> {
    match call!(stream_query(stream)) {
        Err(NOT_READY) => Ok(false),
        outcome => outcome.map(|()| true),
    }
}

/// Has this thread disturb no capture, and makes a context current, until it is dropped.
#[derive(Debug)]
pub(crate) struct Entered {
    mode: c_uint,
}

impl Entered {
    pub(crate) fn enter(context: u64) -> Result<Self, u32> {
        let mut mode = RELAXED;
        call!(exchange_capture_mode(&raw mut mode))?;
        match call_push(context) {
            Ok(()) => Ok(Self { mode }),
            Err(code) => {
                restore(mode);
                Err(code)
            }
        }
    }
}

fn call_push(context: u64) -> Result<(), u32> {
    call!(ctx_push(context))
}

fn restore(mode: c_uint) {
    let mut mode = mode;
    let mut exchange = || call!(exchange_capture_mode(&raw mut mode));
    // The call that set the mode can set it again.
    let _ = exchange();
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut popped = 0;
        let mut pop = || call!(ctx_pop(&raw mut popped));
        // This fails only if the driver has shut down, with the process.
        let _ = pop();
        restore(self.mode);
    }
}

/// An event on a stream of a primary context: it has passed once the work before it is done.
#[derive(Debug)]
pub(crate) struct Event {
    context: u64,
    raw: u64,
}

impl Event {
    /// Records it. The caller has entered the context.
    pub(crate) fn record(context: u64, stream: u64) -> Result<Self, u32> {
        let mut raw = 0;
        call!(event_create(&raw mut raw, DISABLE_TIMING))?;
        let event = Self { context, raw };
        call!(event_record(raw, stream))?;
        Ok(event)
    }

    /// Whether it has passed. An error is that of a lost context, in which no work goes on.
    pub(crate) fn has_passed(&self) -> Result<bool, u32> {
        let _entered = Entered::enter(self.context)?;
        match call!(event_query(self.raw)) {
            Err(NOT_READY) => Ok(false),
            outcome => outcome.map(|()| true),
        }
    }

    /// Leaves it to a context that is about to end.
    pub(crate) fn forget(self) {
        std::mem::forget(self);
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let destroy = || -> Result<(), u32> {
            let _entered = Entered::enter(self.context)?;
            call!(event_destroy(self.raw))
        };
        // This fails only in a lost context, which takes the event along.
        let _ = destroy();
    }
}
