//! The driver calls that the suite makes itself, looked up at run time.
//!
//! This table is separate from the daemon's and the SDK's, because code that measures and checks them must not share their mistakes.
//! Results are plain integers, so that a code of a newer driver is no undefined value.

#![allow(unsafe_code, reason = "calls into a library that is found at run time")]

use std::{
    env,
    ffi::{CStr, OsString, c_char, c_void},
    fmt,
    sync::OnceLock,
};

use anyhow::{Context as _, Result, bail};
use libloading::Library;

/// A pointer that only the driver may dereference.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Opaque(usize);

impl Opaque {
    pub(crate) fn number(self) -> u64 {
        self.0 as u64
    }
}

/// `CUmemLocation`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Location {
    pub(crate) kind: i32,
    pub(crate) id: i32,
}

/// `CUmemAllocationProp`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct AllocationProp {
    pub(crate) kind: i32,
    pub(crate) handle_types: i32,
    pub(crate) location: Location,
    pub(crate) windows: usize,
    pub(crate) compression: u8,
    pub(crate) rdma_capable: u8,
    pub(crate) usage: u16,
    pub(crate) reserved: [u8; 4],
}

/// `CUmemAccessDesc`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct AccessDesc {
    pub(crate) location: Location,
    pub(crate) flags: i32,
}

/// A driver call that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failed {
    pub(crate) call: &'static str,
    pub(crate) code: u32,
    pub(crate) name: String,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} ({})", self.call, self.name, self.code)
    }
}

impl std::error::Error for Failed {}

/// Declares the table. `safe` calls take only numbers and references. `raw` calls use a pointer whose extent the signature does not
/// show, so their callers must justify it.
macro_rules! table {
    (
        safe { $($safe:ident = $safe_symbol:literal ($($arg:ident: $type:ty),*);)* }
        raw { $($raw:ident = $raw_symbol:literal ($($raw_arg:ident: $raw_type:ty),*);)* }
    ) => {
        #[derive(Debug)]
        pub(crate) struct Table {
            $($safe: unsafe extern "C" fn($($type),*) -> u32,)*
            $($raw: unsafe extern "C" fn($($raw_type),*) -> u32,)*
            error_name: unsafe extern "C" fn(u32, &mut *const c_char) -> u32,
            /// The loaded library. The functions are valid while it is loaded.
            _library: Library,
        }

        impl Table {
            fn of(library: Library) -> Result<Self> {
                Ok(Self {
                    // SAFETY: a symbol has no type to check. These are the signatures of `cuda.h` for these symbols,
                    // with references for pointers to one value that the driver reads or writes.
                    $($safe: *unsafe { library.get(concat!($safe_symbol, "\0").as_bytes()) }
                        .context(concat!("the driver has no ", $safe_symbol))?,)*
                    // SAFETY: as above.
                    $($raw: *unsafe { library.get(concat!($raw_symbol, "\0").as_bytes()) }
                        .context(concat!("the driver has no ", $raw_symbol))?,)*
                    // SAFETY: as above.
                    error_name: *unsafe { library.get(b"cuGetErrorName\0") }
                        .context("the driver has no cuGetErrorName")?,
                    _library: library,
                })
            }

            $(#[allow(clippy::too_many_arguments, reason = "the driver's own")]
            pub(crate) fn $safe(&self, $($arg: $type),*) -> Result<(), Failed> {
                // SAFETY: a foreign call. References are valid for the one value that it touches. The driver checks numbers
                // (device addresses, handles) itself and answers with a code.
                self.check($safe_symbol, unsafe { (self.$safe)($($arg),*) })
            })*

            $(/// # Safety
            /// The pointers must be valid for everything that the call reads or writes.
            #[allow(clippy::too_many_arguments, reason = "the driver's own")]
            pub(crate) unsafe fn $raw(&self, $($raw_arg: $raw_type),*) -> Result<(), Failed> {
                // SAFETY: a foreign call, whose caller guarantees the pointers.
                self.check($raw_symbol, unsafe { (self.$raw)($($raw_arg),*) })
            })*
        }
    };
}

