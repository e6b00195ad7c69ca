//! A process that allocates 64 MiB and waits to be killed. It prints each step that it reaches, so that its parent knows how far it was.
//!
//! Without a context it speaks the protocol itself, and stops before a given step. With a context it uses the SDK, and finally has a kernel
//! that writes to its mapping.

use std::{
    io::{self, Write as _},
    time::Duration,
};

use anyhow::{Result, bail};
use vramd_client::{AllocationRequest, Bytes, Client};
use vramd_proto::v1::{Mapped, client_frame, daemon_frame};
use vramd_tests::{RawSession, channel::Packet, spec};

use crate::cuda::Gpu;

pub(super) const SIZE: u64 = 64 << 20;
/// The steps of a victim without a context.
pub(super) const STEPS: [&str; 5] = ["open", "asked", "answered", "received", "acknowledged"];
/// The steps of a victim with a context.
pub(super) const STEPS_WITH_CONTEXT: [&str; 4] = ["open", "context", "mapped", IN_FLIGHT];
pub(super) const IN_FLIGHT: &str = "in flight";

/// How long the victim lives at most, since its parent may be gone. Longer than any step may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long the kernel runs: far longer than a kill takes.
const KERNEL_NANOSECONDS: u64 = 20_000_000_000;

/// Runs the victim. `steps` is the number of steps without a context; with one it takes all.
pub(crate) fn run(steps: Option<usize>) -> Result<()> {
    match steps {
        Some(steps) => by_protocol(steps),
        None => by_sdk(),
    }
}

fn by_protocol(steps: usize) -> Result<()> {
    let mut left = steps;
    // Returns true if there is another step.
    let mut done = |step: &str| -> Result<bool> {
        report(step)?;
        left = left.saturating_sub(1);
        Ok(left > 0)
    };
    let session = RawSession::open(&vramd_client::socket_dir());
    if !done(STEPS[0])? {
        return wait();
    }
    let answer = session.memory.allocate_batch(session.request(vec![spec(SIZE)]));
    if !done(STEPS[1])? {
        return wait();
    }
    answer.ok();
    if !done(STEPS[2])? {
        return wait();
    }
    let Packet::Frame(daemon_frame::Frame::Map(map), fds) = session.channel.receive(PATIENCE) else {
        bail!("no map frame came");
    };
    if done(STEPS[3])? {
        let parts = map.parts.into_iter().filter_map(|part| part.part).collect();
        session.channel.send(client_frame::Frame::Mapped(Mapped { parts }))?;
        done(STEPS[4])?;
    }
    // The victim keeps the descriptors whatever it answers.
    wait()?;
    drop(fds);
    Ok(())
}

fn by_sdk() -> Result<()> {
    let [open, context, mapped, in_flight] = STEPS_WITH_CONTEXT;
    let client = Client::connect()?;
    report(open)?;
    let gpu = Gpu::open(None)?;
    report(context)?;
    let allocation = client.allocate(AllocationRequest::new(Bytes::new(SIZE)))?;
    report(mapped)?;
    gpu.spin(allocation.as_device_ptr(), SIZE, KERNEL_NANOSECONDS)?;
    report(in_flight)?;
    wait()
}

fn report(step: &str) -> Result<()> {
    let mut out = io::stdout();
    writeln!(out, "{step}")?;
    Ok(out.flush()?)
}

/// Waits to be killed, or until its parent is gone.
fn wait() -> Result<()> {
    io::copy(&mut io::stdin().lock(), &mut io::sink()).map(drop)?;
    bail!("the parent did not kill it")
}
