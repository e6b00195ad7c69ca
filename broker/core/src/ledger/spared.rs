//! What admission would say if tenants held less of one place, or more: bytes that could be given up, and bytes that are
//! promised to those who wait.

use std::collections::BTreeMap;

use vramd_types::Bytes;

use super::Account;
use crate::tenancy::TenantId;

#[derive(Clone, Debug, Default)]
pub(crate) struct Spared(BTreeMap<TenantId, Change>);

#[derive(Clone, Copy, Debug, Default)]
struct Change {
    less: Bytes,
    more: Bytes,
}

impl Spared {
    /// So much of what the tenant has there is gone.
    pub(crate) fn add(&mut self, tenant: TenantId, bytes: Bytes) {
        let change = self.0.entry(tenant).or_default();
        change.less = change.less.saturating_add(bytes);
    }

    /// The tenant will have so much more there.
    pub(crate) fn promise(&mut self, tenant: TenantId, bytes: Bytes) {
        let change = self.0.entry(tenant).or_default();
        change.more = change.more.saturating_add(bytes);
    }

    /// What of the tenant's is gone.
    pub(crate) fn less_of(&self, tenant: TenantId) -> Bytes {
        self.0.get(&tenant).map_or(Bytes::ZERO, |change| change.less)
    }

    /// The account as it would be.
    pub(crate) fn applied(&self, tenant: TenantId, account: Account) -> Account {
        let Change { less, more } = self.0.get(&tenant).copied().unwrap_or_default();
        account.without(less).with(more)
    }

    pub(crate) fn tenants(&self) -> impl Iterator<Item = TenantId> {
        self.0.keys().copied()
    }
}
