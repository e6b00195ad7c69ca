//! Memory that a live allocation takes in the daemon: the growth of this process, by the kernel's count.

use std::fs;

use anyhow::{Context, Result};
use broker_core::{
    AllocationSpec, CallId, ChannelId, ClientRequest, Event, Hello, Kind, Lifetime, Peer, RequestKey,
};
use vramd_types::{Bytes, SessionId};

use crate::{meter::Pace, shell::Shell};

const SESSIONS: u32 = 256;
const TENANTS: u32 = 64;
const BATCH: u64 = 250;

#[derive(Clone, Copy, Debug)]
pub struct Growth {
    pub allocations: u64,
    pub bytes: u64,
}

impl Growth {
    #[allow(clippy::cast_precision_loss, reason = "a ratio, not a count")]
    pub fn per_allocation(&self) -> f64 {
        self.bytes as f64 / self.allocations as f64
    }
}

/// Measures named session allocations of one part, each mapped by its owner, over 256 sessions of 64 tenants.
/// Call it before anything else has grown this process: memory that was freed into the allocator would be
/// reused without a trace.
pub fn measure(allocations: u64) -> Result<Growth> {
    let mut shell = Shell::new(Pace::Bursts);
    for channel in 1..=SESSIONS {
        let tenant = format!("team-{}", channel % TENANTS);
        let hello = Hello {
            tenant,
            pid: channel,
            uid: 1000,
            client_name: "python3 train.py".to_owned(),
            devices: None,
            unmapped_sessions: Vec::new(),
            pins: false,
            managed_orders: false,
            pressure: false,
        };
        shell.send(Event::Hello { channel: ChannelId(u64::from(channel)), hello });
        shell.drain();
    }
    let sessions: Vec<_> = (1..=SESSIONS).zip(shell.welcomes.iter().map(|(_, session)| *session)).collect();
    let before = resident()?;
    let mut made = 0;
    for (pid, session) in sessions.iter().copied().cycle() {
        let count = BATCH.min(allocations - made);
        if count == 0 {
            break;
        }
        allocate(&mut shell, pid, session, made..made + count);
        made += count;
    }
    let bytes = resident()?.saturating_sub(before);
    let live = shell.broker.node();
    anyhow::ensure!(live.allocations == usize::try_from(allocations)?, "{live:?}");
    anyhow::ensure!(live.fds_in_flight == 0, "all are mapped: {live:?}");
    Ok(Growth { allocations, bytes })
}

fn allocate(shell: &mut Shell, pid: u32, session: SessionId, numbers: std::ops::Range<u64>) {
    let call = numbers.start;
    let spec = |number| AllocationSpec {
        size: Bytes::mib(2),
        device: None,
        kind: Kind::Movable,
        lifetime: Lifetime::Session,
        name: Some(format!("tensor-{number}")),
        readers: Vec::new(),
        part_size: None,
        replace: false,
        uninitialized: false,
        unpinned: false,
        discardable: false,
    };
    let id = u128::from(call).to_be_bytes();
    shell.send(Event::Client {
        call: CallId(call),
        session,
        peer: Peer { pid, uid: 1000 },
        key: Some(RequestKey { id, fingerprint: id }),
        request: ClientRequest::allocate(numbers.map(spec).collect()),
    });
    shell.drain();
    shell.replies.clear();
}

/// Resident bytes of this process.
fn resident() -> Result<u64> {
    let text = fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = text.split(' ').nth(1).context("the second field of statm")?.parse()?;
    Ok(pages * u64::try_from(rustix::param::page_size())?)
}
