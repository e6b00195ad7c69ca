//! The table of required functions, and how they are found.
#![allow(
    unsafe_code,
    reason = "functions of a library are found by name, and their types are our word alone"
)]

use std::{
    error::Error,
    ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void},
    iter::successors,
    mem::ManuallyDrop,
    path::Path,
    ptr,
};

use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdeviceptr, CUevent, CUipcMemHandle, CUmemAccessDesc, CUmemAllocationHandleType,
    CUmemAllocationProp, CUmemGenericAllocationHandle, CUstream, CUuuid,
};
use libloading::Library;

use super::{Code, ProbeError, physical::AllocationAnswer};
use crate::cuda::start::probe::Version;

/// The library. It is never unloaded, since the driver keeps threads that run its code.
pub(super) struct Loaded(ManuallyDrop<Library>);

/// Loads the library without calling it.
pub(super) fn open(path: &Path) -> Result<Loaded, ProbeError> {
    // SAFETY: Loading runs the library's initialisers, which can't be avoided. It is the driver of the machine, or
    // what the operator named in its place.
    match unsafe { Library::new(path) } {
        Ok(library) => Ok(Loaded(ManuallyDrop::new(library))),
        Err(error) => Err(ProbeError::NoLibrary { path: path.to_owned(), problem: chain(&error) }),
    }
}

