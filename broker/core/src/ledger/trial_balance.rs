//! A trial balance of one place: the ledger without bytes that could be released, and with bytes that are
//! promised to waiters. The choice of victims tests on it whether they are enough. It writes nothing to the
//! ledger.

use vramd_types::Bytes;

use super::{Account, Ledger, Place, PlaceBalances, Shortage};

use crate::tenancy::TenantId;

#[derive(Debug)]
pub(crate) struct TrialBalance<'a> {
    ledger: &'a Ledger,
    balances: &'a PlaceBalances,
    place: Place,
    capacity: Bytes,
    /// The committed sum with all changes.
    committed: Bytes,
    /// In the order of the tenants.
    changes: Vec<(TenantId, Change)>,
}

#[derive(Clone, Copy, Debug)]
struct Change {
    less: Bytes,
    more: Bytes,
    /// The account with both.
    account: Account,
}

impl<'a> TrialBalance<'a> {
    pub(super) fn new(ledger: &'a Ledger, place: Place) -> Option<Self> {
        let balances = ledger.balances.get(place)?;
        let (capacity, committed) = (balances.capacity(), balances.committed);
        Some(Self { ledger, balances, place, capacity, committed, changes: Vec::new() })
    }

    /// The account with its changes.
    pub(crate) fn account(&self, tenant: TenantId) -> Account {
        self.change_of(tenant).map_or_else(|| self.actual(tenant), |change| change.account)
    }

    /// Subtracts bytes that the tenant would no longer have.
    pub(crate) fn spare(&mut self, tenant: TenantId, bytes: Bytes) {
        self.change(tenant, |change| change.less = change.less.saturating_add(bytes));
    }

    /// Takes a subtraction back.
    pub(crate) fn restore(&mut self, tenant: TenantId, bytes: Bytes) {
        self.change(tenant, |change| change.less = change.less.saturating_sub(bytes));
    }

    /// Adds bytes that the tenant is promised.
    pub(crate) fn promise(&mut self, tenant: TenantId, bytes: Bytes) {
        self.change(tenant, |change| change.more = change.more.saturating_add(bytes));
    }

    /// The bytes subtracted from the tenant.
    pub(crate) fn subtracted_from(&self, tenant: TenantId) -> Bytes {
        self.change_of(tenant).map_or(Bytes::ZERO, |change| change.less)
    }

    /// The charge of all tenants, with all changes.
    pub(crate) fn charged(&self) -> Bytes {
        let sum = |of: fn(&Change) -> Bytes| {
            self.changes.iter().map(|(_, change)| of(change)).fold(Bytes::ZERO, Bytes::saturating_add)
        };
        self.balances
            .charged
            .saturating_sub(sum(|change| change.less))
            .saturating_add(sum(|change| change.more))
    }

    /// The shortfall, with all changes.
    pub(crate) fn shortfall(&self) -> Bytes {
        self.committed.saturating_sub(self.capacity)
    }

    /// Checks whether further bytes would be admitted.
    pub(crate) fn admit(&self, tenant: TenantId, requested: Bytes) -> Result<(), Shortage> {
        let old = self.account(tenant);
        let limit = || Shortage::Limit { limit: old.limit, charged: self.actual(tenant).charged() };
        let charged = old.charged().checked_add(requested).ok_or_else(limit)?;
        planted!(self.ledger, LimitOffByOnePart => charged = self.ledger.without_one_part(charged));
        if charged > old.limit {
            return Err(limit());
        }
        let new = Account { reserved: old.reserved.saturating_add(requested), ..old };
        let would = self.committed_with(old, new);
        let capacity = self.capacity;
        planted!(self.ledger, GuaranteeIgnored => would = self.balances.charged.saturating_add(requested));
        planted!(self.ledger, ShortfallIgnored => capacity = self.balances.share);
        if would <= capacity || would <= self.committed {
            return Ok(());
        }
        let spare = capacity.saturating_sub(self.committed);
        Err(Shortage::Room { free: spare.saturating_add(old.commitment().saturating_sub(old.charged())) })
    }

    /// The most bytes that [`Self::admit`] would admit for the tenant now.
    pub(crate) fn admittable(&self, tenant: TenantId) -> Bytes {
        let account = self.account(tenant);
        let below_limit = account.limit.saturating_sub(account.charged());
        let headroom = account.commitment().saturating_sub(account.charged());
        let spare = self.capacity.saturating_sub(self.committed);
        below_limit.min(spare.saturating_add(headroom))
    }

    /// The committed bytes if the tenant's guarantee were this, if they would exceed the capacity.
    pub(crate) fn overcommitment(&self, tenant: TenantId, guarantee: Bytes) -> Option<Bytes> {
        let old = self.account(tenant);
        let would = self.committed_with(old, Account { guarantee, ..old });
        (would > self.capacity && would > self.committed).then_some(would)
    }

    /// The account in the ledger. An account that is not open yet has no guarantee and no charge, since a
    /// tenant with a guarantee always has an account.
    pub(crate) fn actual(&self, tenant: TenantId) -> Account {
        let known = self.balances.account(tenant).copied();
        known.unwrap_or_else(|| self.ledger.quotas.new_account(tenant, self.place, self.balances.share))
    }

    fn change_of(&self, tenant: TenantId) -> Option<&Change> {
        let found = self.find(tenant).ok().and_then(|at| self.changes.get(at));
        found.map(|(_, change)| change)
    }

    /// The index of the tenant's change, or where it would be inserted.
    fn find(&self, tenant: TenantId) -> Result<usize, usize> {
        self.changes.binary_search_by_key(&tenant, |(of, _)| *of)
    }

    fn change(&mut self, tenant: TenantId, change: impl FnOnce(&mut Change)) {
        let actual = self.actual(tenant);
        let at = self.find(tenant).unwrap_or_else(|at| {
            let (less, more) = (Bytes::ZERO, Bytes::ZERO);
            self.changes.insert(at, (tenant, Change { less, more, account: actual }));
            at
        });
        let Some((_, entry)) = self.changes.get_mut(at) else { return };
        let old = entry.account;
        change(entry);
        entry.account = actual.without(entry.less).with(entry.more);
        let new = entry.account;
        self.committed = self.committed_with(old, new);
    }

    fn committed_with(&self, old: Account, new: Account) -> Bytes {
        let would = self.committed.checked_sub(old.commitment());
        would.and_then(|sum| sum.checked_add(new.commitment())).unwrap_or(Bytes::MAX)
    }
}
