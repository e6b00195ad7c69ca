//! A copy that a client waits for is of class demand: it is ordered so, or hastened before the event is over.

use std::collections::BTreeSet;

use broker_core::{Broker, Cause, PartRef, invariants::LINK_AWAITED};
use vramd_types::{CopyClass, ExtentId};

use crate::oracle::Oracle;

impl Oracle {
    pub(crate) fn record_copy_class(&mut self, to: ExtentId, class: CopyClass) {
        self.facts.copies.insert(to, class);
    }

    pub(crate) fn check_awaited_copies(&mut self, broker: &Broker) {
        let background: Vec<_> = self.facts.copies.iter().map(|(to, class)| (*to, *class)).collect();
        let background: Vec<_> = background
            .into_iter()
            .filter(|(to, class)| *class != CopyClass::Demand && !self.is_given_up(*to))
            .collect();
        if background.is_empty() {
            return;
        }
        let wanted: BTreeSet<_> = self.wanted(broker).into_iter().collect();
        // Copies for a session that wants the part, or the room that it takes, as the core shows.
        let needed = broker.moves().into_iter().filter(|it| it.cause == Cause::Demand);
        let needed: BTreeSet<_> = needed.map(|it| it.extent).collect();
        for (to, class) in background {
            let part = self.moving_part(to);
            let is_wanted = part.is_some_and(|part| wanted.contains(&part));
            self.expect(LINK_AWAITED, !is_wanted && !needed.contains(&to), || {
                format!("{part:?} is copied to {to} as {class:?} although a client waits for it")
            });
        }
    }

    /// Whether the copy was cancelled: its end is reported to no session.
    fn is_given_up(&self, to: ExtentId) -> bool {
        self.facts.moves.get(&to).is_some_and(|it| it.cancelled)
            || self.facts.write_backs.get(&to).is_some_and(|it| it.cancelled)
    }

    /// The part that moves to the extent. A part that is written back stays where it is, and no client waits
    /// for that.
    fn moving_part(&self, to: ExtentId) -> Option<PartRef> {
        self.facts.moves.get(&to).map(|moves| moves.part)
    }
}
