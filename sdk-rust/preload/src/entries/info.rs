//! How much memory a device has: the program sees its limit as the device's size.

use std::ffi::c_int;

use super::{memory::place, put};
use crate::{
    driver,
    session::{self, Place},
    table::Real,
};

/// `cuMemGetInfo`.
pub(crate) fn get_info(real: Real<'_>, free: *mut usize, total: *mut usize) -> u32 {
    let code = real.call();
    if code != 0 {
        return code;
    }
    if let Some((session, Place::Primary(device) | Place::Other(device, _))) = place() {
        let room = session.room(device);
        put(free, number(room.free));
        put(total, number(room.total));
    }
    code
}

/// `cuDeviceTotalMem`.
pub(crate) fn total_mem(real: Real<'_>, total: *mut usize, device: c_int) -> u32 {
    let code = real.call();
    if code != 0 || !driver::is_usable() {
        return code;
    }
    let session = session::get();
    if let Some(device) = session.device(device) {
        put(total, number(session.room(device).total));
    }
    code
}

fn number(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}
