//! A check of each function that has the device touch memory: that its calls come to the gate, and with their arguments
//! to the driver.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};

use crate::{
    checks::begin,
    door::{Driver, cuda},
};

type Check = fn(&Driver) -> Result<u64, String>;

/// The arguments of a call: all different, in order, and small enough for each type.
struct Numbers(u8);

impl Numbers {
    fn next(&mut self) -> u8 {
        self.0 += 1;
        self.0
    }
}

macro_rules! rows {
    ($($name:ident ($($kind:ty),*);)*) => {
        &[$((stringify!($name), |driver| {
            let mut numbers = Numbers(0);
            let before = gated_calls();
            let code = cuda!(driver, $name($(<$kind>::from(numbers.next()) => $kind),*));
            let gated = gated_calls() - before;
            came_as(driver, stringify!($name), &numbers, code).map(|()| gated)
        })),*]
    };
}

const ROWS: &[(&str, Check)] = rows! {
    cuLaunch (u64);
    cuLaunchGrid (u64, c_int, c_int);
    cuLaunchGridAsync (u64, c_int, c_int, u64);
    cuLaunchKernel (u64, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, u64, usize, usize);
    cuLaunchKernel_ptsz (u64, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, u64, usize, usize);
    cuLaunchKernelEx (usize, u64, usize, usize);
    cuLaunchKernelEx_ptsz (usize, u64, usize, usize);
    cuLaunchCooperativeKernel (u64, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, u64, usize);
    cuLaunchCooperativeKernel_ptsz (u64, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, u64, usize);
    cuLaunchCooperativeKernelMultiDevice (usize, c_uint, c_uint);
    cuGraphLaunch (u64, u64);
    cuGraphLaunch_ptsz (u64, u64);
    cuMemcpy (u64, u64, usize);
    cuMemcpy_ptds (u64, u64, usize);
    cuMemcpyPeer (u64, u64, u64, u64, usize);
    cuMemcpyPeer_ptds (u64, u64, u64, u64, usize);
    cuMemcpyHtoD_v2 (u64, usize, usize);
    cuMemcpyHtoD_v2_ptds (u64, usize, usize);
    cuMemcpyDtoH_v2 (usize, u64, usize);
    cuMemcpyDtoH_v2_ptds (usize, u64, usize);
    cuMemcpyDtoD_v2 (u64, u64, usize);
    cuMemcpyDtoD_v2_ptds (u64, u64, usize);
    cuMemcpyDtoA_v2 (u64, usize, u64, usize);
    cuMemcpyDtoA_v2_ptds (u64, usize, u64, usize);
    cuMemcpyAtoD_v2 (u64, u64, usize, usize);
    cuMemcpyAtoD_v2_ptds (u64, u64, usize, usize);
    cuMemcpyHtoA_v2 (u64, usize, usize, usize);
    cuMemcpyHtoA_v2_ptds (u64, usize, usize, usize);
    cuMemcpyAtoH_v2 (usize, u64, usize, usize);
    cuMemcpyAtoH_v2_ptds (usize, u64, usize, usize);
    cuMemcpyAtoA_v2 (u64, usize, u64, usize, usize);
    cuMemcpyAtoA_v2_ptds (u64, usize, u64, usize, usize);
    cuMemcpy2D_v2 (usize);
    cuMemcpy2D_v2_ptds (usize);
    cuMemcpy2DUnaligned_v2 (usize);
    cuMemcpy2DUnaligned_v2_ptds (usize);
    cuMemcpy3D_v2 (usize);
    cuMemcpy3D_v2_ptds (usize);
    cuMemcpy3DPeer (usize);
    cuMemcpy3DPeer_ptds (usize);
    cuMemcpyAsync (u64, u64, usize, u64);
    cuMemcpyAsync_ptsz (u64, u64, usize, u64);
    cuMemcpyPeerAsync (u64, u64, u64, u64, usize, u64);
    cuMemcpyPeerAsync_ptsz (u64, u64, u64, u64, usize, u64);
    cuMemcpyHtoDAsync_v2 (u64, usize, usize, u64);
    cuMemcpyHtoDAsync_v2_ptsz (u64, usize, usize, u64);
    cuMemcpyDtoHAsync_v2 (usize, u64, usize, u64);
    cuMemcpyDtoHAsync_v2_ptsz (usize, u64, usize, u64);
    cuMemcpyDtoDAsync_v2 (u64, u64, usize, u64);
    cuMemcpyDtoDAsync_v2_ptsz (u64, u64, usize, u64);
    cuMemcpyHtoAAsync_v2 (u64, usize, usize, usize, u64);
    cuMemcpyHtoAAsync_v2_ptsz (u64, usize, usize, usize, u64);
    cuMemcpyAtoHAsync_v2 (usize, u64, usize, usize, u64);
    cuMemcpyAtoHAsync_v2_ptsz (usize, u64, usize, usize, u64);
    cuMemcpy2DAsync_v2 (usize, u64);
    cuMemcpy2DAsync_v2_ptsz (usize, u64);
    cuMemcpy3DAsync_v2 (usize, u64);
    cuMemcpy3DAsync_v2_ptsz (usize, u64);
    cuMemcpy3DPeerAsync (usize, u64);
    cuMemcpy3DPeerAsync_ptsz (usize, u64);
    cuMemcpyBatchAsync (usize, usize, usize, usize, usize, usize, usize, usize, u64);
    cuMemcpyBatchAsync_ptsz (usize, usize, usize, usize, usize, usize, usize, usize, u64);
    cuMemcpyBatchAsync_v2 (usize, usize, usize, usize, usize, usize, usize, u64);
    cuMemcpyBatchAsync_v2_ptsz (usize, usize, usize, usize, usize, usize, usize, u64);
    cuMemBatchDecompressAsync (usize, usize, c_uint, usize, u64);
    cuMemBatchDecompressAsync_ptsz (usize, usize, c_uint, usize, u64);
    cuMemcpy3DBatchAsync (usize, usize, usize, c_ulonglong, u64);
    cuMemcpy3DBatchAsync_ptsz (usize, usize, usize, c_ulonglong, u64);
    cuMemcpy3DBatchAsync_v2 (usize, usize, c_ulonglong, u64);
    cuMemcpy3DBatchAsync_v2_ptsz (usize, usize, c_ulonglong, u64);
    cuMemsetD8_v2 (u64, u8, usize);
    cuMemsetD8_v2_ptds (u64, u8, usize);
    cuMemsetD16_v2 (u64, u16, usize);
    cuMemsetD16_v2_ptds (u64, u16, usize);
    cuMemsetD32_v2 (u64, c_uint, usize);
    cuMemsetD32_v2_ptds (u64, c_uint, usize);
    cuMemsetD2D8_v2 (u64, usize, u8, usize, usize);
    cuMemsetD2D8_v2_ptds (u64, usize, u8, usize, usize);
    cuMemsetD2D16_v2 (u64, usize, u16, usize, usize);
    cuMemsetD2D16_v2_ptds (u64, usize, u16, usize, usize);
    cuMemsetD2D32_v2 (u64, usize, c_uint, usize, usize);
    cuMemsetD2D32_v2_ptds (u64, usize, c_uint, usize, usize);
    cuMemsetD8Async (u64, u8, usize, u64);
    cuMemsetD8Async_ptsz (u64, u8, usize, u64);
    cuMemsetD16Async (u64, u16, usize, u64);
    cuMemsetD16Async_ptsz (u64, u16, usize, u64);
    cuMemsetD32Async (u64, c_uint, usize, u64);
    cuMemsetD32Async_ptsz (u64, c_uint, usize, u64);
    cuMemsetD2D8Async (u64, usize, u8, usize, usize, u64);
    cuMemsetD2D8Async_ptsz (u64, usize, u8, usize, usize, u64);
    cuMemsetD2D16Async (u64, usize, u16, usize, usize, u64);
    cuMemsetD2D16Async_ptsz (u64, usize, u16, usize, usize, u64);
    cuMemsetD2D32Async (u64, usize, c_uint, usize, usize, u64);
    cuMemsetD2D32Async_ptsz (u64, usize, c_uint, usize, usize, u64);
    cuStreamWaitValue32 (u64, u64, u32, c_uint);
    cuStreamWaitValue32_ptsz (u64, u64, u32, c_uint);
    cuStreamWaitValue32_v2 (u64, u64, u32, c_uint);
    cuStreamWaitValue32_v2_ptsz (u64, u64, u32, c_uint);
    cuStreamWaitValue64 (u64, u64, u64, c_uint);
    cuStreamWaitValue64_ptsz (u64, u64, u64, c_uint);
    cuStreamWaitValue64_v2 (u64, u64, u64, c_uint);
    cuStreamWaitValue64_v2_ptsz (u64, u64, u64, c_uint);
    cuStreamWriteValue32 (u64, u64, u32, c_uint);
    cuStreamWriteValue32_ptsz (u64, u64, u32, c_uint);
    cuStreamWriteValue32_v2 (u64, u64, u32, c_uint);
    cuStreamWriteValue32_v2_ptsz (u64, u64, u32, c_uint);
    cuStreamWriteValue64 (u64, u64, u64, c_uint);
    cuStreamWriteValue64_ptsz (u64, u64, u64, c_uint);
    cuStreamWriteValue64_v2 (u64, u64, u64, c_uint);
    cuStreamWriteValue64_v2_ptsz (u64, u64, u64, c_uint);
    cuStreamBatchMemOp (u64, c_uint, usize, c_uint);
    cuStreamBatchMemOp_ptsz (u64, c_uint, usize, c_uint);
    cuStreamBatchMemOp_v2 (u64, c_uint, usize, c_uint);
    cuStreamBatchMemOp_v2_ptsz (u64, c_uint, usize, c_uint);
};

