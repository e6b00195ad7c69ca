//! What follows, at the end of an event, for parts that pin calls or revocations wait for.
//!
//! Steps only note which parts they touched. So no step has to know what waits for it, and one event that touches a part
//! in several ways is looked at once, when all of them are done.

use std::collections::{BTreeMap, BTreeSet};

use vramd_types::SessionId;

use crate::{
    broker::Broker,
    command::{RevokeReason, RevokedPart},
    event::PartRef,
    invariants,
    residency::MapEvent,
};

#[derive(Debug, Default)]
pub(crate) struct Unsettled {
    pub(crate) parts: BTreeSet<PartRef>,
    /// To be told so, in few frames.
    pub(crate) evicted: BTreeMap<SessionId, Vec<RevokedPart>>,
    /// Sessions that parts were queued for.
    pub(crate) to_pump: BTreeSet<SessionId>,
}

impl Broker {
    /// Has whoever waits for the part looked at.
    pub(crate) fn unsettle(&mut self, part: PartRef) {
        if self.revocations.contains_key(&part) || self.pins.has_part(part) {
            self.unsettled.parts.insert(part);
        }
    }

    /// Has the revocations looked at that wait for a session.
    pub(crate) fn unsettle_session(&mut self, id: SessionId) {
        let of_session = self.revocations.keys().filter(|part| self.map_state(id, **part).is_some());
        let parts: Vec<_> = of_session.copied().collect();
        self.unsettled.parts.extend(parts);
    }

    pub(crate) fn settle(&mut self) {
        loop {
            while let Some(part) = self.unsettled.parts.pop_first() {
                self.settle_calls(part);
                self.settle_revocation(part);
            }
            for (id, parts) in std::mem::take(&mut self.unsettled.evicted) {
                self.send_revoke(id, parts, RevokeReason::Evicted);
            }
            for id in std::mem::take(&mut self.unsettled.to_pump) {
                self.pump(id);
            }
            if !self.abort_stalled() {
                return;
            }
        }
    }

    /// Queues a part that the session keeps.
    pub(crate) fn bring_back(&mut self, id: SessionId, part: PartRef) {
        if planted!(self, EvictedStaysAway) {
            return;
        }
        match self.step(id, part, MapEvent::Pin) {
            Ok(_) => _ = self.unsettled.to_pump.insert(id),
            Err(problem) => self.broken(invariants::TRANSITIONS, problem),
        }
    }
}
