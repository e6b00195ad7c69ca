//! Sessions, and the table of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use vramd_types::{AllocationId, Bytes, DeviceIndex, IdSource, SessionId};

use super::{ByTenant, Doubt, MapQueue, RequestLog, SessionState, TenantId, Trust, Words};
use crate::{
    collections::IdMap, event::ChannelId, limits::REMEMBERED_BYTES_PER_UID_MAX, observed::ChangedKeys,
    time::Time, turns::Turns,
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SilentReason {
    ChannelEnded,
    Quarantined(String),
    Overdue,
    /// The daemon may not kill its process.
    NotKilled(String),
    /// Its process has ended, and another process keeps its socket.
    SocketKept,
}

impl SilentReason {
    /// Whether the session is live again once it has answered everything.
    pub(crate) const fn ends_with_answer(&self) -> bool {
        matches!(self, Self::Overdue | Self::NotKilled(_))
    }
}

impl fmt::Display for SilentReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ChannelEnded => write!(f, "its channel has ended"),
            Self::Quarantined(problem) => write!(f, "quarantined: {problem}"),
            Self::Overdue => write!(f, "it does not answer"),
            Self::NotKilled(problem) => write!(f, "its process cannot be killed: {problem}"),
            Self::SocketKept => {
                write!(
                    f,
                    "its program has ended, but another process or program, like a forked child, keeps its socket"
                )
            }
        }
    }
}

#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) channel: ChannelId,
    pub(crate) channel_open: bool,
    pub(crate) tenant: TenantId,
    pub(crate) pid: u32,
    pub(crate) uid: u32,
    pub(crate) client_name: String,
    /// The devices that it sees.
    pub(crate) devices: Vec<DeviceIndex>,
    pub(crate) state: SessionState,
    pub(crate) silent_reason: Option<SilentReason>,
    pub(crate) opened: Time,
    /// The allocations that it owns.
    pub(crate) owned: BTreeSet<AllocationId>,
    /// The number of its mappings per allocation, in any state.
    pub(crate) maps: BTreeMap<AllocationId, usize>,
    /// Parts that wait to be sent.
    pub(crate) queue: MapQueue,
    /// Bytes that it maps or was sent.
    pub(crate) mapped: Bytes,
    /// Descriptors sent and not answered. Descriptors in the socket of a closed channel count until the session is
    /// gone.
    pub(crate) fds_in_flight: usize,
    /// When the packet in flight must be answered.
    pub(crate) map_deadline: Option<Time>,
    /// Parts that it was told to unmap for good and has not unmapped.
    pub(crate) revoking: usize,
    pub(crate) revoke_deadline: Option<Time>,
    /// When its process is killed, if it stays silent.
    pub(crate) kill_at: Option<Time>,
    /// When operators who had its process killed are answered, if it has not ended.
    pub(crate) end_deadline: Option<Time>,
    /// When its deadlines are checked next: its only entry among the timers.
    pub(crate) alarm: Option<Time>,
    /// An operator ended the session. Once it maps nothing, its channel is closed and it is gone.
    pub(crate) ending: bool,
    pub(crate) requests: RequestLog,
    /// The silences that the daemon had counted when it last unmapped something as it was told.
    pub(crate) answered: u64,
    /// Whether it gets reports of pressure.
    pub(crate) wants_pressure: bool,
    /// Whether it executes orders for its managed memory.
    pub(crate) takes_orders: bool,
    /// Only with pins.
    pub(crate) words: Option<Box<Words>>,
}

impl Session {
    /// Whether the session may still make calls and be sent frames.
    pub(crate) const fn is_connected(&self) -> bool {
        self.channel_open && !self.ending
    }

    /// Whether it owes an unmap, so that it becomes overdue at its deadline.
    pub(crate) fn owes_unmapped(&self) -> bool {
        self.parts_owed() > 0
    }

    /// The number of parts that it must unmap soon.
    pub(crate) fn parts_owed(&self) -> usize {
        let evicted = self.words.as_ref().map_or(0, |words| words.unmap_soon.len());
        self.revoking.saturating_add(evicted)
    }

    /// All deadlines of the session.
    pub(crate) fn deadlines(&self) -> impl Iterator<Item = Time> {
        let words = self.words.as_ref().and_then(|words| words.map_deadline);
        let of_process = [self.kill_at, self.end_deadline];
        let of_answers = [self.map_deadline, self.revoke_deadline, words, self.unmap_deadline()];
        of_answers.into_iter().chain(of_process).flatten()
    }

    pub(crate) fn unmap_deadline(&self) -> Option<Time> {
        self.words.as_ref().and_then(|words| words.unmap_deadline)
    }

    /// Whether the daemon may check its words and expect a prompt answer to a `Revoke`.
    pub(crate) fn is_answering(&self) -> bool {
        self.channel_open && self.state == SessionState::Live
    }
}

