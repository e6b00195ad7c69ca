//! Allocations that begin and end at once: `cuMemAlloc`, `cuMemAllocPitch`, `cuMemAllocManaged`, `cuMemFree`.

use std::ffi::c_uint;

use super::{put, written};
use crate::{
    driver,
    heap::{self, Block},
    session::{self, Device, Place, Session},
    table::Real,
};

/// The pitch of rows is a multiple of this.
const PITCH: usize = 512;

pub(crate) const FOREIGN: &str = "another context than the device's primary one is current";
pub(crate) const UNMANAGED: &str = "the daemon does not manage the device";

/// `cuMemAlloc`.
pub(crate) fn alloc(real: Real<'_>, address: *mut u64, size: usize) -> u32 {
    // The driver refuses these, and does nothing.
    if address.is_null() || size == 0 {
        return real.call();
    }
    match place() {
        Some((session, Place::Primary(device))) => match serve(session, device, size as u64) {
            Ok(at) => {
                put(address, at);
                0
            }
            Err(code) => code,
        },
        Some((session, Place::Other(device, context))) => {
            charge(real, (session, device, context), address, size as u64, FOREIGN)
        }
        Some((_, Place::Unmanaged)) => real.pass_on(UNMANAGED),
        Some((_, Place::Nowhere)) | None => real.call(),
    }
}

/// `cuMemAllocPitch`.
pub(crate) fn alloc_pitch(
    real: Real<'_>,
    address: *mut u64,
    pitch: *mut usize,
    width: usize,
    height: usize,
    element: c_uint,
) -> u32 {
    let row = width.checked_next_multiple_of(PITCH);
    let Some((row, size)) = row.and_then(|row| Some((row, row.checked_mul(height)?))) else {
        return driver::OUT_OF_MEMORY;
    };
    if address.is_null() || pitch.is_null() || size == 0 || !matches!(element, 4 | 8 | 16) {
        return real.call();
    }
    match place() {
        Some((session, Place::Primary(device))) => match serve(session, device, size as u64) {
            Ok(at) => {
                put(address, at);
                put(pitch, row);
                0
            }
            Err(code) => code,
        },
        Some((session, Place::Other(device, context))) => {
            charge(real, (session, device, context), address, size as u64, FOREIGN)
        }
        Some((_, Place::Unmanaged)) => real.pass_on(UNMANAGED),
        Some((_, Place::Nowhere)) | None => real.call(),
    }
}

/// `cuMemAllocManaged`: the driver moves its pages, and the daemon charges it.
pub(crate) fn alloc_managed(real: Real<'_>, address: *mut u64, size: usize, _flags: c_uint) -> u32 {
    if address.is_null() || size == 0 {
        return real.call();
    }
    match place() {
        Some((session, Place::Primary(device))) => match device.primary() {
            Ok(Some(context)) => {
                let code = charge_uncounted(real, (session, device, context), address, size as u64);
                if code == 0
                    && let Some(at) = written(address)
                {
                    session.heap.take_orders(at);
                }
                code
            }
            _ => real.call(),
        },
        Some((session, Place::Other(device, context))) => {
            charge_uncounted(real, (session, device, context), address, size as u64)
        }
        Some((_, Place::Unmanaged)) => real.pass_on(UNMANAGED),
        Some((_, Place::Nowhere)) | None => real.call(),
    }
}

/// `cuMemFree`.
pub(crate) fn free(real: Real<'_>, address: u64) -> u32 {
    let Some(session) = session::existing() else { return real.call() };
    let Some(block) = session.heap.take(address) else { return real.call() };
    if block.is_of_driver() {
        block.end_orders();
        let code = real.call();
        if code != 0 {
            session.heap.insert(address, block);
        }
        return code;
    }
    session.pools.count_gone(&block);
    let device = block.device;
    // The wait covers blocks that were put aside before it.
    let mut freed = session.heap.take_aside(device);
    freed.push(block);
    heap::end(session, device, freed).err().unwrap_or(0)
}

/// The session, and where this thread allocates. `None` if the driver cannot say: the program's own call will.
pub(crate) fn place() -> Option<(&'static Session, Place)> {
    if !driver::is_usable() || driver::current().is_err() {
        return None;
    }
    let session = session::get();
    session.place().ok().map(|place| (session, place))
}

fn serve(session: &'static Session, device: &'static Device, size: u64) -> Result<u64, u32> {
    let context = device.primary()?.unwrap_or(0);
    let block = heap::allocate(session, device, context, size)?;
    heap::publish(session, block)
}

/// Passes the call on, and counts it; the daemon charges the memory.
pub(crate) fn charge(
    real: Real<'_>,
    of: (&'static Session, &'static Device, u64),
    address: *mut u64,
    size: u64,
    reason: &'static str,
) -> u32 {
    real.count(reason);
    charge_uncounted(real, of, address, size)
}

/// The driver serves the call, and the daemon charges the memory: first, so that it is never without a charge.
fn charge_uncounted(
    real: Real<'_>,
    (session, device, context): (&'static Session, &'static Device, u64),
    address: *mut u64,
    size: u64,
) -> u32 {
    let block = match Block::charge(session, device, context, size) {
        Ok(block) => block,
        Err(code) => return code,
    };
    let code = real.call();
    if code == 0
        && let Some(at) = written(address)
    {
        session.heap.insert(at, block);
    }
    code
}
