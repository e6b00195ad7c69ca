//! What somebody waits for is copied as demand: it is ordered so, or hastened before the event is over.

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
        // For who wants it, or wants the room that it takes, as the core shows it.
        let needed = broker.moves().into_iter().filter(|it| it.cause == Cause::Demand);
        let needed: BTreeSet<_> = needed.map(|it| it.extent).collect();
        for (to, class) in background {
            let part = self.moving_part(to);
            let is_wanted = part.is_some_and(|part| wanted.contains(&part));
            self.expect(LINK_AWAITED, !is_wanted && !needed.contains(&to), || {
                format!("{part:?} is copied to {to} as {class:?}, and somebody waits for it")
            });
        }
    }

    /// Nobody is told what comes of it.
    fn is_given_up(&self, to: ExtentId) -> bool {
        self.facts.moves.get(&to).is_some_and(|it| it.cancelled)
            || self.facts.write_backs.get(&to).is_some_and(|it| it.cancelled)
    }

    /// What is written back stays where it is: nobody waits for that.
    fn moving_part(&self, to: ExtentId) -> Option<PartRef> {
        self.facts.moves.get(&to).map(|moves| moves.part)
    }
}
