//! Scenes of programs that use a device in turns.

use std::{
    ffi::{c_uint, c_void},
    ptr, thread,
    time::{Duration, Instant},
};

use crate::{
    checks::{MIB, begin, end_block, expect, new_stream},
    door::{Driver, cuda},
    scenes::{SOON, block, execute, in_child, wait_for_test},
};

const PAGE: usize = 4096;

/// `cuLaunchKernel_v2` of the fake driver.
type Later = unsafe extern "C" fn(
    u64,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    usize,
    *const *const u64,
    *mut c_void,
    c_uint,
) -> u32;

/// A block, and the bytes that it must have.
struct Block {
    address: u64,
    bytes: Vec<u8>,
}

impl Block {
    /// Allocates a block and fills it with bytes that no other block has.
    fn new(driver: &Driver, size: usize, seed: usize) -> Result<Self, String> {
        let address = block(driver, size)?;
        let page: Vec<u8> = (0..PAGE).map(|at| (at * 31 + at / 257 + seed * 7).to_le_bytes()[0]).collect();
        let mut bytes = page.repeat(size.div_ceil(PAGE));
        bytes.truncate(size);
        // Each page has its own number, and the block's.
        for (number, page) in bytes.chunks_mut(PAGE).enumerate() {
            let head = (seed as u64) << 32 | number as u64;
            let length = page.len().min(8);
            page[..length].copy_from_slice(&head.to_le_bytes()[..length]);
        }
        let code = cuda!(driver, cuMemcpyHtoD_v2(
            address => u64, bytes.as_ptr().cast() => *const c_void, size => usize));
        expect("cuMemcpyHtoD", code, 0)?;
        Ok(Self { address, bytes })
    }

    /// The bytes that a kernel changes.
    fn window(&self) -> usize {
        self.bytes.len().min(PAGE)
    }

    /// Has a kernel add 1 to each byte of the first page.
    fn add(&mut self, driver: &Driver, stream: usize) -> Result<(), String> {
        expect("cuLaunchKernel", self.launch(driver, stream), 0)?;
        let window = self.window();
        self.bytes[..window].iter_mut().for_each(|byte| *byte = byte.wrapping_add(1));
        Ok(())
    }

    fn launch(&self, driver: &Driver, stream: usize) -> u32 {
        let (at, length) = (self.address, self.window() as u64);
        let arguments = [&raw const at, &raw const length];
        cuda!(driver, cuLaunchKernel(
            1 => u64, 1 => c_uint, 1 => c_uint, 1 => c_uint, 1 => c_uint, 1 => c_uint, 1 => c_uint, 0 => c_uint,
            stream => usize, arguments.as_ptr() => *const *const u64, ptr::null_mut() => *mut c_void))
    }

    fn compare(&self, driver: &Driver) -> Result<(), String> {
        let mut found = vec![0_u8; self.bytes.len()];
        let code = cuda!(driver, cuMemcpyDtoH_v2(
            found.as_mut_ptr().cast() => *mut c_void, self.address => u64, found.len() => usize));
        expect("cuMemcpyDtoH", code, 0)?;
        match found.iter().zip(&self.bytes).position(|(found, expected)| found != expected) {
            None => Ok(()),
            Some(at) => {
                Err(format!("{:#x}: byte {at} is {}, not {}", self.address, found[at], self.bytes[at]))
            }
        }
    }
}

/// Threads, each with blocks of so many MiB, large ones and small ones. A kernel runs on each block, so many times; then
/// all bytes are compared.
pub(crate) fn rounds(driver: &Driver, more: &[&str]) -> Result<(), String> {
    let context = begin(driver);
    let number = |at: usize| more.get(at).and_then(|word| word.parse().ok()).ok_or("a number is missing");
    let (threads, mib, times, seed) = (number(0)?, number(1)?, number(2)?, number(3)?);
    let work = move |thread: usize| {
        // By number: each thread finds its functions by itself.
        let driver = Driver::open("dlsym");
        cuda!(driver, cuCtxPushCurrent_v2(context => usize));
        rounds_of_thread(&driver, mib, times, seed * 1000 + thread * 100)
    };
    let threads: Vec<_> = (0..threads).map(|thread| thread::spawn(move || work(thread))).collect();
    threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a thread panicked")?)
}