/// Writes for each function how often its call came to the gate, or what went wrong.
pub(crate) fn run(driver: &Driver) {
    begin(driver);
    cuda!(driver, fakeEcho(1 => c_uint));
    for (name, check) in ROWS {
        match check(driver) {
            Ok(gated) => println!("{name} {gated}"),
            Err(problem) => println!("{name} {problem}"),
        }
    }
}

/// How many calls have come to the library's gate.
fn gated_calls() -> u64 {
    unsafe extern "C" {
        fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    }
    // SAFETY: needed to find the function in whatever library has it. The name is terminated.
    let found = unsafe { dlsym(std::ptr::null_mut(), c"vramd_preload_gated_calls".as_ptr()) };
    assert!(!found.is_null(), "the library is loaded");
    // SAFETY: needed to call it. It takes nothing and returns a number.
    unsafe { std::mem::transmute::<*mut c_void, extern "C" fn() -> u64>(found)() }
}

/// Compares what the driver was called with.
fn came_as(driver: &Driver, name: &str, numbers: &Numbers, code: u32) -> Result<(), String> {
    let echoed = driver.by_name("fakeEchoed").expect("the fake driver has it");
    // SAFETY: needed to call it. It takes nothing, and returns a terminated text that lives until the next call.
    let came = unsafe {
        CStr::from_ptr(std::mem::transmute::<*mut c_void, extern "C" fn() -> *const c_char>(echoed)())
    };
    let arguments: String = (1..=numbers.0).map(|number| format!(" {number}")).collect();
    match (code, came.to_str()) {
        (0, Ok(came)) if came == format!("{name}{arguments}") => Ok(()),
        _ => Err(format!("code {code}, {came:?}")),
    }
}
