//! The log of a requester's mutations, so that a repeated request changes nothing twice.

use std::collections::{BTreeMap, VecDeque, btree_map::Entry as PositionEntry};

use vramd_types::{AllocationId, Bytes, PartIndex, SessionId};

use super::{ItemResult, OpId, TenantId};
use crate::{
    command::{PartMove, PartRevocation},
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
    Load,
    SetQuota,
    DeleteQuota,
    EndSession,
    FreeAllocation,
    RevokeMappings,
    MoveParts,
    WriteBackParts,
    HoldParts,
    CancelWait,
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
            Self::Load => "LoadFile",
            Self::SetQuota => "SetQuota",
            Self::DeleteQuota => "DeleteQuota",
            Self::EndSession => "EndSession",
            Self::FreeAllocation => "FreeAllocation",
            Self::RevokeMappings => "RevokeMappings",
            Self::MoveParts => "MoveParts",
            Self::WriteBackParts => "WriteBackParts",
            Self::HoldParts => "HoldParts",
            Self::CancelWait => "CancelWait",
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
    QuotaSet { tenant: TenantId, device: QuotaDevice, tier: Tier },
    QuotaDeleted,
    SessionEnded { gone: bool, still_mapped: Bytes },
    AllocationFreed { allocation: AllocationId, still_charged: Bytes, mappers: Box<[SessionId]> },
    MappingsRevoked { allocation: AllocationId, parts: Box<[(PartIndex, PartRevocation)]> },
    PartsMoved { allocation: AllocationId, parts: Box<[(PartIndex, PartMove)]> },
    PartsHeld { allocation: AllocationId, parts: Box<[PartIndex]> },
    WaitCancelled,
    SettingsChanged,
    Drained,
}

#[derive(Clone, Debug)]
enum Progress {
    Running(OpId),
    Done(Outcome),
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

type Name = (Method, [u8; 16]);

#[derive(Debug)]
pub(crate) struct Entry {
    name: Name,
    pub(crate) fingerprint: [u8; 16],
    /// `None` once it was refused.
    progress: Option<Progress>,
}

/// The last requests, in order. The index by name has only positions: a tree of whole entries would move them
/// at every request.
#[derive(Debug, Default)]
pub(crate) struct RequestLog {
    entries: VecDeque<Entry>,
    /// The number of forgotten requests before the first entry.
    forgotten: u64,
    positions: BTreeMap<Name, u64>,
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

    fn put(&mut self, method: Method, key: Option<RequestKey>, progress: Progress) {
        let Some(RequestKey { id, fingerprint }) = key else { return };
        let name = (method, id);
        let entry = Entry { name, fingerprint, progress: Some(progress) };
        match self.positions.entry(name) {
            PositionEntry::Occupied(position) => {
                let at = index(*position.get(), self.forgotten);
                if let Some(there) = at.and_then(|at| self.entries.get_mut(at)) {
                    *there = entry;
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
    fn refused_request_may_be_tried_again() {
        let mut log = RequestLog::default();
        log.record_outcome(Method::Drain, key(1, 1), None);
        assert!(matches!(log.recall(Method::Drain, key(1, 2)), Recall::New));
    }
}
