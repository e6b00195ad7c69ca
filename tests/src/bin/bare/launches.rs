//! How long a call takes that launches. The program looks the function up once, as the CUDA runtime does.

use std::{
    ffi::{c_char, c_uint, c_void},
    process::ExitCode,
    ptr,
    time::Instant,
};

use crate::{
    checks::begin,
    door::{Driver, cuda},
};

/// Less than a stream queues: no launch of a batch waits for the device.
const BATCH: u32 = 500;
const EMPTY: &str = ".version 6.3\n.target sm_70\n.address_size 64\n.visible .entry empty() { ret; }\n\0";

type Launch = unsafe extern "C" fn(
    usize,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    usize,
    *mut c_void,
    *mut c_void,
) -> u32;

/// Writes the medians in nanoseconds, as JSON: of an empty kernel, and of a launch that the driver refuses at once.
pub(crate) fn run(batches: &str) -> ExitCode {
    let Some(batches) = batches.parse().ok().filter(|batches| *batches > 0) else { return ExitCode::from(2) };
    let driver = Driver::open("dlsym");
    begin(&driver);
    let launch = driver_launch(&driver);
    let kernel = empty_kernel(&driver);
    let of_kernel = kernel.map(|kernel| median(&driver, batches, || call(launch, kernel)));
    let refused = median(&driver, batches, || call(launch, 0));
    let of_kernel = of_kernel.map_or_else(|| "null".to_owned(), |ns| ns.to_string());
    println!("{{\"launch\": {of_kernel}, \"refused\": {refused}}}");
    ExitCode::SUCCESS
}

/// A kernel that does nothing, if the driver loads kernels.
fn empty_kernel(driver: &Driver) -> Option<usize> {
    driver.by_name("cuModuleLoadData")?;
    let (plain, mut module, mut kernel) = (driver.by_plain_name(), 0_usize, 0_usize);
    let text = EMPTY.as_ptr().cast();
    let loaded = cuda!(plain, cuModuleLoadData(&raw mut module => *mut usize, text => *const c_char));
    assert_eq!(loaded, 0, "the kernel loads");
    let found = cuda!(plain, cuModuleGetFunction(
        &raw mut kernel => *mut usize, module => usize, c"empty".as_ptr() => *const c_char));
    assert_eq!(found, 0, "the kernel is found");
    assert_eq!(call(driver_launch(driver), kernel), 0, "the kernel runs");
    Some(kernel)
}

fn driver_launch(driver: &Driver) -> Launch {
    let found = driver.find("cuLaunchKernel").expect("every driver has it");
    // SAFETY: needed to call it. The type is that of the function in `cuda.h`.
    unsafe { std::mem::transmute::<*mut c_void, Launch>(found) }
}

fn call(launch: Launch, kernel: usize) -> u32 {
    // SAFETY: needed to launch. The kernel has no arguments, and for no kernel the driver returns an error.
    unsafe { launch(kernel, 1, 1, 1, 1, 1, 1, 0, 0, ptr::null_mut(), ptr::null_mut()) }
}

/// The median of all batches, for each call.
fn median(driver: &Driver, batches: usize, call: impl Fn() -> u32) -> f64 {
    let mut times: Vec<f64> = (0..batches)
        .map(|_| {
            let begun = Instant::now();
            for _ in 0..BATCH {
                std::hint::black_box(call());
            }
            let time = begun.elapsed().as_secs_f64() * 1e9 / f64::from(BATCH);
            // The next batch finds an empty queue. The fake driver has nothing to wait for.
            if driver.by_name("cuCtxSynchronize").is_some() {
                cuda!(driver.by_plain_name(), cuCtxSynchronize());
            }
            time
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
