//! The rows of the table that have the device touch memory: launches, copies, sets, and operations on memory in the order
//! of a stream. With turns their calls pass the gate ([`crate::gate`]); without turns no door gives them out.
//!
//! A row has the function's name, its twin for streams of threads, the name and version for `cuGetProcAddress`, the
//! arguments, and the stream on which the work goes: 0 is the default one. Functions of the host (`cuLaunchHostFunc`) are
//! no rows, since they may call none of the driver's.

#![allow(unsafe_code, reason = "functions of a C library, called by their addresses")]
#![allow(non_snake_case, reason = "the names are CUDA's")]
#![allow(unreachable_pub, reason = "the exported functions are reached by their names")]
#![allow(clippy::too_many_arguments, reason = "the arguments are CUDA's")]

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};

use crate::{
    driver::{LEGACY_STREAM, OWN_STREAM},
    entries::written,
    gate,
    table::{Entry, NOT_FOUND},
};

type Bytes = *const c_void;
type To = *mut c_void;

/// The beginning of `CUlaunchConfig`: the sizes of the grid and of its blocks, the shared memory, then the stream.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct LaunchConfig {
    _sizes: [c_uint; 7],
    stream: u64,
}

fn stream_of(config: *const LaunchConfig) -> u64 {
    written(config).map_or(0, |config| config.stream)
}

macro_rules! function {
    ($name:ident ($($arg:ident: $type:ty),*) on $stream:expr, or $default:expr) => {
        /// # Safety
        /// As for the driver's function of that name.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> u32 {
            let real = ENTRIES[Row::$name as usize].real();
            if real.is_null() {
                return NOT_FOUND;
            }
            // SAFETY: needed to call the driver's function, which has this type. Its library stays loaded.
            let function: unsafe extern "C" fn($($type),*) -> u32 = unsafe { std::mem::transmute(real) };
            let stream = || if $stream == 0 { $default } else { $stream };
            // SAFETY: needed to call it. The arguments are the program's own.
            gate::pass(stream, || unsafe { function($($arg),*) })
        }
    };
}

macro_rules! gated {
    ($($name:ident $($twin:ident)? ($base:literal, $since:literal) $arguments:tt on $stream:expr;)*) => {
        #[expect(non_camel_case_types, reason = "the names are CUDA's")]
        #[derive(Clone, Copy)]
        enum Row { $($name, $($twin,)?)* }

        pub(crate) static ENTRIES: [Entry; [$(Row::$name, $(Row::$twin,)?)*].len()] = [$(
            Entry::gated(stringify!($name), ($base, $since), false, || $name as *mut c_void),
            $(Entry::gated(stringify!($twin), ($base, $since), true, || $twin as *mut c_void),)?
        )*];

        $(
            function! { $name $arguments on $stream, or LEGACY_STREAM }
            $(function! { $twin $arguments on $stream, or OWN_STREAM })?
        )*
    };
}