fn rounds_of_thread(driver: &Driver, mib: usize, times: usize, seed: usize) -> Result<(), String> {
    let sizes = (0..mib / 8).map(|_| 8 * MIB).chain([300, 5000, 200 << 10]);
    let blocks = sizes.enumerate().map(|(at, size)| Block::new(driver, size, seed + at));
    let mut blocks: Vec<Block> = blocks.collect::<Result<_, _>>()?;
    for round in 0..times {
        blocks.iter_mut().try_for_each(|block| block.add(driver, 0))?;
        // Memory comes and goes in turns and between them.
        if round % 10 == 0 {
            let passing = Block::new(driver, 4 * MIB, round)?;
            passing.compare(driver)?;
            end_block(driver, passing.address)?;
        }
        thread::sleep(Duration::from_millis(5));
    }
    blocks.iter().try_for_each(|block| block.compare(driver))
}

/// A launch on a captured stream does not run, so it needs no turn.
pub(crate) fn captured(driver: &Driver) -> Result<(), String> {
    begin(driver);
    let (plain, stream, address) = (driver.by_plain_name(), new_stream(driver, 1)?, block(driver, 3 * MIB)?);
    let mut fresh = Block { address, bytes: vec![0; 3 * MIB] };
    expect("begin", cuda!(plain, cuStreamBeginCapture_v2(stream => usize, 0 => c_uint)), 0)?;
    expect("cuLaunchKernel", fresh.launch(driver, stream), 0)?;
    wait_for_test("captured")?;
    // This one runs, and needs the turn, also during the capture.
    fresh.add(driver, 0)?;
    wait_for_test("launched")?;
    let mut graph = 0_usize;
    expect("end", cuda!(plain, cuStreamEndCapture(stream => usize, &raw mut graph => *mut usize)), 0)?;
    fresh.compare(driver)
}

/// While a stream is captured the program keeps its turn, and its other calls go on.
pub(crate) fn capturing(driver: &Driver) -> Result<(), String> {
    begin(driver);
    let (plain, stream) = (driver.by_plain_name(), new_stream(driver, 1)?);
    let (rest, mut own) = (block(driver, 40 * MIB)?, Block::new(driver, MIB, 1)?);
    expect("begin", cuda!(plain, cuStreamBeginCapture_v2(stream => usize, 0 => c_uint)), 0)?;
    wait_for_test("capturing")?;
    for _ in 0..100 {
        expect("a captured launch", own.launch(driver, stream), 0)?;
        own.add(driver, 0)?;
        thread::sleep(Duration::from_millis(2));
    }
    wait_for_test("computed")?;
    let mut graph = 0_usize;
    expect("end", cuda!(plain, cuStreamEndCapture(stream => usize, &raw mut graph => *mut usize)), 0)?;
    wait_for_test("ended")?;
    own.compare(driver)?;
    end_block(driver, rest)
}

/// Takes the turn, and uses the memory again after the test has done its part.
pub(crate) fn in_turn(driver: &Driver) -> Result<(), String> {
    begin(driver);
    let mut own = Block::new(driver, 40 * MIB, 2)?;
    wait_for_test("ready")?;
    own.add(driver, 0)?;
    own.compare(driver)?;
    end_block(driver, own.address)
}

