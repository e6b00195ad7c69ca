//! The ways in which programs find the driver's functions.

use std::{
    ffi::{CString, c_char, c_int, c_uint, c_ulonglong, c_void},
    ptr,
};

const RTLD_NOW: c_int = 2;
const PER_THREAD: c_ulonglong = 2;
const CUDA_13: c_int = 13000;
const CUDA_11: c_int = 11040;

type Find = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, c_ulonglong) -> u32;
type FindV2 = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, c_ulonglong, *mut c_uint) -> u32;

unsafe extern "C" {
    fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    fn dlclose(library: *mut c_void) -> c_int;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlvsym(library: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Door {
    /// `dlsym`, by the whole name.
    Dlsym,
    /// `dlvsym`, by the whole name and a version.
    Dlvsym,
    /// `cuGetProcAddress` of CUDA 11 and of CUDA 12.
    ProcAddress,
    ProcAddressV2,
}

#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) door: Door,
    library: *mut c_void,
    nvml: *mut c_void,
}

impl Driver {
    pub(crate) fn open(door: &str) -> Self {
        let door = match door {
            "dlsym" => Door::Dlsym,
            "dlvsym" => Door::Dlvsym,
            "proc-address" => Door::ProcAddress,
            "proc-address-v2" => Door::ProcAddressV2,
            other => panic!("no door {other}"),
        };
        // SAFETY: needed to load libraries. Both names are terminated.
        let (library, nvml) = unsafe {
            (dlopen(c"libcuda.so.1".as_ptr(), RTLD_NOW), dlopen(c"libnvidia-ml.so.1".as_ptr(), RTLD_NOW))
        };
        assert!(!library.is_null() && !nvml.is_null(), "the driver's libraries load");
        Self { door, library, nvml }
    }

    /// The same driver, of which functions are found by their whole names.
    pub(crate) fn by_plain_name(&self) -> Self {
        Self { door: Door::Dlsym, library: self.library, nvml: self.nvml }
    }

    /// The address of a function, by its whole name. `None` if the door does not lead to it.
    pub(crate) fn find(&self, name: &str) -> Option<*mut c_void> {
        if self.door == Door::Dlvsym && !name.starts_with("fake") {
            return self.by_version(name);
        }
        if self.door == Door::Dlsym || name.starts_with("nvml") || name.starts_with("fake") {
            return self.by_name(name);
        }
        let (whole, flags) = match name.strip_suffix("_ptsz").or_else(|| name.strip_suffix("_ptds")) {
            Some(whole) => (whole, PER_THREAD),
            None => (name, 0),
        };
        let base = whole.strip_suffix("_v2").unwrap_or(whole);
        let version = if self.door == Door::ProcAddress { CUDA_11 } else { CUDA_13 };
        let found = self.by_proc_address(base, version, flags);
        // This door has one version of a function; the other is found by its whole name.
        let is_other = matches!(name, "cuDevicePrimaryCtxReset" | "cuStreamDestroy" | "cuCtxDestroy")
            || is_hidden(whole, self.door)
            || name == "cuGetProcAddress_v2" && self.door == Door::ProcAddress
            || name == "cuGetProcAddress" && self.door == Door::ProcAddressV2;
        if is_other { self.by_name(name) } else { found }
    }

    /// The C library finds no function of the driver's libraries by a version, since these have none.
    fn by_version(&self, name: &str) -> Option<*mut c_void> {
        let library = self.library_of(name);
        let name = CString::new(name).expect("a name has no zero");
        // SAFETY: needed to find it. The library is open, and the texts are terminated.
        let found = unsafe { dlvsym(library, name.as_ptr(), c"ANY".as_ptr()) };
        (!found.is_null()).then_some(found)
    }

    fn library_of(&self, name: &str) -> *mut c_void {
        if name.starts_with("nvml") { self.nvml } else { self.library }
    }

    pub(crate) fn by_name(&self, name: &str) -> Option<*mut c_void> {
        let library = self.library_of(name);
        let name = CString::new(name).expect("a name has no zero");
        // SAFETY: needed to find it. The library is open, and the name terminated.
        let found = unsafe { dlsym(library, name.as_ptr()) };
        (!found.is_null()).then_some(found)
    }

    pub(crate) fn by_proc_address(
        &self,
        base: &str,
        version: c_int,
        flags: c_ulonglong,
    ) -> Option<*mut c_void> {
        let name = CString::new(base).expect("a name has no zero");
        let mut found = ptr::null_mut();
        let code = if self.door == Door::ProcAddress {
            let find = self.by_name("cuGetProcAddress")?;
            // SAFETY: needed to call it. The type is that of the function in `cuda.h`; it writes one address.
            unsafe {
                std::mem::transmute::<*mut c_void, Find>(find)(name.as_ptr(), &raw mut found, version, flags)
            }
        } else {
            let find = self.by_name("cuGetProcAddress_v2")?;
            let mut status = 0;
            // SAFETY: as above; it writes an address and a number.
            unsafe {
                let find = std::mem::transmute::<*mut c_void, FindV2>(find);
                find(name.as_ptr(), &raw mut found, version, flags, &raw mut status)
            }
        };
        (code == 0 && !found.is_null()).then_some(found)
    }
}

/// Whether the version of CUDA that the door asks for does not have that function, or has it by the name of a later one.
fn is_hidden(name: &str, door: Door) -> bool {
    let batches = ["cuMemcpyBatchAsync", "cuMemcpy3DBatchAsync", "cuGraphAddNode"];
    let is_batch = batches.iter().any(|batch| name.starts_with(batch));
    let is_of_stream = name.starts_with("cuStreamW") || name.starts_with("cuStreamBatchMemOp");
    let is_of_12 =
        name.contains("GreenCtx") || matches!(name, "cuLaunchKernelEx" | "cuMemBatchDecompressAsync");
    match door {
        Door::Dlsym | Door::Dlvsym => false,
        Door::ProcAddress => is_batch || is_of_12 || is_of_stream && name.ends_with("_v2"),
        Door::ProcAddressV2 => (is_batch || is_of_stream) && !name.ends_with("_v2"),
    }
}

/// Whether `dlvsym` finds the C library's functions by their versions.
pub(crate) fn versions_count() -> bool {
    let find = |version: &std::ffi::CStr| {
        // SAFETY: needed to find a function in whatever library has it. The texts are terminated.
        unsafe { dlvsym(ptr::null_mut(), c"memcpy".as_ptr(), version.as_ptr()) }
    };
    let versions =
        if cfg!(target_arch = "x86_64") { [c"GLIBC_2.2.5", c"GLIBC_2.14"] } else { [c"GLIBC_2.17"; 2] };
    let [old, new] = versions.map(find);
    let are_found = !old.is_null() && !new.is_null();
    are_found && (old == new) == (versions[0] == versions[1]) && find(c"GLIBC_1.0").is_null()
}

/// Looks whether there is a driver, as programs do before they use one: opens it, finds a function, and closes it again.
/// Returns whether the driver stays loaded all the same.
pub(crate) fn stays_loaded_after_a_look() -> bool {
    const RTLD_NOLOAD: c_int = 4;
    // SAFETY: needed to load a library and to close it. The names are terminated, and nothing of it is called.
    unsafe {
        let library = dlopen(c"libcuda.so.1".as_ptr(), RTLD_NOW);
        dlsym(library, c"cuInit".as_ptr());
        dlclose(library);
        !dlopen(c"libcuda.so.1".as_ptr(), RTLD_NOW | RTLD_NOLOAD).is_null()
    }
}

/// Calls a function of the driver, found by the program's door, and returns its code.
macro_rules! cuda {
    ($driver:expr, $name:ident($($arg:expr => $kind:ty),*)) => {{
        let found = $driver.find(stringify!($name)).unwrap_or_else(|| panic!("{} is found", stringify!($name)));
        // SAFETY: needed to call it. The types are those of the function in `cuda.h`.
        unsafe {
            let function =
                std::mem::transmute::<*mut std::ffi::c_void, unsafe extern "C" fn($($kind),*) -> u32>(found);
            function($($arg),*)
        }
    }};
}
pub(crate) use cuda;
