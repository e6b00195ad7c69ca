//! The doors through which a program finds functions of the driver.
//!
//! **By name**, if it is linked to the driver's library: this library exports its functions under the driver's names, and
//! stands before that library in the loader's order. **`dlsym` and `dlvsym`**, of which this library exports its own:
//! they answer for the names of the table, and jump to the C library's for all others. So the C library sees the program
//! as the caller, as `RTLD_NEXT` needs. **`cuGetProcAddress`** is a function of the table itself ([`proc_address`]).
//! Functions that the table should have and does not know go through [`unknown`].

#![allow(unsafe_code, reason = "functions of the loader, replaced by name")]
#![allow(unreachable_pub, reason = "the exported functions are reached by their names")]

mod loader;
pub(crate) mod proc_address;
mod unknown;

use std::{
    ffi::{CStr, c_char, c_void},
    ptr,
    sync::atomic::{AtomicPtr, Ordering},
};

use crate::{guard::is_inside, table};

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

/// The C library's functions, once they are found. The jumps below read them.
static REAL_DLSYM: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
static REAL_DLVSYM: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// Finds the C library's own functions. Without them no program can run, so it ends.
fn ensure_real() {
    if !REAL_DLSYM.load(Ordering::Acquire).is_null() {
        return;
    }
    let found = loader::find([c"dlsym", c"dlvsym"]);
    let [Some(dlsym), Some(dlvsym)] = found else {
        eprintln!("vramd: the C library has no dlsym: this library works with glibc alone");
        std::process::abort();
    };
    REAL_DLVSYM.store(dlvsym, Ordering::Release);
    REAL_DLSYM.store(dlsym, Ordering::Release);
}

/// The C library's `dlsym`, for this library itself.
pub(crate) fn real_dlsym(handle: *mut c_void, name: &CStr) -> *mut c_void {
    ensure_real();
    // SAFETY: needed to call a function by its address. It is the C library's `dlsym`, which has this type.
    let dlsym: Dlsym = unsafe { std::mem::transmute(REAL_DLSYM.load(Ordering::Acquire)) };
    // SAFETY: needed to call it. The name is terminated, and the handle is one that the caller or the program has open.
    unsafe { dlsym(handle, name.as_ptr()) }
}

/// The function of this library that a program gets for a name. Null if it gets what the C library finds.
extern "C" fn found_for(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    ensure_real();
    // Another library that stands in for the driver's functions wants those behind it.
    if name.is_null() || handle == libc::RTLD_NEXT {
        return ptr::null_mut();
    }
    // SAFETY: needed to read the name. The program gives `dlsym` a terminated text.
    let name = unsafe { CStr::from_ptr(name) };
    let text = name.to_str().unwrap_or_default();
    let (known, unknown) = (table::find(name.to_bytes()), unknown::is_gated(text));
    if is_inside() || known.is_none() && unknown.is_none() {
        return ptr::null_mut();
    }
    let found = real_dlsym(handle, name);
    match (known, unknown) {
        (Some(entry), _) if !found.is_null() => {
            entry.learn(found);
            entry.hook()
        }
        (None, Some(is_gated)) if !found.is_null() && unknown::is_drivers(name, found) => {
            unknown::trampoline(text, is_gated, found)
        }
        _ => ptr::null_mut(),
    }
}

/// Replaces the C library's function of that name.
///
/// # Safety
/// As for the C library's.
#[cfg(target_arch = "x86_64")]
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    std::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {found}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jne 2f",
        "jmp qword ptr [rip + {real}]",
        "2:",
        "ret",
        found = sym found_for,
        real = sym REAL_DLSYM,
    )
}

/// Replaces the C library's function of that name. The driver's functions have no versions, so the version counts for
/// others alone.
///
/// # Safety
/// As for the C library's.
#[cfg(target_arch = "x86_64")]
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn dlvsym(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
) -> *mut c_void {
    std::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "push rdx",
        "call {found}",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jne 2f",
        "jmp qword ptr [rip + {real}]",
        "2:",
        "ret",
        found = sym found_for,
        real = sym REAL_DLVSYM,
    )
}

/// Replaces the C library's function of that name.
///
/// # Safety
/// As for the C library's.
#[cfg(target_arch = "aarch64")]
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    std::arch::naked_asm!(
        "stp x29, x30, [sp, #-32]!",
        "stp x0, x1, [sp, #16]",
        "bl {found}",
        "mov x16, x0",
        "ldp x0, x1, [sp, #16]",
        "ldp x29, x30, [sp], #32",
        "cbnz x16, 2f",
        "adrp x16, {real}",
        "ldr x16, [x16, :lo12:{real}]",
        "br x16",
        "2:",
        "mov x0, x16",
        "ret",
        found = sym found_for,
        real = sym REAL_DLSYM,
    )
}

/// Replaces the C library's function of that name. The driver's functions have no versions, so the version counts for
/// others alone.
///
/// # Safety
/// As for the C library's.
#[cfg(target_arch = "aarch64")]
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn dlvsym(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
) -> *mut c_void {
    std::arch::naked_asm!(
        "stp x29, x30, [sp, #-48]!",
        "stp x0, x1, [sp, #16]",
        "str x2, [sp, #32]",
        "bl {found}",
        "mov x16, x0",
        "ldp x0, x1, [sp, #16]",
        "ldr x2, [sp, #32]",
        "ldp x29, x30, [sp], #48",
        "cbnz x16, 2f",
        "adrp x16, {real}",
        "ldr x16, [x16, :lo12:{real}]",
        "br x16",
        "2:",
        "mov x0, x16",
        "ret",
        found = sym found_for,
        real = sym REAL_DLVSYM,
    )
}
