//! A map by tenant. Tenants are numbered from zero and never forgotten, so the number is the index.

use super::TenantId;

#[derive(Debug)]
pub(crate) struct ByTenant<V>(Vec<Option<V>>);

impl<V> ByTenant<V> {
    pub(crate) fn get(&self, tenant: TenantId) -> Option<&V> {
        self.0.get(tenant.index())?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, tenant: TenantId) -> Option<&mut V> {
        self.0.get_mut(tenant.index())?.as_mut()
    }

    pub(crate) fn insert(&mut self, tenant: TenantId, value: V) {
        if tenant.index() >= self.0.len() {
            self.0.resize_with(tenant.index().saturating_add(1), || None);
        }
        if let Some(slot) = self.0.get_mut(tenant.index()) {
            *slot = Some(value);
        }
    }

    /// Changes the tenant's value, which begins as the default.
    pub(crate) fn change(&mut self, tenant: TenantId, change: impl FnOnce(&mut V))
    where
        V: Default,
    {
        if self.get(tenant).is_none() {
            self.insert(tenant, V::default());
        }
        self.get_mut(tenant).map(change);
    }

    /// Returns all values, in the order of the tenants' numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (TenantId, &V)> {
        let all = self.0.iter().enumerate();
        all.filter_map(|(at, value)| Some((TenantId::from_index(at), value.as_ref()?)))
    }
}

impl<V> Default for ByTenant<V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}
