//! Quotas and standings of tenants, by key.

use std::collections::{BTreeMap, BTreeSet};

use broker_core::{Standing, StoredQuota, StoredQuotas, StoredTenant, Tier};
use vramd_types::Quantity;

/// Where a quota applies.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct QuotaKey {
    pub(super) tenant: String,
    pub(super) tier: Tier,
    /// UUID, or `*` for all devices.
    pub(super) device: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Amounts {
    pub(super) guarantee: Quantity,
    pub(super) limit: Quantity,
}

/// Quotas and standings of tenants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Book {
    pub(super) quotas: BTreeMap<QuotaKey, Amounts>,
    pub(super) standings: BTreeMap<String, Standing>,
}

impl Book {
    pub(super) fn of(quotas: &[StoredQuota], standings: &[StoredTenant]) -> Self {
        let quota = |row: &StoredQuota| {
            let key = QuotaKey { tenant: row.tenant.clone(), tier: row.tier, device: row.device.clone() };
            (key, Amounts { guarantee: row.guarantee, limit: row.limit })
        };
        let standing = |row: &StoredTenant| (row.tenant.clone(), row.standing);
        Self {
            quotas: quotas.iter().map(quota).collect(),
            standings: standings.iter().map(standing).collect(),
        }
    }

    pub(super) fn of_stored(stored: &StoredQuotas) -> Self {
        Self::of(&stored.quotas, &stored.tenants)
    }

    /// Returns this book with all that concerns these tenants replaced by what another book has.
    pub(super) fn with(&self, tenants: &BTreeSet<String>, other: &Self) -> Self {
        let mut book = self.clone();
        book.quotas.retain(|key, _| !tenants.contains(&key.tenant));
        book.standings.retain(|tenant, _| !tenants.contains(tenant));
        let own = |tenant: &String| tenants.contains(tenant);
        book.quotas.extend(
            other.quotas.iter().filter(|(key, _)| own(&key.tenant)).map(|(key, it)| (key.clone(), *it)),
        );
        book.standings.extend(
            other
                .standings
                .iter()
                .filter(|(tenant, _)| own(tenant))
                .map(|(tenant, it)| (tenant.clone(), *it)),
        );
        book
    }

    pub(super) fn set_quota(&mut self, key: &QuotaKey, amounts: Option<Amounts>) {
        match amounts {
            Some(amounts) => _ = self.quotas.insert(key.clone(), amounts),
            None => _ = self.quotas.remove(key),
        }
    }

    /// Returns the stored quota that applies to a tenant on a device.
    pub(super) fn amounts(&self, tenant: &str, tier: Tier, uuid: &str) -> Option<Amounts> {
        let of = |device: &str| {
            let key = QuotaKey { tenant: tenant.to_owned(), tier, device: device.to_owned() };
            self.quotas.get(&key).copied()
        };
        of(uuid).or_else(|| of("*"))
    }

    pub(super) fn quota_rows(&self) -> Vec<StoredQuota> {
        let row = |(key, amounts): (&QuotaKey, &Amounts)| StoredQuota {
            tenant: key.tenant.clone(),
            device: key.device.clone(),
            tier: key.tier,
            guarantee: amounts.guarantee,
            limit: amounts.limit,
        };
        self.quotas.iter().map(row).collect()
    }

    pub(super) fn standing_rows(&self) -> Vec<StoredTenant> {
        let row = |(tenant, standing): (&String, &Standing)| StoredTenant {
            tenant: tenant.clone(),
            standing: *standing,
        };
        self.standings.iter().map(row).collect()
    }
}
