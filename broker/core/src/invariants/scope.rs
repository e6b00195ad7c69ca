//! The rows that a check covers: all, or those that the last event changed.

use vramd_types::{AllocationId, ExtentId, SessionId};

use crate::{
    broker::Broker,
    ledger::Place,
    ops::Op,
    pool::Extent,
    residency::Allocation,
    tenancy::{OpId, Session, TenantId},
};

type Rows<'a, K, V> = Box<dyn Iterator<Item = (K, &'a V)> + 'a>;

#[derive(Debug)]
pub(super) enum Scope {
    All,
    #[cfg(feature = "observed")]
    Changed(ChangedRows),
}

#[cfg(feature = "observed")]
#[derive(Debug)]
pub(super) struct ChangedRows {
    allocations: Vec<AllocationId>,
    sessions: Vec<SessionId>,
    extents: Vec<ExtentId>,
    accounts: Vec<(TenantId, Place)>,
    ops: Vec<OpId>,
}

#[cfg_attr(not(feature = "observed"), allow(unused_variables, reason = "all rows are looked at then"))]
impl Scope {
    /// The accounts charged for changed extents are included: a balance that should have changed, and did
    /// not, is not among the changed ones.
    #[cfg(feature = "observed")]
    pub(super) fn changed_in(broker: &Broker) -> Self {
        let extents = broker.pool.changed_keys.keys();
        let mut accounts = broker.ledger.changed_keys.keys();
        accounts.extend(extents.iter().filter_map(|id| broker.pool.get(*id)).flat_map(Extent::accounts));
        accounts.sort_unstable();
        accounts.dedup();
        Self::Changed(ChangedRows {
            allocations: broker.allocations.changed_keys.keys(),
            sessions: broker.sessions.changed_keys.keys(),
            extents,
            accounts,
            ops: broker.requests.ops.changed_keys.keys(),
        })
    }

    /// Returns the allocations in scope that still exist.
    pub(super) fn allocations<'a>(&'a self, broker: &'a Broker) -> Rows<'a, AllocationId, Allocation> {
        match self {
            Self::All => Box::new(broker.allocations.iter_after(None)),
            #[cfg(feature = "observed")]
            Self::Changed(changed) => Box::new(
                changed.allocations.iter().filter_map(|id| Some((*id, broker.allocations.get(*id)?))),
            ),
        }
    }

    pub(super) fn sessions<'a>(&'a self, broker: &'a Broker) -> Rows<'a, SessionId, Session> {
        match self {
            Self::All => Box::new(broker.sessions.iter()),
            #[cfg(feature = "observed")]
            Self::Changed(changed) => {
                Box::new(changed.sessions.iter().filter_map(|id| Some((*id, broker.sessions.get(*id)?))))
            }
        }
    }

    pub(super) fn extents<'a>(&'a self, broker: &'a Broker) -> Rows<'a, ExtentId, Extent> {
        match self {
            Self::All => Box::new(broker.pool.iter()),
            #[cfg(feature = "observed")]
            Self::Changed(changed) => {
                Box::new(changed.extents.iter().filter_map(|id| Some((*id, broker.pool.get(*id)?))))
            }
        }
    }

    pub(super) fn ops<'a>(&'a self, broker: &'a Broker) -> Rows<'a, OpId, Op> {
        match self {
            Self::All => Box::new(broker.requests.ops.iter()),
            #[cfg(feature = "observed")]
            Self::Changed(changed) => {
                Box::new(broker.requests.ops.iter().filter(|(id, op)| changed.concerns(*id, op)))
            }
        }
    }

    /// Whether the allocation is in scope, existing or gone.
    pub(super) fn has_allocation(&self, id: AllocationId) -> bool {
        match self {
            Self::All => true,
            #[cfg(feature = "observed")]
            Self::Changed(changed) => changed.allocations.binary_search(&id).is_ok(),
        }
    }

    pub(super) fn has_session(&self, id: SessionId) -> bool {
        match self {
            Self::All => true,
            #[cfg(feature = "observed")]
            Self::Changed(changed) => changed.sessions.binary_search(&id).is_ok(),
        }
    }

    pub(super) fn has_account(&self, account: (TenantId, Place)) -> bool {
        match self {
            Self::All => true,
            #[cfg(feature = "observed")]
            Self::Changed(changed) => changed.accounts.binary_search(&account).is_ok(),
        }
    }

    pub(super) fn has_place(&self, place: Place) -> bool {
        match self {
            Self::All => true,
            #[cfg(feature = "observed")]
            Self::Changed(changed) => changed.accounts.iter().any(|(_, of)| *of == place),
        }
    }

    /// Whether no account is in scope.
    pub(super) fn has_no_account(&self) -> bool {
        match self {
            Self::All => false,
            #[cfg(feature = "observed")]
            Self::Changed(changed) => changed.accounts.is_empty(),
        }
    }
}

#[cfg(feature = "observed")]
impl ChangedRows {
    /// An operation is in scope with everything that it waits for.
    fn concerns(&self, id: OpId, op: &Op) -> bool {
        use crate::ops::OpKind;
        let allocation = |id: &AllocationId| self.allocations.binary_search(id).is_ok();
        let session = |id: &SessionId| self.sessions.binary_search(id).is_ok();
        self.ops.binary_search(&id).is_ok()
            || match &op.kind {
                OpKind::Release { items, session: of } => {
                    session(of) || items.iter().any(|item| allocation(&item.allocation))
                }
                OpKind::Free { allocation: id, .. } | OpKind::Seal(id) => allocation(id),
                OpKind::EndSession { session: id, .. } => session(id),
                OpKind::Revoke { parts, .. } => allocation(&parts.allocation),
                OpKind::Move { parts, .. } => allocation(&parts.allocation),
                OpKind::Allocate { .. } | OpKind::BatchWait(_) | OpKind::Quota(_) | OpKind::Standing(_) => {
                    false
                }
            }
    }
}
