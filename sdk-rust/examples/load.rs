//! Uses the node's memory as programs do, without end: `load serve|read|stream|train|scratch [DEVICE_SIZE]`.
//!
//! - `serve` seals a model that all tenants may read, and reads it in bursts.
//! - `read` attaches that model, and reads some parts of it at a time.
//! - `stream` goes through more memory than a device has, in a declared order.
//! - `train` grows until its tenant's limit refuses it more, frees all, and begins again.
//! - `scratch` pins memory that it can compute again, and requests more than fits.
//!
//! All sizes follow from the size of a device, 256 MiB by default. The program ends when its standard input does, or by
//! a signal; with `--forever` as the last argument, by a signal alone. A refusal is part of the load: the program goes
//! on. It ends with an error if the daemon is gone.

use std::{
    env, io,
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use vramd_client::{
    Access, Allocation, AllocationRequest, Bytes, Client, Error, PrefetchRequest, Result, Sealed,
    SequenceRequest,
};
use vramd_types::Quantity;

const USAGE: &str = "usage: load serve|read|stream|train|scratch [DEVICE_SIZE] [--forever]";

/// The sizes of all memory here are multiples of it: a part.
const PARTS_PER_DEVICE: u64 = 32;

const MODEL: &str = "llama";
/// A reader of another tenant names the owner too.
const MODEL_FROM_ELSEWHERE: &str = "team-a/llama";

fn main() -> ExitCode {
    let mut arguments: Vec<String> = env::args().skip(1).collect();
    let is_endless = arguments.last().is_some_and(|last| last == "--forever");
    if is_endless {
        arguments.pop();
    }
    let (role, size) = match arguments.as_slice() {
        [role] => (role, "256MiB"),
        [role, size] => (role, size.as_str()),
        _ => return fail(USAGE),
    };
    let part = match Quantity::parse_bytes(size) {
        Ok(size) => Bytes::new(size.get() / PARTS_PER_DEVICE),
        Err(error) => return fail(&format!("{size}: {error}")),
    };
    if part.get() < 2 << 20 || part.get() & 0x1f_ffff != 0 {
        return fail("DEVICE_SIZE is a multiple of 64MiB");
    }
    if !is_endless {
        thread::spawn(|| {
            let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
            std::process::exit(0);
        });
    }
    let run = match role.as_str() {
        "serve" => serve,
        "read" => read,
        "stream" => stream,
        "train" => train,
        "scratch" => scratch,
        _ => return fail(USAGE),
    };
    match Client::builder().name(role).connect().and_then(|client| run(&client, part)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error.to_string()),
    }
}

/// Seals a model of an eighth of the device, and reads all of it for each of its requests. They come in bursts.
fn serve(client: &Client, part: Bytes) -> Result<()> {
    let request = AllocationRequest::new(parts(part, 4)).part_size(part).name(MODEL).persistent().reader("*");
    let mut weights = match client.allocate(request.device(device(client, 0)).wait(Duration::from_secs(60))) {
        Ok(mut weights) => {
            fill(&mut weights, part)?;
            weights.seal().map_err(Error::from)?
        }
        // An earlier run has left it.
        Err(Error::NameTaken { .. }) => client.attach_unpinned(MODEL)?,
        Err(error) => return Err(error),
    };
    weights.unpin()?;
    loop {
        for _ in 0..fastrand::u32(1..20) {
            note(weights.pin_timeout(0..4, Access::Read, Duration::from_secs(5)).map(|_| pause(5..40)))?;
            pause(1..20);
        }
        pause(100..3000);
    }
}

/// Reads some parts of the model at a time.
fn read(client: &Client, _: Bytes) -> Result<()> {
    let model = attach(client)?;
    loop {
        let first = fastrand::u32(0..4);
        let range = first..fastrand::u32(first + 1..=4);
        note(model.pin_timeout(range, Access::Read, Duration::from_secs(5)).map(|_| pause(5..60)))?;
        pause(20..300);
    }
}

/// Waits for the model's owner.
fn attach(client: &Client) -> Result<Sealed> {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        match client.attach_unpinned(MODEL_FROM_ELSEWHERE) {
            Err(Error::AllocationNotFound { .. } | Error::NotSealed { .. }) if Instant::now() < end => {
                pause(100..200);
            }
            attached => return attached,
        }
    }
}

