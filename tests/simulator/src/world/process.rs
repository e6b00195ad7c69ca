//! Client processes and their channels as they are in truth: the broker knows only what it is told.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use broker_core::{ChannelId, ClientRequest, DaemonFrame, PartRef, Peer, RequestKey, Slot, Time};
use vramd_types::{AllocationId, ExtentId, SessionId};

use super::{sequence::Walk, stroll::Stroll, words::Words, working_sets::OwnSet};

#[derive(Debug)]
pub(super) struct Process {
    pub(super) pid: u32,
    /// The pid by which the daemon knows it.
    pub(super) shown_pid: u32,
    pub(super) seat: usize,
    pub(super) stopped: bool,
    pub(super) channel: Option<ChannelId>,
    pub(super) session: Option<SessionId>,
    /// Earlier sessions of this process.
    pub(super) past: Vec<SessionId>,
    pub(super) known: Vec<Known>,
    /// Managed memory that it has allocated, with its device: it stays until the process frees it or ends.
    pub(super) managed: BTreeMap<AllocationId, (usize, u64)>,
    pub(super) asked: Vec<(RequestKey, ClientRequest)>,
    /// References to each extent, by descriptors and mappings. An extent's memory is free once it has none.
    pub(super) references: BTreeMap<ExtentId, u32>,
    pub(super) burst: u64,
    /// Threads that pin.
    pub(super) threads: Vec<Thread>,
    pub(super) last_pin: u64,
    pub(super) last_prefetch: u64,
    pub(super) last_sequence: u64,
    pub(super) walk: Option<Walk>,
    pub(super) stroll: Option<Stroll>,
    pub(super) own_set: OwnSet,
    /// Without pins: the extent in which it mapped each part last.
    pub(super) mapped_in: BTreeMap<PartRef, ExtentId>,
}

/// An allocation that the process was told of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    pub(super) id: AllocationId,
    pub(super) own: bool,
}

pub(super) const UID: u32 = 1000;

/// Threads of a process that pin, in most worlds.
pub(super) const THREADS: usize = 2;

impl Process {
    pub(super) fn new(pid: u32, shown_pid: u32, seat: usize, threads: usize) -> Self {
        Self {
            pid,
            shown_pid,
            seat,
            stopped: false,
            channel: None,
            session: None,
            past: Vec::new(),
            known: Vec::new(),
            managed: BTreeMap::new(),
            asked: Vec::new(),
            references: BTreeMap::new(),
            burst: 0,
            threads: std::iter::repeat_with(Thread::default).take(threads).collect(),
            last_pin: 0,
            last_prefetch: 0,
            last_sequence: 0,
            walk: None,
            stroll: None,
            own_set: OwnSet::default(),
            mapped_in: BTreeMap::new(),
        }
    }

    /// Whether a thread waits for the part.
    pub(super) fn waits_for(&self, part: PartRef) -> bool {
        self.threads
            .iter()
            .filter_map(|thread| thread.waiting.as_ref())
            .any(|waits| waits.parts.contains(&part))
    }

    pub(super) const fn peer(&self) -> Peer {
        Peer { pid: self.shown_pid, uid: UID }
    }

    pub(super) fn add_reference(&mut self, extent: ExtentId) {
        *self.references.entry(extent).or_default() += 1;
    }

    pub(super) fn drop_reference(&mut self, extent: ExtentId) {
        if let Some(count) = self.references.get_mut(&extent) {
            *count -= 1;
            if *count == 0 {
                self.references.remove(&extent);
            }
        }
    }

    /// Drops the session, with its handles and requests.
    pub(super) fn lose_session(&mut self) {
        self.channel = None;
        self.past.extend(self.session.take());
        self.known.clear();
        self.asked.clear();
        self.threads.iter_mut().for_each(|thread| *thread = Thread::default());
        self.last_pin = 0;
        self.last_prefetch = 0;
        self.last_sequence = 0;
        (self.walk, self.stroll) = (None, None);
        self.own_set = OwnSet::default();
    }
}

/// Pins of a thread, and the call that it waits for.
#[derive(Debug, Default)]
pub(super) struct Thread {
    pub(super) pinned: Vec<PartRef>,
    /// Of these, parts that it pinned to write.
    pub(super) writes: Vec<PartRef>,
    pub(super) waiting: Option<WaitingPin>,
}

impl Thread {
    pub(super) fn add_pins(&mut self, parts: &[PartRef], write: bool) {
        self.pinned.extend(parts);
        if write {
            self.writes.extend(parts);
        }
    }

    /// Takes all pins from the thread.
    pub(super) fn take_pins(&mut self) -> Vec<PartRef> {
        self.writes.clear();
        std::mem::take(&mut self.pinned)
    }
}

/// An unanswered pin call.
#[derive(Debug)]
pub(super) struct WaitingPin {
    pub(super) call: u64,
    pub(super) parts: Vec<PartRef>,
    pub(super) write: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Mapping {
    pub(super) extent: ExtentId,
    pub(super) writable: bool,
}

#[derive(Debug)]
pub(super) struct Channel {
    pub(super) pid: u32,
    /// Frames that the broker sent and the client has not received.
    pub(super) inbox: VecDeque<DaemonFrame>,
    /// Parts that the process maps by it.
    pub(super) mapped: BTreeMap<PartRef, Mapping>,
    /// The client has not closed it.
    pub(super) client_open: bool,
    /// The broker has not closed it.
    pub(super) broker_open: bool,
    /// The broker watches for the end of the process.
    pub(super) watched: bool,
    /// When the last event that the client sent arrives.
    pub(super) last_arrival: Time,
    pub(super) working: bool,
    /// With pins: the table that the daemon and the process share.
    pub(super) words: Option<Words>,
    /// Parts that the process was sent and has not lost: it may pin them, mapped or not.
    pub(super) slots: BTreeMap<PartRef, Slot>,
    /// Parts without a handle pin: the process is sent them only when it pins them.
    pub(super) unpinned: BTreeSet<PartRef>,
    /// Parts to unmap when their pins have ended, and whether the process may pin them again.
    pub(super) to_unmap: BTreeMap<PartRef, bool>,
    /// It has broken the protocol.
    pub(super) lied: bool,
}

impl Channel {
    pub(super) fn new(pid: u32) -> Self {
        Self {
            pid,
            inbox: VecDeque::new(),
            mapped: BTreeMap::new(),
            client_open: true,
            broker_open: true,
            watched: true,
            last_arrival: Time::START,
            working: false,
            words: None,
            slots: BTreeMap::new(),
            unpinned: BTreeSet::new(),
            to_unmap: BTreeMap::new(),
            lied: false,
        }
    }
}
