//! The functions of `libnvidia-ml.so.1` that this project's drivers use.
#![allow(unsafe_code, reason = "symbols are exported under their own names")]
#![allow(non_snake_case, reason = "the names are NVML's")]

use std::ffi::{CStr, c_char, c_uint, c_ulonglong};

use crate::{
    cuda::uuid,
    holders,
    memory::{INVALID_VALUE, copy, get, put},
    script::script,
};

const NOT_FOUND: u32 = 6;
const INSUFFICIENT_SIZE: u32 = 7;
/// The handle of a device is its index plus one; that of a MIG instance is this plus its index.
const INSTANCES: usize = 0x1000;

fn device_of(handle: usize) -> usize {
    if handle >= INSTANCES { 0 } else { handle - 1 }
}

fn name_of(handle: usize) -> String {
    let (kind, bytes) = match handle.checked_sub(INSTANCES) {
        Some(instance) => ("MIG", uuid(0, Some(instance))),
        None => ("GPU", uuid(handle - 1, None)),
    };
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{kind}-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

fn instances() -> usize {
    script().number("mig", 0)
}

fn handles() -> impl Iterator<Item = usize> {
    let devices: usize = script().number("devices", 1);
    (1..=devices).chain(INSTANCES..INSTANCES + instances())
}

fn text(to: *mut c_char, length: c_uint, text: &str) -> u32 {
    if text.len() + 1 > usize::try_from(length).unwrap_or(0) {
        return INSUFFICIENT_SIZE;
    }
    copy(format!("{text}\0").as_ptr().cast(), to.cast(), text.len() + 1);
    0
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInit_v2() -> u32 {
    0
}

#[unsafe(no_mangle)]
extern "C" fn nvmlShutdown() -> u32 {
    0
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetCount_v2(count: *mut c_uint) -> u32 {
    put(count, script().number("devices", 1))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: *mut usize) -> u32 {
    put(device, usize::try_from(index).unwrap_or(0) + 1)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetHandleByUUID(name: *const c_char, device: *mut usize) -> u32 {
    if name.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: The caller's text, terminated, as NVML asks for.
    let name = unsafe { CStr::from_ptr(name) };
    let found = handles().find(|handle| name.to_str() == Ok(name_of(*handle).as_str()));
    found.map_or(NOT_FOUND, |found| put(device, found))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetUUID(device: usize, to: *mut c_char, length: c_uint) -> u32 {
    text(to, length, &name_of(device))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetName(device: usize, to: *mut c_char, length: c_uint) -> u32 {
    text(to, length, if device >= INSTANCES { "Fake GPU MIG 1g" } else { "Fake GPU" })
}

#[repr(C)]
struct Memory {
    version: c_uint,
    total: c_ulonglong,
    reserved: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMemoryInfo_v2(device: usize, memory: *mut Memory) -> u32 {
    let total = script().bytes("memory_mib", 1024) as u64;
    let used = holders::used(device_of(device)) as u64;
    put(memory, Memory { version: 0, total, reserved: 0, free: total.saturating_sub(used), used })
}

#[repr(C)]
struct MemoryV1 {
    total: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMemoryInfo(device: usize, memory: *mut MemoryV1) -> u32 {
    let total = script().bytes("memory_mib", 1024) as u64;
    let used = holders::used(device_of(device)) as u64;
    put(memory, MemoryV1 { total, free: total.saturating_sub(used), used })
}

#[repr(C)]
struct Process {
    pid: c_uint,
    used: c_ulonglong,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    device: usize,
    count: *mut c_uint,
    to: *mut Process,
) -> u32 {
    if let Some(code) = script().failure("nvmlDeviceGetComputeRunningProcesses_v3") {
        return code;
    }
    let listed = script().number("lists", 1) != 0;
    let processes = if listed { holders::processes(device_of(device)) } else { Default::default() };
    let Some(room) = get(count.cast_const()) else { return INVALID_VALUE };
    let there = c_uint::try_from(processes.len()).unwrap_or(c_uint::MAX);
    put(count, there);
    if room < there {
        return INSUFFICIENT_SIZE;
    }
    for (at, (pid, used)) in processes.into_iter().enumerate() {
        let process =
            Process { pid, used: used as u64, gpu_instance: c_uint::MAX, compute_instance: c_uint::MAX };
        put(to.wrapping_add(at), process);
    }
    0
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMigMode(device: usize, current: *mut c_uint, pending: *mut c_uint) -> u32 {
    let enabled = c_uint::from(device == 1 && instances() > 0);
    put(current, enabled);
    put(pending, enabled)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMaxMigDeviceCount(_device: usize, count: *mut c_uint) -> u32 {
    const INSTANCES_MAX: c_uint = 7;
    put(count, INSTANCES_MAX)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMigDeviceHandleByIndex(
    _device: usize,
    index: c_uint,
    instance: *mut usize,
) -> u32 {
    let index = usize::try_from(index).unwrap_or(usize::MAX);
    if index < instances() { put(instance, INSTANCES + index) } else { NOT_FOUND }
}
