//! Requests of operators, each handed to its subject.

use vramd_types::{Bytes, SessionId};

use crate::{
    broker::Broker,
    command::{Command, DaemonFrame, Notice, RevokeReason},
    error::Refusal,
    event::{CallId, Kind, OperatorRequest, RequestKey, Target},
    follow_up::Fact,
    handler::{Start, Started},
    ops::{MoveGoal, OpKind, Requester},
    tenancy::{Method, OpId, Outcome, Recall, SessionEvent, SessionState},
};

impl Broker {
    pub(crate) fn on_operator(
        &mut self,
        call: CallId,
        uid: u32,
        key: Option<RequestKey>,
        request: OperatorRequest,
    ) {
        let method = match &request {
            OperatorRequest::SetQuota { .. } => Method::SetQuota,
            OperatorRequest::DeleteQuota { .. } => Method::DeleteQuota,
            OperatorRequest::SetTenant { .. } => Method::SetTenant,
            OperatorRequest::ResetTenant { .. } => Method::ResetTenant,
            OperatorRequest::EndSession { .. } => Method::EndSession,
            OperatorRequest::FreeAllocation(_) => Method::FreeAllocation,
            OperatorRequest::RevokeMappings { .. } => Method::RevokeMappings,
            OperatorRequest::MoveParts { .. } => Method::MoveParts,
            OperatorRequest::WriteBackParts { .. } => Method::WriteBackParts,
            OperatorRequest::HoldParts { .. } => Method::HoldParts,
            OperatorRequest::AdviseParts { .. } => Method::AdviseParts,
            OperatorRequest::CancelWait { .. } => Method::CancelWait,
            OperatorRequest::CancelPrefetch { .. } => Method::CancelPrefetch,
            OperatorRequest::YieldTurn { .. } => Method::YieldTurn,
            OperatorRequest::ChangeSettings(_) => Method::ChangeSettings,
            OperatorRequest::Drain { .. } => Method::Drain,
        };
        let requester = Requester::Operator { uid };
        if self.answer_if_repeated(call, requester, method, key) {
            return;
        }
        if let Err(refusal) = self.check_queue(None) {
            return self.refuse(call, requester, method, refusal);
        }
        let op = self.requests.ops.next_id();
        let start = match request {
            OperatorRequest::SetQuota { tenant, device, tier, guarantee, limit } => {
                self.plan_set_quota(&tenant, &device, tier, guarantee, limit)
            }
            OperatorRequest::DeleteQuota { tenant, device, tier } => {
                self.plan_delete_quota(&tenant, &device, tier)
            }
            OperatorRequest::SetTenant { tenant, class, weight, advice } => {
                self.plan_set_tenant(&tenant, class, weight, advice)
            }
            OperatorRequest::ResetTenant { tenant } => self.plan_reset_tenant(&tenant),
            OperatorRequest::EndSession { session, kill } => self.end_session(session, kill),
            OperatorRequest::FreeAllocation(target) => self.free_for_operator(op, &target),
            OperatorRequest::RevokeMappings { target, parts, wait } => {
                self.revoke_mappings(&target, parts, wait)
            }
            OperatorRequest::MoveParts { target, parts, tier } => {
                self.move_parts(&target, parts, MoveGoal::In(tier))
            }
            OperatorRequest::WriteBackParts { target, parts } => {
                self.move_parts(&target, parts, MoveGoal::WrittenBack)
            }
            OperatorRequest::HoldParts { target, parts, hold } => self.hold_parts(&target, parts, hold),
            OperatorRequest::AdviseParts { target, parts, change } => {
                self.advise_for_operator(&target, parts, change)
            }
            OperatorRequest::CancelWait { wait } => self.cancel_wait(wait),
            OperatorRequest::CancelPrefetch { session, number } => self.cancel_request(session, number),
            OperatorRequest::YieldTurn { session, set } => self.ask_for_operator(session, &set),
            OperatorRequest::ChangeSettings(change) => self.change_settings(uid, &change),
            OperatorRequest::Drain { draining } => self.drain(draining),
        };
        self.record_start(op, call, requester, method, key, start);
        match self.requests.ops.get(op).map(|op| &op.kind) {
            Some(OpKind::Quota(_) | OpKind::Standing(_)) => self.queue_quota(op),
            Some(OpKind::Revoke { .. } | OpKind::Move { .. }) => self.begin_parts(op),
            _ => {}
        }
    }

