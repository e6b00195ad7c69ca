//! Functions that have the device touch memory, and that this project's drivers do not call: launches, copies, sets.
//!
//! They do nothing but say how they were called, on a thread that has asked for that ([`fakeEcho`]). On other threads they
//! are not supported, but for [`cuLaunchKernel`], which knows one kernel.
#![allow(unsafe_code, reason = "symbols are exported under their own names")]
#![allow(non_snake_case, reason = "the names are CUDA's")]
#![allow(clippy::too_many_arguments, reason = "the arguments are CUDA's")]
#![allow(clippy::many_single_char_names, reason = "the arguments have no meaning here")]

use std::{
    cell::{Cell, RefCell},
    ffi::{CString, c_char, c_int, c_uint, c_ulonglong, c_void},
    fmt::Display,
    ptr,
};

use crate::{
    cuda::current,
    memory::{INVALID_VALUE, World, get, pointer, world},
    transfers,
};

const NOT_SUPPORTED: u32 = 801;
const ILLEGAL_ADDRESS: u32 = 700;

thread_local! {
    static ECHOES: Cell<bool> = const { Cell::new(false) };
    static LAST: RefCell<CString> = RefCell::default();
}

/// From now on the functions of this kind only note how this thread calls them, and succeed. 0 ends that.
#[unsafe(no_mangle)]
extern "C" fn fakeEcho(on: c_uint) {
    ECHOES.set(on != 0);
}

/// The name and the arguments of the last noted call of this thread. Valid until the next one.
#[unsafe(no_mangle)]
extern "C" fn fakeEchoed() -> *const c_char {
    LAST.with_borrow(|last| last.as_ptr())
}

/// Notes the call, if this thread wants that.
pub(crate) fn is_echoed(name: &str, arguments: &[&dyn Display]) -> bool {
    if ECHOES.get() {
        let arguments: String = arguments.iter().map(|argument| format!(" {argument}")).collect();
        LAST.set(CString::new(format!("{name}{arguments}")).unwrap_or_default());
    }
    ECHOES.get()
}

/// Adds 1 to each byte of a range, of which the arguments are the address and the length. A captured launch does nothing.
#[unsafe(no_mangle)]
extern "C" fn cuLaunchKernel(
    function: u64,
    gx: c_uint,
    gy: c_uint,
    gz: c_uint,
    bx: c_uint,
    by: c_uint,
    bz: c_uint,
    shared: c_uint,
    stream: u64,
    arguments: *const *const u64,
    more: usize,
) -> u32 {
    let list = arguments as usize;
    if is_echoed("cuLaunchKernel", &[&function, &gx, &gy, &gz, &bx, &by, &bz, &shared, &stream, &list, &more])
    {
        return 0;
    }
    let world = world();
    if usize::try_from(stream).is_ok_and(|stream| world.capturing.contains(&stream)) {
        return 0;
    }
    if arguments.is_null() {
        return 0;
    }
    let argument = |at: usize| get(get(arguments.wrapping_add(at))?);
    let (Some(at), Some(length)) = (argument(0), argument(1)) else { return 0 };
    add(&world, at, length)
}

fn add(world: &World, at: u64, length: u64) -> u32 {
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    if current().is_none() || !world.reaches(at, length, true) {
        return ILLEGAL_ADDRESS;
    }
    // SAFETY: The range was checked by `reaches`, and the lock keeps it mapped.
    let bytes = unsafe { std::slice::from_raw_parts_mut(pointer(at).cast::<u8>(), length) };
    bytes.iter_mut().for_each(|byte| *byte = byte.wrapping_add(1));
    0
}

/// A later version, which has another argument.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuLaunchKernel_v2(
    function: u64,
    gx: c_uint,
    gy: c_uint,
    gz: c_uint,
    bx: c_uint,
    by: c_uint,
    bz: c_uint,
    shared: c_uint,
    stream: u64,
    arguments: *const *const u64,
    more: usize,
    seven: c_uint,
) -> u32 {
    match seven {
        7 => cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared, stream, arguments, more),
        _ => INVALID_VALUE,
    }
}

