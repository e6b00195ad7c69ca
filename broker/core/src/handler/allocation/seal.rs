//! `Seal`: the owner unmaps, the driver hashes through its own mapping, and read-only mappings follow.

use vramd_types::{AllocationId, DeviceIndex, PartIndex, SessionId};

use crate::{
    broker::Broker,
    command::{Command, DigestSpan, Notice, RevokeReason},
    error::Refusal,
    event::{DigestError, Kind, Target},
    handler::{Start, Started, mapping::frames::InitialMaps},
    ops::OpKind,
    residency::{AllocationEvent, AllocationState},
    tenancy::{OpId, Outcome, TenantId},
};

impl Broker {
    pub(crate) fn seal(&mut self, op: OpId, session: SessionId, tenant: TenantId, id: AllocationId) -> Start {
        let (_, allocation) = self.find_visible(tenant, &Target::Id(id))?;
        if allocation.owner != Some(session) {
            return Err(Refusal::NotOwner { allocation: id });
        }
        match allocation.state {
            AllocationState::Open => {}
            AllocationState::Creating => return Err(Refusal::Raced { allocation: id }),
            AllocationState::Freeing => {
                return Err(Refusal::AllocationNotFound { allocation: id.to_string() });
            }
            _ => return Err(Refusal::AlreadySealed { allocation: id }),
        }
        match allocation.kind {
            Kind::Movable => {}
            Kind::Fixed => return Err(Refusal::KindUnsupported { kind: "sealed fixed" }),
            Kind::Managed => return Err(Refusal::KindUnsupported { kind: "sealed managed" }),
        }
        if allocation.discardable {
            return Err(Refusal::KindUnsupported { kind: "sealed discardable" });
        }
        self.check_own_name(id)?;
        self.check_slots(session, self.slots_needed(session, id))?;
        self.advance_allocation(id, AllocationEvent::SealAsked);
        if let Some(allocation) = self.allocations.get_mut(id) {
            allocation.op = Some(op);
        }
        self.revoke_allocation(session, id, RevokeReason::Sealing);
        let unmapped = self.sessions.get(session).is_none_or(|session| !session.maps.contains_key(&id));
        let waits = self.allocations.get(id).is_some_and(|entry| entry.state == AllocationState::Unmapping);
        planted!(self, HashedWhileMapped => unmapped = true);
        if unmapped && waits {
            self.digest_if_unmapped(id);
        }
        Ok(Started::Waiting(OpKind::Seal(id)))
    }

    /// Checks that the allocation bears its name, or may take it.
    fn check_own_name(&self, id: AllocationId) -> Result<(), Refusal> {
        let Some(allocation) = self.allocations.get(id) else { return Ok(()) };
        planted!(self, HashedReplaced => if allocation.replace { return Ok(()) });
        match &allocation.name {
            Some(name) if self.allocations.find_by_name(allocation.tenant, name) != Some(id) => {
                self.check_name_free(allocation.tenant, name, allocation.replace)
            }
            _ => Ok(()),
        }
    }

    /// Hashes an allocation once its owner has unmapped it and none of its parts moves.
    pub(crate) fn digest_if_unmapped(&mut self, id: AllocationId) {
        let Some(allocation) = self.allocations.get(id) else { return };
        let mapped = allocation.owner.is_some_and(|owner| self.maps_any(owner, id, allocation));
        planted!(self, HashedWhileMapped => mapped = false);
        if allocation.state == AllocationState::Unmapping
            && !mapped
            && self.moves.migrations.of(id).next().is_none()
        {
            self.start_digest(id);
        }
    }

