//! Requests of client processes: the daemon authenticates the caller, answers a repetition from its log, and
//! hands a new request to its subject.

use vramd_types::SessionId;

use crate::{
    broker::Broker,
    command::{Caller, Command, Notice},
    error::Refusal,
    event::{CallId, ClientRequest, Peer, RequestKey},
    handler::{Start, Started},
    limits::PLACES_SHARED_PER_OWN,
    ops::{Op, Requester},
    tenancy::{Method, OpId, Recall, TenantId},
};

impl Broker {
    pub(crate) fn on_client(
        &mut self,
        call: CallId,
        session: SessionId,
        peer: Peer,
        key: Option<RequestKey>,
        request: ClientRequest,
    ) {
        let method = match &request {
            ClientRequest::AllocateBatch { .. } => Method::AllocateBatch,
            ClientRequest::CancelBatch(_) => Method::CancelBatch,
            ClientRequest::FreeBatch(_) => Method::FreeBatch,
            ClientRequest::Attach(_) | ClientRequest::AttachUnpinned(_) => Method::Attach,
            ClientRequest::Detach(_) => Method::Detach,
            ClientRequest::Seal(_) => Method::Seal,
            ClientRequest::Advise(..) => Method::Advise,
            ClientRequest::Evict(..) => Method::Evict,
            ClientRequest::Load { .. } => Method::Load,
        };
        planted!(self, MethodsMixed => method = Method::FreeBatch);
        let tenant = match self.authenticate(session, peer) {
            Ok(tenant) => tenant,
            Err(refusal) => {
                let by = Caller::ForeignProcess { session, pid: peer.pid };
                self.push_notice(Notice::Refused { by, request: method.name(), refusal: refusal.clone() });
                return self.push_command(Command::Reply { call, outcome: Err(refusal) });
            }
        };
        let requester = Requester::Session { session, tenant };
        if self.answer_if_repeated(call, requester, method, key) {
            return;
        }
        // A request that ends a wait makes a place in the queue, and takes none.
        let queued = match request {
            ClientRequest::CancelBatch(_) => Ok(()),
            _ => self.check_queue(requester.tenant()),
        };
        if let Err(refusal) = queued {
            return self.refuse(call, requester, method, refusal);
        }
        let op = self.requests.ops.next_id();
        let start = match request {
            ClientRequest::AllocateBatch { items, wait } => self.allocate(op, session, tenant, items, wait),
            ClientRequest::CancelBatch(request_id) => self.cancel_batch(session, request_id),
            ClientRequest::FreeBatch(ids) => self.free_batch(op, session, tenant, &ids),
            ClientRequest::Attach(target) => self.attach(session, tenant, &target, false),
            ClientRequest::AttachUnpinned(target) => self.attach(session, tenant, &target, true),
            ClientRequest::Detach(ids) => self.detach_batch(op, session, tenant, &ids),
            ClientRequest::Seal(id) => self.seal(op, session, tenant, id),
            ClientRequest::Advise(id, advice) => self.advise(session, tenant, id, advice),
            ClientRequest::Evict(id, tier) => self.evict(session, tenant, id, tier),
            ClientRequest::Load { spec, file } => self.load(op, session, tenant, spec, file),
        };
        self.record_start(op, call, requester, method, key, start);
        planted!(self, EvictionNeverBegun => return);
        if method == Method::Evict {
            self.begin_parts(op);
        }
    }

    /// Answers a repeated request, now or with the first one. Returns whether it was repeated.
    pub(crate) fn answer_if_repeated(
        &mut self,
        call: CallId,
        requester: Requester,
        method: Method,
        key: Option<RequestKey>,
    ) -> bool {
        let log = match requester {
            Requester::Session { session, .. } => self.sessions.get(session).map(|session| &session.requests),
            Requester::Operator { uid } => self.requests.operators.get(&uid),
        };
        planted!(self, ReusedRequestIdServed => key = log.and_then(|log| log.key_used_first(method, key)));
        match log.map_or(Recall::New, |log| log.recall(method, key)) {
            Recall::New => return false,
            Recall::Reused => {
                let request_id = key.map(|key| key.id).unwrap_or_default();
                self.refuse(call, requester, method, Refusal::RequestIdReused { request_id });
            }
            Recall::Done(outcome) => {
                self.answer(call, requester, &outcome);
                planted!(self, AnsweredTwice => self.answer(call, requester, &outcome));
            }
            // A repetition waits like the first request, and counts like it.
            Recall::Running(op) => match self.check_queue(requester.tenant()) {
                Ok(()) => self.requests.ops.join(op, call),
                Err(refusal) => self.refuse(call, requester, method, refusal),
            },
        }
        true
    }

    /// Whether one more request may wait. Operators have places that clients cannot take, and each tenant has some
    /// that no other tenant can take.
    pub(crate) fn check_queue(&self, tenant: Option<TenantId>) -> Result<(), Refusal> {
        let (limits, ops) = (&self.config.limits, &self.requests.ops);
        let (node_max, tenant_max) = (limits.pending_requests_max, limits.pending_requests_per_tenant_max);
        let Some(tenant) = tenant else {
            let waiting = ops.calls_of_operators();
            planted!(self, OperatorsLockedOut => waiting = waiting.saturating_add(ops.calls_of_clients()));
            return if waiting < node_max { Ok(()) } else { Err(Refusal::QueueFull { limit: node_max }) };
        };
        let own = ops.calls_of(tenant);
        let own_places = tenant_max.div_ceil(PLACES_SHARED_PER_OWN);
        planted!(self, TenantsLockedOut => own_places = 0);
        if own >= tenant_max {
            return Err(Refusal::QueueFull { limit: tenant_max });
        }
        if own >= own_places && ops.calls_of_clients() >= node_max {
            return Err(Refusal::QueueFull { limit: node_max });
        }
        Ok(())
    }

    /// Answers a request that is done, and keeps one that waits.
    pub(crate) fn record_start(
        &mut self,
        id: crate::tenancy::OpId,
        call: CallId,
        requester: Requester,
        method: Method,
        key: Option<RequestKey>,
        start: Start,
    ) {
        match start {
            Err(refusal) => self.refuse(call, requester, method, refusal),
            Ok(Started::Done(outcome)) => {
                self.answer(call, requester, &outcome);
                self.remember(requester, method, key, None, Some(outcome));
            }
            Ok(Started::Waiting(kind)) => {
                self.change_request_log(requester, |log| log.record_start(method, key, id));
                self.requests.ops.insert(id, Op { requester, method, key, calls: vec![call], kind });
                self.finish_if_complete(id);
            }
        }
    }

    /// Answers a request for which everything has happened in its first step.
    fn finish_if_complete(&mut self, id: OpId) {
        self.finish_allocation(id);
        self.finish_release(id);
        self.finish_parts(id);
    }
}
