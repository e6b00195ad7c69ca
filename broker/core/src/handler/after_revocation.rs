//! After a revocation: everything that waited for its end goes on.
//!
//! A revocation that ends only leaves a report ([`crate::residency::RevocationReport`]). This file does what
//! follows from it: the move that waited for it goes on or stops, sessions that attached the part meanwhile get
//! it or wait for it, and operators are told.

use crate::{
    broker::Broker,
    command::PartRevocation,
    follow_up::Fact,
    residency::{MapState, RevocationReport, Stage},
};

impl Broker {
    /// Does what follows from all revocations that have ended.
    pub(crate) fn after_revocations(&mut self) {
        while let Some(report) = self.mapping.ended.pop_front() {
            self.after_revocation(report);
        }
    }

    fn after_revocation(&mut self, RevocationReport { part, outcome, over }: RevocationReport) {
        self.resume_migration(part, &outcome);
        self.after_moves();
        // A session that was found to pin the part is asked again once a harvest has seen it unpin.
        let pinned = match (&outcome, over.stage) {
            (PartRevocation::Pinned { by }, Stage::Words { .. }) => self.record_pinned(part, by),
            (PartRevocation::Pinned { .. }, _) => true,
            _ => false,
        };
        if !pinned {
            self.note_in_place(part);
        }
        self.follow_ups.push(Fact::VictimsChanged);
        let elsewhere = self.is_off_device(part);
        for session in over.attach_waiters {
            match self.map_state(session, part) {
                Some(MapState::Away) if elsewhere => {
                    self.add_attach_waiter(session, part);
                    self.after_moves();
                }
                Some(MapState::Away) => self.queue_remap(session, part),
                _ => {}
            }
        }
        self.follow_ups.push(Fact::PartAvailable(part));
        for op in over.ops.iter().copied() {
            self.part_revoked(op, part, outcome.clone());
            self.finish_parts(op);
        }
    }
}
