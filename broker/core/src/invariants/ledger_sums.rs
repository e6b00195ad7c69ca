//! The sums that admission uses equal those of the accounts.

use vramd_types::Bytes;

use super::{LEDGER_SUMS, Violation, expect_equal, scope::Scope};

use crate::broker::Broker;

pub(super) fn check(broker: &Broker, scope: &Scope, found: &mut Vec<Violation>) {
    for (place, balances) in broker.ledger.places().filter(|(place, _)| scope.has_place(*place)) {
        let mut sums = (Bytes::ZERO, Bytes::ZERO, Bytes::ZERO);
        for (_, account) in balances.accounts() {
            sums.0 = sums.0.saturating_add(account.charged());
            sums.1 = sums.1.saturating_add(account.commitment());
            sums.2 = sums.2.saturating_add(account.guarantee);
        }
        let device = || format!("sums of device {}", place.device);
        let kept = (balances.charged(), balances.committed(), balances.guaranteed());
        expect_equal(found, LEDGER_SUMS, device, &kept, &sums);
    }
}
