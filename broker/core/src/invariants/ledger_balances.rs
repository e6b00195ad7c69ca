//! The balances equal those recomputed from the extents.

use std::collections::BTreeMap;

use vramd_types::Bytes;

use super::{LEDGER_BALANCES, Violation, expect_equal, scope::Scope};
use crate::{
    broker::Broker,
    ledger::{Account, Place},
    moves::Backing,
    pool::ExtentState,
    tenancy::TenantId,
};

pub(super) fn check(broker: &Broker, scope: &Scope, found: &mut Vec<Violation>) {
    if scope.has_no_account() {
        return;
    }
    let charged = recompute(broker, scope);
    for (place, balances) in broker.ledger.places() {
        for (tenant, account) in balances.accounts().filter(|(tenant, _)| scope.has_account((*tenant, place)))
        {
            let should = charged.get(&(tenant, place)).copied().unwrap_or_default();
            let is = (account.settled, account.reserved, account.unreturned);
            let name = || format!("{} on device {}", broker.tenants.name(tenant), place.device);
            let should = (should.settled, should.reserved, should.unreturned);
            expect_equal(found, LEDGER_BALANCES, name, &is, &should);
        }
    }
    for ((tenant, place), account) in charged {
        let known = broker.ledger.balances(place).and_then(|balances| balances.account(tenant)).is_some();
        let name = || format!("{} has an account on device {}", broker.tenants.name(tenant), place.device);
        expect_equal(found, LEDGER_BALANCES, name, &known, &(known || !account.charged().is_zero()));
    }
}

/// Recomputes the accounts in scope.
fn recompute(broker: &Broker, scope: &Scope) -> BTreeMap<(TenantId, Place), Account> {
    let mut accounts: BTreeMap<(TenantId, Place), Account> = BTreeMap::new();
    let mut add = |key, bytes: Bytes, field: fn(&mut Account) -> &mut Bytes| {
        if scope.has_account(key) {
            let balance = field(accounts.entry(key).or_default());
            *balance = balance.saturating_add(bytes);
        }
    };
    for (_, extent) in broker.pool.iter() {
        match &extent.state {
            ExtentState::Creating(it) => add((it.tenant(), it.place()), it.bytes(), |a| &mut a.reserved),
            ExtentState::Live(it) | ExtentState::Cached(it) | ExtentState::Releasing(it) => {
                add((it.tenant(), it.place()), it.bytes(), |a| &mut a.settled);
            }
            ExtentState::Dropped => {}
            ExtentState::Unreturned(debts) => {
                for it in debts {
                    add((it.tenant(), it.place()), it.bytes(), |a| &mut a.unreturned);
                }
            }
        }
    }
    for it in broker.allocations.managed.charges() {
        add((it.tenant(), it.place()), it.bytes(), |a| &mut a.settled);
    }
    for (_, backing) in broker.moves.backings.iter() {
        if let Backing::Reserved(it) = backing {
            add((it.tenant(), it.place()), it.bytes(), |a| &mut a.reserved);
        }
    }
    accounts
}
