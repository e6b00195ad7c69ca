//! Which sessions map a part, and why it cannot be revoked.

use vramd_types::{AllocationId, SessionId};

use crate::{
    broker::Broker,
    command::PartRevocation,
    event::PartRef,
    residency::{Allocation, MapState, Mapping, Stage},
    tenancy::{Arrival, Doubt},
};

impl Broker {
    /// Why a revocation cannot begin: a mapper has no pins, or is silent. An eviction also fails if any session
    /// uses the part: by a pin call that arrived before `arrived`, or by one that was answered.
    pub(crate) fn why_not_revocable(
        &self,
        part: PartRef,
        wait: bool,
        arrived: Arrival,
    ) -> Option<PartRevocation> {
        if !self.has_mappers(part) {
            return Some(PartRevocation::Revoked);
        }
        let standing = self.mappers_without_pins(part);
        if !standing.is_empty() {
            return Some(PartRevocation::Standing { by: standing });
        }
        let silent = self.silent_mappers(part);
        if !silent.is_empty() {
            return Some(PartRevocation::Silent { by: silent });
        }
        if wait {
            return None;
        }
        // A session that was sent the part and has not answered counts as using it.
        let uses = |mapping: &Mapping| {
            let calls = self.pins.protects(part, mapping.session, arrived);
            planted!(self, EvictedThoughPinned => calls = false);
            let is_at_rest = mapping.state == MapState::Mapped
                || (mapping.state == MapState::Evicting && self.is_asked_ahead(part));
            !is_at_rest || calls
        };
        let by = self.mappers(part, uses);
        (!by.is_empty()).then_some(PartRevocation::Pinned { by })
    }

    /// Whether a call of that arrival waits for the end of a revocation: of an earlier fence, or of an
    /// eviction, which begins only where no call is in its way.
    pub(crate) fn is_blocked_by_revocation(&self, part: PartRef, arrived: Arrival) -> bool {
        self.mapping.revocations.get(&part).is_some_and(|under_way| {
            planted!(self, FenceLetsPinsIn => if under_way.stage.is_fence() { return false });
            let evicts = matches!(under_way.stage, Stage::Words { .. } | Stage::Evict);
            evicts || under_way.began < arrived
        })
    }

    pub(crate) fn mappings(&self, part: PartRef) -> &[Mapping] {
        let entry = self.allocations.get(part.allocation).and_then(|allocation| allocation.part(part.part));
        entry.map(|entry| &*entry.mappings).unwrap_or_default()
    }

    /// Sessions that map a part, or are about to, and that fit.
    pub(crate) fn mappers(&self, part: PartRef, which: impl Fn(&Mapping) -> bool) -> Vec<SessionId> {
        planted!(self, MappersFromWords => return self.mappers_that_answered(part, which));
        let mappings =
            self.mappings(part).iter().filter(|mapping| mapping.state != MapState::Away && which(mapping));
        mappings.map(|mapping| mapping.session).collect()
    }

    /// Whether any session maps the part, or is about to.
    pub(crate) fn has_mappers(&self, part: PartRef) -> bool {
        planted!(self, MappersFromWords => return !self.mappers_that_answered(part, |_| true).is_empty());
        self.mappings(part).iter().any(|mapping| mapping.state != MapState::Away)
    }

    pub(crate) fn mappers_without_pins(&self, part: PartRef) -> Vec<SessionId> {
        let words = |id| self.sessions.get(id).is_some_and(|session| session.words.is_some());
        self.mappers(part, |mapping| !words(mapping.session))
    }

    /// Mappers of the part that do not answer.
    pub(crate) fn silent_mappers(&self, part: PartRef) -> Vec<SessionId> {
        let answers = |id| self.sessions.get(id).is_some_and(|session| session.is_answering());
        self.mappers(part, |mapping| mapping.state.is_mapper() && !answers(mapping.session))
    }

    /// Whether sessions are unmapping the part although it does not leave yet.
    pub(crate) fn is_asked_ahead(&self, part: PartRef) -> bool {
        self.mapping.revocations.get(&part).is_some_and(|under_way| under_way.is_ahead)
    }

    /// The greatest doubt about the sessions that would have to unmap the part.
    pub(crate) fn doubt_about(&self, part: PartRef) -> Doubt {
        let mappers = self.mappings(part).iter().filter(|mapping| mapping.state.is_mapper());
        mappers.map(|mapping| self.sessions.doubt(mapping.session)).max().unwrap_or(Doubt::Nothing)
    }

    pub(crate) fn map_state(&self, id: SessionId, part: PartRef) -> Option<MapState> {
        self.allocations.get(part.allocation)?.part(part.part)?.map_state(id)
    }

    pub(crate) fn is_revoking(&self, id: SessionId, part: PartRef) -> bool {
        let entry = self.allocations.get(part.allocation).and_then(|allocation| allocation.part(part.part));
        matches!(entry.and_then(|entry| entry.map_state(id)), Some(MapState::Revoking | MapState::Evicting))
    }

    /// Whether a session maps any part of the allocation, was offered one or is about to be.
    pub(crate) fn maps_any(&self, session: SessionId, id: AllocationId, allocation: &Allocation) -> bool {
        let its = || self.sessions.get(session).is_some_and(|session| session.maps.contains_key(&id));
        allocation.mapping_count > 0 && its()
    }
}
