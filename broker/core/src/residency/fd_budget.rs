//! The descriptor budget: descriptors sent and not answered. The kernel limits descriptors in flight, so a
//! tenant and the node have budgets.
//!
//! Sessions that find a budget spent wait in their tenant's queue. The first to arrive is served first, over
//! all tenants that have budget left. Sessions of a tenant without budget are not visited one by one.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use vramd_types::SessionId;

use crate::tenancy::{ByTenant, TenantId};

#[derive(Debug, Default)]
pub(crate) struct FdBudget {
    pub(crate) total: usize,
    by_tenant: ByTenant<usize>,
    starved: Starved,
}

/// Sessions that wait for budget, at most once each.
#[derive(Debug, Default)]
struct Starved {
    lines: BTreeMap<TenantId, VecDeque<(Turn, SessionId)>>,
    waiting: BTreeSet<SessionId>,
    next: Turn,
}

/// The order in which sessions arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Turn(u64);

impl FdBudget {
    pub(crate) fn of(&self, tenant: TenantId) -> usize {
        self.by_tenant.get(tenant).copied().unwrap_or_default()
    }

    pub(crate) fn spend(&mut self, tenant: TenantId, fds: usize) {
        self.total = self.total.saturating_add(fds);
        self.by_tenant.change(tenant, |spent| *spent = spent.saturating_add(fds));
    }

    pub(crate) fn give_back(&mut self, tenant: TenantId, fds: usize) {
        self.total = self.total.saturating_sub(fds);
        self.by_tenant.change(tenant, |spent| *spent = spent.saturating_sub(fds));
    }

    /// Queues the session, unless it waits already.
    pub(crate) fn starve(&mut self, tenant: TenantId, session: SessionId) {
        let Starved { lines, waiting, next } = &mut self.starved;
        if waiting.insert(session) {
            lines.entry(tenant).or_default().push_back((*next, session));
            next.0 = next.0.saturating_add(1);
        }
    }

    #[cfg(feature = "planted")]
    pub(crate) fn lines_mut(&mut self) -> impl Iterator<Item = &mut VecDeque<(Turn, SessionId)>> {
        self.starved.lines.values_mut()
    }

    /// The turn of the next session to wait.
    pub(crate) const fn turn(&self) -> Turn {
        self.starved.next
    }

    /// Takes the first session that arrived before the turn and whose tenant has not spent `own_max`.
    pub(crate) fn next_starved(&mut self, before: Turn, own_max: usize) -> Option<SessionId> {
        let Starved { lines, waiting, .. } = &mut self.starved;
        let spent = |tenant: &TenantId| self.by_tenant.get(*tenant).copied().unwrap_or_default();
        let fronts = lines.iter().filter(|(tenant, _)| spent(tenant) < own_max);
        let fronts = fronts.filter_map(|(tenant, line)| Some((line.front()?.0, *tenant)));
        let (_, tenant) = fronts.min().filter(|(turn, _)| *turn < before)?;
        let line = lines.get_mut(&tenant)?;
        let (_, session) = line.pop_front()?;
        if line.is_empty() {
            lines.remove(&tenant);
        }
        waiting.remove(&session);
        Some(session)
    }
}
