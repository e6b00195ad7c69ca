//! NVML's answer to how much memory a device has.
//!
//! A program may ask NVML before it forks, just so that CUDA is not initialised. So without a session this asks the daemon
//! by a session without CUDA, which ends at once.

#![allow(unsafe_code, reason = "a C library has no safe interface")]

use std::{
    ffi::{CStr, c_char, c_uint, c_ulonglong, c_void},
    process,
    sync::Mutex,
    time::{Duration, Instant},
};

use vramd_client::{OwnQuota, Tier};

use super::{put, written};
use crate::{
    driver,
    session::{self, Room},
    table::Real,
};

/// The longest UUID that NVML writes.
const UUID_MAX: u8 = 96;

/// `nvmlMemory_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Memory {
    total: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

/// `nvmlMemory_v2_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct MemoryV2 {
    version: c_uint,
    total: c_ulonglong,
    reserved: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

/// `nvmlDeviceGetMemoryInfo`.
pub(crate) fn memory(real: Real<'_>, device: *mut c_void, memory: *mut Memory) -> u32 {
    let code = real.call();
    if let (0, Some(own)) = (code, written(memory))
        && let Some(Room { total, free }) = room(device, own.total)
    {
        put(memory, Memory { total, free, used: total - free });
    }
    code
}

/// `nvmlDeviceGetMemoryInfo_v2`.
pub(crate) fn memory_v2(real: Real<'_>, device: *mut c_void, memory: *mut MemoryV2) -> u32 {
    let code = real.call();
    if let (0, Some(own)) = (code, written(memory))
        && let Some(Room { total, free }) = room(device, own.total)
    {
        put(memory, MemoryV2 { version: own.version, total, reserved: 0, free, used: total - free });
    }
    code
}

/// The room of a device that NVML knows by a handle of its own. `None` if the daemon does not manage it.
fn room(device: *mut c_void, total: u64) -> Option<Room> {
    let uuid = uuid_of(device)?;
    if let Some(session) = session::existing() {
        let device = session.devices.iter().find(|device| device.uuid == uuid)?;
        return Some(session.room(device));
    }
    // A limit that is no number ends the program at `cuInit`: until then it sees nothing that it will not get.
    let limit = session::limit_of_environment().unwrap_or(0);
    let Some(places) = places_without_cuda() else {
        return Some(session::room_within(total, limit, 0, None));
    };
    let quota = places.into_iter().find(|place| place.tier == Tier::Device && place.device == uuid)?;
    Some(session::room_within(total, limit, 0, Some(&quota)))
}

/// The daemon's answer, at most a second old. `None` if it does not serve this process.
fn places_without_cuda() -> Option<Vec<OwnQuota>> {
    /// Programs that watch a device ask often, and each question is a session.
    const FRESH: Duration = Duration::from_secs(1);
    type Answer = (u32, Instant, Option<Vec<OwnQuota>>);
    static LAST: Mutex<Option<Answer>> = Mutex::new(None);
    // A thread that asks just now may have left the lock behind in a fork: this one asks by itself then.
    if let Ok(last) = LAST.try_lock()
        && let Some((process, at, places)) = &*last
        && *process == process::id()
        && at.elapsed() < FRESH
    {
        return places.clone();
    }
    let places = session::places_without_cuda();
    if let Ok(mut last) = LAST.try_lock() {
        *last = Some((process::id(), Instant::now(), places.clone()));
    }
    places
}

fn uuid_of(device: *mut c_void) -> Option<String> {
    type GetUuid = unsafe extern "C" fn(*mut c_void, *mut c_char, c_uint) -> u32;
    let found = driver::find_loaded(c"nvmlDeviceGetUUID");
    if found.is_null() {
        return None;
    }
    // SAFETY: needed to call it. The type is that of the function in `nvml.h`.
    let get: GetUuid = unsafe { std::mem::transmute(found) };
    let mut uuid: [c_char; UUID_MAX as usize] = [0; UUID_MAX as usize];
    // SAFETY: needed to call it. It writes a terminated text, of at most as many bytes as it is told.
    let code = unsafe { get(device, uuid.as_mut_ptr(), c_uint::from(UUID_MAX)) };
    if code != 0 {
        return None;
    }
    // SAFETY: needed to read the text. NVML has terminated it.
    unsafe { CStr::from_ptr(uuid.as_ptr()) }.to_str().ok().map(str::to_owned)
}
