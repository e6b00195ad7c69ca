//! Managed memory, which is ordinary memory of the process here, and the calls that place it, of CUDA 12 and 13.
//!
//! Each call is noted with what it says: `cuMemAdvise_v2(3:1.0)` is the advice 3 for device 0, and
//! `cuMemPrefetchBatchAsync(2:1.0)` a prefetch of two ranges to it.
#![allow(unsafe_code, reason = "symbols are exported under their own names")]
#![allow(non_snake_case, reason = "the names are CUDA's")]

use std::{
    ffi::{c_int, c_uint, c_ulonglong},
    slice,
};

use crate::{
    cuda::{Location, current, status_of},
    memory::{self, INVALID_VALUE, Range, give_back, protect, put, reserve, world},
    script::script,
};

const INVALID_CONTEXT: u32 = 201;
const PAGE: usize = 4096;
/// The host, as the number of a device and as the kind of a location.
const HOST: c_int = -1;
const IN_HOST: u32 = 2;
const ON_DEVICE: u32 = 1;

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemAllocManaged(address: *mut u64, size: usize, flags: c_uint) -> u32 {
    begin!("cuMemAllocManaged");
    if current().is_none() {
        return INVALID_CONTEXT;
    }
    if size == 0 || flags != 1 {
        return INVALID_VALUE;
    }
    let size = size.next_multiple_of(PAGE);
    let Some(at) = reserve(size) else { return memory::OUT_OF_MEMORY };
    if !protect(at, size, libc::PROT_READ | libc::PROT_WRITE) {
        return memory::OUT_OF_MEMORY;
    }
    world().managed.insert(at, size);
    let range = Range { size, readable: true, writable: true, block: None };
    world().ranges.insert(at, range);
    put(address, at)
}

/// Frees managed memory. `None` if none begins there.
pub(crate) fn free(address: u64) -> Option<u32> {
    let mut world = world();
    let size = world.managed.remove(&address)?;
    world.ranges.remove(&address);
    Some(status_of(give_back(address, size)))
}

/// Whether the range is managed memory, which any of these calls needs.
fn is_managed(address: u64, size: usize) -> bool {
    let world = world();
    let found = world.managed.range(..=address).next_back();
    found.is_some_and(|(at, all)| size > 0 && address - at + size as u64 <= *all as u64)
}

fn placed(function: &str, address: u64, size: usize, location: Location) -> u32 {
    script().note(&format!("{function}:{}.{})", location.kind, location.id));
    status_of(
        current().is_some() && is_managed(address, size) && matches!(location.kind, IN_HOST | ON_DEVICE),
    )
}

const fn location(device: c_int) -> Location {
    match device {
        HOST => Location { kind: IN_HOST, id: 0 },
        id => Location { kind: ON_DEVICE, id },
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAdvise(address: u64, size: usize, advice: c_uint, device: c_int) -> u32 {
    begin!("cuMemAdvise");
    placed(&format!("cuMemAdvise({advice}"), address, size, location(device))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAdvise_v2(address: u64, size: usize, advice: c_uint, to: Location) -> u32 {
    begin!("cuMemAdvise_v2");
    placed(&format!("cuMemAdvise_v2({advice}"), address, size, to)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemPrefetchAsync(address: u64, size: usize, device: c_int, stream: usize) -> u32 {
    begin!("cuMemPrefetchAsync");
    placed(&format!("cuMemPrefetchAsync({stream:x}"), address, size, location(device))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemPrefetchAsync_v2(
    address: u64,
    size: usize,
    to: Location,
    flags: c_uint,
    stream: usize,
) -> u32 {
    begin!("cuMemPrefetchAsync_v2");
    if flags != 0 {
        return INVALID_VALUE;
    }
    placed(&format!("cuMemPrefetchAsync_v2({stream:x}"), address, size, to)
}

/// Prefetches ranges, each to the last location that begins at it or before.
///
/// # Safety
/// There are as many of each as the numbers say.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemPrefetchBatchAsync(
    addresses: *const u64,
    sizes: *const usize,
    count: usize,
    locations: *const Location,
    firsts: *const usize,
    location_count: usize,
    flags: c_ulonglong,
    stream: usize,
) -> u32 {
    begin!("cuMemPrefetchBatchAsync");
    if count == 0 || location_count == 0 || location_count > count || flags != 0 || stream == 0 {
        return INVALID_VALUE;
    }
    // SAFETY: the caller has as many of each.
    let (addresses, sizes, locations, firsts) = unsafe {
        (
            slice::from_raw_parts(addresses, count),
            slice::from_raw_parts(sizes, count),
            slice::from_raw_parts(locations, location_count),
            slice::from_raw_parts(firsts, location_count),
        )
    };
    let ascends = firsts.windows(2).all(|pair| pair[0] < pair[1]);
    if firsts[0] != 0 || !ascends || firsts.last().is_some_and(|last| *last >= count) {
        return INVALID_VALUE;
    }
    let ends = firsts[1..].iter().copied().chain([count]);
    for ((location, first), end) in locations.iter().zip(firsts).zip(ends) {
        let to = format!("{}:{}.{}", end - first, location.kind, location.id);
        script().note(&format!("cuMemPrefetchBatchAsync({to})"));
        if !matches!(location.kind, IN_HOST | ON_DEVICE) {
            return INVALID_VALUE;
        }
    }
    let are_managed = addresses.iter().zip(sizes).all(|(address, size)| is_managed(*address, *size));
    status_of(current().is_some() && are_managed)
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamSynchronize(stream: usize) -> u32 {
    begin!("cuStreamSynchronize");
    script().note(&format!("cuStreamSynchronize({stream:x})"));
    if current().is_some() { 0 } else { INVALID_CONTEXT }
}