/// The error and its chain of causes.
pub(crate) fn chain(error: &dyn Error) -> String {
    let causes = successors(error.source(), |cause: &&dyn Error| Error::source(*cause));
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// A function that the library lacks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Missing(&'static str);

impl Missing {
    pub(super) fn why(self, path: &Path, version: Option<Version>) -> ProbeError {
        ProbeError::MissingFunction { path: path.to_owned(), function: self.0, version }
    }
}

impl Loaded {
    /// # Safety
    /// `F` must be the type that cuda.h gives the function, with `u32` for its result.
    unsafe fn find<F: Copy>(&self, symbol: &'static str) -> Result<F, Missing> {
        // SAFETY: The type of a symbol cannot be checked; the caller passes the right one.
        let found = unsafe { self.0.get::<F>(symbol) };
        // The pointer outlives the borrow, as the library is never unloaded.
        found.map(|function| *function).map_err(|_| Missing(symbol))
    }
}

type Init = unsafe extern "C" fn(c_uint) -> u32;
type GetVersion = unsafe extern "C" fn(*mut c_int) -> u32;
type GetErrorName = unsafe extern "C" fn(u32, *mut *const c_char) -> u32;

fn result(code: u32) -> Result<(), Code> {
    let code = Code::new(code);
    if code.is_success() { Ok(()) } else { Err(code) }
}

/// The functions that are called before the table is complete: initialisation, and the version for the error
/// message.
#[derive(Clone, Copy, Debug)]
pub(super) struct First {
    init: Init,
    get_version: GetVersion,
}

impl First {
    pub(super) fn of(loaded: &Loaded) -> Result<Self, Missing> {
        // SAFETY: The types are those of cuda.h.
        unsafe { Ok(Self { init: loaded.find("cuInit")?, get_version: loaded.find("cuDriverGetVersion")? }) }
    }

    pub(super) fn init(self) -> Result<(), Code> {
        // SAFETY: A foreign call. It takes no pointer, and 0 is the only flag that there is.
        result(unsafe { (self.init)(0) })
    }

    pub(super) fn version(self) -> Result<c_int, Code> {
        let mut version = 0;
        // SAFETY: A foreign call, which writes one integer where it is told to.
        result(unsafe { (self.get_version)(&raw mut version) }).map(|()| version)
    }
}

/// The driver's name for a code, before the table is complete.
pub(super) fn name_of(loaded: &Loaded, code: Code) -> String {
    // SAFETY: The type is that of cuda.h.
    let get_name = unsafe { loaded.find::<GetErrorName>("cuGetErrorName") };
    get_name.map_or_else(|_| UNNAMED.to_owned(), |get_name| name(get_name, code))
}

const UNNAMED: &str = "an error without a name";

fn name(get_name: GetErrorName, code: Code) -> String {
    let mut name: *const c_char = ptr::null();
    // SAFETY: A foreign call, which writes one pointer where it is told to.
    let known = result(unsafe { get_name(code.number(), &raw mut name) });
    if known.is_err() || name.is_null() {
        return UNNAMED.to_owned();
    }
    // SAFETY: Names are the driver's, constant and terminated, and the driver is never unloaded.
    unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
}

macro_rules! functions {
    ($($symbol:ident($($argument:ty),*);)*) => {
        /// One field for each function, named like it.
        #[allow(non_snake_case, reason = "fields have the functions' names")]
        pub(super) struct Functions {
            /// Keeps the function pointers valid.
            _library: Loaded,
            cuGetErrorName: GetErrorName,
            $(pub(super) $symbol: unsafe extern "C" fn($($argument),*) -> u32,)*
        }

        impl Functions {
            /// Finds all of them.
            pub(super) fn all(loaded: Loaded) -> Result<Self, Missing> {
                // SAFETY: The types below are those of cuda.h.
                unsafe {
                    Ok(Self {
                        cuGetErrorName: loaded.find("cuGetErrorName")?,
                        $($symbol: loaded.find(stringify!($symbol))?,)*
                        _library: loaded,
                    })
                }
            }
        }
    };
}

functions! {
    cuDeviceGetCount(*mut c_int);
    cuDeviceGet(*mut CUdevice, c_int);
    cuDeviceGetName(*mut c_char, c_int, CUdevice);
    cuDeviceGetUuid_v2(*mut CUuuid, CUdevice);
    cuDeviceGetAttribute(*mut c_int, c_uint, CUdevice);
    cuDeviceTotalMem_v2(*mut usize, CUdevice);
    cuDevicePrimaryCtxRetain(*mut CUcontext, CUdevice);
    cuDevicePrimaryCtxRelease_v2(CUdevice);
    cuCtxPushCurrent_v2(CUcontext);
    cuCtxPopCurrent_v2(*mut CUcontext);
    cuMemGetInfo_v2(*mut usize, *mut usize);
    cuMemGetAllocationGranularity(*mut usize, *const CUmemAllocationProp, c_uint);
    cuMemCreate(*mut CUmemGenericAllocationHandle, usize, *const CUmemAllocationProp, c_ulonglong);
    cuMemRelease(CUmemGenericAllocationHandle);
    cuMemExportToShareableHandle(*mut c_void, CUmemGenericAllocationHandle, CUmemAllocationHandleType, c_ulonglong);
    cuMemImportFromShareableHandle(*mut CUmemGenericAllocationHandle, *mut c_void, CUmemAllocationHandleType);
    cuMemGetAllocationPropertiesFromHandle(*mut AllocationAnswer, CUmemGenericAllocationHandle);
    cuMemAddressReserve(*mut CUdeviceptr, usize, usize, CUdeviceptr, c_ulonglong);
    cuMemAddressFree(CUdeviceptr, usize);
    cuMemMap(CUdeviceptr, usize, usize, CUmemGenericAllocationHandle, c_ulonglong);
    cuMemUnmap(CUdeviceptr, usize);
    cuMemSetAccess(CUdeviceptr, usize, *const CUmemAccessDesc, usize);
    cuMemAlloc_v2(*mut CUdeviceptr, usize);
    cuMemFree_v2(CUdeviceptr);
    cuMemGetAddressRange_v2(*mut CUdeviceptr, *mut usize, CUdeviceptr);
    cuIpcGetMemHandle(*mut CUipcMemHandle, CUdeviceptr);
    cuIpcOpenMemHandle_v2(*mut CUdeviceptr, CUipcMemHandle, c_uint);
    cuIpcCloseMemHandle(CUdeviceptr);
    cuMemHostRegister_v2(*mut c_void, usize, c_uint);
    cuMemHostUnregister(*mut c_void);
    cuMemcpyDtoHAsync_v2(*mut c_void, CUdeviceptr, usize, CUstream);
    cuMemcpyHtoDAsync_v2(CUdeviceptr, *const c_void, usize, CUstream);
    cuMemcpyDtoDAsync_v2(CUdeviceptr, CUdeviceptr, usize, CUstream);
    cuMemcpyPeerAsync(CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, usize, CUstream);
    cuMemcpyDtoH_v2(*mut c_void, CUdeviceptr, usize);
    cuMemcpyHtoD_v2(CUdeviceptr, *const c_void, usize);
    cuMemsetD8Async(CUdeviceptr, u8, usize, CUstream);
    cuStreamCreate(*mut CUstream, c_uint);
    cuStreamDestroy_v2(CUstream);
    cuStreamQuery(CUstream);
    cuEventCreate(*mut CUevent, c_uint);
    cuEventDestroy_v2(CUevent);
    cuEventRecord(CUevent, CUstream);
    cuEventQuery(CUevent);
}

impl Functions {
    pub(super) fn name(&self, code: Code) -> String {
        name(self.cuGetErrorName, code)
    }
}
