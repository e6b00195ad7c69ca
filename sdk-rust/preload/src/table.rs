//! The table of the driver's functions that this library has a function for.
//!
//! Each row has the function's name and signature; the name without a suffix and the version of CUDA from which
//! `cuGetProcAddress` finds it by that name; what becomes of its calls; and the function that does it. A row makes the
//! exported function of that name, so there is none that the doors do not know. The rows of launches and copies stand in
//! [`crate::gated`].

#![allow(unsafe_code, reason = "functions of a C library, called by their addresses")]
#![allow(non_snake_case, reason = "the names are CUDA's")]
#![allow(unreachable_pub, reason = "the exported functions are reached by their names")]

use std::{
    ffi::{CString, c_char, c_int, c_uint, c_ulonglong, c_void},
    panic::{AssertUnwindSafe, catch_unwind},
    ptr,
    sync::{
        OnceLock,
        atomic::{AtomicPtr, Ordering},
    },
};

use crate::{
    counts, doors,
    doors::proc_address,
    driver,
    entries::{contexts, graphs, info, memory, nvml, ordered, physical, pointers},
    gate, gated,
    guard::Inside,
    streams, turns,
};

/// `CUDA_ERROR_NOT_FOUND`: the driver has no function of that name.
pub(crate) const NOT_FOUND: u32 = 500;
/// `CUDA_ERROR_UNKNOWN`.
const UNKNOWN: u32 = 999;

/// The fate of a function's calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It finds functions.
    Door,
    /// The daemon's memory serves it.
    Served,
    /// The driver serves it, and the daemon charges the memory.
    Charged,
    /// It answers with the program's limit, or as the driver would of memory of its own.
    Answered,
    /// The driver serves it, and this library takes notice.
    Watched,
    /// The driver serves it, and it is counted.
    PassedOn,
    /// The driver serves it, and with turns it first passes the gate.
    Gated,
}

/// One row.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) name: &'static str,
    /// Its name without a suffix. Empty for functions that `cuGetProcAddress` does not find.
    pub(crate) base: &'static str,
    /// The version of CUDA that has it, as `cuGetProcAddress` takes it.
    since: u32,
    /// Whether stream 0 is the calling thread's own.
    per_thread: bool,
    pub(crate) kind: Kind,
    hook: fn() -> *mut c_void,
    real: AtomicPtr<c_void>,
}

/// A call of the program, which the driver can serve as it is.
#[derive(Clone, Copy)]
pub(crate) struct Real<'a> {
    entry: &'static Entry,
    call: &'a dyn Fn() -> u32,
}

impl Real<'_> {
    /// Makes the call.
    pub(crate) fn call(self) -> u32 {
        (self.call)()
    }

    /// Makes the call, and counts it as one that could not be served.
    pub(crate) fn pass_on(self, reason: &'static str) -> u32 {
        self.count(reason);
        self.call()
    }

    /// Counts it as one that could not be served.
    pub(crate) fn count(self, reason: &'static str) {
        counts::count(self.entry.name, reason);
    }
}

impl Entry {
    /// A row of [`crate::gated`].
    pub(crate) const fn gated(
        name: &'static str,
        (base, since): (&'static str, u32),
        per_thread: bool,
        hook: fn() -> *mut c_void,
    ) -> Self {
        let real = AtomicPtr::new(ptr::null_mut());
        Self { name, base, since, per_thread, kind: Kind::Gated, hook, real }
    }

    /// Whether the doors give out this library's function.
    pub(crate) fn is_given_out(&self) -> bool {
        self.kind != Kind::Gated || turns::are_wanted()
    }

    /// This library's function.
    pub(crate) fn hook(&self) -> *mut c_void {
        (self.hook)()
    }

    /// The number of its version, as its suffix has it.
    pub(crate) fn version(&self) -> u32 {
        split(self.name).1
    }

    /// Takes the address of the driver's function, the first that is found. Its library stays loaded from then on, so
    /// later ones are the same function, found through another door.
    pub(crate) fn learn(&self, found: *mut c_void) {
        if found != self.hook() && self.real.load(Ordering::Acquire).is_null() {
            driver::pin(found);
            let _ = self.real.compare_exchange(ptr::null_mut(), found, Ordering::AcqRel, Ordering::Acquire);
        }
    }

    /// The driver's function: as it was found, or else as the program is linked to it.
    #[inline]
    pub(crate) fn real(&self) -> *mut c_void {
        let known = self.real.load(Ordering::Acquire);
        if known.is_null() { self.find_real() } else { known }
    }

    #[cold]
    fn find_real(&self) -> *mut c_void {
        let Ok(name) = CString::new(self.name) else { return ptr::null_mut() };
        let linked = doors::real_dlsym(libc::RTLD_NEXT, &name);
        let found = if linked.is_null() { driver::find_loaded(&name) } else { linked };
        if !found.is_null() {
            self.learn(found);
        }
        found
    }
}

fn rows() -> impl Iterator<Item = &'static Entry> {
    ENTRIES.iter().chain(&gated::ENTRIES)
}