/// Goes through one and a half times the device, two parts at a step.
fn stream(client: &Client, part: Bytes) -> Result<()> {
    const STEPS: u32 = 24;
    let request = AllocationRequest::new(parts(part, 2 * u64::from(STEPS))).part_size(part).unpinned();
    let archive = client.allocate(request.device(device(client, 0)).wait(Duration::from_secs(60)))?;
    loop {
        let order = (0..STEPS)
            .fold(SequenceRequest::new(), |order, step| order.step().parts(&archive, 2 * step..2 * step + 2));
        let sequence = client.declare_sequence(order.passes(4))?;
        for step in 0..4 * STEPS {
            sequence.begin_next()?;
            let first = 2 * (step % STEPS);
            let access = if step < STEPS { Access::Write } else { Access::Read };
            let pinned = archive.pin_timeout(first..first + 2, access, Duration::from_secs(10));
            note(pinned.map(|_| pause(40..80)))?;
        }
        drop(sequence);
        // Some reads in no order, with a request ahead of each.
        for _ in 0..20 {
            let first = fastrand::u32(0..2 * STEPS - 1);
            let ahead = PrefetchRequest::new().parts(&archive, first..first + 2);
            let prefetch = client.prefetch(ahead.within(Duration::from_millis(200)));
            pause(50..150);
            note(archive.pin_timeout(first..first + 2, Access::Read, Duration::from_secs(10)))?;
            note(prefetch)?;
        }
    }
}

/// Grows on the last device until it is refused, then frees all.
fn train(client: &Client, part: Bytes) -> Result<()> {
    let last = client.devices().len().saturating_sub(1);
    loop {
        let mut held: Vec<Allocation> = Vec::new();
        loop {
            let size = parts(part, fastrand::u64(1..=4));
            let request = AllocationRequest::new(size).part_size(part).device(device(client, last));
            let Some(mut memory) = note(client.allocate(request))? else { break };
            fill(&mut memory, part)?;
            held.push(memory);
            pause(100..500);
            if fastrand::u32(0..4) == 0 {
                held.swap_remove(fastrand::usize(0..held.len()));
            }
        }
        pause(1000..3000);
        drop(held);
        client.flush()?;
        pause(500..2000);
    }
}

/// Pins memory that may be dropped, on each device in turns, and now and then requests a whole device.
fn scratch(client: &Client, part: Bytes) -> Result<()> {
    let mut pages = Vec::new();
    for number in 0..client.devices().len() {
        let request = AllocationRequest::new(parts(part, 10)).part_size(part).device(device(client, number));
        pages.push(client.allocate(request.discardable().unpinned().wait(Duration::from_secs(60)))?);
    }
    loop {
        for page in &pages {
            let first = fastrand::u32(0..10);
            let range = first..fastrand::u32(first + 1..=10);
            note(page.pin_timeout(range, Access::Write, Duration::from_millis(300)).map(|_| pause(20..200)))?;
            pause(20..200);
        }
        if fastrand::u32(0..20) == 0 {
            let whole = AllocationRequest::new(parts(part, PARTS_PER_DEVICE)).part_size(part);
            note(client.allocate(whole.wait(Duration::from_millis(500))))?;
        }
    }
}

/// Passes on a refusal that the load goes on after as nothing, and a lost daemon as an error.
fn note<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error @ (Error::BrokerGone { .. } | Error::SessionLost { .. })) => Err(error),
        Err(_) => Ok(None),
    }
}

fn fill(memory: &mut Allocation, part: Bytes) -> Result<()> {
    let content = vec![fastrand::u8(1..); usize::try_from(part.get()).unwrap_or(usize::MAX)];
    for offset in (0..memory.info().size.get()).step_by(content.len()) {
        memory.copy_from_host(offset, &content)?;
    }
    Ok(())
}

fn parts(part: Bytes, count: u64) -> Bytes {
    Bytes::new(part.get() * count)
}

/// A node may have fewer devices than the load would use.
fn device(client: &Client, number: usize) -> String {
    let devices = client.devices();
    devices[number.min(devices.len() - 1)].uuid.clone()
}

fn pause(milliseconds: std::ops::Range<u64>) {
    thread::sleep(Duration::from_millis(fastrand::u64(milliseconds)));
}

fn fail(problem: &str) -> ExitCode {
    eprintln!("load: {problem}");
    ExitCode::FAILURE
}
