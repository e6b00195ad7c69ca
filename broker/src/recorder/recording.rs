//! A trace that is being recorded, and one that is complete.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::RangeInclusive,
    sync::Arc,
    time::Duration,
};

use broker_core::{
    AllocationView, ChannelId, ClientFrame, Command, DaemonFrame, DeviceView, Event, Kind, Notice, PartRef,
    PartUse, Tier, Time, limits::PART_SIZE_MAX,
};
use broker_replay::{End, Names, PartKey, Record, Start, Trace, What};
use vramd_types::{AllocationId, PartIndex, SessionId};

/// Records of one piece of memory, so that a growing trace is never copied as a whole.
const CHUNK: usize = 1024;

/// A recording. Its default is one without room.
#[derive(Debug, Default)]
pub(super) struct Recording {
    began: Time,
    records_max: usize,
    count: usize,
    chunks: Vec<Vec<Record>>,
    names: Names,
    /// Allocations that the trace has, and that are not gone.
    live: BTreeSet<AllocationId>,
    /// Pin calls without an answer.
    pub(super) calls: BTreeMap<(ChannelId, u64), Vec<PartRef>>,
    /// Calls that their clients ended since the last harvest, and before it. Their answers may be on their way.
    ended_calls: [Vec<(ChannelId, u64)>; 2],
    /// Parts of granted calls, until the next harvest of their use, which is the use of the call.
    granted: BTreeSet<PartRef>,
    /// Parts that sessions keep pinned from harvest to harvest.
    held: BTreeMap<PartRef, BTreeSet<SessionId>>,
}

/// A trace that no further record is added to.
#[derive(Debug)]
pub struct FinishedTrace {
    began: Time,
    end: End,
    count: usize,
    chunks: Vec<Vec<Record>>,
    names: Names,
}

/// The allocation that the command reports as made.
pub(super) const fn made_by(command: &Command) -> Option<AllocationId> {
    match command {
        Command::Notice(Notice::AllocationMade { allocation, .. }) => Some(*allocation),
        _ => None,
    }
}

impl Recording {
    pub(super) fn new(began: Time, records_max: usize) -> Self {
        Self { began, records_max, ..Self::default() }
    }

    pub(super) const fn is_full(&self) -> bool {
        self.count >= self.records_max
    }

    pub(super) const fn count(&self) -> usize {
        self.count
    }

    pub(super) fn finish(self, end: End) -> FinishedTrace {
        let Self { began, count, chunks, names, .. } = self;
        FinishedTrace { began, end, count, chunks, names }
    }

    pub(super) fn add_device(&mut self, now: Time, device: &DeviceView) {
        let what = What::Device { device: self.names.device(&device.uuid), bytes: device.capacity.get() };
        self.add(now, what);
    }

    /// Adds an allocation with its parts, unless the trace has it.
    pub(super) fn add_allocation(&mut self, now: Time, view: &AllocationView) {
        if !self.live.insert(view.id) {
            return;
        }
        let (tenant, device) = (self.names.tenant(&view.tenant), self.names.device(&view.device));
        // A replay has no memory but the daemon's: managed memory takes its room as fixed memory does.
        if matches!(view.kind, Kind::Fixed | Kind::Managed) {
            return self.add_fixed(now, view, (tenant, device));
        }
        for part in &view.parts {
            let key = key(PartRef { allocation: view.id, part: part.index });
            let is_there = part.tier == Tier::Device && !part.dropped;
            let start = if is_there { Start::Device } else { Start::Below };
            self.add(now, What::Allocate { part: key, bytes: part.size.get(), tenant, device, start });
        }
    }

    /// Adds memory that never leaves its device. It has one part of any size, and a trace has none above the maximum.
    fn add_fixed(&mut self, now: Time, view: &AllocationView, (tenant, device): (u32, u32)) {
        let mut left = view.size.get();
        for part in (0..).map(|index| PartRef { allocation: view.id, part: PartIndex(index) }) {
            let (part, bytes) = (key(part), left.min(PART_SIZE_MAX.get()));
            self.add(now, What::Allocate { part, bytes, tenant, device, start: Start::Device });
            self.add(now, What::Hold { part });
            left -= bytes;
            if left == 0 {
                return;
            }
        }
    }

    pub(super) fn note_event(&mut self, now: Time, event: &Event) {
        match event {
            Event::Frame { channel, frame: ClientFrame::Pin { call, parts, .. } } => {
                self.calls.insert((*channel, *call), parts.clone());
            }
            Event::Frame { channel, frame: ClientFrame::PinEnded { call } } => {
                self.ended_calls[0].push((*channel, *call));
            }
            Event::ChannelEnded { channel } => self.calls.retain(|(of, _), _| of != channel),
            Event::PartsUsed(uses) => {
                uses.iter().for_each(|used| self.note_use(now, used));
                let [recent, earlier] = &mut self.ended_calls;
                let answered = std::mem::replace(earlier, std::mem::take(recent));
                answered.iter().for_each(|call| _ = self.calls.remove(call));
            }
            _ => {}
        }
    }

    pub(super) fn note_command(&mut self, now: Time, command: &Command) {
        match command {
            Command::Send { channel, frame: DaemonFrame::PinAnswer { call, refusal } } => {
                let parts = self.calls.remove(&(*channel, *call)).unwrap_or_default();
                for part in parts.into_iter().filter(|_| refusal.is_none()) {
                    if self.has(part) {
                        self.granted.insert(part);
                        self.add(now, What::Use { part: key(part), deadline: None });
                    }
                }
            }
            Command::CloseChannel { channel } => self.calls.retain(|(of, _), _| of != channel),
            Command::Notice(notice) => self.note_notice(now, notice),
            _ => {}
        }
    }

