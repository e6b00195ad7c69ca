//! The kernel of `kernels/sum.cu`, launched over memory that is mapped already. A program of its own would use the CUDA
//! crate or framework that it likes; this one takes the few calls it needs from the driver's library.

#![allow(unsafe_code, reason = "calls of a C library")]

use std::{
    env,
    error::Error,
    ffi::{CStr, OsString, c_char, c_int, c_uint, c_void},
    ptr, thread,
    time::Duration,
};

use libloading::Library;

/// The end of a string of C's is its own.
const PTX: &str = concat!(include_str!("../kernels/sum.ptx"), "\0");
const BLOCKS_MAX: u64 = 4096;
const THREADS: u32 = 256;
const NON_BLOCKING: c_uint = 1;
const NOT_READY: u32 = 600;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Sums the bytes at `bytes`, weighted with their positions, into the number at `total`. Returns when that is there.
pub(crate) fn sum_bytes(uuid: &str, bytes: u64, count: u64, total: u64) -> Result<()> {
    let path = env::var_os("VRAMD_LIBCUDA").unwrap_or_else(|| OsString::from("libcuda.so.1"));
    // SAFETY: needed to open it. It is the driver that the SDK has opened already.
    let cuda = Cuda { library: unsafe { Library::new(path)? } };
    let device = cuda.find(uuid)?;

    let mut context = Handle(ptr::null_mut());
    // SAFETY: the type is right. It writes the primary context, the same that the SDK maps in, where it is told to.
    unsafe {
        cuda.call(c"cuDevicePrimaryCtxRetain", |f: unsafe extern "C" fn(*mut Handle, c_int) -> u32| {
            f(&raw mut context, device)
        })?;
    }
    // SAFETY: the type is right. The context was retained above, and is until the process ends.
    unsafe { cuda.call(c"cuCtxPushCurrent_v2", |f: unsafe extern "C" fn(Handle) -> u32| f(context))? };

    let mut module = Handle(ptr::null_mut());
    // SAFETY: the type is right. It reads a text that ends with a zero, and writes one handle where it is told to.
    unsafe {
        cuda.call(c"cuModuleLoadData", |f: unsafe extern "C" fn(*mut Handle, *const c_void) -> u32| {
            f(&raw mut module, PTX.as_ptr().cast())
        })?;
    }
    let mut kernel = Handle(ptr::null_mut());
    // SAFETY: as above; the module was loaded there.
    unsafe {
        cuda.call(
            c"cuModuleGetFunction",
            |f: unsafe extern "C" fn(*mut Handle, Handle, *const c_char) -> u32| {
                f(&raw mut kernel, module, c"sum_bytes".as_ptr())
            },
        )?;
    }
    let mut stream = Handle(ptr::null_mut());
    // SAFETY: the type is right. It writes one handle where it is told to.
    unsafe {
        cuda.call(c"cuStreamCreate", |f: unsafe extern "C" fn(*mut Handle, c_uint) -> u32| {
            f(&raw mut stream, NON_BLOCKING)
        })?;
    }
    cuda.launch(kernel, stream, [bytes, count, total])?;
    while !cuda.has_ended(stream)? {
        thread::sleep(Duration::from_micros(100));
    }

    // The retained context and the loaded module go with the process. Its thread has its own context back.
    let mut popped = Handle(ptr::null_mut());
    // SAFETY: the type is right. It writes one handle where it is told to.
    unsafe {
        cuda.call(c"cuCtxPopCurrent_v2", |f: unsafe extern "C" fn(*mut Handle) -> u32| f(&raw mut popped))
    }
}

/// One of the driver's opaque pointers.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Handle(*mut c_void);

type Launch = unsafe extern "C" fn(
    Handle,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    Handle,
    *mut *mut c_void,
    *mut *mut c_void,
) -> u32;

struct Cuda {
    library: Library,
}

impl Cuda {
    /// Calls a function by its name.
    ///
    /// # Safety
    /// `F` is the type that `cuda.h` gives the function of that name, a pointer to it, and `call` calls it as is told
    /// there: what it is given to read is there, and what it is given to write to is the caller's.
    unsafe fn call<F: Copy>(&self, name: &'static CStr, call: impl FnOnce(F) -> u32) -> Result<()> {
        let text = name.to_string_lossy();
        // SAFETY: needed to find a C function. The caller names its type as `cuda.h` has it.
        let function = unsafe { self.library.get::<F>(name) }.map_err(|_| format!("no function {text}"))?;
        match call(*function) {
            0 => Ok(()),
            code => Err(format!("{text} answers {code}").into()),
        }
    }

    fn find(&self, uuid: &str) -> Result<c_int> {
        let mut count = 0;
        // SAFETY: the type is right. It writes one number where it is told to.
        unsafe {
            self.call(c"cuDeviceGetCount", |f: unsafe extern "C" fn(*mut c_int) -> u32| f(&raw mut count))?;
        }
        for ordinal in 0..count {
            let (mut device, mut bytes) = (0, [0u8; 16]);
            // SAFETY: as above.
            unsafe {
                self.call(c"cuDeviceGet", |f: unsafe extern "C" fn(*mut c_int, c_int) -> u32| {
                    f(&raw mut device, ordinal)
                })?;
            }
            // SAFETY: the type is right. It writes sixteen bytes where it is told to.
            unsafe {
                self.call(c"cuDeviceGetUuid_v2", |f: unsafe extern "C" fn(*mut [u8; 16], c_int) -> u32| {
                    f(&raw mut bytes, device)
                })?;
            }
            let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            // Without the `GPU-` or `MIG-` before them, and the dashes between.
            if uuid.to_lowercase().replace('-', "").ends_with(&digits) {
                return Ok(device);
            }
        }
        Err(format!("this process does not see {uuid}").into())
    }

    fn launch(&self, kernel: Handle, stream: Handle, mut arguments: [u64; 3]) -> Result<()> {
        let blocks = arguments[1].div_ceil(u64::from(THREADS)).clamp(1, BLOCKS_MAX);
        let blocks = c_uint::try_from(blocks)?;
        let mut pointers = arguments.each_mut().map(|argument| ptr::from_mut(argument).cast::<c_void>());
        // SAFETY: the type is right. It reads as many arguments as the kernel has, three of 64 bits, before it returns.
        unsafe {
            self.call(c"cuLaunchKernel", |f: Launch| {
                f(kernel, blocks, 1, 1, THREADS, 1, 1, 0, stream, pointers.as_mut_ptr(), ptr::null_mut())
            })
        }
    }

    fn has_ended(&self, stream: Handle) -> Result<bool> {
        let mut answer = 0;
        // SAFETY: the type is right. The stream was made by this program, and stays.
        unsafe {
            self.call(c"cuStreamQuery", |f: unsafe extern "C" fn(Handle) -> u32| {
                answer = f(stream);
                if answer == NOT_READY { 0 } else { answer }
            })?;
        }
        Ok(answer == 0)
    }
}
