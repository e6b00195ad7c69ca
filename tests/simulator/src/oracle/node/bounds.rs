//! What is served keeps its bounds: a refusal that is missing shows in what is there afterwards.

use broker_core::{AllocationSpec, Broker, ClientRequest, invariants::BOUNDS};
use vramd_types::SessionId;

use crate::oracle::{
    Oracle,
    facts::{Asked, ExtentPhase, Tenant},
};

impl Oracle {
    /// A batch that was served is not empty and no larger than it may be, and none of its items has too many readers.
    pub(crate) fn batch_is_bounded(&mut self, asked: &ClientRequest) {
        let (items, most) = (items_of(asked), self.limits.batch_items_max);
        self.expect(BOUNDS, items > 0 && items <= most, || {
            format!("a batch of {items} is served, at most {most}")
        });
        let specs = match asked {
            ClientRequest::AllocateBatch { items, .. } => Some(items.as_slice()),
            ClientRequest::Load { spec, .. } => Some(std::slice::from_ref(spec)),
            _ => None,
        };
        if let Some(specs) = specs {
            let (readers, most) = (most_readers(specs), self.limits.readers_max);
            self.expect(BOUNDS, readers <= most, || format!("{readers} readers are taken, at most {most}"));
        }
    }

    /// A session that was just welcomed is not one too many.
    pub(crate) fn sessions_are_bounded(&mut self, tenant: Tenant) {
        let live = || self.facts.sessions.values().filter(|session| !session.gone);
        let (all, own) = (live().count(), live().filter(|session| session.tenant == tenant).count());
        let (most, most_own) = (self.limits.sessions_max, self.limits.sessions_per_tenant_max);
        self.expect(BOUNDS, all <= most, || format!("{all} sessions, at most {most}"));
        self.expect(BOUNDS, own <= most_own, || format!("{own} sessions of one tenant, at most {most_own}"));
    }

    /// After an event that admitted something: allocations as they are listed, parts and extents as they were seen to
    /// be made.
    pub(crate) fn counts_are_bounded(&mut self, broker: &Broker) {
        let Some(tenant) = self.whose_batch().filter(|_| self.step.created > 0) else { return };
        let (listed, _) = broker.list_allocations(Some(&self.facts.tenants[tenant]), None, usize::MAX);
        let in_use = self.facts.extents.values().filter(|extent| {
            extent.owner == tenant
                && !extent.stray
                && matches!(extent.phase, ExtentPhase::Creating | ExtentPhase::Live)
        });
        let limits = &self.limits;
        let counts = [
            ("allocations", listed.len(), limits.allocations_per_tenant_max),
            ("parts", in_use.count(), limits.parts_per_tenant_max),
            ("extents of the node", self.facts.extents.len(), limits.extents_max),
        ];
        for (what, count, most) in counts {
            self.expect(BOUNDS, count <= most, || format!("{count} {what}, at most {most}"));
        }
    }

    /// The tenant whose batch is looked at: one that waited for room, or the one that is asked for now.
    fn whose_batch(&self) -> Option<Tenant> {
        let session = |session: &SessionId| self.facts.sessions.get(session).map(|it| it.tenant);
        let asking = self.step.call.as_ref().and_then(|(_, call)| match &call.asked {
            Asked::Client { session: id, .. } => session(id),
            Asked::Operator { .. } => None,
        });
        self.step.room_for.or(asking)
    }
}

fn items_of(asked: &ClientRequest) -> usize {
    match asked {
        ClientRequest::AllocateBatch { items: specs, .. } => specs.len(),
        ClientRequest::FreeBatch(ids) | ClientRequest::Detach(ids) => ids.len(),
        ClientRequest::Attach(_)
        | ClientRequest::AttachUnpinned(_)
        | ClientRequest::Seal(_)
        | ClientRequest::Advise(..)
        | ClientRequest::Load { .. } => 1,
    }
}

fn most_readers(specs: &[AllocationSpec]) -> usize {
    specs.iter().map(|spec| spec.readers.len()).max().unwrap_or_default()
}