#[derive(Debug)]
pub(crate) struct SessionTable {
    pub(crate) ids: IdSource,
    /// The session that was opened last.
    pub(crate) last: Option<SessionId>,
    sessions: IdMap<Session>,
    channels: IdMap<SessionId>,
    by_tenant: ByTenant<usize>,
    /// The bytes of all logs of requests, by uid. There is no entry for zero.
    remembered: BTreeMap<u32, usize>,
    pub(crate) trust: Trust,
    /// Working sets, and turns of sessions on them.
    pub(crate) turns: Turns,
    pub(crate) changed_keys: ChangedKeys<SessionId>,
}

impl SessionTable {
    pub(crate) fn new(epoch: u64) -> Self {
        Self {
            ids: IdSource::new(epoch),
            last: None,
            sessions: IdMap::default(),
            channels: IdMap::default(),
            by_tenant: ByTenant::default(),
            remembered: BTreeMap::new(),
            trust: Trust::default(),
            turns: Turns::default(),
            changed_keys: ChangedKeys::default(),
        }
    }

    pub(crate) fn insert(&mut self, id: SessionId, session: Session) {
        self.changed_keys.note(id);
        self.channels.insert(session.channel.0, id);
        self.by_tenant.change(session.tenant, |count| *count += 1);
        self.sessions.insert(id.get(), session);
    }

    pub(crate) fn remove(&mut self, id: SessionId) -> Option<Session> {
        self.changed_keys.note(id);
        let session = self.sessions.remove(id.get())?;
        self.channels.remove(session.channel.0);
        self.by_tenant.change(session.tenant, |count| *count = count.saturating_sub(1));
        self.add_remembered(session.uid, 0, session.requests.bytes());
        if self.trust.has_silence(session.pid) && !self.iter().any(|(_, other)| other.pid == session.pid) {
            self.trust.forget(session.pid);
        }
        Some(session)
    }

    /// The doubt about a session.
    pub(crate) fn doubt(&self, id: SessionId) -> Doubt {
        let session = self.sessions.get(id.get());
        session.map_or(Doubt::Nothing, |session| self.trust.doubt(session.pid, session.answered))
    }

    /// Records that a session did not answer in time.
    pub(crate) fn record_silence(&mut self, id: SessionId) {
        if let Some(session) = self.sessions.get(id.get()) {
            self.trust.record_silence(session.pid, session.answered);
        }
    }

    pub(crate) fn get(&self, id: SessionId) -> Option<&Session> {
        self.sessions.get(id.get())
    }

    pub(crate) fn get_mut(&mut self, id: SessionId) -> Option<&mut Session> {
        self.changed_keys.note(id);
        self.sessions.get_mut(id.get())
    }

    /// Changes a session's log of requests, and keeps all logs of its uid within their bound.
    pub(crate) fn change_requests(&mut self, id: SessionId, change: impl FnOnce(&mut RequestLog)) {
        let Some(session) = self.get_mut(id) else { return };
        let (uid, before) = (session.uid, session.requests.bytes());
        change(&mut session.requests);
        let after = session.requests.bytes();
        if after != before && self.add_remembered(uid, after, before) > REMEMBERED_BYTES_PER_UID_MAX {
            self.forget_requests_of(uid);
        }
    }

    /// Has the sessions of a uid forget all that is beyond an equal share of half the bound, so that this work is rare.
    fn forget_requests_of(&mut self, uid: u32) {
        let of_uid = |(_, session): &(SessionId, &Session)| session.uid == uid;
        let sessions: Vec<SessionId> = self.iter().filter(of_uid).map(|(id, _)| id).collect();
        let share = (REMEMBERED_BYTES_PER_UID_MAX / 2).checked_div(sessions.len()).unwrap_or_default();
        for id in sessions {
            let Some(session) = self.get_mut(id) else { continue };
            let before = session.requests.bytes();
            session.requests.forget_beyond_bytes(share);
            let after = session.requests.bytes();
            self.add_remembered(uid, after, before);
        }
    }

    /// Counts a log that took `before` bytes and takes `after` now. Returns the bytes of all logs of the uid.
    fn add_remembered(&mut self, uid: u32, after: usize, before: usize) -> usize {
        let sum = self.remembered.entry(uid).or_default();
        *sum = sum.saturating_add(after).saturating_sub(before);
        let sum = *sum;
        if sum == 0 {
            self.remembered.remove(&uid);
        }
        sum
    }

    /// Returns the bytes of all logs of requests, by uid.
    pub(crate) const fn remembered(&self) -> &BTreeMap<u32, usize> {
        &self.remembered
    }

    pub(crate) fn on_channel(&self, channel: ChannelId) -> Option<SessionId> {
        self.channels.get(channel.0).copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.sessions.len()
    }

    pub(crate) fn count_of(&self, tenant: TenantId) -> usize {
        self.by_tenant.get(tenant).copied().unwrap_or_default()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (SessionId, &Session)> {
        self.iter_after(None)
    }

    pub(crate) fn iter_after(&self, after: Option<SessionId>) -> impl Iterator<Item = (SessionId, &Session)> {
        let found = self.sessions.iter_after(after.map(SessionId::get));
        found.map(|(id, session)| (SessionId::from_raw(id), session))
    }
}