table! {
    safe {
        init = "cuInit"(flags: u32);
        driver_version = "cuDriverGetVersion"(version: &mut i32);
        device_count = "cuDeviceGetCount"(count: &mut i32);
        device = "cuDeviceGet"(device: &mut i32, ordinal: i32);
        device_uuid = "cuDeviceGetUuid_v2"(uuid: &mut [u8; 16], device: i32);
        device_attribute = "cuDeviceGetAttribute"(value: &mut i32, attribute: i32, device: i32);
        primary_retain = "cuDevicePrimaryCtxRetain"(context: &mut Opaque, device: i32);
        set_current = "cuCtxSetCurrent"(context: Opaque);
        get_current = "cuCtxGetCurrent"(context: &mut Opaque);
        memory_info = "cuMemGetInfo_v2"(free: &mut usize, total: &mut usize);
        alloc = "cuMemAlloc_v2"(address: &mut u64, size: usize);
        free = "cuMemFree_v2"(address: u64);
        alloc_managed = "cuMemAllocManaged"(address: &mut u64, size: usize, flags: u32);
        prefetch = "cuMemPrefetchAsync"(address: u64, size: usize, device: i32, stream: Opaque);
        // The address of the pinned memory as a number.
        host_alloc = "cuMemHostAlloc"(address: &mut usize, size: usize, flags: u32);
        host_free = "cuMemFreeHost"(address: usize);
        create = "cuMemCreate"(handle: &mut u64, size: usize, prop: &AllocationProp, flags: u64);
        release = "cuMemRelease"(handle: u64);
        export = "cuMemExportToShareableHandle"(fd: &mut i32, handle: u64, kind: i32, flags: u64);
        // The descriptor is passed in place of a pointer.
        import = "cuMemImportFromShareableHandle"(handle: &mut u64, fd: usize, kind: i32);
        reserve = "cuMemAddressReserve"(address: &mut u64, size: usize, alignment: usize, wish: u64, flags: u64);
        address_free = "cuMemAddressFree"(address: u64, size: usize);
        map = "cuMemMap"(address: u64, size: usize, offset: usize, handle: u64, flags: u64);
        unmap = "cuMemUnmap"(address: u64, size: usize);
        set_access = "cuMemSetAccess"(address: u64, size: usize, access: &AccessDesc, count: usize);
        stream_create = "cuStreamCreate"(stream: &mut Opaque, flags: u32);
        stream_synchronize = "cuStreamSynchronize"(stream: Opaque);
        stream_query = "cuStreamQuery"(stream: Opaque);
        begin_capture = "cuStreamBeginCapture_v2"(stream: Opaque, mode: u32);
        end_capture = "cuStreamEndCapture"(stream: Opaque, graph: &mut Opaque);
        instantiate = "cuGraphInstantiateWithFlags"(ready: &mut Opaque, graph: Opaque, flags: u64);
        graph_launch = "cuGraphLaunch"(ready: Opaque, stream: Opaque);
        exec_destroy = "cuGraphExecDestroy"(ready: Opaque);
        graph_destroy = "cuGraphDestroy"(graph: Opaque);
    }
    raw {
        upload = "cuMemcpyHtoDAsync_v2"(to: u64, from: *const u8, size: usize, stream: Opaque);
        download = "cuMemcpyDtoHAsync_v2"(to: *mut u8, from: u64, size: usize, stream: Opaque);
        module_load = "cuModuleLoadData"(module: &mut Opaque, image: *const c_char);
        module_function = "cuModuleGetFunction"(function: &mut Opaque, module: Opaque, name: *const c_char);
        launch = "cuLaunchKernel"(
            function: Opaque,
            grid_x: u32, grid_y: u32, grid_z: u32,
            block_x: u32, block_y: u32, block_z: u32,
            shared: u32, stream: Opaque,
            arguments: *mut *mut c_void, extra: *mut *mut c_void
        );
    }
}

impl Table {
    /// Returns the table of this process, initialised.
    pub(crate) fn get() -> Result<&'static Self> {
        static TABLE: OnceLock<Result<Table, String>> = OnceLock::new();
        let table = TABLE.get_or_init(|| Self::load().map_err(|error| format!("{error:#}")));
        table.as_ref().map_or_else(|problem| bail!("{problem}"), Ok)
    }

    fn load() -> Result<Self> {
        let name = env::var_os("VRAMD_LIBCUDA").unwrap_or_else(|| OsString::from("libcuda.so.1"));
        // SAFETY: loading runs the initialisers of the GPU driver's library, or of one that a tester named.
        let library = unsafe { Library::new(&name) };
        let table = Self::of(library.with_context(|| format!("{} cannot be loaded", name.display()))?)?;
        table.init(0)?;
        Ok(table)
    }

    fn check(&self, call: &'static str, code: u32) -> Result<(), Failed> {
        if code == 0 { Ok(()) } else { Err(Failed { call, code, name: self.name_of(code) }) }
    }

    fn name_of(&self, code: u32) -> String {
        let mut name = std::ptr::null();
        // SAFETY: a foreign call that writes one pointer.
        let known = unsafe { (self.error_name)(code, &mut name) };
        if known != 0 || name.is_null() {
            return "a code without a name".to_owned();
        }
        // SAFETY: the driver's own text, which ends with a zero and is never freed.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }
}
