//! The functions of the table, by subject. Each gets the program's own call first, which the driver can serve
//! as it is, then the arguments.

#![allow(unsafe_code, reason = "results are written where the program says")]

pub(crate) mod contexts;
pub(crate) mod info;
pub(crate) mod memory;
pub(crate) mod nvml;
pub(crate) mod ordered;
pub(crate) mod physical;
pub(crate) mod pointers;

/// Writes a result where the program says. Returns whether it says where.
fn put<T>(to: *mut T, value: T) -> bool {
    if to.is_null() {
        return false;
    }
    // SAFETY: needed to write it. The program gives the address of such a value, as it does to the driver.
    unsafe { to.write(value) };
    true
}

/// Reads what the driver has just written for the program.
pub(crate) fn written<T: Copy>(from: *const T) -> Option<T> {
    // SAFETY: needed to read it. The driver has written such a value there, in this call.
    (!from.is_null()).then(|| unsafe { from.read() })
}