/// Copies that the test holds, on a stream that the default one does not wait for. Another call comes meanwhile.
pub(crate) fn in_flight(driver: &Driver) -> Result<(), String> {
    begin(driver);
    let (stream, mut own) = (new_stream(driver, 1)?, Block::new(driver, 40 * MIB, 4)?);
    wait_for_test("ready")?;
    for _ in 0..10 {
        let code = cuda!(driver, cuMemcpyHtoDAsync_v2(
            own.address => u64, own.bytes.as_ptr().cast() => *const c_void, own.bytes.len() => usize,
            stream => usize));
        expect("cuMemcpyHtoDAsync", code, 0)?;
    }
    wait_for_test("launched")?;
    own.add(driver, 0)?;
    wait_for_test("added")?;
    own.compare(driver)
}

/// Launches by functions that the library does not know, before any other call needs the turn.
pub(crate) fn of_the_future(driver: &Driver) -> Result<(), String> {
    begin(driver);
    let address = block(driver, 3 * MIB)?;
    let mut fresh = Block { address, bytes: vec![0; 3 * MIB] };
    let (at, length) = (address, fresh.window() as u64);
    wait_for_test("ready")?;
    let code = cuda!(driver, cuLaunchOfTheFuture(
        at => u64, length => u64, 1.0 => f64, 2 => u64, 3.0 => f64, 4 => u64, 5.0 => f64, 6 => u64, 7.0 => f64,
        8 => u64, 9.0 => f64, 10 => u64, 11.0 => f64, 12 => u64, 13.0 => f64, 14 => u64, 15.0 => f64));
    expect("cuLaunchOfTheFuture", code, 0)?;
    let later = driver.by_proc_address("cuLaunchKernel", 99000, 0).ok_or("no later version is found")?;
    let arguments = [&raw const at, &raw const length];
    // SAFETY: needed to call it. The type is that of the fake driver's function.
    let code = unsafe {
        let later = std::mem::transmute::<*mut c_void, Later>(later);
        later(1, 1, 1, 1, 1, 1, 1, 0, 0, arguments.as_ptr(), ptr::null_mut(), 7)
    };
    expect("cuLaunchKernel_v2", code, 0)?;
    fresh.bytes[..PAGE].fill(2);
    wait_for_test("launched")?;
    fresh.compare(driver)
}

/// Takes the turn, then becomes a program that does not use CUDA and waits for the test.
pub(crate) fn execute_in_turn(driver: &Driver) -> Result<(), String> {
    begin(driver);
    let mut own = Block::new(driver, 40 * MIB, 5)?;
    own.add(driver, 0)?;
    wait_for_test("ready")?;
    Err(execute(&["scene", "wait"]))
}

/// Thousands of blocks, which move and come back.
pub(crate) fn many_blocks(driver: &Driver) -> Result<(), String> {
    begin(driver);
    let sizes = [100, 600, 3000, 20_000].into_iter().cycle().take(4000);
    let mut blocks: Vec<Block> =
        sizes.enumerate().map(|(at, size)| Block::new(driver, size, at)).collect::<Result<_, _>>()?;
    wait_for_test("ready")?;
    blocks.iter_mut().try_for_each(|block| block.add(driver, 0))?;
    wait_for_test("computed")?;
    blocks.iter().try_for_each(|block| block.compare(driver))?;
    blocks.iter().try_for_each(|block| end_block(driver, block.address))
}

/// A forked child does not wait at its parent's gate, whether that is open or closed, and leaves it as it is.
pub(crate) fn fork_in_turn(driver: &Driver) -> Result<(), String> {
    begin(driver);
    let address = block(driver, 3 * MIB)?;
    let passes = || {
        in_child(|| {
            let begun = Instant::now();
            cuda!(driver, fakeEcho(1 => c_uint));
            let code = cuda!(driver, cuMemsetD8_v2(address => u64, 1 => u8, 1 => usize));
            expect("cuMemsetD8", (code, begun.elapsed() < SOON), (0, true))
        })
    };
    // No call has waited, so the gate is closed, and there is no thread yet that opens it.
    expect("a child of a closed gate", passes(), true)?;
    let mut own = Block::new(driver, 3 * MIB, 3)?;
    expect("a child of an open gate", passes(), true)?;
    own.add(driver, 0)?;
    own.compare(driver)
}
