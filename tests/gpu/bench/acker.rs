//! A client that answers `Mapped` at once and imports nothing, so that only the daemon's time is left.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use vramd_proto::{
    channel::PARTS_PER_FRAME_MAX,
    v1::{
        FreeBatchRequest, Mapped, PartRef, UnmapReason, Unmapped, UnmappedPart, client_frame, daemon_frame,
    },
};
use vramd_tests::{Daemon, RawSession, channel::Packet, spec};

/// How long to wait for a packet; longer than any packet takes.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Acker {
    session: RawSession,
    has: Vec<PartRef>,
}

impl Acker {
    pub(crate) fn open(daemon: &Daemon) -> Self {
        Self { session: daemon.open(), has: Vec::new() }
    }

    /// Allocates one batch. Returns the time from the call to the arrival of the last packet, which has the last descriptor.
    pub(crate) fn allocate(&mut self, count: usize, size: u64) -> Result<Duration> {
        let request = self.session.request(vec![spec(size); count]);
        let started = Instant::now();
        let answer = self.session.memory.allocate_batch(request);
        while self.has.len() < count {
            let Packet::Frame(frame, fds) = self.session.channel.receive(PATIENCE) else {
                bail!("the channel ended, or nothing came");
            };
            let map = match frame {
                daemon_frame::Frame::Map(map) => map,
                // A `Revoke` of the round before, whose parts were reported as unmapped before the daemon asked.
                daemon_frame::Frame::Revoke(_) => continue,
                other => bail!("not a map frame: {other:?}"),
            };
            ensure!(map.parts.len() == fds.len(), "each part has its descriptor");
            drop(fds);
            let parts = map.parts.into_iter().map(|part| part.part.context("a part has a name"));
            let parts = parts.collect::<Result<Vec<_>>>()?;
            self.has.extend_from_slice(&parts);
            self.session.channel.send(client_frame::Frame::Mapped(Mapped { parts }))?;
        }
        let took = started.elapsed();
        ensure!(answer.ok().allocations.len() == count, "each item is answered");
        Ok(took)
    }

    /// Answers `Unmapped` for all of it, and frees it.
    pub(crate) fn free(&mut self) {
        let has = std::mem::take(&mut self.has);
        for parts in has.chunks(PARTS_PER_FRAME_MAX) {
            let reason = UnmapReason::Done.into();
            let parts =
                parts.iter().map(|&part| UnmappedPart { part: Some(part), reason, ..Default::default() });
            let frame = client_frame::Frame::Unmapped(Unmapped { parts: parts.collect() });
            self.session.channel.send(frame).expect("the channel stands");
        }
        let request = FreeBatchRequest {
            session_id: self.session.id(),
            request_id: Vec::new(),
            allocation_ids: has.iter().map(|part| part.allocation_id).collect(),
        };
        let freed = self.session.memory.free_batch(request).ok();
        assert!(freed.results.iter().all(|result| result.error.is_none()), "all is freed: {freed:?}");
    }
}
