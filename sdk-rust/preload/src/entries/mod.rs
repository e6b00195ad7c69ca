//! The functions of the table, by subject. Each gets the program's own call first, which the driver can serve
//! as it is, then the arguments.

#![allow(unsafe_code, reason = "results are written where the program says")]

pub(crate) mod contexts;
pub(crate) mod graphs;
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

/// Reads what the program has written for the driver, or the driver for the program.
pub(crate) fn written<T: Copy>(from: *const T) -> Option<T> {
    // SAFETY: needed to read it. The program gives the address of such a value to the driver, which reads or writes it in
    // this call.
    (!from.is_null()).then(|| unsafe { from.read() })
}
