//! What sessions use, read from the words that they share with the daemon.
//!
//! ```text
//!   executor ── Map, ForgetWord ──▶ changes ──▶ thread: every harvest_ms a look at each slot that has a part
//!                                                 │ what was used or written, or is pinned otherwise than at the last look
//!                                                 ╰──▶ Event::Touched, one for all sessions, or none
//! ```
//!
//! The core can't read words, and whoever chooses what leaves a device must know what was used lately. A look is plain
//! loads, and changes nothing; who lies there harms its own tenant alone. It has a thread of its own, so that the reactor
//! pays for what it sends and not for what there is. The price is that a use is known `harvest_ms` later.
//!
//! Between two looks the core may ask a word itself, and is told that it is pinned. It asks again only once it hears of the
//! unpin, so what it was told counts as seen here: or a pin that came and went between two looks would be one for good.

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

/// Ends when it is dropped.
#[derive(Debug)]
pub struct Harvest {
    channels: Arc<Channels>,
    changes: Changes,
    /// Nothing is sent: the thread sees that it is gone.
    end: Option<Sender<Infallible>>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread is to know before its next look.
type Changes = Arc<Mutex<Vec<Change>>>;

#[derive(Debug)]
enum Change {
    Opened {
        channel: ChannelId,
        session: SessionId,
    },
    /// The part's words are there, which say that it was used so often before.
    Mapped {
        channel: ChannelId,
        slot: Slot,
        part: PartRef,
        uses: u32,
    },
    /// The core was told that it is pinned.
    Pinned {
        channel: ChannelId,
        slot: Slot,
    },
    Forgotten {
        channel: ChannelId,
        slot: Slot,
    },
}

/// Of each channel that stands, the slots that have a part.
#[derive(Debug, Default)]
struct AllSlots(BTreeMap<ChannelId, SessionSlots>);

impl Harvest {
    /// What is seen goes to the inbox, every so often.
    pub fn start(channels: Arc<Channels>, inbox: Inbox, every: Duration) -> io::Result<Self> {
        let (end, ended) = channel();
        let changes = Changes::default();
        let (words_of, changes_of) = (Arc::clone(&channels), Arc::clone(&changes));
        let thread = thread::Builder::new()
            .name("vramd-harvest".to_owned())
            .spawn(move || run(&words_of, &changes_of, &inbox, &ended, every))?;
        Ok(Self { channels, changes, end: Some(end), thread: Some(thread) })
    }

    /// Such a frame is about to be sent.
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

    /// The core has been told that the part is pinned: it hears when that is over.
    pub(crate) fn note_pinned(&self, channel: ChannelId, slot: Slot) {
        lock(&self.changes).push(Change::Pinned { channel, slot });
    }

    /// The slot will serve another part.
    pub(crate) fn forget_slot(&self, channel: ChannelId, slot: Slot) {
        lock(&self.changes).push(Change::Forgotten { channel, slot });
    }
}

impl Drop for Harvest {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // It has panicked: nobody is left to whom that matters.
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

    /// What was used since the last look, and channels with words that no honest client makes. These are looked at no more,
    /// and neither are those that have ended.
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

/// The reactor and the thread: neither has it for long.
fn lock(changes: &Mutex<Vec<Change>>) -> MutexGuard<'_, Vec<Change>> {
    changes.lock().unwrap_or_else(PoisonError::into_inner)
}
