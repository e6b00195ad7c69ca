//! `cuGetProcAddress`: the driver finds a function by its name without a suffix, for a version of CUDA and a kind of default
//! stream. Where the table has that function, the program gets this library's. Every other answer is the driver's.

#![allow(unsafe_code, reason = "the answer is written where the program says")]

use std::{
    ffi::{CStr, CString, c_char, c_int, c_ulonglong, c_void},
    ptr,
};

use crate::{
    driver,
    table::{self, Entry, Real},
};

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
    let name = unsafe { CStr::from_ptr(name) }.to_bytes();
    let version = u32::try_from(version).unwrap_or(0);
    let Some(entry) = table::find_by_base(name, version, flags & PER_THREAD != 0) else { return code };
    // SAFETY: needed to read the answer, which the driver has just written there.
    let own = unsafe { *found };
    if own.is_null() || is_newer(entry, own) {
        return code;
    }
    entry.learn(own);
    // SAFETY: needed to write the answer, where the driver has just written its own.
    unsafe { *found = entry.hook() };
    code
}

/// Whether the driver has answered with a later version of the function, which the table does not know: its arguments
/// may be others.
fn is_newer(entry: &Entry, answer: *mut c_void) -> bool {
    /// How many versions of one function a driver may have.
    const VERSIONS_MAX: u32 = 9;
    let name = |name: &str| CString::new(name).map_or(ptr::null_mut(), |name| driver::find_loaded(&name));
    if name(entry.name) == answer {
        return false;
    }
    let is_unknown = |later: &String| table::find(later.as_bytes()).is_none();
    let later = (entry.version() + 1..=VERSIONS_MAX).map(|version| format!("{}_v{version}", entry.base));
    later.filter(is_unknown).any(|later| !name(&later).is_null())
}