    fn note_notice(&mut self, now: Time, notice: &Notice) {
        match notice {
            Notice::AllocationGone { allocation, .. } if self.live.remove(allocation) => {
                let granted: Vec<_> = self.granted.range(parts_of(*allocation)).copied().collect();
                let held: Vec<_> = self.held.range(parts_of(*allocation)).map(|(part, _)| *part).collect();
                granted.iter().for_each(|part| _ = self.granted.remove(part));
                held.iter().for_each(|part| _ = self.held.remove(part));
                self.add(now, What::Free { allocation: allocation.shown() });
            }
            Notice::Moved { part, tier: Tier::Device, bytes, .. } if self.has(*part) => {
                self.add(now, What::Fetch { part: key(*part), bytes: bytes.get() });
            }
            Notice::Moved { part, from: Tier::Device, bytes, cause, copied, .. } if self.has(*part) => {
                self.end_holds(now, *part);
                let (part, bytes) = (key(*part), bytes.get());
                self.add(now, What::Evict { part, bytes, cause: *cause, copied: *copied });
            }
            Notice::Dropped { part, bytes, cause, .. } if self.has(*part) => {
                self.end_holds(now, *part);
                let (part, bytes) = (key(*part), bytes.get());
                self.add(now, What::Evict { part, bytes, cause: *cause, copied: false });
            }
            Notice::WrittenBack { part, bytes, .. } if self.has(*part) => {
                self.add(now, What::WriteBack { part: key(*part), bytes: bytes.get() });
            }
            Notice::PinWaited { tenant, since, .. } => {
                let tenant = self.names.tenant(tenant);
                self.add(now, What::Wait { tenant, micros: micros(now.since(*since)) });
            }
            Notice::SessionGone { session, .. } => {
                let held: Vec<_> = self.held.keys().copied().collect();
                held.into_iter().for_each(|part| self.end_hold(now, part, *session));
            }
            _ => {}
        }
    }

    fn note_use(&mut self, now: Time, used: &PartUse) {
        let PartUse { session, part, pinned, written } = *used;
        if !self.has(part) {
            return;
        }
        let was_held = self.held.get(&part).is_some_and(|sessions| sessions.contains(&session));
        // The end of a hold is no use, and the use of a granted call is in the trace.
        let is_use = pinned || !was_held;
        if !self.granted.remove(&part) && is_use {
            self.add(now, What::Use { part: key(part), deadline: None });
        }
        if written {
            self.add(now, What::Write { part: key(part) });
        }
        if !pinned {
            self.end_hold(now, part, session);
        } else if !was_held {
            let sessions = self.held.entry(part).or_default();
            sessions.insert(session);
            if sessions.len() == 1 {
                self.add(now, What::Hold { part: key(part) });
            }
        }
    }

    fn end_hold(&mut self, now: Time, part: PartRef, session: SessionId) {
        if let Some(sessions) = self.held.get_mut(&part)
            && sessions.remove(&session)
            && sessions.is_empty()
        {
            self.held.remove(&part);
            self.add(now, What::Release { part: key(part) });
        }
    }

    /// The part leaves its device, so no session pins it any more. A word that is collected for that is not harvested.
    fn end_holds(&mut self, now: Time, part: PartRef) {
        if self.held.remove(&part).is_some() {
            self.add(now, What::Release { part: key(part) });
        }
    }

    fn has(&self, part: PartRef) -> bool {
        self.live.contains(&part.allocation)
    }

    fn add(&mut self, now: Time, what: What) {
        if self.is_full() {
            return;
        }
        let record = Record { at: micros(now.since(self.began)), what };
        match self.chunks.last_mut().filter(|chunk| chunk.len() < CHUNK) {
            Some(chunk) => chunk.push(record),
            None => {
                let mut chunk = Vec::with_capacity(CHUNK.min(self.records_max));
                chunk.push(record);
                self.chunks.push(chunk);
            }
        }
        self.count += 1;
    }
}

impl FinishedTrace {
    /// When it began, by the broker's clock.
    pub fn began(&self) -> Time {
        self.began
    }

    pub fn record_count(&self) -> usize {
        self.count
    }

    /// The time from its beginning to its last record.
    pub fn duration(&self) -> Duration {
        let last = self.chunks.last().and_then(|chunk| chunk.last());
        Duration::from_micros(last.map_or(0, |record| record.at))
    }

    pub fn is_full(&self) -> bool {
        self.end == End::Full
    }

    /// Returns the pieces of its file, in order: whole lines, at most 256 KiB.
    pub fn pieces(self: Arc<Self>) -> Pieces {
        Pieces { trace: self, next: 0 }
    }
}

/// The pieces of a trace's file.
#[derive(Debug)]
pub struct Pieces {
    trace: Arc<FinishedTrace>,
    /// 0 is the head.
    next: usize,
}

impl Iterator for Pieces {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        let FinishedTrace { count, end, chunks, names, .. } = &*self.trace;
        let mut piece = String::new();
        match self.next.checked_sub(1) {
            None => piece = Trace::head(*count, *end),
            Some(number) => {
                chunks.get(number)?.iter().for_each(|record| names.write_record(&mut piece, record));
            }
        }
        self.next += 1;
        Some(piece)
    }
}

/// All references to parts of an allocation, in their order.
fn parts_of(allocation: AllocationId) -> RangeInclusive<PartRef> {
    let part = |index| PartRef { allocation, part: PartIndex(index) };
    part(0)..=part(u32::MAX)
}

fn key(part: PartRef) -> PartKey {
    PartKey { allocation: part.allocation.shown(), part: part.part.0 }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
