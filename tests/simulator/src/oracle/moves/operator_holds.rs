//! What operators hold: it is shown so, and does not leave its device.

use broker_core::{Broker, PartRef, Target, invariants::HELD};
use vramd_types::{AllocationId, PartIndex};

use crate::oracle::Oracle;

impl Oracle {
    /// An operator was told that these are held now, or are not any more.
    pub(crate) fn held_as_told(
        &mut self,
        allocation: AllocationId,
        parts: &[PartIndex],
        held: bool,
        broker: &Broker,
    ) {
        for part in parts.iter().map(|part| PartRef { allocation, part: *part }) {
            match held {
                true => self.facts.held_by_hand.insert(part),
                false => self.facts.held_by_hand.remove(&part),
            };
            let shown = shown_as_held(part, broker);
            self.expect(HELD, shown == held, || format!("{part:?}: held {held}, and shown as held {shown}"));
        }
    }

    /// A part has left its device.
    pub(crate) fn nobody_held(&mut self, part: PartRef) {
        let held = self.facts.held_by_hand.contains(&part);
        self.expect(HELD, !held, || format!("{part:?} has left its device, and an operator holds it"));
    }

    pub(crate) fn nobody_holds_freed(&mut self, allocation: AllocationId) {
        self.facts.held_by_hand.retain(|part| part.allocation != allocation);
    }
}

pub(crate) fn shown_as_held(part: PartRef, broker: &Broker) -> bool {
    let view = broker.show(&Target::Id(part.allocation));
    view.is_ok_and(|view| view.parts.iter().any(|shown| shown.index == part.part && shown.operator_hold))
}
