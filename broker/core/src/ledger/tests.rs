use super::*;
use vramd_types::Quantity;

use crate::tenancy::Tenants;

const PLACE: Place = Place::device(DeviceIndex(0));

fn mib(n: u32) -> Bytes {
    Bytes::mib(n)
}

fn ledger(capacity: u32, quotas: &[(&str, u32, u32)]) -> (Ledger, Vec<TenantId>) {
    let mut tenants = Tenants::default();
    let mut book = QuotaTable::new(Quantity::Percent(100), Quantity::Percent(100), Quantity::Percent(100));
    let ids = quotas
        .iter()
        .map(|(name, guarantee, limit)| {
            let id = tenants.intern(name);
            let quota =
                Quota { guarantee: Quantity::Bytes(mib(*guarantee)), limit: Quantity::Bytes(mib(*limit)) };
            book.set(id, QuotaDevice::All, Tier::Device, Some(quota));
            id
        })
        .collect();
    (Ledger::new([(PLACE, mib(capacity))], book), ids)
}

#[test]
fn reserve_settle_and_discharge_balance() {
    let (mut ledger, ids) = ledger(100, &[("a", 0, 100)]);
    let reservation = ledger.reserve(ids[0], PLACE, mib(30)).expect("room");
    assert_eq!(ledger.account(ids[0], PLACE).map(|a| (a.reserved, a.settled)), Some((mib(30), Bytes::ZERO)));
    let charge = ledger.settle(reservation);
    assert_eq!(ledger.account(ids[0], PLACE).map(|a| (a.reserved, a.settled)), Some((Bytes::ZERO, mib(30))));
    ledger.discharge(charge);
    let balances = ledger.balances(PLACE).expect("books");
    assert_eq!((balances.charged(), balances.committed()), (Bytes::ZERO, Bytes::ZERO));
    assert!(ledger.take_broken().is_empty());
}

#[test]
fn limit_holds_to_the_byte() {
    let (mut ledger, ids) = ledger(100, &[("a", 0, 40)]);
    let charge = ledger.reserve(ids[0], PLACE, mib(40)).map(|r| ledger.settle(r)).expect("just fits");
    let refused = ledger.admit(ids[0], PLACE, Bytes::new(1));
    assert_eq!(refused, Err(Shortage::Limit { limit: mib(40), charged: mib(40) }));
    assert_eq!(
        ledger.admit(ids[0], PLACE, Bytes::MAX),
        Err(Shortage::Limit { limit: mib(40), charged: mib(40) })
    );
    ledger.discharge(charge);
}

#[test]
fn guarantee_stays_free_for_its_tenant() {
    let (mut ledger, ids) = ledger(100, &[("a", 60, 100), ("b", 0, 100)]);
    assert_eq!(ledger.admit(ids[1], PLACE, mib(41)), Err(Shortage::Room { free: mib(40) }));
    let b = ledger.reserve(ids[1], PLACE, mib(40)).expect("b fits into the bytes without a guarantee");
    let a = ledger.reserve(ids[0], PLACE, mib(60)).expect("the guarantee");
    assert_eq!(ledger.admit(ids[0], PLACE, mib(1)), Err(Shortage::Room { free: Bytes::ZERO }));
    ledger.cancel(a);
    ledger.cancel(b);
}

#[test]
fn shortfall_only_shrinks() {
    let (mut ledger, ids) = ledger(100, &[("a", 60, 100), ("b", 0, 100)]);
    let b = ledger.reserve(ids[1], PLACE, mib(40)).expect("room");
    ledger.set_withheld(PLACE, mib(30), mib(20));
    assert_eq!(ledger.balances(PLACE).map(PlaceBalances::shortfall), Some(mib(50)));
    assert_eq!(ledger.admit(ids[1], PLACE, mib(1)), Err(Shortage::Room { free: Bytes::ZERO }));
    assert_eq!(ledger.admit(ids[0], PLACE, mib(60)), Ok(()), "its guarantee commits nothing new");
    ledger.cancel(b);
    assert_eq!(ledger.balances(PLACE).map(PlaceBalances::shortfall), Some(mib(10)));
}

#[test]
fn debts_add_up_to_the_charge() {
    let (mut ledger, ids) = ledger(100, &[("a", 0, 100), ("b", 0, 100), ("c", 0, 100)]);
    let charge = ledger.reserve(ids[0], PLACE, mib(10)).map(|r| ledger.settle(r)).expect("room");
    let debts = ledger.owe(charge, &ids);
    let owed: Vec<_> = ids.iter().filter_map(|id| ledger.account(*id, PLACE)).map(|a| a.unreturned).collect();
    assert_eq!(Bytes::checked_sum(owed.iter().copied()), Some(mib(10)));
    assert!(owed.iter().all(|share| share.get() >= mib(10).get() / 3));
    assert_eq!(ledger.balances(PLACE).map(PlaceBalances::charged), Some(mib(10)));
    debts.into_iter().for_each(|debt| ledger.repay(debt));
    assert_eq!(ledger.balances(PLACE).map(PlaceBalances::charged), Some(Bytes::ZERO));
    assert!(ledger.take_broken().is_empty());
}

#[test]
fn guarantees_are_backed_or_refused() {
    let (ledger, ids) = ledger(100, &[("a", 60, 100), ("b", 0, 100)]);
    assert_eq!(ledger.overcommitment(ids[1], PLACE, mib(40)), None);
    assert_eq!(ledger.overcommitment(ids[1], PLACE, mib(41)), Some(mib(101)));
    assert_eq!(ledger.overcommitment(ids[0], PLACE, mib(100)), None);
}

#[test]
fn subtracted_bytes_make_room_but_not_below_a_guarantee() {
    let (mut ledger, ids) = ledger(100, &[("a", 30, 100), ("b", 0, 60)]);
    let charge = ledger.reserve(ids[0], PLACE, mib(50)).map(|r| ledger.settle(r)).expect("room");
    assert_eq!(ledger.admit(ids[1], PLACE, mib(55)), Err(Shortage::Room { free: mib(50) }));
    let spared = |mib_less: u32| {
        let mut trial = ledger.trial(PLACE).expect("books");
        trial.spare(ids[0], mib(mib_less));
        trial
    };
    assert_eq!(spared(10).admit(ids[1], mib(55)), Ok(()));
    assert_eq!(spared(50).shortfall(), Bytes::ZERO);
    let mut restored = spared(10);
    restored.restore(ids[0], mib(10));
    assert_eq!(restored.admit(ids[1], mib(55)), Err(Shortage::Room { free: mib(50) }));
    let mut promised = spared(50);
    promised.promise(ids[1], mib(20));
    assert_eq!(
        promised.admit(ids[1], mib(50)),
        Err(Shortage::Limit { limit: mib(60), charged: Bytes::ZERO })
    );
    assert_eq!(promised.admit(ids[0], mib(81)), Err(Shortage::Room { free: mib(80) }));
    assert_eq!(ledger.overcommitment(ids[1], PLACE, mib(60)), Some(mib(110)));
    assert_eq!(spared(50).overcommitment(ids[1], mib(60)), None);
    assert_eq!(
        spared(50).admit(ids[1], mib(61)),
        Err(Shortage::Limit { limit: mib(60), charged: Bytes::ZERO })
    );
    ledger.set_withheld(PLACE, mib(75), Bytes::ZERO);
    let mut spared = ledger.trial(PLACE).expect("books");
    spared.spare(ids[0], mib(50));
    assert_eq!(spared.shortfall(), mib(5), "guaranteed");
    ledger.discharge(charge);
}
