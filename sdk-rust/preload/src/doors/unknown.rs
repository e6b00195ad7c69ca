//! The driver's functions that the table should have, and does not know: later versions of its functions, and launches and
//! copies of other names.
//!
//! Their arguments are not known, so no function of this library can take them. The doors give out a *trampoline*. It
//! notes the call, then jumps to the driver's function, with the registers and the stack as the program had them. It never
//! learns when a call is over. So with turns a call that may have the device touch memory waits for the turn, and the
//! process keeps it from then on.
//!
//! A program that is linked to such a function by its name calls the driver: no door leads through here.

use std::{
    cell::Cell,
    ffi::{CStr, CString, c_void},
    ptr,
    sync::{
        OnceLock,
        atomic::{AtomicPtr, Ordering},
    },
};

use crate::{
    counts, driver, gate,
    table::{self, Entry, Kind},
    turns,
};

/// How many versions of one function a driver may have.
const VERSIONS_MAX: u32 = 9;
/// How names of launches and copies begin.
const LAUNCHES: [&str; 4] = ["cuLaunch", "cuGraphLaunch", "cuMemcpy", "cuMemset"];
/// This one runs on the host, and may call none of the driver's functions.
const HOST: &str = "cuLaunchHostFunc";

const LATER: &str = "a later version, which this library does not know";
const UNGATED: &str = "this library does not know it: the program keeps its turn";

/// A function that the doors have given out.
#[derive(Debug)]
struct Given {
    real: AtomicPtr<c_void>,
    name: &'static str,
    /// Why the process keeps its turn, if the device may touch memory.
    keeps: Option<&'static str>,
}

thread_local! {
    static REFUSAL: Cell<u32> = const { Cell::new(0) };
}

/// Whether the table should have a function of that name: then, whether the device may touch memory.
pub(super) fn is_gated(name: &str) -> Option<bool> {
    if !name.starts_with("cu") && !name.starts_with("nvml") {
        return None;
    }
    let (stem, version) = table::split(name);
    if let Some(known) = table::latest(stem) {
        let is_later = version > known.version() && known.is_given_out();
        return is_later.then_some(known.kind == Kind::Gated);
    }
    let is_launch = LAUNCHES.iter().any(|begin| name.starts_with(begin)) && !name.starts_with(HOST);
    (is_launch && turns::are_wanted()).then_some(true)
}

/// The name of the later version with which the driver has answered for a function of the table, if it has.
pub(super) fn later_than(entry: &Entry, answer: *mut c_void) -> Option<String> {
    let find = |name: &str| CString::new(name).map_or(ptr::null_mut(), |name| driver::find_loaded(&name));
    if find(entry.name) == answer {
        return None;
    }
    let (stem, version) = table::split(entry.name);
    let names = (version + 1..=VERSIONS_MAX).map(|version| format!("{stem}_v{version}"));
    let mut later = names.filter(|name| is_gated(name).is_some()).filter(|name| !find(name).is_null());
    // The driver's own address of a function need not be the one that the loader finds.
    let first = later.next()?;
    let exact = std::iter::once(first.clone()).chain(later).find(|name| find(name) == answer);
    Some(exact.unwrap_or(first))
}

/// Whether that is the driver's function of the name, and no other library's.
pub(super) fn is_drivers(name: &CStr, found: *mut c_void) -> bool {
    driver::find_loaded(name) == found
}

/// The trampoline to a function of the driver.
pub(super) fn trampoline(name: &str, is_gated: bool, real: *mut c_void) -> *mut c_void {
    driver::pin(real);
    let given = |name: &str| {
        let keeps = is_gated.then(|| format!("it calls {name}, which this library does not know").leak());
        Given { real: AtomicPtr::new(real), name: name.to_owned().leak(), keeps: keeps.map(|text| &*text) }
    };
    for (place, trampoline) in GIVEN.iter().zip(TRAMPOLINES) {
        if place.get_or_init(|| given(name)).real.load(Ordering::Acquire) == real {
            return trampoline as *mut c_void;
        }
    }
    // There are no more trampolines, so the program keeps its turn from here on. If it has none, it may not call this.
    match given(name).note() {
        0 => real,
        _ => refused_for_good as *mut c_void,
    }
}

impl Given {
    /// Takes note of a call. Returns the code with which it must fail, or 0.
    fn note(&self) -> u32 {
        let Some(reason) = self.keeps else {
            counts::count(self.name, LATER);
            return 0;
        };
        counts::count(self.name, UNGATED);
        turns::keep(reason);
        gate::pass_for_good()
    }
}

/// Where a trampoline jumps to.
extern "C" fn target_of(number: usize) -> *mut c_void {
    let given = GIVEN.get(number).and_then(OnceLock::get);
    let code = given.map_or(table::NOT_FOUND, Given::note);
    match given {
        Some(given) if code == 0 => given.real.load(Ordering::Acquire),
        _ => {
            REFUSAL.set(code);
            refused as *mut c_void
        }
    }
}