/// A launch that no library knows, of the same kernel. Its other arguments have to come as numbers from 1 on: so many that
/// they need all registers and the stack.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuLaunchOfTheFuture(
    at: u64,
    length: u64,
    a: f64,
    b: u64,
    c: f64,
    d: u64,
    e: f64,
    f: u64,
    g: f64,
    h: u64,
    i: f64,
    j: u64,
    k: f64,
    l: u64,
    m: f64,
    n: u64,
    o: f64,
) -> u32 {
    let (floats, words) = ([a, c, e, g, i, k, m, o], [b, d, f, h, j, l, n]);
    let are_right =
        floats == [1.0, 3.0, 5.0, 7.0, 9.0, 11.0, 13.0, 15.0] && words == [2, 4, 6, 8, 10, 12, 14];
    if are_right { add(&world(), at, length) } else { INVALID_VALUE }
}

macro_rules! echoed {
    ($($name:ident ($($arg:ident: $kind:ty),*);)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name($($arg: $kind),*) -> u32 {
            if is_echoed(stringify!($name), &[$(&$arg),*]) { 0 } else { NOT_SUPPORTED }
        }
    )*};
}

echoed! {
    cuLaunch (a: u64);
    cuLaunchGrid (a: u64, b: c_int, c: c_int);
    cuLaunchGridAsync (a: u64, b: c_int, c: c_int, d: u64);
    cuLaunchKernel_ptsz (a: u64, b: c_uint, c: c_uint, d: c_uint, e: c_uint,
        f: c_uint, g: c_uint, h: c_uint, i: u64, j: usize, k: usize);
    cuLaunchKernelEx (a: usize, b: u64, c: usize, d: usize);
    cuLaunchKernelEx_ptsz (a: usize, b: u64, c: usize, d: usize);
    cuLaunchCooperativeKernel (a: u64, b: c_uint, c: c_uint, d: c_uint, e: c_uint,
        f: c_uint, g: c_uint, h: c_uint, i: u64, j: usize);
    cuLaunchCooperativeKernel_ptsz (a: u64, b: c_uint, c: c_uint, d: c_uint, e: c_uint,
        f: c_uint, g: c_uint, h: c_uint, i: u64, j: usize);
    cuLaunchCooperativeKernelMultiDevice (a: usize, b: c_uint, c: c_uint);
    cuGraphLaunch (a: u64, b: u64);
    cuGraphLaunch_ptsz (a: u64, b: u64);
    cuMemcpy (a: u64, b: u64, c: usize);
    cuMemcpy_ptds (a: u64, b: u64, c: usize);
    cuMemcpyPeer (a: u64, b: u64, c: u64, d: u64, e: usize);
    cuMemcpyPeer_ptds (a: u64, b: u64, c: u64, d: u64, e: usize);
    cuMemcpyHtoD_v2_ptds (a: u64, b: usize, c: usize);
    cuMemcpyDtoH_v2_ptds (a: usize, b: u64, c: usize);
    cuMemcpyDtoD_v2 (a: u64, b: u64, c: usize);
    cuMemcpyDtoD_v2_ptds (a: u64, b: u64, c: usize);
    cuMemcpyDtoA_v2 (a: u64, b: usize, c: u64, d: usize);
    cuMemcpyDtoA_v2_ptds (a: u64, b: usize, c: u64, d: usize);
    cuMemcpyAtoD_v2 (a: u64, b: u64, c: usize, d: usize);
    cuMemcpyAtoD_v2_ptds (a: u64, b: u64, c: usize, d: usize);
    cuMemcpyHtoA_v2 (a: u64, b: usize, c: usize, d: usize);
    cuMemcpyHtoA_v2_ptds (a: u64, b: usize, c: usize, d: usize);
    cuMemcpyAtoH_v2 (a: usize, b: u64, c: usize, d: usize);
    cuMemcpyAtoH_v2_ptds (a: usize, b: u64, c: usize, d: usize);
    cuMemcpyAtoA_v2 (a: u64, b: usize, c: u64, d: usize, e: usize);
    cuMemcpyAtoA_v2_ptds (a: u64, b: usize, c: u64, d: usize, e: usize);
    cuMemcpy2D_v2 (a: usize);
    cuMemcpy2D_v2_ptds (a: usize);
    cuMemcpy2DUnaligned_v2 (a: usize);
    cuMemcpy2DUnaligned_v2_ptds (a: usize);
    cuMemcpy3D_v2 (a: usize);
    cuMemcpy3D_v2_ptds (a: usize);
    cuMemcpy3DPeer (a: usize);
    cuMemcpy3DPeer_ptds (a: usize);
    cuMemcpyAsync (a: u64, b: u64, c: usize, d: u64);
    cuMemcpyAsync_ptsz (a: u64, b: u64, c: usize, d: u64);
    cuMemcpyPeerAsync_ptsz (a: u64, b: u64, c: u64, d: u64, e: usize, f: u64);
    cuMemcpyHtoDAsync_v2_ptsz (a: u64, b: usize, c: usize, d: u64);
    cuMemcpyDtoHAsync_v2_ptsz (a: usize, b: u64, c: usize, d: u64);
    cuMemcpyDtoDAsync_v2_ptsz (a: u64, b: u64, c: usize, d: u64);
    cuMemcpyHtoAAsync_v2 (a: u64, b: usize, c: usize, d: usize, e: u64);
    cuMemcpyHtoAAsync_v2_ptsz (a: u64, b: usize, c: usize, d: usize, e: u64);
    cuMemcpyAtoHAsync_v2 (a: usize, b: u64, c: usize, d: usize, e: u64);
    cuMemcpyAtoHAsync_v2_ptsz (a: usize, b: u64, c: usize, d: usize, e: u64);
    cuMemcpy2DAsync_v2 (a: usize, b: u64);
    cuMemcpy2DAsync_v2_ptsz (a: usize, b: u64);
    cuMemcpy3DAsync_v2 (a: usize, b: u64);
    cuMemcpy3DAsync_v2_ptsz (a: usize, b: u64);
    cuMemcpy3DPeerAsync (a: usize, b: u64);
    cuMemcpy3DPeerAsync_ptsz (a: usize, b: u64);
    cuMemcpyBatchAsync (a: usize, b: usize, c: usize, d: usize, e: usize, f: usize, g: usize, h: usize, i: u64);
    cuMemcpyBatchAsync_ptsz (a: usize, b: usize, c: usize, d: usize, e: usize, f: usize, g: usize, h: usize, i: u64);
    cuMemcpyBatchAsync_v2 (a: usize, b: usize, c: usize, d: usize, e: usize, f: usize, g: usize, h: u64);
    cuMemcpyBatchAsync_v2_ptsz (a: usize, b: usize, c: usize, d: usize, e: usize, f: usize, g: usize, h: u64);
    cuMemBatchDecompressAsync (a: usize, b: usize, c: c_uint, d: usize, e: u64);
    cuMemBatchDecompressAsync_ptsz (a: usize, b: usize, c: c_uint, d: usize, e: u64);
    cuMemcpy3DBatchAsync (a: usize, b: usize, c: usize, d: c_ulonglong, e: u64);
    cuMemcpy3DBatchAsync_ptsz (a: usize, b: usize, c: usize, d: c_ulonglong, e: u64);
    cuMemcpy3DBatchAsync_v2 (a: usize, b: usize, c: c_ulonglong, d: u64);
    cuMemcpy3DBatchAsync_v2_ptsz (a: usize, b: usize, c: c_ulonglong, d: u64);
    cuMemsetD8_v2 (a: u64, b: u8, c: usize);
    cuMemsetD8_v2_ptds (a: u64, b: u8, c: usize);
    cuMemsetD16_v2 (a: u64, b: u16, c: usize);
    cuMemsetD16_v2_ptds (a: u64, b: u16, c: usize);
    cuMemsetD32_v2 (a: u64, b: c_uint, c: usize);
    cuMemsetD32_v2_ptds (a: u64, b: c_uint, c: usize);
    cuMemsetD2D8_v2 (a: u64, b: usize, c: u8, d: usize, e: usize);
    cuMemsetD2D8_v2_ptds (a: u64, b: usize, c: u8, d: usize, e: usize);
    cuMemsetD2D16_v2 (a: u64, b: usize, c: u16, d: usize, e: usize);
    cuMemsetD2D16_v2_ptds (a: u64, b: usize, c: u16, d: usize, e: usize);
    cuMemsetD2D32_v2 (a: u64, b: usize, c: c_uint, d: usize, e: usize);
    cuMemsetD2D32_v2_ptds (a: u64, b: usize, c: c_uint, d: usize, e: usize);
    cuMemsetD8Async_ptsz (a: u64, b: u8, c: usize, d: u64);
    cuMemsetD16Async (a: u64, b: u16, c: usize, d: u64);
    cuMemsetD16Async_ptsz (a: u64, b: u16, c: usize, d: u64);
    cuMemsetD32Async (a: u64, b: c_uint, c: usize, d: u64);
    cuMemsetD32Async_ptsz (a: u64, b: c_uint, c: usize, d: u64);
    cuMemsetD2D8Async (a: u64, b: usize, c: u8, d: usize, e: usize, f: u64);
    cuMemsetD2D8Async_ptsz (a: u64, b: usize, c: u8, d: usize, e: usize, f: u64);
    cuMemsetD2D16Async (a: u64, b: usize, c: u16, d: usize, e: usize, f: u64);
    cuMemsetD2D16Async_ptsz (a: u64, b: usize, c: u16, d: usize, e: usize, f: u64);
    cuMemsetD2D32Async (a: u64, b: usize, c: c_uint, d: usize, e: usize, f: u64);
    cuMemsetD2D32Async_ptsz (a: u64, b: usize, c: c_uint, d: usize, e: usize, f: u64);
    cuStreamWaitValue32 (a: u64, b: u64, c: u32, d: c_uint);
    cuStreamWaitValue32_ptsz (a: u64, b: u64, c: u32, d: c_uint);
    cuStreamWaitValue32_v2 (a: u64, b: u64, c: u32, d: c_uint);
    cuStreamWaitValue32_v2_ptsz (a: u64, b: u64, c: u32, d: c_uint);
    cuStreamWaitValue64 (a: u64, b: u64, c: u64, d: c_uint);
    cuStreamWaitValue64_ptsz (a: u64, b: u64, c: u64, d: c_uint);
    cuStreamWaitValue64_v2 (a: u64, b: u64, c: u64, d: c_uint);
    cuStreamWaitValue64_v2_ptsz (a: u64, b: u64, c: u64, d: c_uint);
    cuStreamWriteValue32 (a: u64, b: u64, c: u32, d: c_uint);
    cuStreamWriteValue32_ptsz (a: u64, b: u64, c: u32, d: c_uint);
    cuStreamWriteValue32_v2 (a: u64, b: u64, c: u32, d: c_uint);
    cuStreamWriteValue32_v2_ptsz (a: u64, b: u64, c: u32, d: c_uint);
    cuStreamWriteValue64 (a: u64, b: u64, c: u64, d: c_uint);
    cuStreamWriteValue64_ptsz (a: u64, b: u64, c: u64, d: c_uint);
    cuStreamWriteValue64_v2 (a: u64, b: u64, c: u64, d: c_uint);
    cuStreamWriteValue64_v2_ptsz (a: u64, b: u64, c: u64, d: c_uint);
    cuStreamBatchMemOp (a: u64, b: c_uint, c: usize, d: c_uint);
    cuStreamBatchMemOp_ptsz (a: u64, b: c_uint, c: usize, d: c_uint);
    cuStreamBatchMemOp_v2 (a: u64, b: c_uint, c: usize, d: c_uint);
    cuStreamBatchMemOp_v2_ptsz (a: u64, b: c_uint, c: usize, d: c_uint);
}

