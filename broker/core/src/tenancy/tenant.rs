//! Tenants by name. A tenant is created at its first mention and never forgotten.

use std::{collections::BTreeMap, sync::Arc};

use super::Standing;

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
    rows: Vec<Tenant>,
    /// Tenants with a standing that operators have set.
    stored: BTreeMap<Arc<str>, TenantId>,
}

#[derive(Debug)]
struct Tenant {
    name: Arc<str>,
    /// As the configuration says.
    configured: Option<Standing>,
    /// As an operator has set it. It comes before the configured one.
    stored: Option<Standing>,
    /// Follows from these two. It is read whenever a part arrives.
    in_force: Standing,
}

impl Tenants {
    /// Returns the tenant of that name, and creates it if needed.
    pub(crate) fn intern(&mut self, name: &str) -> TenantId {
        if let Some(id) = self.ids.get(name) {
            return *id;
        }
        let id = TenantId::from_index(self.rows.len());
        let name: Arc<str> = Arc::from(name);
        self.rows.push(Tenant {
            name: Arc::clone(&name),
            configured: None,
            stored: None,
            in_force: Standing::default(),
        });
        self.ids.insert(name, id);
        id
    }

    pub(crate) fn find(&self, name: &str) -> Option<TenantId> {
        self.ids.get(name).copied()
    }

    pub(crate) fn name(&self, id: TenantId) -> &str {
        self.rows.get(id.index()).map_or("?", |row| &row.name)
    }

    /// Returns the name as a shared string.
    pub(crate) fn shared(&self, id: TenantId) -> Arc<str> {
        self.rows.get(id.index()).map_or_else(|| Arc::from("?"), |row| Arc::clone(&row.name))
    }

    /// Returns all tenants in the order of their names.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, TenantId)> {
        self.ids.iter().map(|(name, id)| (&**name, *id))
    }

    /// The class and the weight in force.
    pub(crate) fn standing(&self, id: TenantId) -> Standing {
        self.rows.get(id.index()).map(|row| row.in_force).unwrap_or_default()
    }

    /// The standing that operators have set, and the configured one.
    pub(crate) fn sources(&self, id: TenantId) -> (Option<Standing>, Option<Standing>) {
        self.rows.get(id.index()).map_or((None, None), |row| (row.stored, row.configured))
    }

    /// Returns the standings that operators have set, in the order of the tenants' names.
    pub(crate) fn stored(&self) -> impl Iterator<Item = (&str, Standing)> {
        let standing = |id: TenantId| self.rows.get(id.index()).and_then(|row| row.stored);
        self.stored.iter().filter_map(move |(name, id)| Some((&**name, standing(*id)?)))
    }

    /// Sets the standing that the configuration gives.
    pub(crate) fn configure(&mut self, id: TenantId, standing: Standing) {
        if let Some(row) = self.rows.get_mut(id.index()) {
            row.configured = Some(standing);
            row.in_force = row.stored.unwrap_or(standing);
        }
    }

    /// Sets the standing that operators have chosen; `None` returns to the configured one.
    pub(crate) fn store(&mut self, id: TenantId, standing: Option<Standing>) {
        if let Some(row) = self.rows.get_mut(id.index()) {
            row.stored = standing;
            row.in_force = standing.or(row.configured).unwrap_or_default();
            let name = Arc::clone(&row.name);
            match standing {
                Some(_) => _ = self.stored.insert(name, id),
                None => _ = self.stored.remove(&name),
            }
        }
    }
}
