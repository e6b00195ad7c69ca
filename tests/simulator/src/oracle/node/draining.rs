//! A draining node admits nothing new.

use broker_core::invariants::DRAINING;

use crate::oracle::Oracle;

impl Oracle {
    pub(crate) fn expect_not_draining(&mut self, what: impl std::fmt::Display) {
        let draining = self.facts.draining;
        self.expect(DRAINING, !draining, || format!("{what} on a draining node"));
    }
}
