//! Scenes of programs that free memory while work goes on, and that keep memory for later calls.

use std::{
    ffi::{c_int, c_uint},
    ptr, thread,
    time::{Duration, Instant},
};

use crate::{
    checks::{MIB, begin, end_block, expect, memory_info, new_stream, ordered_block},
    door::{Driver, cuda},
    pools::{end_pool, from_pool, new_pool},
    scenes::{block, wait_for_test},
};

fn end_ordered(driver: &Driver, address: u64) -> Result<(), String> {
    expect("cuMemFreeAsync", cuda!(driver, cuMemFreeAsync(address => u64, 0 => usize)), 0)
}

/// A free on one device, while another has work.
pub(crate) fn other_device(driver: &Driver) -> Result<(), String> {
    begin(driver);
    let (plain, mut second) = (driver.by_plain_name(), 0_usize);
    cuda!(plain, cuDevicePrimaryCtxRetain(&raw mut second => *mut usize, 1 => c_int));
    cuda!(plain, cuCtxPushCurrent_v2(second => usize));
    block(driver, 3 * MIB)?;
    cuda!(plain, cuCtxPopCurrent_v2(&raw mut second => *mut usize));
    let own = block(driver, 3 * MIB)?;
    end_block(driver, own)
}

/// While a stream that the default stream waits for is captured, the library cannot tell what work is done: memory that
/// is freed then stays until the next free.
pub(crate) fn implicit_capture(driver: &Driver) -> Result<(), String> {
    begin(driver);
    let (plain, captured) = (driver.by_plain_name(), new_stream(driver, 0)?);
    let (free, _) = memory_info(driver)?;
    let (first, second) = (block(driver, 4 * MIB)?, block(driver, 4 * MIB)?);
    let began = cuda!(plain, cuStreamBeginCapture_v2(captured => usize, 1 => c_uint));
    expect("cuStreamBeginCapture", began, 0)?;
    end_block(driver, first)?;
    expect("the freed memory is still there", memory_info(driver)?.0, free - 8 * MIB)?;
    let mut graph = 0_usize;
    let ended = cuda!(plain, cuStreamEndCapture(captured => usize, &raw mut graph => *mut usize));
    expect("cuStreamEndCapture", ended, 0)?;
    end_block(driver, second)?;
    expect("both are gone", memory_info(driver)?.0, free)
}

/// A free waits for the default stream, for a stream that it does not wait for, and for one that is gone.
pub(crate) fn streams(driver: &Driver) -> Result<(), String> {
    begin(driver);
    for flags in [0, 1] {
        new_stream(driver, flags)?;
    }
    let gone = new_stream(driver, 1)?;
    expect("destroy", cuda!(driver, cuStreamDestroy_v2(gone => usize)), 0)?;
    let address = block(driver, 3 * MIB)?;
    end_block(driver, address)
}

/// Memory that is kept of a pool that has ended, and of no pool, is given back like all else.
pub(crate) fn kept(driver: &Driver) -> Result<(), String> {
    begin(driver);
    let (free, _) = memory_info(driver)?;
    let (pool, plain) = (new_pool(driver, 0)?, block(driver, 4 * MIB)?);
    let address = from_pool(driver, pool, 4 * MIB)?;
    end_ordered(driver, address)?;
    end_ordered(driver, plain)?;
    end_pool(driver, pool)?;
    // The fake driver's events pass at the second look.
    for _ in 0..3 {
        thread::sleep(Duration::from_millis(1100));
        memory_info(driver)?;
    }
    expect("all is free", memory_info(driver)?.0, free)
}

/// Keeps three blocks of that size for later calls.
fn keep(driver: &Driver, size: usize) -> Result<(), String> {
    let blocks: Vec<_> = (0..3).map(|_| ordered_block(driver, size, 0)).collect::<Result<_, _>>()?;
    blocks.into_iter().try_for_each(|address| end_ordered(driver, address))
}

/// Memory that the driver serves gets the room that is kept for later calls.
pub(crate) fn kept_and_charged(driver: &Driver) -> Result<(), String> {
    begin(driver);
    keep(driver, 50 * MIB)?;
    let mut address = 0;
    let code = cuda!(driver, cuMemAllocManaged(
        ptr::from_mut(&mut address) => *mut u64, 100 * MIB => usize, 1 => c_uint));
    expect("cuMemAllocManaged", code, 0)?;
    end_block(driver, address)
}

/// Managed memory, while the test has it ordered elsewhere.
pub(crate) fn managed(driver: &Driver) -> Result<(), String> {
    begin(driver);
    let mut addresses = [0; 2];
    for address in &mut addresses {
        let code = cuda!(driver, cuMemAllocManaged(
            ptr::from_mut(address) => *mut u64, 10 * MIB => usize, 1 => c_uint));
        expect("cuMemAllocManaged", code, 0)?;
    }
    wait_for_test("ready")?;
    addresses.into_iter().try_for_each(|address| end_block(driver, address))
}

/// On a full device a program first gives up what it keeps itself, and does not wait for others.
pub(crate) fn kept_and_full(driver: &Driver) -> Result<(), String> {
    /// How long the library waits for other programs.
    const WAIT: Duration = Duration::from_secs(10);
    begin(driver);
    keep(driver, 20 * MIB)?;
    let begun = Instant::now();
    let address = block(driver, 70 * MIB)?;
    expect("it did not wait", begun.elapsed() < WAIT, true)?;
    end_block(driver, address)
}
