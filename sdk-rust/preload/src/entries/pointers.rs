//! Questions about an address: served memory answers as the driver's own would.
//!
//! Served memory is mapped, and may be part of a larger mapping. So the driver knows neither where a block begins nor how
//! large it is, and no context for it. Only attributes of 64 bits are answered here; all others are the driver's.

use std::ffi::{c_uint, c_void};

use super::{put, written};
use crate::{driver::NOT_SUPPORTED, heap::Found, session, table::Real};

/// `CUpointer_attribute`, of 64 bits each.
const CONTEXT: c_uint = 1;
const BUFFER_ID: c_uint = 7;
const RANGE_START: c_uint = 11;
const RANGE_SIZE: c_uint = 12;

const NO_EXPORT: &str = "served memory has no legacy handle, and the call was refused";

/// `cuMemGetAddressRange`.
pub(crate) fn address_range(real: Real<'_>, base: *mut u64, size: *mut usize, address: u64) -> u32 {
    let Some(found) = find(address) else { return real.call() };
    put(base, found.base);
    put(size, usize::try_from(found.size).unwrap_or(usize::MAX));
    0
}

/// `cuPointerGetAttribute`.
pub(crate) fn attribute(real: Real<'_>, value: *mut c_void, attribute: c_uint, address: u64) -> u32 {
    let answer = find(address).and_then(|found| answer(&found, attribute));
    match answer {
        Some(answer) if put(value.cast::<u64>(), answer) => 0,
        _ => real.call(),
    }
}

/// `cuPointerGetAttributes`.
pub(crate) fn attributes(
    real: Real<'_>,
    count: c_uint,
    attributes: *const c_uint,
    values: *const *mut c_void,
    address: u64,
) -> u32 {
    let code = real.call();
    let Some(found) = find(address).filter(|_| code == 0) else { return code };
    for at in 0..count as usize {
        let asked = (written(attributes.wrapping_add(at)), written(values.wrapping_add(at)));
        if let (Some(attribute), Some(value)) = asked
            && let Some(answer) = answer(&found, attribute)
        {
            put(value.cast::<u64>(), answer);
        }
    }
    code
}

/// `cuIpcGetMemHandle` and `cuMemPoolExportPointer`, which only the driver's own memory has.
pub(crate) fn export(real: Real<'_>, address: u64) -> u32 {
    if find(address).is_none() {
        return real.call();
    }
    real.count(NO_EXPORT);
    NOT_SUPPORTED
}

fn find(address: u64) -> Option<Found> {
    session::existing()?.heap.find(address)
}

fn answer(found: &Found, attribute: c_uint) -> Option<u64> {
    match attribute {
        CONTEXT => Some(found.context),
        BUFFER_ID => Some(found.id),
        RANGE_START => Some(found.base),
        RANGE_SIZE => Some(found.size),
        _ => None,
    }
}
