//! Harvests the use of parts from the words that sessions share with the daemon.
//!
//! ```text
//!   executor ── Map, ForgetWord ──▶ changes ──▶ thread: every harvest_ms it reads each slot that has a part
//!                                                 │ uses, writes and changed pins since the last harvest
//!                                                 ╰──▶ Event::PartsUsed, one for all sessions, or none
//! ```
//!
//! The core cannot read words, but it needs recent use to choose victims. A harvest reads words by plain loads and
//! changes nothing; a client that writes wrong words harms only its own tenant. The harvest has a thread of its own, so
//! the reactor pays only for what it sends. The price is that the core learns of a use up to `harvest_ms` later.
//!
//! Between two harvests the core may try to revoke a part and find it pinned. It tries again only after a harvest
//! reports the unpin. So the harvest treats that pin as seen; otherwise a pin that began and ended between two harvests
//! would never be reported as ended.

mod session_slots;

use std::{
    collections::BTreeMap,
    convert::Infallible,
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use broker_core::{ChannelId, DaemonFrame, Event, PartRef, PartUse, Slot};
use vramd_types::SessionId;

use self::session_slots::SessionSlots;
use crate::{
    channel::{Channels, WordTable},
    reactor::Inbox,
};

/// The harvest thread. Dropping this ends it.
#[derive(Debug)]
pub struct Harvest {
    channels: Arc<Channels>,
    changes: Changes,
    /// Never used to send: the thread sees when it is dropped.
    end: Option<Sender<Infallible>>,
    thread: Option<JoinHandle<()>>,
}

/// Changes that the thread applies before its next harvest.
type Changes = Arc<Mutex<Vec<Change>>>;

#[derive(Debug)]
enum Change {
    Opened {
        channel: ChannelId,
        session: SessionId,
    },
    /// The part has the slot, whose use counter has this value before any use.
    Mapped {
        channel: ChannelId,
        slot: Slot,
        part: PartRef,
        uses: u32,
    },
    /// The core found the part pinned.
    Pinned {
        channel: ChannelId,
        slot: Slot,
    },
    Forgotten {
        channel: ChannelId,
        slot: Slot,
    },
}

/// The slots that have a part, of each channel that stands.
#[derive(Debug, Default)]
struct AllSlots(BTreeMap<ChannelId, SessionSlots>);

impl Harvest {
    /// Starts the thread, which sends the harvested uses to the inbox at that interval.
    pub fn start(channels: Arc<Channels>, inbox: Inbox, every: Duration) -> io::Result<Self> {
        let (end, ended) = channel();
        let changes = Changes::default();
        let (words_of, changes_of) = (Arc::clone(&channels), Arc::clone(&changes));
        let thread = thread::Builder::new()
            .name("vramd-harvest".to_owned())
            .spawn(move || run(&words_of, &changes_of, &inbox, &ended, every))?;
        Ok(Self { channels, changes, end: Some(end), thread: Some(thread) })
    }

    /// Notes a frame that the daemon is about to send.
    pub(crate) fn note_frame(&self, channel: ChannelId, frame: &DaemonFrame) {
        match frame {
            DaemonFrame::Welcome { session, .. } => {
                lock(&self.changes).push(Change::Opened { channel, session: *session });
            }
            DaemonFrame::Map(parts) => {
                let mapped = |words: &WordTable| {
                    let change =
                        |(slot, part)| Some(Change::Mapped { channel, slot, part, uses: words.uses(slot)? });
                    let slotted = parts.iter().filter_map(|part| part.slot.zip(Some(part.part)));
                    lock(&self.changes).extend(slotted.filter_map(change));
                };
                self.channels.read_words(channel, mapped);
            }
            _ => {}
        }
    }

    /// Notes that the core found the part pinned; the harvest reports when that ends.
    pub(crate) fn note_pinned(&self, channel: ChannelId, slot: Slot) {
        lock(&self.changes).push(Change::Pinned { channel, slot });
    }

    /// Notes that another part will get the slot.
    pub(crate) fn forget_slot(&self, channel: ChannelId, slot: Slot) {
        lock(&self.changes).push(Change::Forgotten { channel, slot });
    }
}

impl Drop for Harvest {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // The thread has panicked, which changes nothing at this point.
            let _ = thread.join();
        }
    }
}

fn run(
    channels: &Channels,
    changes: &Mutex<Vec<Change>>,
    inbox: &Inbox,
    ended: &Receiver<Infallible>,
    every: Duration,
) {
    let mut all = AllSlots::default();
    while matches!(ended.recv_timeout(every), Err(RecvTimeoutError::Timeout)) {
        let pending = std::mem::take(&mut *lock(changes));
        pending.into_iter().for_each(|change| all.apply(change));
        let (touched, broken) = all.harvest(channels);
        if !touched.is_empty() {
            inbox.event(Event::PartsUsed(touched));
        }
        for (channel, problem) in broken {
            inbox.event(Event::Malformed { channel, problem });
        }
    }
}

impl AllSlots {
    fn apply(&mut self, change: Change) {
        match change {
            Change::Opened { channel, session } => {
                self.0.insert(channel, SessionSlots::new(session));
            }
            Change::Mapped { channel, slot, part, uses } => {
                if let Some(slots) = self.0.get_mut(&channel) {
                    slots.set_part(slot, part, uses);
                }
            }
            Change::Pinned { channel, slot } => {
                if let Some(slots) = self.0.get_mut(&channel) {
                    slots.mark_pinned(slot);
                }
            }
            Change::Forgotten { channel, slot } => {
                if let Some(slots) = self.0.get_mut(&channel) {
                    slots.remove(slot);
                }
            }
        }
    }

    /// Returns the uses since the last harvest, and the channels with words that no honest client writes. Such
    /// channels are not read again, and neither are ended ones.
    fn harvest(&mut self, channels: &Channels) -> (Vec<PartUse>, Vec<(ChannelId, String)>) {
        let (mut touched, mut broken) = (Vec::new(), Vec::new());
        self.0.retain(|channel, slots| {
            match channels.read_words(*channel, |words| slots.harvest(words, &mut touched)) {
                Some(Ok(())) => true,
                Some(Err(problem)) => {
                    broken.push((*channel, problem));
                    false
                }
                None => false,
            }
        });
        (touched, broken)
    }
}

/// Locks the changes. The reactor and the thread keep the lock only briefly.
fn lock(changes: &Mutex<Vec<Change>>) -> MutexGuard<'_, Vec<Change>> {
    changes.lock().unwrap_or_else(PoisonError::into_inner)
}
