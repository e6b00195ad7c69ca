//! Answers to calls. They are built when they are sent, from the outcome and the present state.

use crate::{
    broker::Broker,
    command::{Command, Reply},
    error::Refusal,
    event::{CallId, RequestKey},
    limits::REMEMBERED_BYTES_PER_UID_MAX,
    ops::Requester,
    tenancy::{ItemResult, Method, OpId, Outcome, RequestLog},
};

impl Broker {
    /// Refuses one call.
    pub(crate) fn refuse(&mut self, call: CallId, requester: Requester, method: Method, refusal: Refusal) {
        self.note_refusal(requester, method, refusal.clone());
        self.push_command(Command::Reply { call, outcome: Err(refusal) });
    }

    pub(crate) fn answer(&mut self, call: CallId, requester: Requester, outcome: &Outcome) {
        let outcome = self.reply_of(requester, outcome);
        self.push_command(Command::Reply { call, outcome });
    }

    /// Ends an operation: answers all its calls, and remembers its outcome.
    pub(crate) fn finish(&mut self, id: OpId, result: Result<Outcome, Refusal>) {
        let Some(op) = self.requests.ops.remove(id) else { return };
        let calls = op.calls;
        planted!(self, JoinedCallUnanswered => calls = self.without_last(calls));
        planted!(self, AnswerToWrongCall => calls = self.calls_of_another(calls));
        // One notice, however often the request was repeated.
        if let Err(refusal) = &result {
            self.note_refusal(op.requester, op.method, refusal.clone());
        }
        for call in calls {
            match &result {
                Ok(outcome) => self.answer(call, op.requester, outcome),
                Err(refusal) => self.push_command(Command::Reply { call, outcome: Err(refusal.clone()) }),
            }
        }
        self.remember(op.requester, op.method, op.key, Some(id), result.ok());
    }

    /// Remembers the outcome of a request. `op` is its operation, if it did not end in its first step.
    pub(crate) fn remember(
        &mut self,
        requester: Requester,
        method: Method,
        key: Option<RequestKey>,
        op: Option<OpId>,
        outcome: Option<Outcome>,
    ) {
        planted!(self, RequestIdForgotten => return);
        self.change_request_log(requester, |log| match op {
            Some(op) => log.record_end(op, method, key, outcome),
            None => log.record_outcome(method, key, outcome),
        });
        planted!(self, RequestsHalved => self.forget_requests_beyond(requester, 512));
        planted!(self, RequestsShort => self.forget_requests_beyond(requester, 1023));
    }

    /// Changes the log of a requester, within its bound.
    pub(crate) fn change_request_log(&mut self, requester: Requester, change: impl FnOnce(&mut RequestLog)) {
        match requester {
            Requester::Session { session, .. } => self.sessions.change_requests(session, change),
            Requester::Operator { uid } => {
                let log = self.requests.operators.entry(uid).or_default();
                change(log);
                if log.bytes() > REMEMBERED_BYTES_PER_UID_MAX {
                    log.forget_beyond_bytes(REMEMBERED_BYTES_PER_UID_MAX / 2);
                }
            }
        }
    }

    fn reply_of(&self, requester: Requester, outcome: &Outcome) -> Result<Reply, Refusal> {
        let show_mappers = matches!(requester, Requester::Operator { .. });
        let view = |id| {
            self.view(id, true, show_mappers)
                .ok_or_else(|| Refusal::AllocationNotFound { allocation: format!("{id}") })
        };
        Ok(match outcome {
            Outcome::Allocated(ids) => {
                let mut views = Vec::with_capacity(ids.len());
                for id in ids.iter().copied() {
                    views.push(view(id)?);
                }
                Reply::Allocated(views)
            }
            Outcome::Released(items) => {
                let result = |result: &ItemResult| result.clone().map_err(|refusal| *refusal);
                Reply::Released(items.iter().map(|(id, of)| (*id, result(of))).collect())
            }
            Outcome::Attached(id) => Reply::Attached(Box::new(view(*id)?)),
            Outcome::Sealed(id) => Reply::Sealed(Box::new(view(*id)?)),
            Outcome::Advised(id) => Reply::Advised(Box::new(view(*id)?)),
            Outcome::QuotaSet { tenant, device, tier } => {
                Reply::QuotaSet(Box::new(self.quota_view(*tenant, device, *tier)))
            }
            Outcome::QuotaDeleted => Reply::QuotaDeleted,
            Outcome::TenantChanged(tenant) => Reply::TenantChanged(Box::new(self.tenant_view(*tenant))),
            Outcome::SessionEnded { gone, still_mapped } => {
                Reply::SessionEnded { gone: *gone, still_mapped: *still_mapped }
            }
            Outcome::AllocationFreed { allocation, still_charged, mappers } => Reply::AllocationFreed {
                allocation: *allocation,
                still_charged: *still_charged,
                mappers: mappers.to_vec(),
            },
            Outcome::MappingsRevoked { allocation, parts } => {
                Reply::MappingsRevoked { allocation: *allocation, parts: parts.to_vec() }
            }
            Outcome::PartsMoved { allocation, parts } => {
                Reply::PartsMoved { allocation: *allocation, parts: parts.to_vec() }
            }
            Outcome::PartsHeld { allocation, parts } => {
                Reply::PartsHeld { allocation: *allocation, parts: parts.to_vec() }
            }
            Outcome::WaitCancelled => Reply::WaitCancelled,
            Outcome::PrefetchCancelled => Reply::PrefetchCancelled,
            Outcome::TurnAsked => Reply::TurnAsked,
            Outcome::SettingsChanged => Reply::SettingsChanged(Box::new(self.node.settings)),
            Outcome::Drained => Reply::Drained {
                draining: self.node.draining,
                sessions: self.sessions.len(),
                charged: self.held_in_all(),
            },
        })
    }
}