macro_rules! doors {
    ($($base:literal, $since:literal => $function:path $(, $own:path)?;)*) => {
        /// The newest function of that name that the version has, for that kind of default stream.
        pub(crate) fn find(base: &[u8], version: c_int, per_thread: bool) -> *mut c_void {
            let mut found = ptr::null_mut();
            $(if base == $base && $since <= version {
                found = $function as *mut c_void;
                $(if per_thread { found = $own as *mut c_void; })?
            })*
            let _ = per_thread;
            found
        }
    };
}

// Of a name, later versions come last.
doors! {
    b"cuLaunch", 2000 => cuLaunch;
    b"cuLaunchGrid", 2000 => cuLaunchGrid;
    b"cuLaunchGridAsync", 2000 => cuLaunchGridAsync;
    b"cuLaunchKernel", 4000 => cuLaunchKernel, cuLaunchKernel_ptsz;
    b"cuLaunchKernelEx", 11060 => cuLaunchKernelEx, cuLaunchKernelEx_ptsz;
    b"cuLaunchCooperativeKernel", 9000 => cuLaunchCooperativeKernel, cuLaunchCooperativeKernel_ptsz;
    b"cuLaunchCooperativeKernelMultiDevice", 9000 => cuLaunchCooperativeKernelMultiDevice;
    b"cuGraphLaunch", 10000 => cuGraphLaunch, cuGraphLaunch_ptsz;
    b"cuMemcpy", 4000 => cuMemcpy, cuMemcpy_ptds;
    b"cuMemcpyPeer", 4000 => cuMemcpyPeer, cuMemcpyPeer_ptds;
    b"cuMemcpyHtoD", 3020 => transfers::cuMemcpyHtoD_v2, cuMemcpyHtoD_v2_ptds;
    b"cuMemcpyDtoH", 3020 => transfers::cuMemcpyDtoH_v2, cuMemcpyDtoH_v2_ptds;
    b"cuMemcpyDtoD", 3020 => cuMemcpyDtoD_v2, cuMemcpyDtoD_v2_ptds;
    b"cuMemcpyDtoA", 3020 => cuMemcpyDtoA_v2, cuMemcpyDtoA_v2_ptds;
    b"cuMemcpyAtoD", 3020 => cuMemcpyAtoD_v2, cuMemcpyAtoD_v2_ptds;
    b"cuMemcpyHtoA", 3020 => cuMemcpyHtoA_v2, cuMemcpyHtoA_v2_ptds;
    b"cuMemcpyAtoH", 3020 => cuMemcpyAtoH_v2, cuMemcpyAtoH_v2_ptds;
    b"cuMemcpyAtoA", 3020 => cuMemcpyAtoA_v2, cuMemcpyAtoA_v2_ptds;
    b"cuMemcpy2D", 3020 => cuMemcpy2D_v2, cuMemcpy2D_v2_ptds;
    b"cuMemcpy2DUnaligned", 3020 => cuMemcpy2DUnaligned_v2, cuMemcpy2DUnaligned_v2_ptds;
    b"cuMemcpy3D", 3020 => cuMemcpy3D_v2, cuMemcpy3D_v2_ptds;
    b"cuMemcpy3DPeer", 4000 => cuMemcpy3DPeer, cuMemcpy3DPeer_ptds;
    b"cuMemcpyAsync", 4000 => cuMemcpyAsync, cuMemcpyAsync_ptsz;
    b"cuMemcpyPeerAsync", 4000 => transfers::cuMemcpyPeerAsync, cuMemcpyPeerAsync_ptsz;
    b"cuMemcpyHtoDAsync", 3020 => transfers::cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync_v2_ptsz;
    b"cuMemcpyDtoHAsync", 3020 => transfers::cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync_v2_ptsz;
    b"cuMemcpyDtoDAsync", 3020 => transfers::cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync_v2_ptsz;
    b"cuMemcpyHtoAAsync", 3020 => cuMemcpyHtoAAsync_v2, cuMemcpyHtoAAsync_v2_ptsz;
    b"cuMemcpyAtoHAsync", 3020 => cuMemcpyAtoHAsync_v2, cuMemcpyAtoHAsync_v2_ptsz;
    b"cuMemcpy2DAsync", 3020 => cuMemcpy2DAsync_v2, cuMemcpy2DAsync_v2_ptsz;
    b"cuMemcpy3DAsync", 3020 => cuMemcpy3DAsync_v2, cuMemcpy3DAsync_v2_ptsz;
    b"cuMemcpy3DPeerAsync", 4000 => cuMemcpy3DPeerAsync, cuMemcpy3DPeerAsync_ptsz;
    b"cuMemcpyBatchAsync", 12080 => cuMemcpyBatchAsync, cuMemcpyBatchAsync_ptsz;
    b"cuMemcpyBatchAsync", 13000 => cuMemcpyBatchAsync_v2, cuMemcpyBatchAsync_v2_ptsz;
    b"cuMemBatchDecompressAsync", 12060 => cuMemBatchDecompressAsync, cuMemBatchDecompressAsync_ptsz;
    b"cuMemcpy3DBatchAsync", 12080 => cuMemcpy3DBatchAsync, cuMemcpy3DBatchAsync_ptsz;
    b"cuMemcpy3DBatchAsync", 13000 => cuMemcpy3DBatchAsync_v2, cuMemcpy3DBatchAsync_v2_ptsz;
    b"cuMemsetD8", 3020 => cuMemsetD8_v2, cuMemsetD8_v2_ptds;
    b"cuMemsetD16", 3020 => cuMemsetD16_v2, cuMemsetD16_v2_ptds;
    b"cuMemsetD32", 3020 => cuMemsetD32_v2, cuMemsetD32_v2_ptds;
    b"cuMemsetD2D8", 3020 => cuMemsetD2D8_v2, cuMemsetD2D8_v2_ptds;
    b"cuMemsetD2D16", 3020 => cuMemsetD2D16_v2, cuMemsetD2D16_v2_ptds;
    b"cuMemsetD2D32", 3020 => cuMemsetD2D32_v2, cuMemsetD2D32_v2_ptds;
    b"cuMemsetD8Async", 3020 => transfers::cuMemsetD8Async, cuMemsetD8Async_ptsz;
    b"cuMemsetD16Async", 3020 => cuMemsetD16Async, cuMemsetD16Async_ptsz;
    b"cuMemsetD32Async", 3020 => cuMemsetD32Async, cuMemsetD32Async_ptsz;
    b"cuMemsetD2D8Async", 3020 => cuMemsetD2D8Async, cuMemsetD2D8Async_ptsz;
    b"cuMemsetD2D16Async", 3020 => cuMemsetD2D16Async, cuMemsetD2D16Async_ptsz;
    b"cuMemsetD2D32Async", 3020 => cuMemsetD2D32Async, cuMemsetD2D32Async_ptsz;
    b"cuStreamWaitValue32", 8000 => cuStreamWaitValue32, cuStreamWaitValue32_ptsz;
    b"cuStreamWaitValue32", 11070 => cuStreamWaitValue32_v2, cuStreamWaitValue32_v2_ptsz;
    b"cuStreamWaitValue64", 9000 => cuStreamWaitValue64, cuStreamWaitValue64_ptsz;
    b"cuStreamWaitValue64", 11070 => cuStreamWaitValue64_v2, cuStreamWaitValue64_v2_ptsz;
    b"cuStreamWriteValue32", 8000 => cuStreamWriteValue32, cuStreamWriteValue32_ptsz;
    b"cuStreamWriteValue32", 11070 => cuStreamWriteValue32_v2, cuStreamWriteValue32_v2_ptsz;
    b"cuStreamWriteValue64", 9000 => cuStreamWriteValue64, cuStreamWriteValue64_ptsz;
    b"cuStreamWriteValue64", 11070 => cuStreamWriteValue64_v2, cuStreamWriteValue64_v2_ptsz;
    b"cuStreamBatchMemOp", 8000 => cuStreamBatchMemOp, cuStreamBatchMemOp_ptsz;
    b"cuStreamBatchMemOp", 11070 => cuStreamBatchMemOp_v2, cuStreamBatchMemOp_v2_ptsz;
}
