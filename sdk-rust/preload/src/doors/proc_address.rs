//! `cuGetProcAddress`: the driver finds a function by its name without a suffix, for a version of CUDA and a kind of default
//! stream. Where the table has that function, the program gets this library's. Where the table should have it, the program
//! gets a trampoline to the driver's ([`unknown`](super::unknown)). Every other answer is the driver's.

#![allow(unsafe_code, reason = "the answer is written where the program says")]

use std::ffi::{CStr, c_char, c_int, c_ulonglong, c_void};

use super::unknown;
use crate::table::{self, Kind, Real};

/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`.
const PER_THREAD: c_ulonglong = 2;

/// `cuGetProcAddress` and `cuGetProcAddress_v2`, whose further argument only the driver uses.
pub(crate) fn proc_address(
    real: Real<'_>,
    name: *const c_char,
    found: *mut *mut c_void,
    version: c_int,
    flags: c_ulonglong,
) -> u32 {
    let code = real.call();
    if code != 0 || name.is_null() || found.is_null() {
        return code;
    }
    // SAFETY: needed to read the name. The driver has just read it as a terminated text.
    let name = unsafe { CStr::from_ptr(name) }.to_str().unwrap_or_default();
    let version = u32::try_from(version).unwrap_or(0);
    // SAFETY: needed to read the answer, which the driver has just written there.
    let own = unsafe { *found };
    if own.is_null() {
        return code;
    }
    let given = match table::find_by_base(name.as_bytes(), version, flags & PER_THREAD != 0) {
        Some(entry) => match unknown::later_than(entry, own) {
            Some(later) => unknown::trampoline(&later, entry.kind == Kind::Gated, own),
            None => {
                entry.learn(own);
                entry.hook()
            }
        },
        None => match unknown::is_gated(name) {
            Some(is_gated) => unknown::trampoline(name, is_gated, own),
            None => return code,
        },
    };
    // SAFETY: needed to write the answer, where the driver has just written its own.
    unsafe { *found = given };
    code
}
