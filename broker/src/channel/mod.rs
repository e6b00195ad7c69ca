//! `channel.sock`: one connection is one session, and all that concerns mappings travels on it in one order.
//!
//! ```text
//!   listener ──accept──▶ connection: who is it? ─▶ Hello ─▶ reads frames ──▶ events to the reactor
//!                            │                          └─ writes what lies in its outbox
//!                            └─▶ watch: the process's pidfd, and what it left unread, until the core forgets it
//! ```
//!
//! A peer can stall, stop or send garbage: each connection waits in tasks of its own, its outbox is bounded, and
//! it has at most one frame in the reactor's queue. The price is a task and two descriptors a session, and a mapping
//! where the client pins (`words`).

mod connection;
pub mod frame_codec;
mod hello_gate;
mod listener;
mod outbox;
mod printable;
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

use broker_core::{ChannelId, Slot, Tier};
use broker_driver::Export;
use dashmap::DashMap;
use tokio::sync::Notify;
use vramd_types::DeviceIndex;

pub use listener::{Settings, serve};
pub use word_table::EvictOutcome;
pub(crate) use word_table::{Use, WordTable};

use outbox::Outbox;
use socket::Socket;

/// A frame on its way to a client, with the handles whose descriptors travel in the same packet.
#[derive(Debug)]
pub struct OutFrame {
    pub bytes: Vec<u8>,
    pub handles: Vec<Export>,
    /// A note of that, of which only the last one counts.
    pub note_of: Option<(DeviceIndex, Tier)>,
}

/// Every channel that has said hello, by its number. Look-ups only; what a channel means is the core's business.
#[derive(Debug, Default)]
pub struct Channels {
    by_id: DashMap<ChannelId, Arc<Entry>>,
    last_id: AtomicU64,
}

/// What is left of a channel outside its tasks. It stays after the channel's end while the process is watched.
#[derive(Debug)]
struct Entry {
    /// Open as long as the entry is here: only this end knows what is unread at the other.
    socket: Socket,
    outbox: Outbox,
    pidfd: Arc<OwnedFd>,
    features: u64,
    /// With the feature `Pins`.
    words: Option<WordTable>,
    forgotten: Notify,
    channel_over: AtomicBool,
    process_over: AtomicBool,
}

impl Channels {
    /// Sends a frame, or queues it where that takes waiting. A channel that is gone or closing drops it; one whose outbox is full is ended.
    pub fn send(&self, channel: ChannelId, frame: OutFrame) {
        let Some(entry) = self.entry(channel) else { return };
        let at_once = |frame: &OutFrame| {
            // Whatever hinders it, the channel's own task meets it again and deals with it.
            let sent = entry.socket.try_send(frame).is_ok();
            if sent {
                tracing::debug!(channel = channel.0, fds = frame.handles.len(), "packet sent");
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

    /// Ends the channel once what is queued has been sent, or could not be for too long.
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

    /// Kills the process behind the channel: that very process, whatever its pid names by now.
    pub fn kill(&self, channel: ChannelId) {
        let Some(entry) = self.entry(channel) else { return };
        match rustix::process::pidfd_send_signal(&entry.pidfd, rustix::process::Signal::KILL) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(error) => {
                tracing::warn!(channel = channel.0, %error, "the client's process could not be killed")
            }
        }
    }

    /// The feature bits that both sides of the channel speak.
    pub fn features(&self, channel: ChannelId) -> u64 {
        self.entry(channel).map_or(0, |entry| entry.features)
    }

    /// What a new client maps its word table by.
    pub fn word_table(&self, channel: ChannelId) -> Option<Export> {
        self.with_words(channel, WordTable::handle)?
    }

    /// Asks for a part that nobody pins, by its word. A channel without words says that it is pinned.
    pub fn evict(&self, channel: ChannelId, slot: Slot) -> Result<EvictOutcome, String> {
        self.with_words(channel, |words| words.evict(slot)).unwrap_or(Ok(EvictOutcome::Pinned))
    }

    /// Takes that back, as long as no frame told of it.
    pub fn cancel_evict(&self, channel: ChannelId, slot: Slot) {
        self.with_words(channel, |words| words.cancel_evict(slot));
    }

    /// Asks for a part whoever pins it. The frame that tells of it follows.
    pub fn fence(&self, channel: ChannelId, slot: Slot) -> Result<(), String> {
        self.with_words(channel, |words| words.fence(slot)).unwrap_or(Ok(()))
    }

    /// Whatever is written from now on says so, if nobody pins the part. Whether that was done.
    pub fn clear_written(&self, channel: ChannelId, slot: Slot) -> Result<bool, String> {
        self.with_words(channel, |words| words.clear_written(slot)).unwrap_or(Ok(false))
    }

    /// The slot will serve another part.
    pub fn forget_word(&self, channel: ChannelId, slot: Slot) -> Result<(), String> {
        self.with_words(channel, |words| words.forget(slot)).unwrap_or(Ok(()))
    }

    /// Looks at the words of a channel. `None` once it has ended, or where it has none.
    pub(crate) fn read_words<T>(&self, channel: ChannelId, read: impl FnOnce(&WordTable) -> T) -> Option<T> {
        let entry = self.entry(channel)?;
        let words = entry.words.as_ref().filter(|_| !entry.channel_over.load(Ordering::SeqCst))?;
        Some(read(words))
    }

    fn with_words<T>(&self, channel: ChannelId, act: impl FnOnce(&WordTable) -> T) -> Option<T> {
        self.entry(channel)?.words.as_ref().map(act)
    }

    /// Ends every channel: the daemon stops.
    pub fn close_all(&self) {
        for entry in &self.by_id {
            entry.outbox.close();
        }
    }

    /// Takes note that one of the two ends has come; after both nothing is left to do with the channel.
    fn mark_over(&self, channel: ChannelId, over: &AtomicBool) {
        over.store(true, Ordering::SeqCst);
        self.by_id.remove_if(&channel, |_, entry| {
            entry.channel_over.load(Ordering::SeqCst) && entry.process_over.load(Ordering::SeqCst)
        });
    }

    fn next_id(&self) -> ChannelId {
        ChannelId(self.last_id.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// The entry without the map's lock, which must not be held while anything else happens.
    fn entry(&self, channel: ChannelId) -> Option<Arc<Entry>> {
        self.by_id.get(&channel).map(|entry| Arc::clone(&entry))
    }
}

#[cfg(test)]
mod tests;