    fn end_session(&mut self, id: SessionId, kill: bool) -> Start {
        let session = self.sessions.get_mut(id).ok_or(Refusal::SessionNotFound { session: id })?;
        session.ending = true;
        let open = session.channel_open;
        let is_silent = session.state == SessionState::Silent;
        let maps: Vec<_> = session.maps.keys().copied().collect();
        if open {
            for allocation in maps {
                self.revoke_allocation(id, allocation, RevokeReason::SessionEnded);
            }
        }
        let still_mapped = self.sessions.get(id).map_or(Bytes::ZERO, |session| session.mapped);
        if still_mapped.is_zero() {
            self.remove_session(id, SessionEvent::UnmappedAll);
            return Ok(Started::Done(Outcome::SessionEnded { gone: true, still_mapped }));
        }
        if !open && !kill {
            return Ok(Started::Done(Outcome::SessionEnded { gone: false, still_mapped }));
        }
        // The session was asked before and did not answer: nothing is left to wait for.
        if kill && is_silent {
            self.kill_for_operator(id);
        }
        Ok(Started::Waiting(OpKind::EndSession { session: id, kill }))
    }

    /// Frees an allocation as if its owner had: the owner is told to unmap it, and every other session keeps
    /// its mappings.
    fn free_for_operator(&mut self, op: OpId, target: &Target) -> Start {
        let (id, allocation) = self.find_any(target)?;
        if allocation.kind == Kind::Managed {
            // The memory would stay in its process, and no tenant would be charged for it.
            return Err(Refusal::KindUnsupported { kind: "freed managed" });
        }
        let answers = |id: &SessionId| self.sessions.get(*id).is_some_and(|session| session.channel_open);
        let owner = allocation.owner.filter(answers);
        planted!(self, OwnerKeepsFreed => owner = None);
        self.start_free(id);
        if let Some(owner) = owner {
            self.revoke_allocation(owner, id, RevokeReason::Freed);
            self.release_freed(id);
        }
        if let Some(outcome) = self.free_result(id, owner) {
            return Ok(Started::Done(outcome));
        }
        if let Some(allocation) = self.allocations.get_mut(id) {
            allocation.waiting_ops.push(op);
        }
        Ok(Started::Waiting(OpKind::Free { allocation: id, owner }))
    }

    fn drain(&mut self, draining: bool) -> Start {
        if self.node.draining != draining {
            self.node.draining = draining;
            self.follow_ups.push(Fact::DrainChanged);
            self.push_notice(Notice::Draining { draining });
            if draining {
                self.release_all_cached(None);
            }
            let open = self.sessions.iter().filter(|(_, session)| session.is_connected());
            for channel in open.map(|(_, session)| session.channel).collect::<Vec<_>>() {
                self.push_command(Command::Send { channel, frame: DaemonFrame::Drain { draining } });
            }
        }
        Ok(Started::Done(Outcome::Drained))
    }

    /// Restores operators' requests that were stored before a restart.
    pub(crate) fn recall_stored(&mut self, requests: Vec<crate::view::StoredRequest>) {
        for request in requests {
            let key = Some(RequestKey { id: request.id, fingerprint: request.fingerprint });
            let (method, outcome) = self.stored_outcome(&request);
            let log = self.requests.operators.entry(request.uid).or_default();
            if matches!(log.recall(method, key), Recall::New) {
                log.record_outcome(method, key, Some(outcome));
            }
            self.requests.quotas.recall(request);
        }
    }
}
