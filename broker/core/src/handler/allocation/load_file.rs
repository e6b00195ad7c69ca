//! `LoadFile`: a sealed allocation whose bytes are those of a file that nobody changes.
//!
//! Its parts begin in that file, which stays what they have below for as long as they live: a part comes to its device with the
//! first pin or attach, leaves it without being copied, and costs nothing while it is away. The driver hashes the file, as it does what is sealed;
//! what it has read then is what it lets anybody have, whatever becomes of the file.

use std::collections::BTreeSet;

use vramd_types::{AllocationId, Bytes, ExtentId, SessionId};

use crate::{
    broker::Broker,
    command::Command,
    error::Refusal,
    event::{AllocationSpec, FileSpan, Kind, PartRef, Peer, RequestKey},
    handler::{Start, Started, allocation::admission::AllocationPlan, line::batch::BatchShortage},
    ledger::{Ledger, Place},
    limits::FILE_LOADS_PER_TENANT_MAX,
    migration::Backing,
    pool::{Extent, ExtentState},
    residency::{Allocation, AllocationEvent, AllocationState},
    tenancy::{Method, OpId, OpKind, Outcome, Recall, TenantId},
};

/// A piece of a file that is to be a part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FilePiece<'a> {
    pub(crate) file: &'a FileSpan,
    /// Where in the allocation it begins.
    pub(crate) at: Bytes,
    pub(crate) bytes: Bytes,
    /// With the rounding.
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
            return Err(Refusal::FileMutable { path: (*file.path).to_owned() });
        }
        if spec.kind != Kind::Movable {
            return problem("kind", "what lies in a file is movable");
        }
        if spec.discardable {
            return problem("discardable", "what lies in a file is sealed, and never lost");
        }
        if file.offset.checked_add(spec.size).is_none() {
            return problem("offset_bytes", "there is no such place in a file");
        }
        let plan = AllocationPlan { file: Some(file), ..self.plan_item(session, tenant, spec)? };
        self.recheck_plans(session, tenant, std::slice::from_ref(&plan))?;
        self.check_loads(tenant)?;
        // What is cached makes way for whoever asks again.
        if let Err(ages) = self.check_extent_count(&BTreeSet::new(), plan.part_count) {
            self.release_cached(ages);
            return Err(self.batch_refusal(tenant, &BatchShortage::Extents(Vec::new())));
        }
        let (allocation, extents_left) = self.create_allocation(op, session, tenant, plan)?;
        let allocations = vec![allocation];
        let kind =
            OpKind::Allocate { since: self.now, asked: None, allocations, extents_left, failure: None };
        Ok(Started::Waiting(kind))
    }

    /// Whether a tenant may have one more file read. What it has freed meanwhile counts for as long as it is read.
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

    /// Whether a session has asked for that before: then it is answered as it was, whatever its file is by now.
    pub fn was_asked_to_load(&self, session: SessionId, peer: Peer, key: Option<RequestKey>) -> bool {
        let log = self.sessions.get(session).map(|session| &session.requests);
        self.authenticate(session, peer).is_ok()
            && log.is_some_and(|log| !matches!(log.recall(Method::Load, key), Recall::New))
    }

    /// Whether any part of it lies in its file, or goes back to it.
    pub(crate) fn has_file(&self, id: AllocationId) -> bool {
        let in_file = |part: PartRef| {
            let lies = self.extent_of(part).is_some_and(|extent| extent.in_file);
            lies || matches!(self.backings.get(&part), Some(Backing::File { .. }))
        };
        self.allocations.get(id).is_some_and(|allocation| allocation.file.is_some())
            && self.every_part_of(id).any(in_file)
    }

    /// Has a piece of a file made the extent of a part.
    pub(crate) fn order_in_file(
        &mut self,
        tenant: TenantId,
        part: PartRef,
        place: Place,
        piece: FilePiece<'_>,
    ) -> Result<ExtentId, Refusal> {
        let extent = self.next_extent_id()?;
        let FilePiece { file, at, bytes, size } = piece;
        let mut reservation = Ledger::uncharged(tenant, place);
        if planted!(self, FileCharged) {
            reservation = self.ledger.reserve(tenant, place, size).unwrap_or(reservation);
        }
        let opened = Extent::new(place, size, part, ExtentState::Creating(reservation));
        self.pool.insert(extent, Extent { in_file: true, ..opened });
        let at = if planted!(self, PiecesFromTheStart) { Bytes::ZERO } else { at };
        let offset = file.offset.saturating_add(at);
        self.push_command(Command::OpenExtent { extent, file: file.file, offset, bytes, size });
        Ok(extent)
    }

    /// All parts of an allocation lie in its file: it is sealed once that was read. Whether it is of a file at all.
    pub(crate) fn seal_loaded(&mut self, op: OpId, id: AllocationId) -> bool {
        if self.allocations.get(id).is_none_or(|allocation| allocation.file.is_none()) {
            return false;
        }
        self.advance_allocation(id, AllocationEvent::SealAsked);
        if planted!(self, UnreadSealed) {
            self.advance_allocation(id, AllocationEvent::Unmapped);
            self.advance_allocation(id, AllocationEvent::Digested);
            self.finish(op, Ok(Outcome::Sealed(id)));
            return true;
        }
        if let Some(allocation) = self.allocations.get_mut(id) {
            allocation.op = Some(op);
        }
        if let Some(op) = self.ops.get_mut(op) {
            op.kind = OpKind::Seal(id);
        }
        self.digest_if_unmapped(id);
        true
    }
}
