//! Bytes of one place that are charged and could be given up at once, by tenant: what would admission say without them?

use std::collections::BTreeMap;

use vramd_types::Bytes;

use crate::tenancy::TenantId;

#[derive(Clone, Debug, Default)]
pub(crate) struct Spared(BTreeMap<TenantId, Bytes>);

impl Spared {
    pub(crate) fn add(&mut self, tenant: TenantId, bytes: Bytes) {
        let spared = self.0.entry(tenant).or_default();
        *spared = spared.saturating_add(bytes);
    }

    pub(crate) fn of(&self, tenant: TenantId) -> Bytes {
        self.0.get(&tenant).copied().unwrap_or_default()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (TenantId, Bytes)> {
        self.0.iter().map(|(tenant, bytes)| (*tenant, *bytes))
    }
}
