//! `Attach`: a session maps a sealed allocation of its tenant, or one that its tenant reads; or its own open
//! allocation again.

use vramd_types::{AllocationId, SessionId};

use crate::{
    broker::Broker,
    error::Refusal,
    event::{Kind, PartRef, Target},
    handler::{Start, Started, mapping::frames::InitialMaps},
    residency::{AllocationState, MapState},
    tenancy::{Outcome, TenantId},
};

/// Why fixed memory cannot be attached unpinned.
pub(crate) const FIXED_STAYS: &str = "fixed memory stays mapped as long as it lives";
pub(crate) const NEVER_PINNED: &str = "the session has no pins, so it could never map the memory";

impl Broker {
    pub(crate) fn attach(
        &mut self,
        session: SessionId,
        tenant: TenantId,
        target: &Target,
        unpinned: bool,
    ) -> Start {
        if self.node.draining {
            return Err(Refusal::Draining);
        }
        let (id, allocation) = self.find_visible(tenant, target)?;
        let not_found = Refusal::AllocationNotFound { allocation: target.to_string() };
        let state = allocation.state;
        planted!(self, UnsealedShared => state = state.sealed_if_open());
        match state {
            AllocationState::Sealed => {}
            AllocationState::Open if allocation.owner == Some(session) || allocation.kind == Kind::Fixed => {}
            AllocationState::Freeing => return Err(not_found),
            _ => return Err(Refusal::NotSealed { allocation: id }),
        }
        if allocation.kind == Kind::Managed {
            return Err(Refusal::KindUnsupported { kind: "attached managed" });
        }
        let problem = |problem| Err(Refusal::RequestInvalid { field: "unheld", problem });
        if unpinned && allocation.kind == Kind::Fixed {
            return problem(FIXED_STAYS);
        }
        if unpinned && self.sessions.get(session).is_none_or(|session| session.words.is_none()) {
            return problem(NEVER_PINNED);
        }
        let device = allocation.device;
        let sees = self.sessions.get(session).is_some_and(|session| session.devices.contains(&device));
        planted!(self, InvisibleDeviceAttached => sees = true);
        if !sees {
            return Err(Refusal::DeviceNotVisible { device: self.uuid(device).to_owned() });
        }
        if allocation.parts.iter().any(|part| part.map_state(session).is_some_and(MapState::is_leaving)) {
            return Err(Refusal::StillMapped { allocation: id });
        }
        self.check_slots(session, self.slots_needed(session, id))?;
        if !unpinned {
            self.check_attach(session, tenant, id)?;
        }
        self.queue_maps(session, id, if unpinned { InitialMaps::Nothing } else { InitialMaps::All });
        Ok(Started::Done(Outcome::Attached(id)))
    }

    /// Checks that everything that is to be mapped fits on its device at once. Parts that are there already
    /// need no room.
    fn check_attach(&self, session: SessionId, tenant: TenantId, id: AllocationId) -> Result<(), Refusal> {
        let is_all_there = !self.every_part_of(id).any(|part| self.is_off_device(part));
        planted!(self, AttachUnbounded => is_all_there = true);
        if is_all_there {
            return Ok(());
        }
        let is_new = |part: &PartRef| self.map_state(session, *part).is_none();
        self.check_feasible(tenant, self.every_part_of(id).filter(is_new))
    }

    /// How many more slots the session needs to map the allocation.
    pub(crate) fn slots_needed(&self, session: SessionId, id: AllocationId) -> usize {
        let parts = self.allocations.get(id).map(|allocation| &*allocation.parts).unwrap_or_default();
        parts.iter().filter(|part| part.map_state(session).is_none()).count()
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Id(id) => write!(f, "{id}"),
            Self::Name(name) => write!(f, "{name}"),
        }
    }
}
