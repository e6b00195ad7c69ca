//! A part is sent to a session that may have it and does not map it, writable only while that is allowed.
//! Only mapped parts are revoked.

use broker_core::{ChannelId, Kind, MapPart, RevokeReason, RevokedPart, invariants::MAP_SENT};
use vramd_types::SessionId;

use crate::oracle::{
    Oracle,
    facts::{AllocationFacts, MapPhase},
};

impl Oracle {
    pub(crate) fn check_map_frame(&mut self, channel: ChannelId, parts: &[MapPart]) {
        let Some(id) = self.facts.on_channel.get(&channel).copied() else { return };
        for part in parts {
            self.check_sent_part(id, part);
        }
        let now = self.facts.now;
        if let Some(session) = self.facts.sessions.get_mut(&id) {
            session.owes_since = Some(now);
        }
    }

    fn check_sent_part(&mut self, id: SessionId, sent: &MapPart) {
        let part = sent.part;
        let Some(session) = self.facts.sessions.get(&id) else { return };
        let (tenant, maps) = (session.tenant, session.mappings.contains_key(&part));
        self.expect(MAP_SENT, !maps, || format!("{part:?} is sent to {id}, which maps it already"));
        let Some(allocation) = self.facts.allocations.get(&part.allocation) else {
            return self.expect(MAP_SENT, false, || {
                format!("{part:?} is sent to {id}, but no client was told of its allocation")
            });
        };
        let writable = allocation.kind == Kind::Fixed || !allocation.sealed;
        let may = self.may_map(id, tenant, allocation);
        let exists = usize::try_from(part.part.0).is_ok_and(|at| at < allocation.part_count);
        let freed = allocation.freed;
        self.expect(MAP_SENT, exists, || format!("{part:?} does not exist"));
        self.expect(MAP_SENT, may, || format!("{part:?} is sent to {id}, which may not map it"));
        self.expect(MAP_SENT, !freed, || format!("{part:?} is sent to {id} and was freed"));
        self.expect(MAP_SENT, sent.writable == writable, || {
            format!("{part:?} is sent to {id} with writable = {}", sent.writable)
        });
        self.check_sent_device(id, sent);
        self.check_sent_tier(id, sent);
        self.expect_attached(id, part);
        self.check_drop_count(sent);
        self.check_sent_extent(id, tenant, sent);
        self.check_sent_slot(id, sent);
        if let Some(session) = self.facts.sessions.get_mut(&id) {
            session.owed.remove(&part);
            session.away.remove(&part);
            session.pin_requested.remove(&part);
            session.mappings.insert(part, (MapPhase::Offered, sent.extent));
            session.in_flight += 1;
        }
    }

    fn may_map(&self, id: SessionId, tenant: usize, allocation: &AllocationFacts) -> bool {
        if allocation.kind == Kind::Fixed {
            return allocation.tenant == tenant;
        }
        match allocation.sealed {
            true => self.may_know(tenant, allocation),
            false => allocation.owner == id,
        }
    }

    pub(crate) fn check_revoke_frame(
        &mut self,
        channel: ChannelId,
        parts: &[RevokedPart],
        reason: RevokeReason,
    ) {
        let Some(id) = self.facts.on_channel.get(&channel).copied() else { return };
        let evicted = reason == RevokeReason::Evicted;
        let now = self.facts.now;
        let next = if evicted { MapPhase::Evicting } else { MapPhase::Revoking };
        for told in parts {
            let part = told.part;
            let Some(session) = self.facts.sessions.get_mut(&id) else { return };
            let fits = match session.mappings.get_mut(&part) {
                Some((phase, _))
                    if *phase == MapPhase::Mapped || (*phase == MapPhase::Evicting && !evicted) =>
                {
                    let was = std::mem::replace(phase, next);
                    if !evicted {
                        session.unmaps.begin_for_good(part, was, now);
                    }
                    true
                }
                _ => false,
            };
            self.expect(MAP_SENT, fits, || format!("{part:?} is revoked from {id}, which does not map it"));
            self.check_revoked_slot(id, told);
            if evicted {
                self.check_eviction(id, part);
            }
        }
    }
}
