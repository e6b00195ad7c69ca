//! What is remembered of a requester's mutations, so that a repeated one does nothing twice.

use std::collections::{BTreeMap, VecDeque};

use vramd_types::{AllocationId, Bytes, SessionId};

use super::{ItemResult, OpId, TenantId};
use crate::{
    event::{RequestKey, Tier},
    ledger::QuotaDevice,
    limits::REQUESTS_REMEMBERED,
};

/// Request ids are unique within one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Method {
    AllocateBatch,
    FreeBatch,
    Attach,
    Detach,
    Seal,
    SetQuota,
    DeleteQuota,
    EndSession,
    FreeAllocation,
    Drain,
}

/// What a mutation did, in few words: the answer is made of it and of what is so when it is asked for again.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    Allocated(Box<[AllocationId]>),
    Released(Box<[(AllocationId, ItemResult)]>),
    Attached(AllocationId),
    Sealed(AllocationId),
    QuotaSet { tenant: TenantId, device: QuotaDevice, tier: Tier },
    QuotaDeleted,
    SessionEnded { gone: bool, still_mapped: Bytes },
    AllocationFreed { allocation: AllocationId, still_charged: Bytes, mappers: Box<[SessionId]> },
    Drained,
}

#[derive(Clone, Debug)]
enum Progress {
    Running(OpId),
    Done(Outcome),
}

/// What a request id stands for.
#[derive(Debug)]
pub(crate) enum Recall {
    New,
    Running(OpId),
    Done(Outcome),
    /// Another content had the id.
    Reused,
}

#[derive(Debug, Default)]
pub(crate) struct RequestLog {
    entries: BTreeMap<(Method, [u8; 16]), ([u8; 16], Progress)>,
    order: VecDeque<(Method, [u8; 16])>,
}

impl RequestLog {
    pub(crate) fn recall(&self, method: Method, key: Option<RequestKey>) -> Recall {
        match key.and_then(|key| Some((key, self.entries.get(&(method, key.id))?))) {
            None => Recall::New,
            Some((key, (fingerprint, _))) if *fingerprint != key.fingerprint => Recall::Reused,
            Some((_, (_, Progress::Running(op)))) => Recall::Running(*op),
            Some((_, (_, Progress::Done(outcome)))) => Recall::Done(outcome.clone()),
        }
    }

    /// The key with the content that its id had first, for the bug of taking one for the other.
    #[cfg(feature = "planted")]
    pub(crate) fn as_first_asked(&self, method: Method, key: Option<RequestKey>) -> Option<RequestKey> {
        let key = key?;
        let fingerprint = self.entries.get(&(method, key.id)).map_or(key.fingerprint, |entry| entry.0);
        Some(RequestKey { fingerprint, ..key })
    }

    pub(crate) fn started(&mut self, method: Method, key: Option<RequestKey>, op: OpId) {
        self.put(method, key, Progress::Running(op));
    }

    /// Done, and to be repeated; or refused, which changed nothing and is tried again.
    pub(crate) fn finished(&mut self, method: Method, key: Option<RequestKey>, outcome: Option<Outcome>) {
        match (outcome, key) {
            (Some(outcome), key) => self.put(method, key, Progress::Done(outcome)),
            (None, Some(key)) => {
                self.entries.remove(&(method, key.id));
                self.order.retain(|entry| *entry != (method, key.id));
            }
            (None, None) => {}
        }
    }

    fn put(&mut self, method: Method, key: Option<RequestKey>, progress: Progress) {
        let Some(key) = key else { return };
        let name = (method, key.id);
        if self.entries.insert(name, (key.fingerprint, progress)).is_none() {
            self.order.push_back(name);
        }
        if self.order.len() > REQUESTS_REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.entries.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(id: u16, content: u8) -> Option<RequestKey> {
        let mut bytes = [0; 16];
        bytes[..2].copy_from_slice(&id.to_be_bytes());
        Some(RequestKey { id: bytes, fingerprint: [content; 16] })
    }

    #[test]
    fn the_last_ones_are_remembered() {
        let mut log = RequestLog::default();
        for id in 0..=1024 {
            log.finished(Method::Drain, key(id, 1), Some(Outcome::Drained));
        }
        assert!(matches!(log.recall(Method::Drain, key(0, 1)), Recall::New));
        assert!(matches!(log.recall(Method::Drain, key(1, 1)), Recall::Done(Outcome::Drained)));
        assert!(matches!(log.recall(Method::Drain, key(1, 2)), Recall::Reused));
        assert!(matches!(log.recall(Method::Seal, key(1, 2)), Recall::New));
        assert!(matches!(log.recall(Method::Drain, None), Recall::New));
    }

    #[test]
    fn what_was_refused_may_be_tried_again() {
        let mut log = RequestLog::default();
        log.finished(Method::Drain, key(1, 1), None);
        assert!(matches!(log.recall(Method::Drain, key(1, 2)), Recall::New));
    }
}