/// The row of that name, if the doors give out its function.
pub(crate) fn find(name: &[u8]) -> Option<&'static Entry> {
    if !name.starts_with(b"cu") && !name.starts_with(b"nvml") {
        return None;
    }
    rows().find(|row| row.name.as_bytes() == name).filter(|row| row.is_given_out())
}

/// A name without its suffixes, and the version that they have.
pub(crate) fn split(name: &str) -> (&str, u32) {
    let name = name.trim_end_matches("_ptsz").trim_end_matches("_ptds");
    let parts = name.rsplit_once("_v").and_then(|(stem, version)| Some((stem, version.parse().ok()?)));
    parts.unwrap_or((name, 1))
}

/// The row of the latest version that the table has of a function.
pub(crate) fn latest(stem: &str) -> Option<&'static Entry> {
    rows().filter(|row| split(row.name).0 == stem).max_by_key(|row| row.version())
}

/// The row that `cuGetProcAddress` means: the newest that the version has, for that kind of default stream if there are two.
pub(crate) fn find_by_base(base: &[u8], version: u32, per_thread: bool) -> Option<&'static Entry> {
    newest(base, version, per_thread).filter(|row| row.is_given_out())
}

fn newest(base: &[u8], version: u32, per_thread: bool) -> Option<&'static Entry> {
    let rows = rows().filter(|row| !base.is_empty() && row.base.as_bytes() == base);
    let known = rows.filter(|row| row.since <= version && (per_thread || !row.per_thread));
    known.max_by_key(|row| (row.per_thread, row.since))
}

/// Serves a call by this library, if the thread is not inside of it already. A panic is an error of that one call.
fn serve(real: Real<'_>, served: impl FnOnce(Real<'_>) -> u32) -> u32 {
    match Inside::enter() {
        Some(_inside) => catch_unwind(AssertUnwindSafe(|| served(real))).unwrap_or(UNKNOWN),
        None => real.call(),
    }
}

/// The rows as text, a line each: the name, and what becomes of the calls. For this repository's tests, which load this
/// library to see that none is without a test.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn vramd_preload_table() -> *const c_char {
    static TEXT: OnceLock<CString> = OnceLock::new();
    let text = || {
        let rows: String = rows().map(|row| format!("{} {:?}\n", row.name, row.kind)).collect();
        CString::new(rows).unwrap_or_default()
    };
    TEXT.get_or_init(text).as_ptr()
}

/// How many calls have come to the gate. For the same tests: to see that each row's do.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn vramd_preload_gated_calls() -> u64 {
    gate::entered()
}

macro_rules! table {
    ($($name:ident ($base:literal, $since:literal $(, $per_thread:ident)?) $kind:ident
        ($($arg:ident: $type:ty),*) = $serve:expr;)*) => {
        #[expect(non_camel_case_types, reason = "the names are CUDA's")]
        #[derive(Clone, Copy)]
        enum Row { $($name),* }

        pub(crate) static ENTRIES: [Entry; [$(Row::$name),*].len()] = [$(Entry {
            name: stringify!($name),
            base: $base,
            since: $since,
            per_thread: false $(|| stringify!($per_thread).len() > 0)?,
            kind: Kind::$kind,
            hook: || $name as *mut c_void,
            real: AtomicPtr::new(ptr::null_mut()),
        }),*];

        $(
            /// # Safety
            /// As for the driver's function of that name.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C" fn $name($($arg: $type),*) -> u32 {
                let entry = &ENTRIES[Row::$name as usize];
                let real = entry.real();
                if real.is_null() {
                    return NOT_FOUND;
                }
                // SAFETY: needed to call the driver's function, which has this type. Its library stays loaded.
                let function: unsafe extern "C" fn($($type),*) -> u32 = unsafe { std::mem::transmute(real) };
                // SAFETY: needed to call it. The arguments are the program's own.
                let call = || unsafe { function($($arg),*) };
                serve(Real { entry, call: &call }, |real| $serve(real, $($arg),*))
            }
        )*
    };
}

