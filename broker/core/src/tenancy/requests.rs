//! The log of a requester's mutations, so that a repeated request changes nothing twice.

use std::collections::{BTreeMap, VecDeque, btree_map::Entry as PositionEntry};

use vramd_types::{AllocationId, Bytes, PartIndex, SessionId};

use super::{ItemResult, OpId, TenantId};
use crate::{
    command::{PartMove, PartRevocation},
    error::Refusal,
    event::{RequestKey, Tier},
    ledger::QuotaDevice,
    limits::REQUESTS_REMEMBERED,
};

/// A method. Request ids are unique within one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Method {
    AllocateBatch,
    CancelBatch,
    FreeBatch,
    Attach,
    Detach,
    Seal,
    Advise,
    Evict,
    Load,
    SetQuota,
    DeleteQuota,
    SetTenant,
    ResetTenant,
    EndSession,
    FreeAllocation,
    RevokeMappings,
    MoveParts,
    WriteBackParts,
    HoldParts,
    AdviseParts,
    CancelWait,
    CancelPrefetch,
    YieldTurn,
    ChangeSettings,
    Drain,
}

impl Method {
    /// The name in the protocol.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::AllocateBatch => "AllocateBatch",
            Self::CancelBatch => "CancelAllocateBatch",
            Self::FreeBatch => "FreeBatch",
            Self::Attach => "Attach",
            Self::Detach => "Detach",
            Self::Seal => "Seal",
            Self::Advise => "Advise",
            Self::Evict => "Evict",
            Self::Load => "LoadFile",
            Self::SetQuota => "SetQuota",
            Self::DeleteQuota => "DeleteQuota",
            Self::SetTenant => "SetTenant",
            Self::ResetTenant => "ResetTenant",
            Self::EndSession => "EndSession",
            Self::FreeAllocation => "FreeAllocation",
            Self::RevokeMappings => "RevokeMappings",
            Self::MoveParts => "MoveParts",
            Self::WriteBackParts => "WriteBackParts",
            Self::HoldParts => "HoldParts",
            Self::AdviseParts => "AdviseParts",
            Self::CancelWait => "CancelWait",
            Self::CancelPrefetch => "CancelPrefetch",
            Self::YieldTurn => "YieldTurn",
            Self::ChangeSettings => "ChangeSettings",
            Self::Drain => "Drain",
        }
    }
}

/// The outcome of a mutation in short form. A repeated request is answered from it and from the present
/// state.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    Allocated(Box<[AllocationId]>),
    Released(Box<[(AllocationId, ItemResult)]>),
    Attached(AllocationId),
    Sealed(AllocationId),
    Advised(AllocationId),
    QuotaSet {
        tenant: TenantId,
        device: QuotaDevice,
        tier: Tier,
    },
    QuotaDeleted,
    /// An operator set what stands for the tenant, or it follows the configuration again.
    TenantChanged(TenantId),
    SessionEnded {
        gone: bool,
        still_mapped: Bytes,
    },
    AllocationFreed {
        allocation: AllocationId,
        still_charged: Bytes,
        mappers: Box<[SessionId]>,
    },
    MappingsRevoked {
        allocation: AllocationId,
        parts: Box<[(PartIndex, PartRevocation)]>,
    },
    PartsMoved {
        allocation: AllocationId,
        parts: Box<[(PartIndex, PartMove)]>,
    },
    PartsHeld {
        allocation: AllocationId,
        parts: Box<[PartIndex]>,
    },
    WaitCancelled,
    PrefetchCancelled,
    TurnAsked,
    SettingsChanged,
    Drained,
}

impl Outcome {
    /// The bytes beside the entry itself, as far as a client can choose their number.
    fn bytes_beside(&self) -> usize {
        match self {
            Self::Allocated(ids) => size_of_val(&**ids),
            Self::Released(items) => {
                let refused = items.iter().filter(|(_, result)| result.is_err()).count();
                size_of_val(&**items).saturating_add(refused.saturating_mul(REFUSAL_BYTES))
            }
            Self::AllocationFreed { mappers, .. } => size_of_val(&**mappers),
            Self::MappingsRevoked { parts, .. } => size_of_val(&**parts),
            Self::PartsMoved { parts, .. } => size_of_val(&**parts),
            Self::PartsHeld { parts, .. } => size_of_val(&**parts),
            Self::Attached(_)
            | Self::Sealed(_)
            | Self::Advised(_)
            | Self::QuotaSet { .. }
            | Self::QuotaDeleted
            | Self::TenantChanged(_)
            | Self::SessionEnded { .. }
            | Self::WaitCancelled
            | Self::PrefetchCancelled
            | Self::TurnAsked
            | Self::SettingsChanged
            | Self::Drained => 0,
        }
    }
}