gated! {
    cuLaunch ("cuLaunch", 2000) (function: u64) on 0;
    cuLaunchGrid ("cuLaunchGrid", 2000) (function: u64, width: c_int, height: c_int) on 0;
    cuLaunchGridAsync ("cuLaunchGridAsync", 2000)
        (function: u64, width: c_int, height: c_int, stream: u64) on stream;
    cuLaunchKernel cuLaunchKernel_ptsz ("cuLaunchKernel", 4000)
        (function: u64, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint,
         stream: u64, arguments: To, more: To) on stream;
    cuLaunchKernelEx cuLaunchKernelEx_ptsz ("cuLaunchKernelEx", 11060)
        (config: *const LaunchConfig, function: u64, arguments: To, more: To) on stream_of(config);
    cuLaunchCooperativeKernel cuLaunchCooperativeKernel_ptsz ("cuLaunchCooperativeKernel", 9000)
        (function: u64, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint,
         stream: u64, arguments: To) on stream;
    cuLaunchCooperativeKernelMultiDevice ("cuLaunchCooperativeKernelMultiDevice", 9000)
        (launches: To, count: c_uint, flags: c_uint) on 0;
    cuGraphLaunch cuGraphLaunch_ptsz ("cuGraphLaunch", 10000) (graph: u64, stream: u64) on stream;

    cuMemcpy cuMemcpy_ptds ("cuMemcpy", 4000) (to: u64, from: u64, size: usize) on 0;
    cuMemcpyPeer cuMemcpyPeer_ptds ("cuMemcpyPeer", 4000)
        (to: u64, to_context: u64, from: u64, from_context: u64, size: usize) on 0;
    cuMemcpyHtoD_v2 cuMemcpyHtoD_v2_ptds ("cuMemcpyHtoD", 3020) (to: u64, from: Bytes, size: usize) on 0;
    cuMemcpyDtoH_v2 cuMemcpyDtoH_v2_ptds ("cuMemcpyDtoH", 3020) (to: To, from: u64, size: usize) on 0;
    cuMemcpyDtoD_v2 cuMemcpyDtoD_v2_ptds ("cuMemcpyDtoD", 3020) (to: u64, from: u64, size: usize) on 0;
    cuMemcpyDtoA_v2 cuMemcpyDtoA_v2_ptds ("cuMemcpyDtoA", 3020)
        (array: u64, offset: usize, from: u64, size: usize) on 0;
    cuMemcpyAtoD_v2 cuMemcpyAtoD_v2_ptds ("cuMemcpyAtoD", 3020)
        (to: u64, array: u64, offset: usize, size: usize) on 0;
    cuMemcpyHtoA_v2 cuMemcpyHtoA_v2_ptds ("cuMemcpyHtoA", 3020)
        (array: u64, offset: usize, from: Bytes, size: usize) on 0;
    cuMemcpyAtoH_v2 cuMemcpyAtoH_v2_ptds ("cuMemcpyAtoH", 3020)
        (to: To, array: u64, offset: usize, size: usize) on 0;
    cuMemcpyAtoA_v2 cuMemcpyAtoA_v2_ptds ("cuMemcpyAtoA", 3020)
        (to: u64, to_offset: usize, from: u64, from_offset: usize, size: usize) on 0;
    cuMemcpy2D_v2 cuMemcpy2D_v2_ptds ("cuMemcpy2D", 3020) (copy: Bytes) on 0;
    cuMemcpy2DUnaligned_v2 cuMemcpy2DUnaligned_v2_ptds ("cuMemcpy2DUnaligned", 3020) (copy: Bytes) on 0;
    cuMemcpy3D_v2 cuMemcpy3D_v2_ptds ("cuMemcpy3D", 3020) (copy: Bytes) on 0;
    cuMemcpy3DPeer cuMemcpy3DPeer_ptds ("cuMemcpy3DPeer", 4000) (copy: Bytes) on 0;

    cuMemcpyAsync cuMemcpyAsync_ptsz ("cuMemcpyAsync", 4000)
        (to: u64, from: u64, size: usize, stream: u64) on stream;
    cuMemcpyPeerAsync cuMemcpyPeerAsync_ptsz ("cuMemcpyPeerAsync", 4000)
        (to: u64, to_context: u64, from: u64, from_context: u64, size: usize, stream: u64) on stream;
    cuMemcpyHtoDAsync_v2 cuMemcpyHtoDAsync_v2_ptsz ("cuMemcpyHtoDAsync", 3020)
        (to: u64, from: Bytes, size: usize, stream: u64) on stream;
    cuMemcpyDtoHAsync_v2 cuMemcpyDtoHAsync_v2_ptsz ("cuMemcpyDtoHAsync", 3020)
        (to: To, from: u64, size: usize, stream: u64) on stream;
    cuMemcpyDtoDAsync_v2 cuMemcpyDtoDAsync_v2_ptsz ("cuMemcpyDtoDAsync", 3020)
        (to: u64, from: u64, size: usize, stream: u64) on stream;
    cuMemcpyHtoAAsync_v2 cuMemcpyHtoAAsync_v2_ptsz ("cuMemcpyHtoAAsync", 3020)
        (array: u64, offset: usize, from: Bytes, size: usize, stream: u64) on stream;
    cuMemcpyAtoHAsync_v2 cuMemcpyAtoHAsync_v2_ptsz ("cuMemcpyAtoHAsync", 3020)
        (to: To, array: u64, offset: usize, size: usize, stream: u64) on stream;
    cuMemcpy2DAsync_v2 cuMemcpy2DAsync_v2_ptsz ("cuMemcpy2DAsync", 3020)
        (copy: Bytes, stream: u64) on stream;
    cuMemcpy3DAsync_v2 cuMemcpy3DAsync_v2_ptsz ("cuMemcpy3DAsync", 3020)
        (copy: Bytes, stream: u64) on stream;
    cuMemcpy3DPeerAsync cuMemcpy3DPeerAsync_ptsz ("cuMemcpy3DPeerAsync", 4000)
        (copy: Bytes, stream: u64) on stream;
    cuMemcpyBatchAsync cuMemcpyBatchAsync_ptsz ("cuMemcpyBatchAsync", 12080)
        (to: Bytes, from: Bytes, sizes: Bytes, count: usize, attributes: Bytes, of: Bytes, attribute_count: usize,
         failed: To, stream: u64) on stream;
    cuMemcpyBatchAsync_v2 cuMemcpyBatchAsync_v2_ptsz ("cuMemcpyBatchAsync", 13000)
        (to: Bytes, from: Bytes, sizes: Bytes, count: usize, attributes: Bytes, of: Bytes, attribute_count: usize,
         stream: u64) on stream;
    cuMemBatchDecompressAsync cuMemBatchDecompressAsync_ptsz ("cuMemBatchDecompressAsync", 12060)
        (parts: Bytes, count: usize, flags: c_uint, failed: To, stream: u64) on stream;
    cuMemcpy3DBatchAsync cuMemcpy3DBatchAsync_ptsz ("cuMemcpy3DBatchAsync", 12080)
        (count: usize, copies: Bytes, failed: To, flags: c_ulonglong, stream: u64) on stream;
    cuMemcpy3DBatchAsync_v2 cuMemcpy3DBatchAsync_v2_ptsz ("cuMemcpy3DBatchAsync", 13000)
        (count: usize, copies: Bytes, flags: c_ulonglong, stream: u64) on stream;

    cuMemsetD8_v2 cuMemsetD8_v2_ptds ("cuMemsetD8", 3020) (to: u64, value: u8, count: usize) on 0;
    cuMemsetD16_v2 cuMemsetD16_v2_ptds ("cuMemsetD16", 3020) (to: u64, value: u16, count: usize) on 0;
    cuMemsetD32_v2 cuMemsetD32_v2_ptds ("cuMemsetD32", 3020) (to: u64, value: c_uint, count: usize) on 0;
    cuMemsetD2D8_v2 cuMemsetD2D8_v2_ptds ("cuMemsetD2D8", 3020)
        (to: u64, pitch: usize, value: u8, width: usize, height: usize) on 0;
    cuMemsetD2D16_v2 cuMemsetD2D16_v2_ptds ("cuMemsetD2D16", 3020)
        (to: u64, pitch: usize, value: u16, width: usize, height: usize) on 0;
    cuMemsetD2D32_v2 cuMemsetD2D32_v2_ptds ("cuMemsetD2D32", 3020)
        (to: u64, pitch: usize, value: c_uint, width: usize, height: usize) on 0;
    cuMemsetD8Async cuMemsetD8Async_ptsz ("cuMemsetD8Async", 3020)
        (to: u64, value: u8, count: usize, stream: u64) on stream;
    cuMemsetD16Async cuMemsetD16Async_ptsz ("cuMemsetD16Async", 3020)
        (to: u64, value: u16, count: usize, stream: u64) on stream;
    cuMemsetD32Async cuMemsetD32Async_ptsz ("cuMemsetD32Async", 3020)
        (to: u64, value: c_uint, count: usize, stream: u64) on stream;
    cuMemsetD2D8Async cuMemsetD2D8Async_ptsz ("cuMemsetD2D8Async", 3020)
        (to: u64, pitch: usize, value: u8, width: usize, height: usize, stream: u64) on stream;
    cuMemsetD2D16Async cuMemsetD2D16Async_ptsz ("cuMemsetD2D16Async", 3020)
        (to: u64, pitch: usize, value: u16, width: usize, height: usize, stream: u64) on stream;
    cuMemsetD2D32Async cuMemsetD2D32Async_ptsz ("cuMemsetD2D32Async", 3020)
        (to: u64, pitch: usize, value: c_uint, width: usize, height: usize, stream: u64) on stream;

    cuStreamWaitValue32 cuStreamWaitValue32_ptsz ("cuStreamWaitValue32", 8000)
        (stream: u64, at: u64, value: u32, flags: c_uint) on stream;
    cuStreamWaitValue32_v2 cuStreamWaitValue32_v2_ptsz ("cuStreamWaitValue32", 11070)
        (stream: u64, at: u64, value: u32, flags: c_uint) on stream;
    cuStreamWaitValue64 cuStreamWaitValue64_ptsz ("cuStreamWaitValue64", 9000)
        (stream: u64, at: u64, value: u64, flags: c_uint) on stream;
    cuStreamWaitValue64_v2 cuStreamWaitValue64_v2_ptsz ("cuStreamWaitValue64", 11070)
        (stream: u64, at: u64, value: u64, flags: c_uint) on stream;
    cuStreamWriteValue32 cuStreamWriteValue32_ptsz ("cuStreamWriteValue32", 8000)
        (stream: u64, at: u64, value: u32, flags: c_uint) on stream;
    cuStreamWriteValue32_v2 cuStreamWriteValue32_v2_ptsz ("cuStreamWriteValue32", 11070)
        (stream: u64, at: u64, value: u32, flags: c_uint) on stream;
    cuStreamWriteValue64 cuStreamWriteValue64_ptsz ("cuStreamWriteValue64", 9000)
        (stream: u64, at: u64, value: u64, flags: c_uint) on stream;
    cuStreamWriteValue64_v2 cuStreamWriteValue64_v2_ptsz ("cuStreamWriteValue64", 11070)
        (stream: u64, at: u64, value: u64, flags: c_uint) on stream;
    cuStreamBatchMemOp cuStreamBatchMemOp_ptsz ("cuStreamBatchMemOp", 8000)
        (stream: u64, count: c_uint, operations: To, flags: c_uint) on stream;
    cuStreamBatchMemOp_v2 cuStreamBatchMemOp_v2_ptsz ("cuStreamBatchMemOp", 11070)
        (stream: u64, count: c_uint, operations: To, flags: c_uint) on stream;
}
