//! Parts that operators hold are shown as such and do not leave their device.

use broker_core::{Broker, PartRef, Target, invariants::OPERATOR_HOLDS};
use vramd_types::{AllocationId, PartIndex};

use crate::oracle::Oracle;

impl Oracle {
    /// Records which parts an operator holds or lets go, and checks that the core shows it.
    pub(crate) fn check_hold_reply(
        &mut self,
        allocation: AllocationId,
        parts: &[PartIndex],
        held: bool,
        broker: &Broker,
    ) {
        for part in parts.iter().map(|part| PartRef { allocation, part: *part }) {
            match held {
                true => self.facts.operator_holds.insert(part),
                false => self.facts.operator_holds.remove(&part),
            };
            let shown = is_shown_held(part, broker);
            self.expect(OPERATOR_HOLDS, shown == held, || {
                format!("{part:?}: an operator set hold = {held}, and it is shown as {shown}")
            });
        }
    }

    /// Checks that a part that left its device was not held.
    pub(crate) fn expect_no_operator_hold(&mut self, part: PartRef) {
        let held = self.facts.operator_holds.contains(&part);
        self.expect(OPERATOR_HOLDS, !held, || {
            format!("{part:?} has left its device, and an operator holds it")
        });
    }

    pub(crate) fn forget_holds(&mut self, allocation: AllocationId) {
        self.facts.operator_holds.retain(|part| part.allocation != allocation);
    }
}

pub(crate) fn is_shown_held(part: PartRef, broker: &Broker) -> bool {
    let view = broker.show(&Target::Id(part.allocation));
    view.is_ok_and(|view| view.parts.iter().any(|shown| shown.index == part.part && shown.operator_hold))
}