#[derive(Clone, Debug)]
enum Progress {
    Running(OpId),
    Done(Outcome),
}

impl Progress {
    fn bytes_beside(&self) -> usize {
        match self {
            Self::Running(_) => 0,
            Self::Done(outcome) => outcome.bytes_beside(),
        }
    }
}

/// The log's knowledge of a request id.
#[derive(Debug)]
pub(crate) enum Recall {
    New,
    Running(OpId),
    Done(Outcome),
    /// The id was used for another content.
    Reused,
}

/// The bytes of a refused item: the refusal, a short text in it, and what the allocator adds to both.
const REFUSAL_BYTES: usize = size_of::<Refusal>() + 64;
/// The bytes of a position in the index. The nodes of its tree are half empty.
const POSITION_BYTES: usize = 2 * size_of::<(Name, u64)>() + 8;
const ENTRY_BYTES: usize = size_of::<Entry>() + POSITION_BYTES;

type Name = (Method, [u8; 16]);

#[derive(Debug)]
pub(crate) struct Entry {
    name: Name,
    pub(crate) fingerprint: [u8; 16],
    /// `None` once it was refused.
    progress: Option<Progress>,
}

impl Entry {
    fn bytes_beside(&self) -> usize {
        self.progress.as_ref().map_or(0, Progress::bytes_beside)
    }
}

/// The last requests, in order. The index by name has only positions: a tree of whole entries would move them
/// at every request.
#[derive(Debug, Default)]
pub(crate) struct RequestLog {
    entries: VecDeque<Entry>,
    /// The number of forgotten requests before the first entry.
    forgotten: u64,
    positions: BTreeMap<Name, u64>,
    /// The bytes of all outcomes beside their entries.
    bytes_beside: usize,
}

impl RequestLog {
    pub(crate) fn recall(&self, method: Method, key: Option<RequestKey>) -> Recall {
        let Some(key) = key else { return Recall::New };
        let Some(entry) = self.find((method, key.id)) else { return Recall::New };
        match &entry.progress {
            _ if entry.fingerprint != key.fingerprint => Recall::Reused,
            Some(Progress::Running(op)) => Recall::Running(*op),
            Some(Progress::Done(outcome)) => Recall::Done(outcome.clone()),
            None => Recall::New,
        }
    }

    /// The operation of a request that is under way, by its id alone.
    pub(crate) fn find_running(&self, method: Method, id: [u8; 16]) -> Option<OpId> {
        match self.find((method, id))?.progress {
            Some(Progress::Running(op)) => Some(op),
            _ => None,
        }
    }

    pub(crate) fn record_start(&mut self, method: Method, key: Option<RequestKey>, op: OpId) {
        self.put(method, key, Progress::Running(op));
    }

    /// Records a finished request with its outcome, or forgets a refused one, which may be tried again.
    pub(crate) fn record_outcome(
        &mut self,
        method: Method,
        key: Option<RequestKey>,
        outcome: Option<Outcome>,
    ) {
        match (outcome, key) {
            (Some(outcome), key) => self.put(method, key, Progress::Done(outcome)),
            (None, Some(key)) => self.forget((method, key.id)),
            (None, None) => {}
        }
    }

    /// Records how an operation ended. If it took so long that it was forgotten, its id may name a later request by
    /// now, whose entry stays.
    pub(crate) fn record_end(
        &mut self,
        op: OpId,
        method: Method,
        key: Option<RequestKey>,
        outcome: Option<Outcome>,
    ) {
        let entry = key.and_then(|key| self.find((method, key.id)));
        let is_own = |entry: &Entry| matches!(entry.progress, Some(Progress::Running(of)) if of == op);
        if entry.is_none_or(is_own) {
            self.record_outcome(method, key, outcome);
        }
    }

