//! Served requests keep their bounds: a missing refusal shows in what exists afterwards.

use broker_core::{AllocationSpec, Broker, ClientRequest, invariants::BOUNDS};
use vramd_types::SessionId;

use crate::oracle::{
    Oracle,
    facts::{Asked, ExtentPhase, Tenant},
};

impl Oracle {
    /// Checks that a served batch is not empty, not too large, and has no item with too many readers.
    pub(crate) fn check_batch_size(&mut self, asked: &ClientRequest) {
        let (items, max) = (items_of(asked), self.limits.batch_items_max);
        self.expect(BOUNDS, items > 0 && items <= max, || {
            format!("a batch of {items} is served, at most {max}")
        });
        let specs = match asked {
            ClientRequest::AllocateBatch { items, .. } => Some(items.as_slice()),
            ClientRequest::Load { spec, .. } => Some(std::slice::from_ref(spec)),
            _ => None,
        };
        if let Some(specs) = specs {
            let (readers, max) = (most_readers(specs), self.limits.readers_max);
            self.expect(BOUNDS, readers <= max, || format!("{readers} readers are taken, at most {max}"));
        }
    }

    /// Checks that a session that was just welcomed is within the bounds.
    pub(crate) fn check_session_count(&mut self, tenant: Tenant) {
        let live = || self.facts.sessions.values().filter(|session| !session.gone);
        let (all, own) = (live().count(), live().filter(|session| session.tenant == tenant).count());
        let (max, max_own) = (self.limits.sessions_max, self.limits.sessions_per_tenant_max);
        self.expect(BOUNDS, all <= max, || format!("{all} sessions, at most {max}"));
        self.expect(BOUNDS, own <= max_own, || format!("{own} sessions of one tenant, at most {max_own}"));
    }

    /// Checks counts after an event that admitted something: allocations as listed, parts and extents as the
    /// oracle saw them created.
    pub(crate) fn check_counts(&mut self, broker: &Broker) {
        let Some(tenant) = self.batch_tenant().filter(|_| self.step.created_count > 0) else { return };
        let (listed, _) = broker.list_allocations(Some(&self.facts.tenants[tenant]), None, usize::MAX);
        let in_use = self.facts.extents.values().filter(|extent| {
            extent.owner == tenant
                && !extent.detached
                && matches!(extent.phase, ExtentPhase::Creating | ExtentPhase::Live)
        });
        let limits = &self.limits;
        let counts = [
            ("allocations", listed.len(), limits.allocations_per_tenant_max),
            ("parts", in_use.count(), limits.parts_per_tenant_max),
            ("extents of the node", self.facts.extents.len(), limits.extents_max),
        ];
        for (what, count, max) in counts {
            self.expect(BOUNDS, count <= max, || format!("{count} {what}, at most {max}"));
        }
    }

    /// The tenant whose batch the event concerns: one that waited for room, or the one that is requested now.
    fn batch_tenant(&self) -> Option<Tenant> {
        let session = |session: &SessionId| self.facts.sessions.get(session).map(|it| it.tenant);
        let asking = self.step.call.as_ref().and_then(|(_, call)| match &call.asked {
            Asked::Client { session: id, .. } => session(id),
            Asked::Operator { .. } => None,
        });
        self.step.retried_tenant.or(asking)
    }
}

fn items_of(asked: &ClientRequest) -> usize {
    match asked {
        ClientRequest::AllocateBatch { items: specs, .. } => specs.len(),
        ClientRequest::FreeBatch(ids) | ClientRequest::Detach(ids) => ids.len(),
        ClientRequest::CancelBatch(_)
        | ClientRequest::Attach(_)
        | ClientRequest::AttachUnpinned(_)
        | ClientRequest::Seal(_)
        | ClientRequest::Advise(..)
        | ClientRequest::Evict(..)
        | ClientRequest::Load { .. } => 1,
    }
}

fn most_readers(specs: &[AllocationSpec]) -> usize {
    specs.iter().map(|spec| spec.readers.len()).max().unwrap_or_default()
}
