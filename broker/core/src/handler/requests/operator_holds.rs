//! `HoldParts`: held parts do not leave their device, for any waiter, until an operator lets them go or they
//! are freed.
//!
//! A part in another tier may be held too. It stays there until a session wants it on its device, and then does
//! not leave that.

use vramd_types::PartIndex;

use crate::{
    broker::Broker,
    command::Notice,
    event::{PartRef, Target},
    follow_up::Fact,
    handler::{Start, Started},
    moves::Stop,
    tenancy::Outcome,
};

impl Broker {
    pub(crate) fn hold_parts(&mut self, target: &Target, parts: Vec<PartIndex>, held: bool) -> Start {
        let id = self.find_movable(target, "movable fixed")?;
        let parts = self.parts_of(target, parts)?;
        let mut changed = 0usize;
        for part in parts.iter().copied().map(|part| PartRef { allocation: id, part }) {
            changed = changed.saturating_add(usize::from(self.moves.hold(part, held)));
            self.reconsider_in_place(part);
            if held && self.is_leaving(part) {
                self.stop_migration(part, Stop::Held);
                self.after_moves();
            }
        }
        if changed > 0 {
            self.note_allocation(id, |allocation, tenant| Notice::PartsHeld {
                allocation,
                tenant,
                parts: changed,
                hold: held,
            });
        }
        // Waiters may have the room of parts that were let go, and a waiter that no eviction helps any longer
        // is passed.
        if changed > 0 {
            self.follow_ups.push(Fact::VictimsChanged);
        }
        Ok(Started::Done(Outcome::PartsHeld { allocation: id, parts: parts.into_iter().collect() }))
    }
}