    fn put(&mut self, method: Method, key: Option<RequestKey>, progress: Progress) {
        let Some(RequestKey { id, fingerprint }) = key else { return };
        let name = (method, id);
        self.bytes_beside = self.bytes_beside.saturating_add(progress.bytes_beside());
        let entry = Entry { name, fingerprint, progress: Some(progress) };
        match self.positions.entry(name) {
            PositionEntry::Occupied(position) => {
                let at = index(*position.get(), self.forgotten);
                if let Some(there) = at.and_then(|at| self.entries.get_mut(at)) {
                    let before = std::mem::replace(there, entry).bytes_beside();
                    self.bytes_beside = self.bytes_beside.saturating_sub(before);
                }
                return;
            }
            PositionEntry::Vacant(position) => {
                position.insert(self.forgotten.saturating_add(self.entries.len() as u64));
                self.entries.push_back(entry);
            }
        }
        if self.positions.len() > REQUESTS_REMEMBERED
            && let Some(oldest) = self.entries.front().map(|entry| entry.name)
        {
            self.forget(oldest);
        }
    }

    /// Keeps the invariant that the first entry is a remembered one.
    fn forget(&mut self, name: Name) {
        let position = self.positions.remove(&name);
        let at = position.and_then(|position| index(position, self.forgotten));
        if let Some(entry) = at.and_then(|at| self.entries.get_mut(at)) {
            self.bytes_beside = self.bytes_beside.saturating_sub(entry.bytes_beside());
            entry.progress = None;
        }
        while self.entries.front().is_some_and(|entry| entry.progress.is_none()) {
            self.entries.pop_front();
            self.forgotten = self.forgotten.saturating_add(1);
        }
        if self.entries.len() > 2 * REQUESTS_REMEMBERED {
            self.close_gaps();
        }
    }

    /// Removes refused entries, so that one long request followed by many refused ones does not grow the list
    /// for ever.
    fn close_gaps(&mut self) {
        self.entries.retain(|entry| entry.progress.is_some());
        let positions = self.entries.iter().map(|entry| entry.name).zip(self.forgotten..);
        self.positions = positions.collect();
    }

    /// The bytes that the log takes.
    pub(crate) fn bytes(&self) -> usize {
        let entries = self.entries.capacity().saturating_mul(size_of::<Entry>());
        let positions = self.positions.len().saturating_mul(POSITION_BYTES);
        entries.saturating_add(positions).saturating_add(self.bytes_beside)
    }

    /// Forgets the oldest requests until the others take at most that many bytes.
    pub(crate) fn forget_beyond_bytes(&mut self, most: usize) {
        if self.bytes() <= most {
            return;
        }
        let needed =
            |log: &Self| log.positions.len().saturating_mul(ENTRY_BYTES).saturating_add(log.bytes_beside);
        while needed(self) > most
            && let Some(oldest) = self.entries.front().map(|entry| entry.name)
        {
            self.forget(oldest);
        }
        self.close_gaps();
        self.entries.shrink_to_fit();
    }

    /// For `RequestsHalved` and `RequestsShort`.
    #[cfg(feature = "planted")]
    pub(crate) fn forget_beyond(&mut self, most: usize) {
        while self.positions.len() > most
            && let Some(oldest) = self.entries.front().map(|entry| entry.name)
        {
            self.forget(oldest);
        }
    }

    pub(crate) fn find(&self, name: Name) -> Option<&Entry> {
        self.entries.get(index(*self.positions.get(&name)?, self.forgotten)?)
    }
}

