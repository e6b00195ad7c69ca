//! A CUDA driver that is none, for tests: what is imported are memfds, device addresses are addresses of this process.
//! It writes down each call, fails those that it is told to, and complains of calls without a context. Built by the
//! tests with `rustc`; `--cfg without_set_access` and `--cfg without_batch` make older drivers.
#![allow(non_snake_case, clippy::missing_safety_doc)]

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    ffi::{CStr, c_char, c_int, c_void},
    ptr,
    sync::Mutex,
};

unsafe extern "C" {
    fn mmap(at: *mut c_void, size: usize, protection: c_int, flags: c_int, fd: c_int, offset: i64) -> *mut c_void;
    fn munmap(at: *mut c_void, size: usize) -> c_int;
    #[cfg(not(without_set_access))]
    fn mprotect(at: *mut c_void, size: usize, protection: c_int) -> c_int;
    fn dup(fd: c_int) -> c_int;
    fn close(fd: c_int) -> c_int;
}
const SHARED_FIXED: c_int = 0x11;
const PRIVATE_ANONYMOUS: c_int = 0x22;
const FIXED: c_int = 0x10;
const INVALID_VALUE: u32 = 1;
const NOT_READY: u32 = 600;
const CONTEXT: usize = 0xc0;

static CALLS: Mutex<Vec<String>> = Mutex::new(Vec::new());
static FAILURES: Mutex<BTreeMap<String, u32>> = Mutex::new(BTreeMap::new());
/// Of each event: the stream that it was recorded on, and whether it was asked for.
static EVENTS: Mutex<BTreeMap<usize, (usize, bool)>> = Mutex::new(BTreeMap::new());
/// Streams whose work does not end.
static BUSY: Mutex<Vec<usize>> = Mutex::new(Vec::new());
static CAPTURING: Mutex<Vec<usize>> = Mutex::new(Vec::new());
const RELAXED: u32 = 2;
/// Streams from here on are of a context that is no device's primary one.
const OTHERS_STREAMS: usize = 0xd000;

thread_local! {
    /// The test's own context lies at the bottom, so to say.
    static CURRENT: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
    static CAPTURE_MODE: Cell<u32> = const { Cell::new(0) };
}

/// Writes the call down; its result is what the test wants.
fn call(name: &str, facts: String) -> u32 {
    CALLS.lock().unwrap().push(format!("{name} {facts}").trim().to_owned());
    FAILURES.lock().unwrap().get(name).copied().unwrap_or(0)
}