    /// Has the driver hash an allocation that no session maps.
    fn start_digest(&mut self, id: AllocationId) {
        self.advance_allocation(id, AllocationEvent::Unmapped);
        let Some(allocation) = self.allocations.get_mut(id) else { return };
        allocation.digesting = true;
        let spans = allocation
            .indices()
            .filter_map(|index| {
                let extent = allocation.part(index)?.extent;
                planted!(self, BackingHashed => extent = self.moves.backing_or(id, index, extent));
                Some(DigestSpan { extent, bytes: allocation.requested_of(index) })
            })
            .filter(|span| !span.bytes.is_zero())
            .collect();
        self.push_command(Command::Digest { allocation: id, spans });
    }

    pub(crate) fn on_digested(&mut self, id: AllocationId, result: Result<[u8; 32], DigestError>) {
        let Some(allocation) = self.allocations.get_mut(id) else { return };
        allocation.digesting = false;
        let (op, owner, device) = (allocation.op, allocation.owner, allocation.device);
        let in_file = allocation.file.is_some();
        if allocation.state != AllocationState::Digesting {
            // The allocation was freed meanwhile. Its extents stayed only for the driver that read them.
            return self.release_freed(id);
        }
        allocation.op = None;
        let sealed = match result {
            Ok(digest) => self.check_own_name(id).map(|()| digest),
            Err(error) => Err(self.digest_refusal(id, device, error)),
        };
        let outcome = match sealed {
            Ok(digest) => {
                self.advance_allocation(id, AllocationEvent::Digested);
                if let Some(allocation) = self.allocations.get_mut(id) {
                    allocation.digest = Some(Box::new(digest));
                }
                self.take_name(id);
                self.note_allocation(id, |allocation, tenant| Notice::AllocationSealed {
                    allocation,
                    tenant,
                });
                Ok(Outcome::Sealed(id))
            }
            Err(refusal) => {
                self.advance_allocation(id, AllocationEvent::SealFailed);
                planted!(self, FailedSealStuck => self.advance_allocation(id, AllocationEvent::SealAsked));
                planted!(self, RaceLostFreed => self.start_free(id));
                Err(refusal)
            }
        };
        let failed = outcome.is_err();
        if let Some(op) = op {
            self.finish(op, outcome);
        }
        if in_file {
            // Only sessions that attached it map it, and an allocation that cannot be sealed is useless.
            planted!(self, UnreadableKept => return);
            planted!(self, LoadedSentToOwner => if !failed { self.send_to_owner(owner, id) });
            if failed {
                self.start_free(id);
            }
            return;
        }
        planted!(self, RaceLostFreed => owner = owner.filter(|_| !failed));
        planted!(self, FailedSealStuck => owner = owner.filter(|_| !failed));
        if let Some(owner) = owner {
            // Parts that the owner had not mapped stay below until they are pinned.
            let initial = InitialMaps::OnDevice;
            planted!(self, SealFetches => initial = InitialMaps::All);
            self.queue_maps(owner, id, initial);
        }
    }

    /// The refusal for a failed hash. Unreadable bytes are the loss of one part.
    fn digest_refusal(&self, id: AllocationId, device: DeviceIndex, error: DigestError) -> Refusal {
        match error {
            DigestError::Damaged { extent, problem } => {
                let part = self.pool.get(extent).and_then(|extent| extent.part);
                let part = part.map_or(PartIndex(0), |part| part.part);
                Refusal::ContentLost { allocation: id, part, problem }
            }
            DigestError::Failed(problem) => {
                Refusal::DriverFailed { device: self.uuid(device).to_owned(), problem }
            }
        }
    }

    /// Gives the name to the allocation at once, and frees its former bearer.
    fn take_name(&mut self, id: AllocationId) {
        let Some(allocation) = self.allocations.get(id) else { return };
        let (tenant, Some(name)) = (allocation.tenant, allocation.name.clone()) else { return };
        let before = self.allocations.find_by_name(tenant, &name);
        if before == Some(id) {
            return;
        }
        planted!(self, OtherReplaced => before = self.another_sealed(tenant, before));
        planted!(self, ReplacedKept => before = None);
        if let Some(before) = before {
            self.start_free(before);
        }
        self.allocations.bind(tenant, &name, id);
    }
}
