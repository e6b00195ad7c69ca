//! Access: sessions that are authenticated, and the allocations that they may see or own.

use vramd_types::{AllocationId, SessionId, name};

use crate::{
    broker::Broker,
    error::Refusal,
    event::{Peer, Target},
    residency::{Allocation, AllocationState},
    tenancy::TenantId,
};

impl Broker {
    /// An allocation that a tenant may see: its own, or one that it reads.
    pub(crate) fn find_visible(
        &self,
        tenant: TenantId,
        target: &Target,
    ) -> Result<(AllocationId, &Allocation), Refusal> {
        let own = self.tenants.name(tenant);
        let found = match target {
            Target::Id(id) => self.allocations.get(*id).map(|allocation| (*id, allocation)),
            Target::Name(text) => self.find_named(text, own)?,
        };
        let elsewhere = || match target {
            Target::Name(name) if !name.contains('/') => self.find_shared_with(own, name),
            _ => None,
        };
        found
            .filter(|(_, allocation)| {
                let is_reader =
                    || allocation.state != AllocationState::Freeing && allocation.readers.admit(own);
                planted!(self, NonReaderServed => if allocation.state.is_sealed() { return true });
                allocation.tenant == tenant || is_reader()
            })
            .ok_or_else(|| match (target, elsewhere()) {
                (Target::Name(name), Some(full)) => Refusal::NameElsewhere { name: name.clone(), full },
                _ => Refusal::AllocationNotFound { allocation: target.to_string() },
            })
    }

    /// The full name of a sealed allocation of another tenant that has this name and that the tenant may read.
    fn find_shared_with(&self, tenant: &str, name: &str) -> Option<String> {
        let (of, _) = self.tenants.iter().find(|(_, of)| {
            let found = self.allocations.find_by_name(*of, name).and_then(|id| self.allocations.get(id));
            found.is_some_and(|it| it.state == AllocationState::Sealed && it.readers.admit(tenant))
        })?;
        Some([of, "/", name].concat())
    }

    /// The allocation that bears `name` or `tenant/name`.
    pub(crate) fn find_named(
        &self,
        text: &str,
        own: &str,
    ) -> Result<Option<(AllocationId, &Allocation)>, Refusal> {
        let invalid = || Refusal::NameInvalid { field: "name", name: text.to_owned() };
        let (tenant, name) = name::resolve(text, own).ok_or_else(invalid)?;
        let id = self.tenants.find(tenant).and_then(|tenant| self.allocations.find_by_name(tenant, name));
        Ok(id.and_then(|id| Some((id, self.allocations.get(id)?))))
    }

    /// Finds an allocation that is neither being made, sealed nor freed.
    pub(crate) fn find_settled(&self, target: &Target) -> Result<(AllocationId, &Allocation), Refusal> {
        let (id, allocation) = self.find_any(target)?;
        match allocation.state {
            AllocationState::Open | AllocationState::Sealed => Ok((id, allocation)),
            AllocationState::Freeing => Err(Refusal::AllocationNotFound { allocation: target.to_string() }),
            _ => Err(Refusal::Raced { allocation: id }),
        }
    }

    pub(crate) fn check_owner(
        &self,
        session: SessionId,
        tenant: TenantId,
        id: AllocationId,
    ) -> Result<(), Refusal> {
        let (_, allocation) = self.find_visible(tenant, &Target::Id(id))?;
        if allocation.tenant != tenant {
            return Err(Refusal::NotOwner { allocation: id });
        }
        match allocation.owner {
            Some(owner) if owner == session => Ok(()),
            None if allocation.state == AllocationState::Freeing => {
                Err(Refusal::AllocationNotFound { allocation: id.to_string() })
            }
            None => Ok(()),
            Some(_) => Err(Refusal::NotOwner { allocation: id }),
        }
    }

    /// The tenant of a session, if the calling process owns it and it is connected.
    pub(crate) fn authenticate(&self, id: SessionId, peer: Peer) -> Result<TenantId, Refusal> {
        if id.get() == 0 {
            return Err(Refusal::SessionMissing);
        }
        let Some(session) = self.sessions.get(id) else {
            // Ids only grow, also over restarts: an id below the last one was a session once.
            return Err(match self.was_a_session(id) {
                true => Refusal::SessionLost { session: id },
                false => Refusal::SessionNotFound { session: id },
            });
        };
        let is_foreign = (session.pid, session.uid) != (peer.pid, peer.uid);
        planted!(self, ForeignProcessServed => is_foreign = false);
        if is_foreign {
            return Err(Refusal::SessionForeign { session: id, pid: peer.pid });
        }
        if !session.is_connected() {
            return Err(Refusal::SessionLost { session: id });
        }
        Ok(session.tenant)
    }

    pub(crate) fn was_a_session(&self, id: SessionId) -> bool {
        let epoch = vramd_types::epoch_of(id.get());
        match epoch == self.config.boot_epoch {
            true => self.sessions.last.is_some_and(|last| id <= last),
            false => epoch > 0 && epoch < self.config.boot_epoch,
        }
    }

    /// Any allocation, by id or by `tenant/name`.
    pub(crate) fn find_any(&self, target: &Target) -> Result<(AllocationId, &Allocation), Refusal> {
        let not_found = || Refusal::AllocationNotFound { allocation: target.to_string() };
        match target {
            Target::Id(id) => {
                self.allocations.get(*id).map(|allocation| (*id, allocation)).ok_or_else(not_found)
            }
            Target::Name(text) if !text.contains('/') => {
                let of =
                    self.tenants.iter().find(|(_, of)| self.allocations.find_by_name(*of, text).is_some());
                let full = of.map(|(tenant, _)| [tenant, "/", text].concat());
                Err(Refusal::TenantMissing { name: text.clone(), full })
            }
            Target::Name(text) => self.find_named(text, "")?.ok_or_else(not_found),
        }
    }
}
