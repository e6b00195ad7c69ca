//! `HoldParts`: parts that operators hold do not leave their device, whoever needs the room, until they are let go by hand or freed.
//!
//! A part in another tier may be held too: it stays there until somebody wants it on its device, and does not leave that.

use vramd_types::{AllocationId, PartIndex};

use crate::{
    broker::Broker,
    command::{Notice, PartMove},
    event::{PartRef, Target, Tier},
    handler::{Start, Started},
    tenancy::Outcome,
};

impl Broker {
    pub(crate) fn hold_parts(&mut self, target: &Target, parts: Vec<PartIndex>, held: bool) -> Start {
        let id = self.find_movable(target, "movable fixed")?;
        let parts = self.parts_of(target, parts)?;
        let mut changed = 0usize;
        for part in parts.iter().copied().map(|part| PartRef { allocation: id, part }) {
            let is_new = match held {
                true => self.operator_holds.insert(part),
                false => self.operator_holds.remove(&part),
            };
            changed = changed.saturating_add(usize::from(is_new));
            if held && self.is_leaving(part) {
                self.stop_migration(part, PartMove::Held);
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
        // Who waits may have the room of what is let go; and whom nothing helps any more is passed by.
        if changed > 0 {
            self.note_victims_changed();
        }
        Ok(Started::Done(Outcome::PartsHeld { allocation: id, parts: parts.into_iter().collect() }))
    }

    /// Whether an operator holds the part, and it is on its device.
    pub(crate) fn is_held_on_device(&self, part: PartRef) -> bool {
        self.operator_holds.contains(&part) && self.tier_of(part) == Some(Tier::Device)
    }

    /// Nobody holds what is freed.
    pub(crate) fn forget_operator_holds(&mut self, id: AllocationId) {
        let part = |index| PartRef { allocation: id, part: PartIndex(index) };
        let held: Vec<_> = self.operator_holds.range(part(0)..=part(u32::MAX)).copied().collect();
        for part in held {
            self.operator_holds.remove(&part);
        }
    }
}
