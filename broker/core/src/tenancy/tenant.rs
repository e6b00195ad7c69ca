//! Tenants by name. A tenant is created at its first mention and never forgotten.

use std::{collections::BTreeMap, sync::Arc};

/// A tenant's index in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct TenantId(u32);

impl TenantId {
    pub(crate) const MIN: Self = Self(0);
    pub(crate) const MAX: Self = Self(u32::MAX);

    pub(super) fn from_index(index: usize) -> Self {
        Self(u32::try_from(index).unwrap_or(u32::MAX))
    }

    pub(super) fn index(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Tenants {
    ids: BTreeMap<Arc<str>, TenantId>,
    names: Vec<Arc<str>>,
}

impl Tenants {
    /// Returns the tenant of that name, and creates it if needed.
    pub(crate) fn intern(&mut self, name: &str) -> TenantId {
        if let Some(id) = self.ids.get(name) {
            return *id;
        }
        let id = TenantId::from_index(self.names.len());
        let name: Arc<str> = Arc::from(name);
        self.names.push(Arc::clone(&name));
        self.ids.insert(name, id);
        id
    }

    pub(crate) fn find(&self, name: &str) -> Option<TenantId> {
        self.ids.get(name).copied()
    }

    pub(crate) fn name(&self, id: TenantId) -> &str {
        self.names.get(id.index()).map_or("?", |name| name)
    }

    /// Returns the name as a shared string.
    pub(crate) fn shared(&self, id: TenantId) -> Arc<str> {
        self.names.get(id.index()).map_or_else(|| Arc::from("?"), Arc::clone)
    }

    /// Returns all tenants in the order of their names.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, TenantId)> {
        self.ids.iter().map(|(name, id)| (&**name, *id))
    }
}
