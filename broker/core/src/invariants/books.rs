//! Balances can be recomputed from the extents at any time, and must agree.

use std::collections::BTreeMap;

use vramd_types::Bytes;

use super::{LEDGER_BOOKS, LEDGER_SUMS, Violation, expect_equal};
use crate::{
    broker::Broker,
    ledger::{Account, Place},
    pool::ExtentState,
    tenancy::TenantId,
};

pub(super) fn check(broker: &Broker, found: &mut Vec<Violation>) {
    let charged = recompute(broker);
    for (place, books) in broker.ledger.places() {
        let mut held = Bytes::ZERO;
        let mut committed = Bytes::ZERO;
        for (tenant, account) in books.accounts() {
            let should = charged.get(&(tenant, place)).copied().unwrap_or_default();
            let is = (account.settled, account.reserved, account.unreturned);
            let name = || format!("{} on device {}", broker.tenants.name(tenant), place.device);
            expect_equal(
                found,
                LEDGER_BOOKS,
                name,
                &is,
                &(should.settled, should.reserved, should.unreturned),
            );
            held = held.saturating_add(account.held());
            committed = committed.saturating_add(account.commitment());
        }
        let device = || format!("sums of device {}", place.device);
        expect_equal(found, LEDGER_SUMS, device, &(books.held(), books.committed()), &(held, committed));
    }
    for ((tenant, place), account) in charged {
        let known = broker.ledger.books(place).and_then(|books| books.account(tenant)).is_some();
        let name = || format!("{} has an account on device {}", broker.tenants.name(tenant), place.device);
        expect_equal(found, LEDGER_BOOKS, name, &known, &(known || !account.held().is_zero()));
    }
}

fn recompute(broker: &Broker) -> BTreeMap<(TenantId, Place), Account> {
    let mut accounts: BTreeMap<(TenantId, Place), Account> = BTreeMap::new();
    for (_, extent) in broker.pool.iter() {
        match &extent.state {
            ExtentState::Creating(r) => {
                add(&mut accounts, (r.tenant(), r.place()), r.bytes(), |a| &mut a.reserved)
            }
            ExtentState::Live(c) | ExtentState::Releasing(c) => {
                add(&mut accounts, (c.tenant(), c.place()), c.bytes(), |a| &mut a.settled);
            }
            ExtentState::Unreturned(debts) => {
                for d in debts {
                    add(&mut accounts, (d.tenant(), d.place()), d.bytes(), |a| &mut a.unreturned);
                }
            }
        }
    }
    accounts
}

fn add(
    accounts: &mut BTreeMap<(TenantId, Place), Account>,
    key: (TenantId, Place),
    bytes: Bytes,
    field: impl Fn(&mut Account) -> &mut Bytes,
) {
    let balance = field(accounts.entry(key).or_default());
    *balance = balance.saturating_add(bytes);
}
