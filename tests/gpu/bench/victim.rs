//! A process that allocates 64 MiB and waits to be killed. It prints each step that it has come to, so that whoever
//! kills it knows how far it was.
//!
//! Without a context it speaks the protocol itself, and stops before any step it is told. With one it goes by way of
//! the SDK, and has a kernel writing to its mapping in the end.

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
/// The steps of one without a context.
pub(super) const STEPS: [&str; 5] = ["open", "asked", "answered", "received", "acknowledged"];
/// The steps of one with a context.
pub(super) const STEPS_WITH_CONTEXT: [&str; 4] = ["open", "context", "mapped", IN_FLIGHT];
pub(super) const IN_FLIGHT: &str = "in flight";

/// Longer than anything may take, and bounded: whoever is to kill it may be gone.
const PATIENCE: Duration = Duration::from_secs(60);
/// Far longer than it takes to kill it.
const KERNEL_NANOSECONDS: u64 = 20_000_000_000;

/// `steps` is how many it does without a context; with one it does all.
pub(crate) fn run(steps: Option<usize>) -> Result<()> {
    match steps {
        Some(steps) => by_protocol(steps),
        None => by_sdk(),
    }
}

fn by_protocol(steps: usize) -> Result<()> {
    let mut left = steps;
    // True if there is another step to do.
    let mut done = |step: &str| -> Result<bool> {
        say(step)?;
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
    // Whatever it says, it keeps the descriptors.
    wait()?;
    drop(fds);
    Ok(())
}

fn by_sdk() -> Result<()> {
    let [open, context, mapped, in_flight] = STEPS_WITH_CONTEXT;
    let client = Client::connect()?;
    say(open)?;
    let gpu = Gpu::open(None)?;
    say(context)?;
    let allocation = client.allocate(AllocationRequest::new(Bytes::new(SIZE)))?;
    say(mapped)?;
    gpu.spin(allocation.as_device_ptr(), SIZE, KERNEL_NANOSECONDS)?;
    say(in_flight)?;
    wait()
}

fn say(step: &str) -> Result<()> {
    let mut out = io::stdout();
    writeln!(out, "{step}")?;
    Ok(out.flush()?)
}

/// Until it is killed, or nobody is there any more to do so.
fn wait() -> Result<()> {
    io::copy(&mut io::stdin().lock(), &mut io::sink()).map(drop)?;
    bail!("nobody killed it")
}
