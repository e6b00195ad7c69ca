//! 1,000 allocations of 2 MiB in one batch: from the decoded request to the encoded reply, inside the daemon.
//!
//! Only the daemon knows when it has decoded a request and when it has the answer. It logs the time between both with
//! `batch answered`. tonic encodes the answer afterwards, so this benchmark times the coding of the same message and adds it. The time
//! that the client waits, by its own clock, is the upper bound.

use std::{
    io::{self, Write as _},
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use prost::Message as _;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create};
use serde_json::{Value, json};
use vramd_proto::{
    channel::PARTS_PER_FRAME_MAX,
    v1::{
        AllocateBatchResponse, FreeBatchRequest, Mapped, PartRef, UnmapReason, Unmapped, UnmappedPart,
        client_frame, daemon_frame,
    },
};
use vramd_tests::{Config, Daemon, MIB_2, RawSession, channel::Packet, spec, wait::PATIENCE};

use crate::{
    report::Results,
    samples::{Figures, micros},
};

const TARGET_US: f64 = 20.0;
const COUNT: u32 = 1000;
const WARM_UP: usize = 2;
const PAIRS: usize = 15;
const PAIRS_QUICK: usize = 3;
/// The initial size of tonic's buffer for a message, in bytes.
const ENCODE_BUFFER: usize = 8 << 10;

/// The times of one whole batch.
struct Batch {
    handled: Duration,
    encoded: Duration,
    at_client: Duration,
}

impl Batch {
    fn in_daemon(&self) -> Duration {
        self.handled + self.encoded
    }
}

pub(crate) fn run(quick: bool) -> Result<Results> {
    let daemon = Daemon::start(&Config::devices(&["4GiB"]).daemon("log_format = \"json\""));
    let mut session = daemon.open();
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for pair in 0..WARM_UP + if quick { PAIRS_QUICK } else { PAIRS } {
        let (batch, plain) = if pair % 2 == 0 {
            let batch = allocate(&daemon, &mut session)?;
            (batch, make_bare()?)
        } else {
            let plain = make_bare()?;
            (allocate(&daemon, &mut session)?, plain)
        };
        if pair >= WARM_UP {
            ours.push(batch);
            bare.push(plain);
        }
    }
    summarize(&ours, &bare)
}

/// Allocates, answers at once that each part is mapped, and frees everything.
fn allocate(daemon: &Daemon, session: &mut RawSession) -> Result<Batch> {
    let before = daemon.log().len();
    let request = session.request(vec![spec(MIB_2); usize::try_from(COUNT)?]);
    let started = Instant::now();
    let answer = session.memory.allocate_batch(request).ok();
    let at_client = started.elapsed();
    ensure!(answer.allocations.len() == usize::try_from(COUNT)?, "each item is answered");
    let handled = answered(&daemon.log()[before..])?;
    let batch = Batch { handled, encoded: encode(&answer), at_client };
    ensure!(batch.handled <= at_client, "the daemon's part takes {handled:?}, the whole {at_client:?}");
    give_back(session, &answer)?;
    daemon.drains();
    Ok(batch)
}

/// Reads from this piece of the daemon's log how long its one batch took.
fn answered(log: &str) -> Result<Duration> {
    let events = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut answers = events.filter(|event| event["message"] == "batch answered");
    let took = answers.next().and_then(|event| event["took_us"].as_u64());
    ensure!(answers.next().is_none(), "the log tells of two batches");
    Ok(Duration::from_micros(took.context("the log tells of no batch")?))
}

fn encode(answer: &AllocateBatchResponse) -> Duration {
    let mut buffer = Vec::with_capacity(ENCODE_BUFFER);
    let started = Instant::now();
    answer.encode(&mut buffer).expect("a vector takes everything");
    let took = started.elapsed();
    assert_eq!(buffer.len(), answer.encoded_len());
    took
}