table! {
    cuGetProcAddress ("cuGetProcAddress", 11030) Door
        (name: *const c_char, found: *mut *mut c_void, version: c_int, flags: c_ulonglong)
        = proc_address::proc_address;
    cuGetProcAddress_v2 ("cuGetProcAddress", 12000) Door
        (name: *const c_char, found: *mut *mut c_void, version: c_int, flags: c_ulonglong, status: *mut c_uint)
        = |real, name, found, version, flags, _| proc_address::proc_address(real, name, found, version, flags);
    cuInit ("cuInit", 2000) Watched (flags: c_uint) = |real, _| contexts::init(real);

    cuMemAlloc_v2 ("cuMemAlloc", 3020) Served (address: *mut u64, size: usize) = memory::alloc;
    cuMemAllocPitch_v2 ("cuMemAllocPitch", 3020) Served
        (address: *mut u64, pitch: *mut usize, width: usize, height: usize, element: c_uint) = memory::alloc_pitch;
    cuMemFree_v2 ("cuMemFree", 3020) Served (address: u64) = memory::free;
    cuMemAllocManaged ("cuMemAllocManaged", 6000) Charged
        (address: *mut u64, size: usize, flags: c_uint) = memory::alloc_managed;

    cuMemAllocAsync ("cuMemAllocAsync", 11020) Served
        (address: *mut u64, size: usize, stream: u64) = ordered::alloc;
    cuMemAllocAsync_ptsz ("cuMemAllocAsync", 11020, per_thread) Served
        (address: *mut u64, size: usize, stream: u64)
        = |real, address, size, stream| ordered::alloc(real, address, size, ordered::own(stream));
    cuMemAllocFromPoolAsync ("cuMemAllocFromPoolAsync", 11020) Served
        (address: *mut u64, size: usize, pool: u64, stream: u64) = ordered::alloc_from_pool;
    cuMemAllocFromPoolAsync_ptsz ("cuMemAllocFromPoolAsync", 11020, per_thread) Served
        (address: *mut u64, size: usize, pool: u64, stream: u64)
        = |real, address, size, pool, stream| ordered::alloc_from_pool(real, address, size, pool, ordered::own(stream));
    cuMemFreeAsync ("cuMemFreeAsync", 11020) Served (address: u64, stream: u64) = ordered::free;
    cuMemFreeAsync_ptsz ("cuMemFreeAsync", 11020, per_thread) Served (address: u64, stream: u64)
        = |real, address, stream| ordered::free(real, address, ordered::own(stream));
    cuMemPoolCreate ("cuMemPoolCreate", 11020) Watched
        (pool: *mut u64, properties: *const c_void) = ordered::create_pool;
    cuMemPoolDestroy ("cuMemPoolDestroy", 11020) Watched (pool: u64) = ordered::destroy_pool;
    cuMemPoolTrimTo ("cuMemPoolTrimTo", 11020) Served (pool: u64, kept: usize) = ordered::trim;
    cuMemPoolGetAttribute ("cuMemPoolGetAttribute", 11020) Answered
        (pool: u64, attribute: c_uint, value: *mut c_void) = ordered::attribute;
    cuMemPoolSetAttribute ("cuMemPoolSetAttribute", 11020) Answered
        (pool: u64, attribute: c_uint, value: *mut c_void) = ordered::set_attribute;
    cuMemPoolSetAccess ("cuMemPoolSetAccess", 11020) Watched
        (pool: u64, access: *const c_void, count: usize) = ordered::set_access;
    cuMemPoolImportFromShareableHandle ("cuMemPoolImportFromShareableHandle", 11020) Watched
        (pool: *mut u64, handle: *mut c_void, kind: c_uint, flags: c_ulonglong)
        = |real, pool, _, _, _| ordered::import_pool(real, pool);

    cuMemCreate ("cuMemCreate", 10020) Charged
        (handle: *mut u64, size: usize, properties: *const physical::Properties, flags: c_ulonglong)
        = |real, handle, size, properties, _| physical::create(real, handle, size, properties);
    cuMemRelease ("cuMemRelease", 10020) Charged (handle: u64) = physical::release;
    cuMemRetainAllocationHandle ("cuMemRetainAllocationHandle", 11000) Charged
        (handle: *mut u64, address: *mut c_void) = physical::retain;
    cuMemMap ("cuMemMap", 10020) Charged
        (address: u64, size: usize, offset: usize, handle: u64, flags: c_ulonglong)
        = |real, address, size, _, handle, _| physical::map(real, address, size, handle);
    cuMemUnmap ("cuMemUnmap", 10020) Charged (address: u64, size: usize) = physical::unmap;

    cuMemGetInfo_v2 ("cuMemGetInfo", 3020) Answered (free: *mut usize, total: *mut usize) = info::get_info;
    cuDeviceTotalMem_v2 ("cuDeviceTotalMem", 3020) Answered (total: *mut usize, device: c_int) = info::total_mem;
    cuMemGetAddressRange_v2 ("cuMemGetAddressRange", 3020) Answered
        (base: *mut u64, size: *mut usize, address: u64) = pointers::address_range;
    cuPointerGetAttribute ("cuPointerGetAttribute", 4000) Answered
        (value: *mut c_void, attribute: c_uint, address: u64) = pointers::attribute;
    cuPointerGetAttributes ("cuPointerGetAttributes", 7000) Answered
        (count: c_uint, attributes: *const c_uint, values: *const *mut c_void, address: u64) = pointers::attributes;
    cuIpcGetMemHandle ("cuIpcGetMemHandle", 4010) Answered
        (handle: *mut c_void, address: u64) = |real, _, address| pointers::export(real, address);
    cuMemPoolExportPointer ("cuMemPoolExportPointer", 11020) Answered
        (data: *mut c_void, address: u64) = |real, _, address| pointers::export(real, address);
    nvmlDeviceGetMemoryInfo ("", 0) Answered (device: *mut c_void, memory: *mut nvml::Memory) = nvml::memory;
    nvmlDeviceGetMemoryInfo_v2 ("", 0) Answered
        (device: *mut c_void, memory: *mut nvml::MemoryV2) = nvml::memory_v2;

    cuStreamCreate ("cuStreamCreate", 2000) Watched
        (stream: *mut u64, flags: c_uint) = |real, stream, flags| streams::created(real, stream, flags);
    cuStreamCreateWithPriority ("cuStreamCreateWithPriority", 5050) Watched
        (stream: *mut u64, flags: c_uint, priority: c_int)
        = |real, stream, flags, _| streams::created(real, stream, flags);
    cuGreenCtxStreamCreate ("cuGreenCtxStreamCreate", 12050) PassedOn
        (stream: *mut u64, context: *mut c_void, flags: c_uint, priority: c_int)
        = |real: Real<'_>, _, _, _, _| streams::green_created(real);
    cuCtxFromGreenCtx ("cuCtxFromGreenCtx", 12040) PassedOn
        (context: *mut u64, green: *mut c_void) = |real: Real<'_>, _, _| streams::green_used(real);
    cuStreamDestroy ("cuStreamDestroy", 2000) Watched (stream: u64) = streams::destroyed;
    cuStreamDestroy_v2 ("cuStreamDestroy", 4000) Watched (stream: u64) = streams::destroyed;
    cuCtxDestroy ("cuCtxDestroy", 2000) Watched (context: u64) = contexts::destroyed;
    cuCtxDestroy_v2 ("cuCtxDestroy", 4000) Watched (context: u64) = contexts::destroyed;
    cuDevicePrimaryCtxReset ("cuDevicePrimaryCtxReset", 7000) Watched (device: c_int) = contexts::reset;
    cuDevicePrimaryCtxReset_v2 ("cuDevicePrimaryCtxReset", 11000) Watched (device: c_int) = contexts::reset;
    cuCtxEnablePeerAccess ("cuCtxEnablePeerAccess", 4000) Watched
        (peer: u64, flags: c_uint) = |real, peer, _| contexts::peer_enabled(real, peer);

    cuArrayCreate_v2 ("cuArrayCreate", 3020) PassedOn
        (array: *mut u64, description: *const c_void) = |real: Real<'_>, _, _| real.pass_on("arrays are not served");
    cuArray3DCreate_v2 ("cuArray3DCreate", 3020) PassedOn
        (array: *mut u64, description: *const c_void) = |real: Real<'_>, _, _| real.pass_on("arrays are not served");
    cuMipmappedArrayCreate ("cuMipmappedArrayCreate", 5000) PassedOn
        (array: *mut u64, description: *const c_void, levels: c_uint)
        = |real: Real<'_>, _, _, _| real.pass_on("arrays are not served");
    cuGraphAddMemAllocNode ("cuGraphAddMemAllocNode", 11040) PassedOn
        (node: *mut u64, graph: u64, needs: *const u64, count: usize, parameters: *mut c_void)
        = |real: Real<'_>, _, _, _, _, _| real.pass_on(graphs::NOT_SERVED);
    cuGraphAddNode ("cuGraphAddNode", 12020) PassedOn
        (node: *mut u64, graph: u64, needs: *const u64, count: usize, parameters: *const c_uint)
        = |real, _, _, _, _, parameters| graphs::add_node(real, parameters);
    cuGraphAddNode_v2 ("cuGraphAddNode", 12030) PassedOn
        (node: *mut u64, graph: u64, needs: *const u64, edges: *const c_void, count: usize, parameters: *const c_uint)
        = |real, _, _, _, _, _, parameters| graphs::add_node(real, parameters);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meant(base: &str, version: u32, per_thread: bool) -> Option<&'static str> {
        newest(base.as_bytes(), version, per_thread).map(|entry| entry.name)
    }

    fn row(name: &str) -> Option<&'static Entry> {
        rows().find(|row| row.name == name)
    }

    #[test]
    fn names_are_unique_and_found() {
        for entry in rows() {
            let found = row(entry.name).expect("every name is found");
            assert!(ptr::eq(found, entry), "{} stands twice", entry.name);
            assert!(entry.name.starts_with(entry.base), "{} is no version of {}", entry.name, entry.base);
        }
        assert_eq!(find(b"cuMemAlloc_v2").map(Entry::version), Some(2));
        assert_eq!(find(b"cuMemAllocAsync_ptsz").map(Entry::version), Some(1));
        assert_eq!(row("cuMemcpyHtoD_v2_ptds").map(Entry::version), Some(2));
        assert_eq!(row("cuMemsetD8Async_ptsz").map(Entry::version), Some(1));
        assert_eq!(split("cuLaunchKernel_v12_ptsz"), ("cuLaunchKernel", 12));
        assert_eq!(split("cuMemsetD2D8_vector"), ("cuMemsetD2D8_vector", 1));
        assert_eq!(latest("cuMemcpyBatchAsync").map(Entry::version), Some(2));
        assert!(find(b"cuMemAlloc").is_none() && find(b"cudaMalloc").is_none() && find(b"").is_none());
    }

    #[test]
    fn each_version_of_a_name_is_the_function_that_the_driver_means() {
        assert_eq!(meant("cuMemAlloc", 12000, false), Some("cuMemAlloc_v2"));
        assert_eq!(meant("cuMemAlloc", 3010, false), None, "before 3.2 a pointer has 32 bits");
        assert_eq!(meant("cuGetProcAddress", 11030, false), Some("cuGetProcAddress"));
        assert_eq!(meant("cuGetProcAddress", 11080, true), Some("cuGetProcAddress"));
        assert_eq!(meant("cuGetProcAddress", 13000, false), Some("cuGetProcAddress_v2"));
        assert_eq!(meant("cuMemAllocAsync", 13000, false), Some("cuMemAllocAsync"));
        assert_eq!(meant("cuMemAllocAsync", 13000, true), Some("cuMemAllocAsync_ptsz"));
        assert_eq!(meant("cuMemFree", 13000, true), Some("cuMemFree_v2"));
        assert_eq!(meant("cuLaunchKernel", 13000, false), Some("cuLaunchKernel"));
        assert_eq!(meant("cuMemcpyHtoD", 13000, true), Some("cuMemcpyHtoD_v2_ptds"));
        assert_eq!(meant("cuMemcpyBatchAsync", 12080, false), Some("cuMemcpyBatchAsync"));
        assert_eq!(meant("cuMemcpyBatchAsync", 13000, true), Some("cuMemcpyBatchAsync_v2_ptsz"));
        assert_eq!(meant("cuGraphAddNode", 12020, false), Some("cuGraphAddNode"));
        assert_eq!(meant("cuGraphAddNode", 12030, false), Some("cuGraphAddNode_v2"));
        assert_eq!(meant("cuEventRecord", 13000, false), None, "an unknown name is the driver's");
        assert_eq!(meant("", 13000, false), None);
    }

    /// No variable asks for turns in this process.
    #[test]
    fn without_turns_no_door_gives_out_the_gate() {
        assert!(row("cuLaunchKernel").is_some_and(|row| row.kind == Kind::Gated));
        assert!(find(b"cuLaunchKernel").is_none() && find(b"cuMemAlloc_v2").is_some());
        assert!(find_by_base(b"cuLaunchKernel", 13000, false).is_none());
        assert!(find_by_base(b"cuMemAlloc", 13000, false).is_some());
    }

    #[test]
    fn a_call_without_a_driver_is_an_error() {
        // SAFETY: needed to call it. Without a driver it touches nothing.
        assert_eq!(unsafe { cuMemFree_v2(1) }, NOT_FOUND);
    }

    #[test]
    fn functions_that_are_passed_on_are_rows_of_that_kind() {
        let passed = ENTRIES.iter().filter(|entry| entry.kind == Kind::PassedOn).count();
        assert_eq!(passed, 8);
    }
}
