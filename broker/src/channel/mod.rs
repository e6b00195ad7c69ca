//! Serves `channel.sock`. One connection is one session, and everything about mappings travels on it in one order.
//!
//! ```text
//!   listener ──accept──▶ connection: identify ─▶ Hello  ─▶ reads frames ──▶ events to the reactor
//!                            │                          └─ writes the frames of its outbox
//!                            └─▶ process_watch: the process's pidfd and its unread packets, until the core forgets it
//! ```
//!
//! A peer can stall, stop or send garbage. So each connection waits in tasks of its own, its outbox is bounded, and it
//! has at most one event in the reactor's queue. The price is a task and two descriptors for each session, and a shared
//! mapping if the client pins (`word_table`).

mod connection;
pub mod frame_codec;
mod hello_gate;
mod listener;
mod outbox;
mod process_watch;
mod refusal_frames;
mod socket;
mod word_table;

use std::{
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use broker_core::{ChannelId, ProcessStays, Slot, Tier};
use broker_driver::Export;
use dashmap::DashMap;
use rustix::io::Errno;
use tokio::sync::Notify;
use vramd_types::DeviceIndex;

pub use listener::{ChannelOptions, serve};
pub use word_table::EvictOutcome;
pub(crate) use word_table::{Use, WordTable};

use crate::platform::{
    descriptor_shares::DescriptorShare,
    peer,
    process::{Image, Process},
};
use outbox::Outbox;
use socket::Socket;

/// A frame to a client, with the exports whose descriptors travel in the same packet.
#[derive(Debug)]
pub struct OutFrame {
    pub bytes: Vec<u8>,
    pub exports: Vec<Export>,
    /// The place that a pressure note is about. Only the last note of a place counts.
    pub note_of: Option<(DeviceIndex, Tier)>,
}

/// Every channel that has said hello, by its number. The core decides what a channel means.
#[derive(Debug, Default)]
pub struct Channels {
    by_id: DashMap<ChannelId, Arc<Entry>>,
    last_id: AtomicU64,
}

/// The part of a channel that its tasks share with others. It outlives the channel while the process is watched.
#[derive(Debug)]
struct Entry {
    /// Open as long as the entry exists: only this end knows what is unread at the other end.
    socket: Socket,
    outbox: Outbox,
    process: ClientProcess,
    features: u64,
    /// Present with the feature `Pins`.
    words: Option<WordTable>,
    /// The user's share of the daemon's descriptors.
    _descriptors: Option<DescriptorShare>,
    forgotten: Notify,
    /// Asks for a check whether the process has executed a program.
    image_check: Notify,
    /// The end of the process was reported, or what keeps it from being complete.
    process_settled: Notify,
    channel_over: AtomicBool,
    process_over: AtomicBool,
}

/// The process behind a channel.
#[derive(Debug)]
struct ClientProcess {
    pid: u32,
    pidfd: Arc<OwnedFd>,
    /// Its program when it said hello. `None` if the kernel did not show it.
    image: Option<Image>,
}

impl ClientProcess {
    fn new(pid: u32, pidfd: Arc<OwnedFd>) -> Self {
        let mut process = Self { pid, pidfd, image: None };
        process.image = process.read().map(|read| read.image);
        process
    }

    /// Returns what the kernel shows, if the process is alive afterwards: then it was not that of another process.
    fn read(&self) -> Option<Process> {
        let read = Process::read(self.pid).ok();
        read.filter(|_| !self.has_ended())
    }

    fn has_ended(&self) -> bool {
        peer::has_ended(&self.pidfd)
    }

    fn is_ending(&self) -> bool {
        self.read().is_some_and(|process| process.is_ending)
    }

    /// Whether it has executed a program since its hello, so that its mappings are gone.
    fn has_executed(&self) -> bool {
        self.image.is_some_and(|image| self.read().is_some_and(|process| process.image.follows(&image)))
    }
}

impl Channels {
    /// Sends a frame, or queues it if sending would wait. A channel that is gone or closing drops the frame; a channel
    /// whose outbox is full is ended.
    pub fn send(&self, channel: ChannelId, frame: OutFrame) {
        let Some(entry) = self.entry(channel) else { return };
        let at_once = |frame: &OutFrame| {
            // If anything prevents it, the channel's own task meets and handles the same error.
            let sent = entry.socket.try_send(frame).is_ok();
            if sent {
                tracing::debug!(channel = channel.0, fds = frame.exports.len(), "packet sent");
            }
            sent
        };
        if entry.outbox.push(frame, at_once).is_err() {
            tracing::warn!(
                channel = channel.0,
                "the client does not read its frames: outbox full, channel ended"
            );
        }
    }

    /// Ends the channel once its queued frames are sent, or after a bounded time.
    pub fn close(&self, channel: ChannelId) {
        if let Some(entry) = self.entry(channel) {
            entry.outbox.close();
        }
    }

    /// Stops watching the process behind the channel.
    pub fn forget(&self, channel: ChannelId) {
        if let Some((_, entry)) = self.by_id.remove(&channel) {
            entry.outbox.close();
            entry.forgotten.notify_one();
        }
    }

    /// Kills the process behind the channel: exactly that process, whatever process its pid names by now. A program
    /// that the process has executed since is left alone.
    pub fn kill(&self, channel: ChannelId) -> Result<(), ProcessStays> {
        let Some(entry) = self.entry(channel) else { return Ok(()) };
        if entry.process.has_executed() {
            entry.image_check.notify_one();
            return Ok(());
        }
        match rustix::process::pidfd_send_signal(&entry.process.pidfd, rustix::process::Signal::KILL) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(error) => {
                let hint = if error == Errno::PERM { ": the daemon lacks CAP_KILL" } else { "" };
                Err(ProcessStays::NotKilled { problem: format!("{error}{hint}") })
            }
        }
    }

    /// The feature bits that both sides of the channel speak.
    pub fn features(&self, channel: ChannelId) -> u64 {
        self.entry(channel).map_or(0, |entry| entry.features)
    }

    /// The export by which a new client maps its word table.
    pub fn word_table(&self, channel: ChannelId) -> Option<Export> {
        self.with_words(channel, WordTable::export)?
    }

    /// Revokes a part by eviction: sets its word, unless the session pins the part. A channel without words counts as
    /// pinning.
    pub fn evict(&self, channel: ChannelId, slot: Slot) -> Result<EvictOutcome, String> {
        self.with_words(channel, |words| words.evict(slot)).unwrap_or(Ok(EvictOutcome::Pinned))
    }

    /// Takes an eviction back. Allowed until a frame has reported it.
    pub fn cancel_evict(&self, channel: ChannelId, slot: Slot) {
        self.with_words(channel, |words| words.cancel_evict(slot));
    }

    /// Revokes a part by fence: sets its word, whether the session pins the part or not. The frame that reports it
    /// follows.
    pub fn fence(&self, channel: ChannelId, slot: Slot) -> Result<(), String> {
        self.with_words(channel, |words| words.fence(slot)).unwrap_or(Ok(()))
    }

    /// Clears the written bit of an unpinned part, so that later writes set it again. Returns whether it did.
    pub fn clear_written(&self, channel: ChannelId, slot: Slot) -> Result<bool, String> {
        self.with_words(channel, |words| words.clear_written(slot)).unwrap_or(Ok(false))
    }

    /// Clears a slot before another part gets it.
    pub fn forget_word(&self, channel: ChannelId, slot: Slot) -> Result<(), String> {
        self.with_words(channel, |words| words.forget(slot)).unwrap_or(Ok(()))
    }

    /// Reads the words of a channel. `None` once the channel has ended, or if it has no words.
    pub(crate) fn read_words<T>(&self, channel: ChannelId, read: impl FnOnce(&WordTable) -> T) -> Option<T> {
        let entry = self.entry(channel)?;
        let words = entry.words.as_ref().filter(|_| !entry.channel_over.load(Ordering::SeqCst))?;
        Some(read(words))
    }

    fn with_words<T>(&self, channel: ChannelId, act: impl FnOnce(&WordTable) -> T) -> Option<T> {
        self.entry(channel)?.words.as_ref().map(act)
    }

    /// Ends every channel, because the daemon stops.
    pub fn close_all(&self) {
        for entry in &self.by_id {
            entry.outbox.close();
        }
    }

    /// Records one of the two ends, of the channel or of the process. After both the entry is removed.
    fn mark_over(&self, channel: ChannelId, over: &AtomicBool) {
        over.store(true, Ordering::SeqCst);
        self.by_id.remove_if(&channel, |_, entry| {
            entry.channel_over.load(Ordering::SeqCst) && entry.process_over.load(Ordering::SeqCst)
        });
    }

    fn next_id(&self) -> ChannelId {
        ChannelId(self.last_id.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Returns the entry without the map's lock, which must not be kept while anything else happens.
    fn entry(&self, channel: ChannelId) -> Option<Arc<Entry>> {
        self.by_id.get(&channel).map(|entry| Arc::clone(&entry))
    }
}

#[cfg(test)]
mod tests;
