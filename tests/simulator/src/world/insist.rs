//! A session makes as many requests as the daemon remembers of it, and repeats the oldest one under its id.
//! Operators repeat the oldest request that the daemon remembers of them, from an earlier life maybe.

use std::time::Duration;

use broker_core::{ClientRequest, DeviceSelector, Event, OperatorRequest, RequestKey, Tier};
use vramd_types::{AllocationId, Bytes, Quantity};

use super::{World, queue::Action};
use crate::{coverage::RepeatStep, oracle::REMEMBERED};

/// After how many microseconds it is tried again, if too few requests were made, or no process has a session.
const TRIED_AGAIN_MICROS: u64 = 5_000;

/// An allocation that never exists.
const NOBODY: AllocationId = AllocationId::from_raw(3);

impl World {
    pub(super) fn insist(&mut self) {
        if self.calm {
            return;
        }
        let pids: Vec<_> =
            self.processes.values().filter(|it| it.session.is_some()).map(|it| it.pid).collect();
        if !(self.insist_as_operator() && pids.into_iter().any(|pid| self.insist_as(pid))) {
            let when = self.now.after(Duration::from_micros(TRIED_AGAIN_MICROS));
            self.queue.schedule(when, 0, Action::Insist);
        }
    }

    /// Returns whether the daemon served the process.
    fn insist_as(&mut self, pid: u32) -> bool {
        let first = self.free_nothing(pid, None);
        if !self.oracle.remembers(&first) {
            return false;
        }
        // A request that still runs may be forgotten meanwhile, so that its repetition would be a new one.
        self.processes.get_mut(&pid).into_iter().for_each(|process| process.asked.clear());
        let others: Vec<_> = (0..REMEMBERED).map(|_| self.free_nothing(pid, None)).collect();
        let Some(oldest) = others.first().filter(|oldest| self.oracle.remembers(oldest)) else { return true };
        self.coverage.count_step(RepeatStep::OldestOfSession);
        // The id is known only by its content.
        self.free_nothing(pid, Some(other_content(*oldest)));
        self.free_nothing(pid, Some(other_content(first)));
        // Another method does not know the id at all.
        let detach = ClientRequest::Detach(vec![NOBODY]);
        others
            .last()
            .into_iter()
            .for_each(|last| self.call_at_once(pid, other_content(*last), detach.clone()));
        true
    }

    /// Makes a request that changes nothing and is remembered: it frees what does not exist.
    fn free_nothing(&mut self, pid: u32, key: Option<RequestKey>) -> RequestKey {
        let key = key.unwrap_or_else(|| self.new_key());
        self.call_at_once(pid, key, ClientRequest::FreeBatch(vec![NOBODY]));
        key
    }

    fn call_at_once(&mut self, pid: u32, key: RequestKey, request: ClientRequest) {
        let process = self.processes.get(&pid);
        let Some((session, peer)) = process.and_then(|it| Some((it.session?, it.peer()))) else { return };
        let call = self.new_call(Some(pid));
        self.handle_event(Event::Client { call, session, peer, key: Some(key), request });
    }

    /// Returns whether as many requests are remembered as can be.
    fn insist_as_operator(&mut self) -> bool {
        let Some((key, deleted)) = self.oracle.oldest_of_operator(0) else { return false };
        self.coverage.count_step(RepeatStep::OldestOfOperator);
        let (tenant, device, tier) = ("ada".to_owned(), DeviceSelector::All, Tier::Device);
        let limit = Some(Quantity::Bytes(Bytes::mib(24)));
        let request = match deleted {
            true => OperatorRequest::DeleteQuota { tenant, device, tier },
            false => OperatorRequest::SetQuota { tenant, device, tier, guarantee: None, limit },
        };
        let call = self.new_call(None);
        self.handle_event(Event::Operator { call, uid: 0, key: Some(other_content(key)), request });
        true
    }
}

const fn other_content(key: RequestKey) -> RequestKey {
    RequestKey { fingerprint: [0xdd; 16], ..key }
}