/// Fails as the driver would.
extern "C" fn refused() -> u32 {
    REFUSAL.get()
}

/// The same, whichever thread calls it.
extern "C" fn refused_for_good() -> u32 {
    table::NOT_FOUND
}

/// Keeps all registers that may have arguments, and jumps. The program calls it by another type.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
extern "C" fn jump<const NUMBER: usize>() {
    std::arch::naked_asm!(
        "push rbp",
        "mov rbp, rsp",
        "sub rsp, 176",
        "mov [rsp], rdi",
        "mov [rsp + 8], rsi",
        "mov [rsp + 16], rdx",
        "mov [rsp + 24], rcx",
        "mov [rsp + 32], r8",
        "mov [rsp + 40], r9",
        "movups [rsp + 48], xmm0",
        "movups [rsp + 64], xmm1",
        "movups [rsp + 80], xmm2",
        "movups [rsp + 96], xmm3",
        "movups [rsp + 112], xmm4",
        "movups [rsp + 128], xmm5",
        "movups [rsp + 144], xmm6",
        "movups [rsp + 160], xmm7",
        "mov edi, {number}",
        "call {target_of}",
        "mov rdi, [rsp]",
        "mov rsi, [rsp + 8]",
        "mov rdx, [rsp + 16]",
        "mov rcx, [rsp + 24]",
        "mov r8, [rsp + 32]",
        "mov r9, [rsp + 40]",
        "movups xmm0, [rsp + 48]",
        "movups xmm1, [rsp + 64]",
        "movups xmm2, [rsp + 80]",
        "movups xmm3, [rsp + 96]",
        "movups xmm4, [rsp + 112]",
        "movups xmm5, [rsp + 128]",
        "movups xmm6, [rsp + 144]",
        "movups xmm7, [rsp + 160]",
        "leave",
        "jmp rax",
        number = const NUMBER,
        target_of = sym target_of,
    )
}

/// Keeps all registers that may have arguments, and jumps. The program calls it by another type.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
extern "C" fn jump<const NUMBER: usize>() {
    std::arch::naked_asm!(
        "stp x29, x30, [sp, #-224]!",
        "mov x29, sp",
        "stp x0, x1, [sp, #16]",
        "stp x2, x3, [sp, #32]",
        "stp x4, x5, [sp, #48]",
        "stp x6, x7, [sp, #64]",
        "str x8, [sp, #80]",
        "stp q0, q1, [sp, #96]",
        "stp q2, q3, [sp, #128]",
        "stp q4, q5, [sp, #160]",
        "stp q6, q7, [sp, #192]",
        "mov x0, #{number}",
        "bl {target_of}",
        "mov x16, x0",
        "ldp x0, x1, [sp, #16]",
        "ldp x2, x3, [sp, #32]",
        "ldp x4, x5, [sp, #48]",
        "ldp x6, x7, [sp, #64]",
        "ldr x8, [sp, #80]",
        "ldp q0, q1, [sp, #96]",
        "ldp q2, q3, [sp, #128]",
        "ldp q4, q5, [sp, #160]",
        "ldp q6, q7, [sp, #192]",
        "ldp x29, x30, [sp], #224",
        "br x16",
        number = const NUMBER,
        target_of = sym target_of,
    )
}

macro_rules! trampolines {
    ($($number:literal)*) => {
        const COUNT: usize = [$($number),*].len();
        /// In the order in which the doors have given them out.
        static GIVEN: [OnceLock<Given>; COUNT] = [const { OnceLock::new() }; COUNT];
        const TRAMPOLINES: [extern "C" fn(); COUNT] = [$(jump::<$number>),*];
    };
}

trampolines! { 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 }

#[cfg(test)]
mod tests {
    use super::*;

    /// No variable asks for turns in this process, so the table gives out no launches.
    #[test]
    fn later_versions_of_what_the_doors_give_out_are_unknown() {
        for later in
            ["cuMemAlloc_v3", "cuMemAllocAsync_v2_ptsz", "cuGraphAddNode_v3", "nvmlDeviceGetMemoryInfo_v3"]
        {
            assert_eq!(is_gated(later), Some(false), "{later}");
        }
        for other in [
            "cuMemAlloc",
            "cuMemAlloc_v2",
            "cuLaunchKernel_v2",
            "cuLaunchAnew",
            "cuEventRecord_v2",
            "cudaMalloc",
        ] {
            assert_eq!(is_gated(other), None, "{other}");
        }
    }

    #[test]
    fn a_function_has_one_trampoline() {
        let functions = [1_usize, 2].map(ptr::without_provenance_mut::<c_void>);
        let [first, second] = functions.map(|real| trampoline("cuMemAlloc_v3", false, real));
        assert_ne!(first, second);
        assert_eq!(trampoline("cuMemAlloc_v3", false, functions[0]), first);
    }
}
