//! Scenes of programs that fork, execute, capture, and have threads.

use std::{
    env,
    ffi::{c_int, c_uint},
    io::{BufRead as _, stdin},
    os::unix::process::CommandExt as _,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use crate::{
    checks::{
        MIB, begin, blocks, end_block, memory_info, new_block, new_stream, nvml, ordered_block, settled_free,
    },
    door::{Driver, cuda},
    frees, turns,
};

unsafe extern "C" {
    fn fork() -> c_int;
    fn waitpid(pid: c_int, status: *mut c_int, options: c_int) -> c_int;
    fn _exit(status: c_int) -> !;
}

/// How long a step may take that waits for nothing.
pub(crate) const SOON: Duration = Duration::from_secs(5);

pub(crate) fn play(name: &str, more: &[&str], driver: &Driver) -> Result<(), String> {
    match name {
        "allocate" => allocate(driver),
        "execute" => execute_with_memory(driver),
        "fork-before" => fork_before(driver),
        "fork-after" => fork_after(driver),
        "capture" => capture(driver),
        "threads" => threads(driver),
        "stopped-daemon" => stopped_daemon(driver),
        "restarted-daemon" => restarted_daemon(driver),
        "peers" => peers(driver),
        "largest" => largest(driver, more),
        "other-device" => frees::other_device(driver),
        "implicit-capture" => frees::implicit_capture(driver),
        "streams" => frees::streams(driver),
        "kept" => frees::kept(driver),
        "kept-and-charged" => frees::kept_and_charged(driver),
        "kept-and-full" => frees::kept_and_full(driver),
        "managed" => frees::managed(driver),
        "nvml" => nvml(driver),
        "rounds" => turns::rounds(driver, more),
        "captured" => turns::captured(driver),
        "capturing" => turns::capturing(driver),
        "in-turn" => turns::in_turn(driver),
        "in-flight" => turns::in_flight(driver),
        "many-blocks" => turns::many_blocks(driver),
        "fork-in-turn" => turns::fork_in_turn(driver),
        "execute-in-turn" => turns::execute_in_turn(driver),
        "of-the-future" => turns::of_the_future(driver),
        "wait" => wait_for_test("executed"),
        "no-init" => Ok(()),
        other => Err(format!("no scene {other}")),
    }
}

pub(crate) fn block(driver: &Driver, size: usize) -> Result<u64, String> {
    new_block(driver, size).map_err(|code| format!("cuMemAlloc of {size} bytes: {code}"))
}

/// Waits until the test has done its part.
pub(crate) fn wait_for_test(said: &str) -> Result<(), String> {
    println!("{said}");
    stdin().lock().read_line(&mut String::new()).map(|_| ()).map_err(|error| error.to_string())
}

fn allocate(driver: &Driver) -> Result<(), String> {
    begin(driver);
    let before = blocks(driver);
    let address = block(driver, 5 * MIB)?;
    match blocks(driver) == before {
        true => end_block(driver, address),
        false => Err("the driver served it".to_owned()),
    }
}

/// Becomes another program, with memory in hand.
fn execute_with_memory(driver: &Driver) -> Result<(), String> {
    begin(driver);
    block(driver, 5 * MIB)?;
    Err(execute(&["scene", "allocate"]))
}

/// Executes this program anew in this process. Returns only if that fails.
pub(crate) fn execute(arguments: &[&str]) -> String {
    match env::current_exe() {
        Ok(own) => Command::new(own).args(arguments).exec().to_string(),
        Err(error) => error.to_string(),
    }
}

/// Runs work in a forked child, and returns whether it succeeded.
pub(crate) fn in_child(work: impl FnOnce() -> Result<(), String>) -> bool {
    // SAFETY: needed to fork as programs do. The child does its work, which is this program's own, and ends.
    let child = unsafe { fork() };
    if child == 0 {
        let outcome = work();
        if let Err(problem) = &outcome {
            eprintln!("child: {problem}");
        }
        // SAFETY: needed to end the child without the parent's work at its end.
        unsafe { _exit(i32::from(outcome.is_err())) }
    }
    let mut status = -1;
    // SAFETY: needed to wait for the child. It writes one number.
    unsafe { waitpid(child, &raw mut status, 0) };
    status == 0
}

/// A child that is forked before CUDA begins has a session of its own, and so has its parent.
fn fork_before(driver: &Driver) -> Result<(), String> {
    if !in_child(|| allocate(driver)) {
        return Err("the child failed".to_owned());
    }
    allocate(driver)
}

/// A child that is forked after CUDA has begun changes nothing of its parent.
fn fork_after(driver: &Driver) -> Result<(), String> {
    begin(driver);
    let address = block(driver, 5 * MIB)?;
    let is_harmless = in_child(|| {
        // The child has no such memory, so its result says nothing.
        let _ = cuda!(driver, cuMemFree_v2(address => u64));
        Ok(())
    });
    if !is_harmless {
        return Err("the child failed".to_owned());
    }
    let (free, _) = memory_info(driver)?;
    end_block(driver, address)?;
    match memory_info(driver)?.0 == free + 6 * MIB {
        true => Ok(()),
        false => Err("the parent's memory was not its own any more".to_owned()),
    }
}

/// While a stream is captured, others allocate and free; what the captured stream allocates is the graph's.
fn capture(driver: &Driver) -> Result<(), String> {
    begin(driver);
    let (captured, other) = (new_stream(driver, 1)?, new_stream(driver, 1)?);
    let early = block(driver, 3 * MIB)?;
    let ordered = ordered_block(driver, 3 * MIB, other)?;
    let plain = driver.by_plain_name();
    let before = blocks(driver);
    cuda!(plain, cuStreamBeginCapture_v2(captured => usize, 0 => c_uint));
    end_block(driver, early)?;
    let of_graph = ordered_block(driver, 3 * MIB, captured)?;
    if blocks(driver) != before + 1 {
        return Err("memory of a graph was served".to_owned());
    }
    if cuda!(driver, cuMemFreeAsync(ordered => u64, captured => usize)) != 1 {
        return Err("a graph may free what no graph has allocated".to_owned());
    }
    if cuda!(driver, cuMemFreeAsync(ordered => u64, other => usize)) != 0 {
        return Err("another stream cannot free".to_owned());
    }
    let mut graph = 0_usize;
    let ended = cuda!(plain, cuStreamEndCapture(captured => usize, &raw mut graph => *mut usize));
    end_block(driver, of_graph)?;
    if ended == 0 { Ok(()) } else { Err("the capture was ended".to_owned()) }
}

fn threads(driver: &Driver) -> Result<(), String> {
    let context = begin(driver);
    let free = settled_free(driver)?;
    // By number: each thread finds its functions by itself.
    let work = move |seed: usize| -> Result<(), String> {
        let driver = Driver::open("dlsym");
        cuda!(driver, cuCtxPushCurrent_v2(context => usize));
        for round in 0..40 {
            let sizes = [1, 5000, 300 << 10, MIB, 3 * MIB];
            let address = block(&driver, sizes[(seed + round) % sizes.len()])?;
            let ordered = ordered_block(&driver, 2 * MIB, 0)?;
            end_block(&driver, address)?;
            if cuda!(driver, cuMemFreeAsync(ordered => u64, 0 => usize)) != 0 {
                return Err("cuMemFreeAsync failed".to_owned());
            }
        }
        Ok(())
    };
    let threads: Vec<_> = (0..4).map(|seed| thread::spawn(move || work(seed))).collect();
    for thread in threads {
        thread.join().map_err(|_| "a thread panicked")??;
    }
    match settled_free(driver)? {
        settled if settled == free => Ok(()),
        other => Err(format!("{other} bytes free, not {free}")),
    }
}

/// While a thread waits for a daemon that does not answer, others free.
fn stopped_daemon(driver: &Driver) -> Result<(), String> {
    let context = begin(driver);
    let address = block(driver, 3 * MIB)?;
    let small = block(driver, 5000)?;
    wait_for_test("ready")?;
    let waiting = thread::spawn(move || {
        let driver = Driver::open("dlsym");
        cuda!(driver, cuCtxPushCurrent_v2(context => usize));
        block(&driver, 3 * MIB)
    });
    thread::sleep(Duration::from_millis(200));
    let begun = Instant::now();
    let (mut base, mut size) = (0_u64, 0_usize);
    let known = cuda!(driver, cuMemGetAddressRange_v2(
        &raw mut base => *mut u64, &raw mut size => *mut usize, small => u64));
    end_block(driver, address)?;
    end_block(driver, small)?;
    if waiting.is_finished() || known != 0 || begun.elapsed() > SOON {
        return Err(format!("known {known}, after {:?}", begun.elapsed()));
    }
    wait_for_test("freed")?;
    waiting.join().map_err(|_| "the thread panicked")?.map(|_| ())
}

/// Memory outlives the daemon, and the next one serves the next allocation.
fn restarted_daemon(driver: &Driver) -> Result<(), String> {
    begin(driver);
    let early = block(driver, 3 * MIB)?;
    wait_for_test("ready")?;
    if new_block(driver, 3 * MIB) != Err(802) {
        return Err("memory without a daemon".to_owned());
    }
    wait_for_test("refused")?;
    let late = block(driver, 3 * MIB)?;
    end_block(driver, early)?;
    end_block(driver, late)
}

/// Another device gets access to what is there and to what comes. Each device serves its own contexts.
fn peers(driver: &Driver) -> Result<(), String> {
    let first = begin(driver);
    let early = block(driver, 3 * MIB)?;
    let (plain, mut second) = (driver.by_plain_name(), 0_usize);
    cuda!(plain, cuDevicePrimaryCtxRetain(&raw mut second => *mut usize, 1 => c_int));
    cuda!(plain, cuCtxPushCurrent_v2(second => usize));
    let before = blocks(driver);
    let own = block(driver, 3 * MIB)?;
    if cuda!(driver, cuCtxEnablePeerAccess(first => usize, 0 => c_uint)) != 0 {
        return Err("no access".to_owned());
    }
    cuda!(plain, cuCtxPopCurrent_v2(&raw mut second => *mut usize));
    let late = block(driver, 5000)?;
    if blocks(driver) != before {
        return Err("the driver served it".to_owned());
    }
    [early, own, late].into_iter().try_for_each(|address| end_block(driver, address))
}

/// Finds the largest allocation, to a granule, and compares it with the limit.
fn largest(driver: &Driver, more: &[&str]) -> Result<(), String> {
    begin(driver);
    let limit: usize = more.first().and_then(|text| text.parse().ok()).ok_or("no limit is named")?;
    let (free, total) = memory_info(driver)?;
    if (free, total) != (limit, limit) {
        return Err(format!("{free} of {total} bytes are free"));
    }
    let all = block(driver, limit)?;
    if new_block(driver, 1) != Err(2) {
        return Err("there is memory beyond the limit".to_owned());
    }
    end_block(driver, all)?;
    match new_block(driver, limit + 1) {
        Err(2) => Ok(()),
        other => Err(format!("more than the limit: {other:?}")),
    }
}
