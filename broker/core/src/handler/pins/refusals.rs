//! Refusals of pin calls whose parts cannot come: the fetch failed, an operator cancelled it, or it would never
//! fit.

use crate::{broker::Broker, error::Refusal, event::PartRef};

impl Broker {
    /// Refuses all calls that still need the part.
    pub(crate) fn refuse_calls_missing(&mut self, part: PartRef, why: &Refusal) {
        for (_, call) in self.pins.missing(part).collect::<Vec<_>>() {
            self.refuse_pin(call, why.clone());
        }
    }

    /// The same for pin calls alone: what they wait for together may have grown.
    pub(crate) fn refuse_infeasible_pins(&mut self) {
        let judged = self.pins.iter().filter(|(_, call)| call.is_waiting()).filter_map(|(id, call)| {
            let tenant = self.sessions.get(id.0)?.tenant;
            Some((id, self.check_feasible(tenant, call.parts.iter().copied()).err()?))
        });
        for (id, why) in judged.collect::<Vec<_>>() {
            self.refuse_pin(id, why);
        }
    }
}