/// Converts a position to an index, after `forgotten` entries were removed.
fn index(position: u64, forgotten: u64) -> Option<usize> {
    usize::try_from(position.checked_sub(forgotten)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(id: u16, content: u8) -> Option<RequestKey> {
        let mut bytes = [0; 16];
        bytes[..2].copy_from_slice(&id.to_be_bytes());
        Some(RequestKey { id: bytes, fingerprint: [content; 16] })
    }

    fn op() -> OpId {
        OpId::after(0)
    }

    #[test]
    fn request_log_remembers_the_last_requests() {
        let mut log = RequestLog::default();
        for id in 0..=1024 {
            log.record_outcome(Method::Drain, key(id, 1), Some(Outcome::Drained));
        }
        assert!(matches!(log.recall(Method::Drain, key(0, 1)), Recall::New));
        assert!(matches!(log.recall(Method::Drain, key(1, 1)), Recall::Done(Outcome::Drained)));
        assert!(matches!(log.recall(Method::Drain, key(1, 2)), Recall::Reused));
        assert!(matches!(log.recall(Method::Seal, key(1, 2)), Recall::New));
        assert!(matches!(log.recall(Method::Drain, None), Recall::New));
    }

    #[test]
    fn refused_requests_take_no_entry_and_no_memory() {
        let mut log = RequestLog::default();
        log.record_start(Method::Seal, key(0, 1), op());
        log.record_outcome(Method::Drain, key(0, 1), Some(Outcome::Drained));
        for id in 1..=5000 {
            log.record_start(Method::Drain, key(id, 1), op());
            assert!(matches!(log.recall(Method::Drain, key(id, 1)), Recall::Running(_)));
            log.record_outcome(Method::Drain, key(id, 1), None);
        }
        assert!(matches!(log.recall(Method::Seal, key(0, 1)), Recall::Running(_)));
        assert!(matches!(log.recall(Method::Drain, key(0, 1)), Recall::Done(Outcome::Drained)));
        assert!(log.entries.len() <= 2 * REQUESTS_REMEMBERED && log.positions.len() == 2);
    }

    #[test]
    fn request_log_closes_gaps_and_finds_every_entry() {
        let mut log = RequestLog::default();
        for id in 0..6000 {
            log.record_start(Method::Drain, key(id, 1), op());
            // Every third request is done, the first included; the others are refused.
            let outcome = (id % 3 == 0).then_some(Outcome::Drained);
            log.record_outcome(Method::Drain, key(id, 1), outcome);
        }
        let done = |id: &u16| matches!(log.recall(Method::Drain, key(*id, 1)), Recall::Done(_));
        let found: Vec<_> = (0..6000).filter(done).collect();
        // The last two took a position while they ran.
        let last: Vec<_> = (0..6000).filter(|id| id % 3 == 0).skip(2001 - REQUESTS_REMEMBERED).collect();
        assert_eq!(found, last);
    }

    #[test]
    fn forgotten_request_leaves_the_entry_of_its_repetition() {
        let mut log = RequestLog::default();
        let (first, second) = (op(), OpId::after(1));
        log.record_start(Method::Seal, key(0, 1), first);
        for id in 1..=1024 {
            log.record_outcome(Method::Drain, key(id, 1), Some(Outcome::Drained));
        }
        assert!(matches!(log.recall(Method::Seal, key(0, 2)), Recall::New));
        log.record_start(Method::Seal, key(0, 2), second);
        for outcome in [None, Some(Outcome::Drained)] {
            log.record_end(first, Method::Seal, key(0, 1), outcome);
            assert!(matches!(log.recall(Method::Seal, key(0, 2)), Recall::Running(op) if op == second));
        }
        log.record_end(second, Method::Seal, key(0, 2), Some(Outcome::Drained));
        log.record_end(first, Method::Seal, key(0, 1), None);
        assert!(matches!(log.recall(Method::Seal, key(0, 2)), Recall::Done(Outcome::Drained)));
    }

    #[test]
    fn refused_request_may_be_tried_again() {
        let mut log = RequestLog::default();
        log.record_outcome(Method::Drain, key(1, 1), None);
        assert!(matches!(log.recall(Method::Drain, key(1, 2)), Recall::New));
    }

    #[test]
    fn log_within_bytes_forgets_the_oldest_and_returns_the_memory() {
        let mut log = RequestLog::default();
        let ids = |count| Outcome::Allocated(vec![AllocationId::from_raw(1); count].into());
        log.record_start(Method::Seal, key(0, 1), op());
        for id in 1..=500 {
            log.record_outcome(Method::AllocateBatch, key(id, 1), Some(ids(1000)));
        }
        assert!(log.bytes() > 500 * 8000);
        // A refused request leaves a gap behind the first one, which lasts.
        log.record_outcome(Method::AllocateBatch, key(300, 1), None);
        log.forget_beyond_bytes(100_000);
        assert!((90_000..=100_000).contains(&log.bytes()), "{}", log.bytes());
        let done = |id: &u16| matches!(log.recall(Method::AllocateBatch, key(*id, 1)), Recall::Done(_));
        assert_eq!((0..=500).filter(done).collect::<Vec<_>>(), (489..=500).collect::<Vec<_>>());
        for id in 489..=500 {
            log.record_outcome(Method::AllocateBatch, key(id, 1), Some(ids(0)));
        }
        assert_eq!(log.bytes_beside, 0);
    }
}
