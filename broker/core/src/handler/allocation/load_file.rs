//! `LoadFile`: a sealed allocation whose bytes are those of a file that never changes.
//!
//! Its parts begin in the file, which stays their backing for as long as they live. A part is fetched by the
//! first pin or attach, leaves without a copy, and costs nothing while it is away. The driver hashes the file
//! as it does a sealed allocation. Later it hands out only the bytes that it read then, whatever becomes of the
//! file.

use std::collections::BTreeSet;

use vramd_types::{AllocationId, Bytes, SessionId};

use crate::{
    broker::Broker,
    error::Refusal,
    event::{AllocationSpec, FileSpan, Kind, Peer, RequestKey},
    handler::{Start, Started},
    limits::FILE_LOADS_PER_TENANT_MAX,
    line::{AllocationPlan, BatchShortage},
    ops::OpKind,
    residency::{Allocation, AllocationEvent, AllocationState},
    tenancy::{Method, OpId, Recall, TenantId},
};

/// The piece of a file that becomes a part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FilePiece<'a> {
    pub(crate) file: &'a FileSpan,
    /// Its offset in the allocation.
    pub(crate) at: Bytes,
    pub(crate) bytes: Bytes,
    /// Rounded up.
    pub(crate) size: Bytes,
}

impl Broker {
    pub(crate) fn load(
        &mut self,
        op: OpId,
        session: SessionId,
        tenant: TenantId,
        spec: AllocationSpec,
        file: FileSpan,
    ) -> Start {
        let problem = |field, problem| Err(Refusal::RequestInvalid { field, problem });
        if !self.config.files {
            let why = "the daemon is not configured to load files in place".to_owned();
            return Err(Refusal::FileMutable { path: (*file.path).to_owned(), why });
        }
        if spec.kind != Kind::Movable {
            return problem("kind", "memory that is loaded from a file is movable");
        }
        if spec.discardable {
            return problem(
                "discardable",
                "memory that is loaded from a file is sealed, so it cannot be discardable",
            );
        }
        if file.offset.checked_add(spec.size).is_none() {
            return problem(
                "offset_bytes",
                "offset_bytes and size_bytes exceed the largest offset in a file",
            );
        }
        let plan = AllocationPlan { file: Some(file), ..self.plan_item(session, tenant, spec)? };
        self.recheck_plans(session, tenant, std::slice::from_ref(&plan))?;
        self.check_loads(tenant)?;
        // Cached extents are released for the next try.
        if let Err(ages) = self.check_extent_count(&BTreeSet::new(), plan.part_count) {
            self.give_up_cached(ages);
            return Err(self.batch_refusal(tenant, &BatchShortage::Extents(Vec::new())));
        }
        let (allocation, extents_left) = self.create_allocation(op, session, tenant, &plan)?;
        let allocations = vec![allocation];
        let kind = OpKind::Allocate {
            since: self.shell.now,
            request: None,
            allocations,
            extents_left,
            failure: None,
        };
        Ok(Started::Waiting(kind))
    }

    /// Checks that a tenant may have one more file read. A freed allocation counts for as long as its file is
    /// read.
    fn check_loads(&self, tenant: TenantId) -> Result<(), Refusal> {
        let is_read = |allocation: &Allocation| {
            let is_sealed = allocation.digest.is_some() || allocation.state == AllocationState::Freeing;
            allocation.file.is_some() && (allocation.digesting || !is_sealed)
        };
        let of_tenant = self.allocations.of_tenant(tenant, None);
        match of_tenant.filter(|(_, allocation)| is_read(allocation)).count() < FILE_LOADS_PER_TENANT_MAX {
            true => Ok(()),
            false => Err(Refusal::QueueFull { limit: FILE_LOADS_PER_TENANT_MAX }),
        }
    }

    /// Whether a session has sent this request before. Then it is answered as it was, whatever its file is by
    /// now.
    pub fn was_asked_to_load(&self, session: SessionId, peer: Peer, key: Option<RequestKey>) -> bool {
        let log = self.sessions.get(session).map(|session| &session.requests);
        self.authenticate(session, peer).is_ok()
            && log.is_some_and(|log| !matches!(log.recall(Method::Load, key), Recall::New))
    }

    /// Starts to hash an allocation whose parts all lie in their file; afterwards it is sealed. Returns whether
    /// it has a file at all.
    pub(crate) fn seal_loaded(&mut self, op: OpId, id: AllocationId) -> bool {
        if self.allocations.get(id).is_none_or(|allocation| allocation.file.is_none()) {
            return false;
        }
        self.advance_allocation(id, AllocationEvent::SealAsked);
        planted!(self, UnreadSealed => return self.seal_unread(op, id));
        if let Some(allocation) = self.allocations.get_mut(id) {
            allocation.op = Some(op);
        }
        if let Some(op) = self.requests.ops.get_mut(op) {
            op.kind = OpKind::Seal(id);
        }
        self.digest_if_unmapped(id);
        true
    }
}