/// A call that a real driver does within a context.
fn within(name: &str, facts: String) -> u32 {
    if CURRENT.with_borrow(|current| current.is_empty()) {
        return call(name, "WITHOUT A CONTEXT".to_owned());
    }
    if CAPTURE_MODE.get() != RELAXED {
        return call(name, "IN A STRICT CAPTURE MODE".to_owned());
    }
    call(name, facts)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_fail(name: *const c_char, code: u32) {
    // SAFETY: a C interface; the test hands over a string that ends with a zero and outlives the call.
    let name = unsafe { CStr::from_ptr(name) }.to_str().unwrap().to_owned();
    FAILURES.lock().unwrap().insert(name, code);
}
/// The calls since the last time, a line each, in a string that is never given back.
#[unsafe(no_mangle)]
pub extern "C" fn fake_calls(size: *mut usize) -> *const u8 {
    let calls = std::mem::take(&mut *CALLS.lock().unwrap()).join("\n");
    // SAFETY: the caller hands over a place for the result, as it does to the driver.
    unsafe { *size = calls.len() };
    calls.leak().as_ptr()
}
#[unsafe(no_mangle)]
pub extern "C" fn fake_current() -> usize {
    CURRENT.with_borrow(Vec::len)
}

#[unsafe(no_mangle)]
pub extern "C" fn fake_capture_mode() -> u32 {
    CAPTURE_MODE.get()
}
/// Whether a stream's work goes on, and whether it is captured.
#[unsafe(no_mangle)]
pub extern "C" fn fake_stream(stream: usize, busy: bool, capturing: bool) {
    for (streams, is_one) in [(&BUSY, busy), (&CAPTURING, capturing)] {
        let mut streams = streams.lock().unwrap();
        streams.retain(|other| *other != stream);
        streams.extend(is_one.then_some(stream));
    }
}
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuThreadExchangeStreamCaptureMode(mode: *mut u32) -> u32 {
    // SAFETY: the caller hands over a mode and a place for the other, as it does to the driver.
    unsafe { *mode = CAPTURE_MODE.replace(*mode) };
    0
}
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamIsCapturing(stream: usize, status: *mut u32) -> u32 {
    // SAFETY: the caller hands over a place for the result, as it does to the driver.
    unsafe { *status = CAPTURING.lock().unwrap().contains(&stream).into() };
    within("cuStreamIsCapturing", format!("{stream:x}"))
}
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamGetCtx(stream: usize, context: *mut usize) -> u32 {
    // SAFETY: the caller hands over a place for the result, as it does to the driver.
    unsafe { *context = if stream < OTHERS_STREAMS { CONTEXT } else { stream } };
    within("cuStreamGetCtx", format!("{stream:x}"))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(code: u32, name: *mut *const c_char) -> u32 {
    let text = match code {
        1 => c"CUDA_ERROR_INVALID_VALUE",
        2 => c"CUDA_ERROR_OUT_OF_MEMORY",
        34 => c"CUDA_ERROR_STUB_LIBRARY",
        46 => c"CUDA_ERROR_DEVICE_UNAVAILABLE",
        _ => return INVALID_VALUE,
    };
    // SAFETY: the caller hands over a place for the result, as it does to the driver.
    unsafe { *name = text.as_ptr() };
    0
}
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> u32 {
    // SAFETY: the caller hands over a place for the result, as it does to the driver.
    unsafe { *version = 12020 };
    0
}
#[unsafe(no_mangle)]
pub extern "C" fn cuInit(_flags: u32) -> u32 {
    call("cuInit", String::new())
}
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> u32 {
    // SAFETY: the caller hands over a place for the result, as it does to the driver.
    unsafe { *count = 2 };
    0
}
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> u32 {
    // SAFETY: the caller hands over a place for the result, as it does to the driver.
    unsafe { *device = ordinal };
    0
}
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetUuid(uuid: *mut [u8; 16], device: c_int) -> u32 {
    // SAFETY: the caller hands over a place for the result, as it does to the driver.
    unsafe { *uuid = [0xa0 + device as u8; 16] };
    0
}
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut usize, device: c_int) -> u32 {
    // SAFETY: the caller hands over a place for the result, as it does to the driver.
    unsafe { *context = CONTEXT + device as usize };
    call("cuDevicePrimaryCtxRetain", format!("{device}"))
}
#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRelease_v2(device: c_int) -> u32 {
    call("cuDevicePrimaryCtxRelease", format!("{device}"))
}
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxPushCurrent_v2(context: usize) -> u32 {
    CURRENT.with_borrow_mut(|current| current.push(context));
    0
}
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxPopCurrent_v2(context: *mut usize) -> u32 {
    // SAFETY: the caller hands over a place for the result, as it does to the driver.
    unsafe { *context = CURRENT.with_borrow_mut(Vec::pop).unwrap() };
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSynchronize() -> u32 {
    within("cuCtxSynchronize", String::new())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAddressReserve(at: *mut u64, size: usize, _: usize, _: u64, _: u64) -> u32 {
    // SAFETY: a C function, which finds room of its own; the result goes where the caller said, as the driver does.
    unsafe { *at = mmap(ptr::null_mut(), size, 0, PRIVATE_ANONYMOUS, -1, 0) as u64 };
    within("cuMemAddressReserve", format!("{}", size >> 20))
}
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAddressFree(at: u64, size: usize) -> u32 {
    // SAFETY: a C function; the range was reserved here, so nothing else lies in it.
    unsafe { munmap(at as *mut c_void, size) };
    within("cuMemAddressFree", format!("{}", size >> 20))
}
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemImportFromShareableHandle(memory: *mut u64, fd: usize, kind: u32) -> u32 {
    assert_eq!(kind, 1);
    // SAFETY: a C function; a number that is no descriptor is an error, and nothing else uses this one.
    let own = unsafe { dup(fd as c_int) };
    if own < 0 {
        return INVALID_VALUE;
    }
    // SAFETY: the caller hands over a place for the result, as it does to the driver.
    unsafe { *memory = own as u64 };
    match within("cuMemImportFromShareableHandle", String::new()) {
        0 => 0,
        code => {
            // SAFETY: a C function; a number that is no descriptor is an error, and nothing else uses this one.
            unsafe { close(own) };
            code
        }
    }
}
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemMap(at: u64, size: usize, offset: usize, memory: u64, _: u64) -> u32 {
    assert_eq!(offset, 0);
    let code = within("cuMemMap", format!("{}", size >> 20));
    if code == 0 {
        // SAFETY: a C function; the range was reserved here, so nothing else lies in it.
        unsafe { mmap(at as *mut c_void, size, 0, SHARED_FIXED, memory as c_int, 0) };
    }
    code
}
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemUnmap(at: u64, size: usize) -> u32 {
    // SAFETY: a C function; the range was reserved here, so nothing else lies in it.
    unsafe { mmap(at as *mut c_void, size, 0, PRIVATE_ANONYMOUS | FIXED, -1, 0) };
    within("cuMemUnmap", format!("{}", size >> 20))
}
#[cfg(not(without_set_access))]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemSetAccess(at: u64, size: usize, access: *const [u32; 3], count: usize) -> u32 {
    assert_eq!(count, 1);
    // SAFETY: the caller hands over one description, as the count says.
    let [kind, device, flags] = unsafe { *access };
    assert_eq!(kind, 1);
    let code = within("cuMemSetAccess", format!("{} device {device} flags {flags}", size >> 20));
    if code == 0 {
        // SAFETY: a C function; the range was reserved here and mapped before, by the order of the calls under test.
        assert_eq!(unsafe { mprotect(at as *mut c_void, size, flags as c_int) }, 0);
    }
    code
}
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemRelease(memory: u64) -> u32 {
    // SAFETY: a C function; a number that is no descriptor is an error, and nothing else uses this one.
    unsafe { close(memory as c_int) };
    within("cuMemRelease", String::new())
}

#[repr(C)]
pub struct IpcHandle([u8; 64]);

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuIpcOpenMemHandle_v2(at: *mut u64, handle: IpcHandle, flags: u32) -> u32 {
    // No memory, but an address that a test knows again.
    // SAFETY: the caller hands over a place for the result, as it does to the driver.
    unsafe { *at = 0x7000_0000_0000 };
    within("cuIpcOpenMemHandle", format!("{:x}..{:x} flags {flags}", handle.0[0], handle.0[63]))
}
#[unsafe(no_mangle)]
pub extern "C" fn cuIpcCloseMemHandle(at: u64) -> u32 {
    within("cuIpcCloseMemHandle", format!("{at:x}"))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoDAsync_v2(to: u64, from: *const u8, size: usize, _stream: usize) -> u32 {
    let code = within("cuMemcpyHtoDAsync", format!("{size}"));
    if code == 0 {
        // SAFETY: the caller promises both ranges, as to the driver; one is reserved here: no overlap.
        unsafe { ptr::copy_nonoverlapping(from, to as *mut u8, size) };
    }
    code
}
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoHAsync_v2(to: *mut u8, from: u64, size: usize, _stream: usize) -> u32 {
    let code = within("cuMemcpyDtoHAsync", format!("{size}"));
    if code == 0 {
        // SAFETY: the caller promises both ranges, as to the driver; one is reserved here: no overlap.
        unsafe { ptr::copy_nonoverlapping(from as *const u8, to, size) };
    }
    code
}
#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostRegister_v2(_start: *mut c_void, size: usize, flags: u32) -> u32 {
    within("cuMemHostRegister_v2", format!("size {size} flags {flags}"))
}
/// The device's address of registered memory, unlike that of the CPU.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostGetDevicePointer_v2(address: *mut u64, start: *mut c_void, flags: u32) -> u32 {
    // SAFETY: the caller hands over a place for the result, as it does to the driver.
    unsafe { *address = start.addr() as u64 + 0x1000_0000 };
    within("cuMemHostGetDevicePointer_v2", format!("flags {flags}"))
}
#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostUnregister(_start: *mut c_void) -> u32 {
    within("cuMemHostUnregister", String::new())
}
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreate(stream: *mut usize, flags: u32) -> u32 {
    // SAFETY: the caller hands over a place for the result, as it does to the driver.
    unsafe { *stream = 0x5 };
    within("cuStreamCreate", format!("flags {flags}"))
}
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamDestroy_v2(_stream: usize) -> u32 {
    within("cuStreamDestroy", String::new())
}
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(event: *mut usize, flags: u32) -> u32 {
    let mut events = EVENTS.lock().unwrap();
    let new = events.last_key_value().map_or(0xe00, |(last, _)| last + 1);
    events.insert(new, (0, false));
    // SAFETY: the caller hands over a place for the result, as it does to the driver.
    unsafe { *event = new };
    within("cuEventCreate", format!("flags {flags}"))
}
/// An event and its stream are of one context.
#[unsafe(no_mangle)]
pub extern "C" fn cuEventRecord(event: usize, stream: usize) -> u32 {
    EVENTS.lock().unwrap().insert(event, (stream, false));
    let current = CURRENT.with_borrow(|current| current.last().copied());
    if stream >= OTHERS_STREAMS && current != Some(stream) {
        return within("cuEventRecord", "IN ANOTHER CONTEXT".to_owned());
    }
    within("cuEventRecord", String::new())
}
/// Not ready when first asked, nor while the stream is busy.
#[unsafe(no_mangle)]
pub extern "C" fn cuEventQuery(event: usize) -> u32 {
    let mut events = EVENTS.lock().unwrap();
    let Some((stream, was_asked)) = events.get_mut(&event) else { return INVALID_VALUE };
    if !std::mem::replace(was_asked, true) {
        return NOT_READY;
    }
    match BUSY.lock().unwrap().contains(stream) {
        true => FAILURES.lock().unwrap().get("cuEventQuery").copied().unwrap_or(NOT_READY),
        false => within("cuEventQuery", String::new()),
    }
}
#[unsafe(no_mangle)]
pub extern "C" fn cuEventDestroy_v2(event: usize) -> u32 {
    EVENTS.lock().unwrap().remove(&event);
    within("cuEventDestroy", String::new())
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Location {
    kind: u32,
    id: i32,
}
impl std::fmt::Display for Location {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.kind, self.id)
    }
}
#[unsafe(no_mangle)]
pub extern "C" fn cuMemAllocManaged(_address: *mut u64, size: usize, flags: u32) -> u32 {
    within("cuMemAllocManaged", format!("size {size} flags {flags}"))
}
#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(address: u64) -> u32 {
    within("cuMemFree_v2", format!("{address:x}"))
}
#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetAttribute(_value: *mut c_int, attribute: u32, _device: c_int) -> u32 {
    call("cuDeviceGetAttribute", format!("{attribute}"))
}
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamSynchronize(stream: usize) -> u32 {
    within("cuStreamSynchronize", format!("{stream:x}"))
}
#[unsafe(no_mangle)]
pub extern "C" fn cuMemAdvise_v2(address: u64, size: usize, advice: u32, to: Location) -> u32 {
    within("cuMemAdvise_v2", format!("{address:x}+{size} {advice}:{to}"))
}
#[unsafe(no_mangle)]
pub extern "C" fn cuMemPrefetchAsync_v2(address: u64, size: usize, to: Location, flags: u32, stream: usize) -> u32 {
    within("cuMemPrefetchAsync_v2", format!("{address:x}+{size} {to} flags {flags} on {stream:x}"))
}
#[cfg(not(without_batch))]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPrefetchBatchAsync(
    addresses: *const u64,
    sizes: *const usize,
    count: usize,
    locations: *const Location,
    firsts: *const usize,
    location_count: usize,
    flags: u64,
    stream: usize,
) -> u32 {
    // SAFETY: the caller hands over as many of each as it says, as it does to the driver.
    let (addresses, sizes, locations, firsts) = unsafe {
        (
            std::slice::from_raw_parts(addresses, count),
            std::slice::from_raw_parts(sizes, count),
            std::slice::from_raw_parts(locations, location_count),
            std::slice::from_raw_parts(firsts, location_count),
        )
    };
    let ranges: Vec<_> = addresses.iter().zip(sizes).map(|(at, size)| format!("{at:x}+{size}")).collect();
    let places: Vec<_> = firsts.iter().zip(locations).map(|(first, to)| format!("{first}:{to}")).collect();
    let (ranges, places) = (ranges.join(","), places.join(","));
    within("cuMemPrefetchBatchAsync", format!("{ranges} {places} flags {flags} on {stream:x}"))
}
