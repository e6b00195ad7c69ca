//! Operations: requests that cannot be answered at once because they wait for the driver, a client or the
//! disk.

use std::collections::{BTreeMap, BTreeSet};

use vramd_types::{AllocationId, SessionId};

use super::{PerPart, QuotaChange, StandingChange};
use crate::{
    command::{PartMove, PartRevocation},
    event::{CallId, RequestKey, Tier},
    line::{BatchRequest, WaitingBatch},
    observed::ChangedKeys,
    pool::ExtentError,
    tenancy::{ByTenant, Method, OpId, Releases, TenantId},
    time::Time,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Requester {
    Session { session: SessionId, tenant: TenantId },
    Operator { uid: u32 },
}

#[derive(Debug)]
pub(crate) enum OpKind {
    /// Extents are being created. One failure undoes all.
    Allocate {
        since: Time,
        /// The request, in case it has to wait in the line after all.
        request: Option<Box<BatchRequest>>,
        allocations: Vec<AllocationId>,
        extents_left: usize,
        failure: Option<ExtentError>,
    },
    /// A batch that found no room and waits in the line.
    BatchWait(Box<WaitingBatch>),
    Release {
        items: Releases,
        session: SessionId,
    },
    Seal(AllocationId),
    /// An operator's free. It waits until the owner has unmapped, or is overdue; extents without mappers are
    /// released.
    Free {
        allocation: AllocationId,
        owner: Option<SessionId>,
    },
    /// Waits until the session maps nothing, or is overdue.
    EndSession {
        session: SessionId,
        kill: bool,
    },
    /// An operator's revoke. It waits until all revocations are over.
    Revoke {
        parts: PerPart<PartRevocation>,
        /// Whether it waits for pins to end.
        wait: bool,
    },
    /// An operator's move. It waits until all migrations, or write-backs, are over.
    Move {
        parts: PerPart<PartMove>,
        goal: MoveGoal,
    },
    Quota(QuotaChange),
    Standing(StandingChange),
}

/// The goal of an operator's move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MoveGoal {
    In(Tier),
    /// The parts stay on their device and are written back.
    WrittenBack,
}

#[derive(Debug)]
pub(crate) struct Op {
    pub(crate) requester: Requester,
    pub(crate) method: Method,
    pub(crate) key: Option<RequestKey>,
    /// The first call, and the calls that repeated it meanwhile.
    pub(crate) calls: Vec<CallId>,
    pub(crate) kind: OpKind,
}

impl Requester {
    pub(crate) const fn tenant(self) -> Option<TenantId> {
        match self {
            Self::Session { tenant, .. } => Some(tenant),
            Self::Operator { .. } => None,
        }
    }
}

impl OpKind {
    /// Whether it has parts that are not started yet.
    pub(crate) const fn has_more_parts(&self) -> bool {
        match self {
            Self::Revoke { parts, .. } => parts.has_more(),
            Self::Move { parts, .. } => parts.has_more(),
            _ => false,
        }
    }
}

impl Op {
    /// The session that requested the operation, or that it waits for.
    const fn session(&self) -> Option<SessionId> {
        match (&self.kind, self.requester) {
            (OpKind::EndSession { session, .. } | OpKind::Free { owner: Some(session), .. }, _) => {
                Some(*session)
            }
            (_, Requester::Session { session, .. }) => Some(session),
            (_, Requester::Operator { .. }) => None,
        }
    }
}

/// All operations, with the number of waiting calls: of clients, of each tenant, and of operators.
#[derive(Debug, Default)]
pub(crate) struct OpTable {
    ops: BTreeMap<OpId, Op>,
    last: u64,
    by_clients: usize,
    by_operators: usize,
    by_tenant: ByTenant<usize>,
    pub(crate) changed_keys: ChangedKeys<OpId>,
    by_session: BTreeSet<(SessionId, OpId)>,
}

impl OpTable {
    /// Reserves the id of the next operation.
    pub(crate) const fn next_id(&mut self) -> OpId {
        let id = OpId::after(self.last);
        self.last += 1;
        id
    }

    pub(crate) fn insert(&mut self, id: OpId, op: Op) {
        self.count(op.requester, |calls| calls.saturating_add(op.calls.len()));
        self.changed_keys.note(id);
        self.by_session.extend(op.session().map(|session| (session, id)));
        self.ops.insert(id, op);
    }

    /// Adds a call that waits for the operation.
    pub(crate) fn join(&mut self, id: OpId, call: CallId) {
        if let Some(op) = self.ops.get_mut(&id) {
            op.calls.push(call);
            let requester = op.requester;
            self.count(requester, |calls| calls.saturating_add(1));
        }
    }

    pub(crate) fn get(&self, id: OpId) -> Option<&Op> {
        self.ops.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: OpId) -> Option<&mut Op> {
        self.changed_keys.note(id);
        self.ops.get_mut(&id)
    }

    pub(crate) fn remove(&mut self, id: OpId) -> Option<Op> {
        let op = self.ops.remove(&id)?;
        if let Some(session) = op.session() {
            self.by_session.remove(&(session, id));
        }
        self.count(op.requester, |calls| calls.saturating_sub(op.calls.len()));
        Some(op)
    }

    /// The number of waiting calls of clients.
    pub(crate) const fn calls_of_clients(&self) -> usize {
        self.by_clients
    }

    /// The number of waiting calls of operators.
    pub(crate) const fn calls_of_operators(&self) -> usize {
        self.by_operators
    }

    pub(crate) fn calls_of(&self, tenant: TenantId) -> usize {
        self.by_tenant.get(tenant).copied().unwrap_or_default()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (OpId, &Op)> {
        self.ops.iter().map(|(id, op)| (*id, op))
    }

    /// Operations that a session requested, or that wait for it; oldest first.
    pub(crate) fn of_session(&self, session: SessionId) -> Vec<OpId> {
        let all = (session, OpId::MIN)..=(session, OpId::MAX);
        self.by_session.range(all).map(|(_, op)| *op).collect()
    }

    fn count(&mut self, requester: Requester, change: impl Fn(usize) -> usize) {
        match requester.tenant() {
            Some(tenant) => {
                self.by_clients = change(self.by_clients);
                self.by_tenant.change(tenant, |calls| *calls = change(*calls));
            }
            None => self.by_operators = change(self.by_operators),
        }
    }
}
