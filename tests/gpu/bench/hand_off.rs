//! The daemon's cost over a bare program. `docs/benchmarks/hand_off/README.md` says what is timed.

use std::{
    io::{self, Write as _},
    os::fd::AsFd as _,
    time::Instant,
};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};
use vramd_client::{AllocationRequest, Bytes, Client};
use vramd_tests::{Config, Daemon, GIB, MIB, MIB_2};

use super::{
    acker::Acker,
    log,
    measure::{Beside, Measure},
    owner::Owner,
};
use crate::{
    content,
    cuda::{Extent, Gpu},
    machine,
    nvml::Witness,
};

const PAIRS: usize = 15;
const PAIRS_QUICK: usize = 7;

/// Returns true if every question has an answer, of any value. The report is saved after each.
pub(crate) fn run(quick: bool, save: impl Fn(&Value) -> Result<()>) -> Result<bool> {
    let limit = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: limit, maximum: limit })?;
    let gpu = Gpu::open(None)?;
    let daemon = Daemon::start(&Config::cuda().daemon("log_format = \"json\""));
    let pairs = if quick { PAIRS_QUICK } else { PAIRS };
    let mut report = json!({
        "machine": machine::facts(&Witness::new()?)?,
        "configuration": "the default one, and log_level debug",
        "samples": {},
    });
    type Question = fn(&Daemon, &Gpu, usize) -> Result<Measure>;
    let questions: [(&str, Question); 3] = [("allocate", allocate), ("create", create), ("attach", attach)];
    let mut good = true;
    for (name, question) in questions {
        match question(&daemon, &gpu, pairs) {
            Ok(measure) => {
                writeln!(io::stdout(), "{}", measure.line(name))?;
                report[name] = json!(measure.median());
                report["samples"][name] = measure.json();
            }
            Err(error) => {
                good = false;
                writeln!(io::stdout(), "{name:9} FAILED: {error:#}")?;
                report["samples"][name] = json!({ "problem": format!("{error:#}") });
            }
        }
        save(&report)?;
        daemon.drains();
    }
    Ok(good)
}

/// Times 64 parts of 32 MiB, from the call to usable pointers.
fn allocate(daemon: &Daemon, gpu: &Gpu, pairs: usize) -> Result<Measure> {
    const COUNT: usize = 64;
    const PART: usize = 32 << 20;
    let client = Client::builder().socket_dir(daemon.sockets()).connect()?;
    let owner = Owner::start(gpu)?;
    let ours = || {
        let request = AllocationRequest::new(Bytes::new((COUNT * PART) as u64)).part_size(Bytes::mib(32));
        let started = Instant::now();
        let allocation = client.allocate(request)?;
        let took = started.elapsed();
        ensure!(allocation.info().parts.len() == COUNT, "{} parts", allocation.info().parts.len());
        check_parts(gpu, allocation.as_device_ptr(), COUNT, PART)?;
        allocation.free()?;
        daemon.drains();
        Ok((took, Beside::new()))
    };
    let bare = || {
        let started = Instant::now();
        let fds = owner.ask(COUNT, PART)?;
        let extents = fds.iter().map(|fd| gpu.import(fd.as_fd(), PART)).collect::<Result<Vec<_>>>()?;
        let span = gpu.map(&extents, true)?;
        let took = started.elapsed();
        check_parts(gpu, span.address(), COUNT, PART)?;
        drop((span, extents, fds));
        owner.done()?;
        Ok(took)
    };
    Measure::take(1.5, pairs, ours, bare)
}

/// Writes and reads both ends of each part.
pub(super) fn check_parts(gpu: &Gpu, address: u64, count: usize, part: usize) -> Result<()> {
    for index in 0..count {
        for offset in [0, part - 8] {
            let at = address + (index * part + offset) as u64;
            let (word, mut back) = (at.to_le_bytes(), [0; 8]);
            gpu.upload(at, &word)?;
            gpu.download(at, &mut back)?;
            ensure!(word == back, "part {index} does not keep what is written to it");
        }
    }
    Ok(())
}

/// Times 1,000 allocations of 2 MiB in one batch, from the decoded request to the last packet handed to the socket.
fn create(daemon: &Daemon, gpu: &Gpu, pairs: usize) -> Result<Measure> {
    const COUNT: usize = 1000;
    let mut acker = Acker::open(daemon);
    let sentinel = gpu.create(2 << 20)?;
    let _exported = sentinel.export()?;
    let ours = || {
        let before = daemon.log().len();
        let at_client = acker.allocate(COUNT, MIB_2)?;
        acker.free();
        // The daemon has answered a later call, so the log line of the last packet is written.
        daemon.drains();
        let took = log::batch_to_last_packet(&daemon.log()[before..])?;
        ensure!(took <= at_client, "the daemon's part takes {took:?}, the whole {at_client:?}");
        Ok((took, vec![("call_to_last_packet_at_client", at_client)]))
    };
    let bare = || {
        let mut made = Vec::with_capacity(COUNT);
        let started = Instant::now();
        for _ in 0..COUNT {
            let extent = gpu.create(2 << 20)?;
            let fd = extent.export()?;
            made.push((fd, extent));
        }
        Ok(started.elapsed())
    };
    Measure::take(1.3, pairs, ours, bare)
}

/// Times the attach of a sealed allocation of 10 GiB by a warm process, from the call to a pointer. Bare is the import of the same
/// descriptors.
fn attach(daemon: &Daemon, gpu: &Gpu, pairs: usize) -> Result<Measure> {
    const SIZE: u64 = 10 * GIB;
    let client = Client::builder().socket_dir(daemon.sockets()).connect()?;
    let seed = u64::from(std::process::id());
    let request = AllocationRequest::new(Bytes::new(SIZE)).name("hand-off").persistent();
    let written = client.allocate(request)?;
    let part = written.info().parts.first().context("no parts")?.size;
    ensure!(part == Bytes::mib(256) && SIZE.is_multiple_of(256 * MIB), "parts of {part}");
    gpu.fill(written.as_device_ptr(), SIZE, seed)?;
    let sealed = written.seal().map_err(|failed| failed.error)?;
    let sum = content::sum(seed, SIZE);
    let check = |address| -> Result<()> {
        let found = gpu.sum(address, SIZE)?;
        if found == sum { Ok(()) } else { bail!("the sum is {found}, not {sum}") }
    };

    let reader = Client::builder().socket_dir(daemon.sockets()).connect()?;
    let ours = || {
        let started = Instant::now();
        let attached = reader.attach("hand-off")?;
        let took = started.elapsed();
        check(attached.as_device_ptr())?;
        attached.detach()?;
        Ok((took, Beside::new()))
    };
    let raw = Client::builder().socket_dir(daemon.sockets()).connect_raw()?;
    let handed = raw.attach("hand-off")?;
    let bare = || {
        let started = Instant::now();
        let import = |part: &vramd_client::RawPart| -> Result<Extent> {
            let fd = part.fd.as_ref().context("a part without a descriptor")?;
            gpu.import(fd.as_fd(), usize::try_from(part.size.get())?)
        };
        let extents = handed.parts().iter().map(import).collect::<Result<Vec<_>>>()?;
        let span = gpu.map(&extents, false)?;
        let took = started.elapsed();
        check(span.address())?;
        Ok(took)
    };
    let measure = Measure::take(1.5, pairs, ours, bare)?;
    handed.detach()?;
    sealed.free()?;
    Ok(measure)
}