fn give_back(session: &mut RawSession, answer: &AllocateBatchResponse) -> Result<()> {
    let mut has: Vec<PartRef> = Vec::new();
    while has.len() < answer.allocations.len() {
        let map = match session.channel.receive(PATIENCE) {
            Packet::Frame(daemon_frame::Frame::Map(map), _) => map,
            // A `Revoke` of the round before, whose parts were reported as unmapped before the daemon asked.
            Packet::Frame(daemon_frame::Frame::Revoke(_), _) => continue,
            other => bail!("not a map frame: {other:?}"),
        };
        let parts = map.parts.into_iter().map(|part| part.part.context("a part has a name"));
        let parts = parts.collect::<Result<Vec<_>>>()?;
        has.extend_from_slice(&parts);
        session.channel.send(client_frame::Frame::Mapped(Mapped { parts }))?;
    }
    for parts in has.chunks(PARTS_PER_FRAME_MAX) {
        let reason = UnmapReason::Done.into();
        let unmapped = |&part| UnmappedPart { part: Some(part), reason, ..Default::default() };
        let frame = Unmapped { parts: parts.iter().map(unmapped).collect() };
        session.channel.send(client_frame::Frame::Unmapped(frame))?;
    }
    let request = FreeBatchRequest {
        session_id: session.id(),
        request_id: Vec::new(),
        allocation_ids: answer.allocations.iter().map(|allocation| allocation.allocation_id).collect(),
    };
    let freed = session.memory.free_batch(request).ok();
    ensure!(freed.results.iter().all(|result| result.error.is_none()), "not all is freed: {freed:?}");
    Ok(())
}

/// Creates as many memfds as the simulated driver creates for a batch, in the same way and by one thread.
fn make_bare() -> Result<Duration> {
    let started = Instant::now();
    let made = (0..COUNT).map(memfd).collect::<Result<Vec<OwnedFd>>>()?;
    let took = started.elapsed();
    drop(made);
    Ok(took)
}

fn memfd(number: u32) -> Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::NOEXEC_SEAL;
    let fd = memfd_create(format!("vramd-bench:{number}"), flags)?;
    ftruncate(&fd, MIB_2)?;
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    fstat(&fd)?;
    Ok(fd)
}

fn summarize(ours: &[Batch], bare: &[Duration]) -> Result<Results> {
    let each = |time: Duration| micros(time) / f64::from(COUNT);
    let of = |side: fn(&Batch) -> Duration| ours.iter().map(|batch| each(side(batch))).collect::<Vec<_>>();
    let in_daemon = of(Batch::in_daemon);
    let bare: Vec<f64> = bare.iter().map(|time| each(*time)).collect();
    let ratio = Figures::ratios(&in_daemon, &bare);
    let (batch_us, bare_us) = (Figures::new(in_daemon), Figures::new(bare));
    let at_client = Figures::new(of(|batch| batch.at_client));
    let verdict = if batch_us.median() < TARGET_US { "within" } else { "MISSED" };
    writeln!(
        io::stdout(),
        "batch     {} us each of {COUNT}, of it {:.2} us to encode; target {TARGET_US}: {verdict}\n          \
         {} times the bare memfds, {:.2} us; at the client {:.2} us",
        batch_us.text(),
        Figures::new(of(|batch| batch.encoded)).median(),
        ratio.text(),
        bare_us.median(),
        at_client.median(),
    )?;
    Ok(Results {
        keys: vec![("batch_us", batch_us.median())],
        name: "batch",
        details: json!({
            "target_us": TARGET_US, "items": COUNT, "pairs": ours.len(), "warm_up_pairs": WARM_UP,
            "us_each": batch_us.json(),
            "us_each_handled": Figures::new(of(|batch| batch.handled)).json(),
            "us_each_encoded": Figures::new(of(|batch| batch.encoded)).json(),
            "us_each_at_client": at_client.json(),
            "us_each_bare_memfd": bare_us.json(),
            "ratio_to_bare_memfd": ratio.json(),
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_one_batch_in_the_log_counts() {
        let line = r#"{"level":"DEBUG","message":"batch answered","items":1000,"took_us":12345}"#;
        let log = format!("no JSON\n{{\"message\":\"batch decoded\"}}\n{line}\n");
        assert_eq!(answered(&log).unwrap(), Duration::from_micros(12_345));
        assert!(answered("").is_err());
        assert!(answered(&format!("{line}\n{line}")).is_err());
    }
}
