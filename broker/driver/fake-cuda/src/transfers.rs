//! Copies, streams and events. All work is done when it is requested, and reported when the links would have
//! carried it.
#![allow(unsafe_code, reason = "symbols are exported under their own names")]
#![allow(non_snake_case, reason = "the names are CUDA's")]

use std::{
    collections::BTreeSet,
    ffi::{c_uint, c_void},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use crate::{
    cuda::{current, status_of},
    echo::is_echoed,
    links::{self, Direction},
    memory::{INVALID_VALUE, OUT_OF_MEMORY, copy, fill, get, pointer, put, world},
    script::script,
};

const NOT_READY: u32 = 600;
/// The default stream would wait for a stream that is being captured.
const CAPTURE_IMPLICIT: u32 = 906;
const NON_BLOCKING: c_uint = 1;
/// The default stream's other number.
const LEGACY: usize = 1;

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, length: usize) -> u32 {
    begin!("cuMemcpyDtoH_v2");
    if is_echoed("cuMemcpyDtoH_v2", &[&(to as usize), &from, &length]) {
        return 0;
    }
    let world = world();
    if current().is_none() || !world.reaches(from, length, false) {
        return INVALID_VALUE;
    }
    if !script().is_set("still") {
        copy(pointer(from), to, length);
    }
    0
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemcpyDtoHAsync_v2(
    to: *mut c_void,
    from: u64,
    length: usize,
    stream: usize,
) -> u32 {
    begin!("cuMemcpyDtoHAsync_v2");
    if is_echoed("cuMemcpyDtoHAsync_v2", &[&(to as usize), &from, &length, &stream]) {
        return 0;
    }
    links::cross(stream, Direction::FromDevice, length);
    cuMemcpyDtoH_v2(to, from, length)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, length: usize) -> u32 {
    begin!("cuMemcpyHtoD_v2");
    if is_echoed("cuMemcpyHtoD_v2", &[&to, &(from as usize), &length]) {
        return 0;
    }
    let world = world();
    if current().is_none() || !world.reaches(to, length, true) {
        return INVALID_VALUE;
    }
    if !script().is_set("still") {
        copy(from, pointer(to), length);
    }
    0
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemcpyHtoDAsync_v2(
    to: u64,
    from: *const c_void,
    length: usize,
    stream: usize,
) -> u32 {
    begin!("cuMemcpyHtoDAsync_v2");
    if is_echoed("cuMemcpyHtoDAsync_v2", &[&to, &(from as usize), &length, &stream]) {
        return 0;
    }
    links::cross(stream, Direction::ToDevice, length);
    cuMemcpyHtoD_v2(to, from, length)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, length: usize, stream: usize) -> u32 {
    begin!("cuMemcpyDtoDAsync_v2");
    if is_echoed("cuMemcpyDtoDAsync_v2", &[&to, &from, &length, &stream]) {
        return 0;
    }
    within(to, from, length)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemcpyPeerAsync(
    to: u64,
    to_context: usize,
    from: u64,
    from_context: usize,
    length: usize,
    stream: usize,
) -> u32 {
    begin!("cuMemcpyPeerAsync");
    if is_echoed("cuMemcpyPeerAsync", &[&to, &to_context, &from, &from_context, &length, &stream]) {
        return 0;
    }
    if to_context == from_context {
        return INVALID_VALUE;
    }
    within(to, from, length)
}

fn within(to: u64, from: u64, length: usize) -> u32 {
    let world = world();
    if current().is_none() || !world.reaches(from, length, false) || !world.reaches(to, length, true) {
        return INVALID_VALUE;
    }
    copy(pointer(from), pointer(to), length);
    0
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostRegister_v2(at: *mut c_void, size: usize, _flags: c_uint) -> u32 {
    begin!("cuMemHostRegister_v2");
    if current().is_none() {
        return INVALID_VALUE;
    }
    let mut world = world();
    let all = world.registered.values().sum::<usize>().saturating_add(size);
    if all > script().bytes("register_mib", 1 << 20) {
        return OUT_OF_MEMORY;
    }
    status_of(world.registered.insert(at as usize, size).is_none())
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostUnregister(at: *mut c_void) -> u32 {
    begin!("cuMemHostUnregister");
    status_of(world().registered.remove(&(at as usize)).is_some())
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemsetD8Async(at: u64, byte: u8, length: usize, stream: usize) -> u32 {
    begin!("cuMemsetD8Async");
    if is_echoed("cuMemsetD8Async", &[&at, &byte, &length, &stream]) {
        return 0;
    }
    if !world().reaches(at, length, true) {
        return INVALID_VALUE;
    }
    fill(at, byte, length);
    0
}

/// Streams and events are only names; all work is done when it is requested.
pub(crate) fn new_name(to: *mut usize) -> u32 {
    static LAST: AtomicUsize = AtomicUsize::new(0);
    put(to, LAST.fetch_add(16, Ordering::Relaxed) + 16)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuStreamCreate(stream: *mut usize, flags: c_uint) -> u32 {
    begin!("cuStreamCreate");
    new_stream(stream, flags)
}

pub(crate) fn new_stream(stream: *mut usize, flags: c_uint) -> u32 {
    let code = new_name(stream);
    if let Some(stream) = get(stream).filter(|_| flags & NON_BLOCKING == 0) {
        world().blocking.insert(stream);
    }
    code
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuStreamDestroy_v2(_stream: usize) -> u32 {
    0
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuStreamDestroy(_stream: usize) -> u32 {
    begin!("cuStreamDestroy");
    0
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamQuery(stream: usize) -> u32 {
    begin!("cuStreamQuery");
    if links::is_ready(stream) { 0 } else { NOT_READY }
}

/// A stream belongs to the current context.
#[unsafe(no_mangle)]
extern "C" fn cuStreamGetCtx(_stream: usize, context: *mut usize) -> u32 {
    begin!("cuStreamGetCtx");
    current().map_or(INVALID_VALUE, |device| put(context, device + 1))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamIsCapturing(stream: usize, status: *mut c_uint) -> u32 {
    begin!("cuStreamIsCapturing");
    let world = world();
    let is_default = stream <= LEGACY;
    if is_default && world.capturing.iter().any(|captured| world.blocking.contains(captured)) {
        return CAPTURE_IMPLICIT;
    }
    put(status, c_uint::from(world.capturing.contains(&stream)))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamBeginCapture_v2(stream: usize, _mode: c_uint) -> u32 {
    begin!("cuStreamBeginCapture_v2");
    status_of(world().capturing.insert(stream))
}

/// The graph is only a name.
#[unsafe(no_mangle)]
extern "C" fn cuStreamEndCapture(stream: usize, graph: *mut usize) -> u32 {
    begin!("cuStreamEndCapture");
    if world().capturing.remove(&stream) { new_name(graph) } else { INVALID_VALUE }
}

#[unsafe(no_mangle)]
extern "C" fn cuThreadExchangeStreamCaptureMode(mode: *mut c_uint) -> u32 {
    begin!("cuThreadExchangeStreamCaptureMode");
    // The initial mode of a thread, whatever it requests.
    put(mode, 0)
}

#[unsafe(no_mangle)]
extern "C" fn cuEventCreate(event: *mut usize, _flags: c_uint) -> u32 {
    begin!("cuEventCreate");
    new_name(event)
}

#[unsafe(no_mangle)]
extern "C" fn cuEventDestroy_v2(_event: usize) -> u32 {
    0
}

#[unsafe(no_mangle)]
extern "C" fn cuEventRecord(event: usize, stream: usize) -> u32 {
    begin!("cuEventRecord");
    if let Some(device) = current() {
        script().note(&format!("cuEventRecord({device})"));
    }
    links::record(event, stream);
    0
}

/// Every other query answers "not ready", so that callers have to poll.
#[unsafe(no_mangle)]
extern "C" fn cuEventQuery(event: usize) -> u32 {
    static ASKED: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());
    begin!("cuEventQuery");
    if !links::has_passed(event) {
        return NOT_READY;
    }
    let mut asked = ASKED.lock().unwrap_or_else(PoisonError::into_inner);
    if asked.remove(&event) {
        return 0;
    }
    asked.insert(event);
    NOT_READY
}
