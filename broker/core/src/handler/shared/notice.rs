//! Notices for operators. Nothing here changes anything but the queue of commands.

use std::sync::Arc;

use vramd_types::{AllocationId, SessionId};

use crate::{
    broker::Broker,
    command::{Caller, Notice},
    error::Refusal,
    ledger::Quota,
    ops::{QuotaChange, Requester},
    tenancy::{Method, TenantId},
};

impl Broker {
    pub(crate) fn note_refusal(&mut self, requester: Requester, method: Method, refusal: Refusal) {
        let by = match requester {
            Requester::Session { session, tenant } => {
                Caller::Session { session, tenant: self.tenants.shared(tenant) }
            }
            Requester::Operator { uid } => Caller::Operator { uid },
        };
        self.push_notice(Notice::Refused { by, request: method.name(), refusal });
    }

    pub(crate) fn note_quota(&mut self, change: &QuotaChange, quota: Option<Quota>) {
        let (tenant, device) = (self.tenants.shared(change.tenant), self.device_text(&change.device));
        let tier = change.tier;
        self.push_notice(match quota {
            Some(Quota { guarantee, limit }) => Notice::QuotaSet { tenant, device, tier, guarantee, limit },
            None => Notice::QuotaDeleted { tenant, device, tier },
        });
    }

    pub(crate) fn note_made(&mut self, id: AllocationId) {
        let Some(allocation) = self.allocations.get(id) else { return };
        let (session, bytes) = (allocation.owner, allocation.span);
        self.note_allocation(id, |allocation, tenant| Notice::AllocationMade {
            allocation,
            tenant,
            session,
            bytes,
        });
    }

    /// Queues a notice of an allocation, if it exists.
    pub(crate) fn note_allocation(
        &mut self,
        id: AllocationId,
        notice: impl FnOnce(AllocationId, Arc<str>) -> Notice,
    ) {
        let Some(tenant) = self.allocations.get(id).map(|allocation| allocation.tenant) else { return };
        self.push_notice(notice(id, self.tenants.shared(tenant)));
    }

    pub(crate) fn note_answered(
        &mut self,
        id: SessionId,
        tenant: TenantId,
        (allocation, parts): (AllocationId, usize),
    ) {
        let tenant = self.tenants.shared(tenant);
        self.push_notice(Notice::RevokeAnswered { session: id, tenant, allocation, parts });
    }
}

/// Counts parts that a session was told to unmap and has, one allocation after the other: one notice stands for
/// many parts.
#[derive(Default)]
pub(crate) struct Answered(pub(crate) Option<(AllocationId, usize)>);

impl Answered {
    /// Counts one more part. If it belongs to another allocation, returns the count of the one before.
    pub(crate) fn add(&mut self, allocation: AllocationId) -> Option<(AllocationId, usize)> {
        match &mut self.0 {
            Some((of, parts)) if *of == allocation => {
                *parts = parts.saturating_add(1);
                None
            }
            other => other.replace((allocation, 1)),
        }
    }
}
