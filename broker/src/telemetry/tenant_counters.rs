//! Counts the refusals and the pin waits of each tenant, for as long as the daemon lives.
//!
//! A tenant gets all its series with its first session, each at zero, so that its first refusal is an increase. Once no
//! series are left for a further tenant, that tenant is counted for `_other` for good: a counter must not fall.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use broker_core::{Caller, Notice, WaitEnd};
use vramd_types::Reason;

use super::metrics::OTHER_TENANTS;

/// The outcomes of waits.
pub(super) const WAIT_ENDS: [WaitEnd; 4] =
    [WaitEnd::Served, WaitEnd::Refused, WaitEnd::Cancelled, WaitEnd::Left];

#[derive(Debug)]
pub(super) struct TenantCounters {
    /// The most tenants with series of their own. The series of `_other` fit beside theirs.
    tenants_max: usize,
    counted: Mutex<BTreeMap<String, TenantCounts>>,
}

/// The counts of one tenant.
#[derive(Clone, Debug)]
pub(super) struct TenantCounts {
    /// In the order of the registry of reasons.
    refusals: Box<[u64]>,
    pin_waits: [u64; WAIT_ENDS.len()],
}

impl Default for TenantCounts {
    fn default() -> Self {
        Self { refusals: vec![0; Reason::ALL.len()].into(), pin_waits: Default::default() }
    }
}

impl TenantCounts {
    pub(super) fn refusals(&self) -> impl Iterator<Item = (Reason, u64)> {
        Reason::ALL.iter().copied().zip(self.refusals.iter().copied())
    }

    pub(super) fn pin_waits(&self) -> impl Iterator<Item = (WaitEnd, u64)> {
        WAIT_ENDS.into_iter().zip(self.pin_waits)
    }
}

impl TenantCounters {
    pub(super) fn new(series_max: usize) -> Self {
        let tenants_max = (series_max / Reason::ALL.len()).saturating_sub(1);
        Self { tenants_max, counted: Mutex::default() }
    }

    /// Counts what the notice reports of a tenant.
    pub(super) fn count(&self, notice: &Notice) {
        match notice {
            Notice::SessionOpened { tenant, .. } => self.change(tenant, |_| {}),
            Notice::Refused { by, refusal, .. } => {
                let tenant = match by {
                    Caller::Session { tenant, .. } => &**tenant,
                    Caller::Process { tenant, .. } => tenant.as_str(),
                    Caller::Operator { .. } | Caller::ForeignProcess { .. } => return,
                };
                self.change(tenant, |counts| {
                    if let Some(count) = counts.refusals.get_mut(refusal.reason() as usize) {
                        *count = count.saturating_add(1);
                    }
                });
            }
            Notice::PinWaited { tenant, end, .. } => self.change(tenant, |counts| {
                let at = WAIT_ENDS.iter().position(|known| known == end);
                if let Some(count) = at.and_then(|at| counts.pin_waits.get_mut(at)) {
                    *count = count.saturating_add(1);
                }
            }),
            _ => {}
        }
    }

    /// Returns the counts by tenant.
    pub(super) fn by_tenant(&self) -> BTreeMap<String, TenantCounts> {
        self.lock().clone()
    }

    fn change(&self, tenant: &str, change: impl FnOnce(&mut TenantCounts)) {
        let mut counted = self.lock();
        if let Some(counts) = counted.get_mut(tenant) {
            return change(counts);
        }
        let named = counted.len() - usize::from(counted.contains_key(OTHER_TENANTS));
        let name = if named < self.tenants_max { tenant } else { OTHER_TENANTS };
        change(counted.entry(name.to_owned()).or_default());
    }

    /// Locks the counts. The reactor and the collecting thread keep the lock only briefly.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, TenantCounts>> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use broker_core::{Refusal, Time};
    use vramd_types::SessionId;

    use super::*;

    fn opened(tenant: &str) -> Notice {
        Notice::SessionOpened { session: SessionId::from_shown(1), tenant: tenant.into(), pid: 1 }
    }

    fn refused(tenant: &str) -> Notice {
        let by = Caller::Session { session: SessionId::from_shown(1), tenant: tenant.into() };
        Notice::Refused { by, request: "Seal", refusal: Refusal::Draining }
    }

    fn draining(counts: &TenantCounts) -> u64 {
        counts.refusals().find(|(reason, _)| *reason == Reason::Draining).map_or(0, |(_, count)| count)
    }

    #[test]
    fn a_tenant_begins_with_zeros_and_late_tenants_are_counted_as_other() {
        let counters = TenantCounters::new(3 * Reason::ALL.len());
        counters.count(&opened("a"));
        let counted = counters.by_tenant();
        assert_eq!(counted["a"].refusals().count(), Reason::ALL.len());
        assert_eq!((draining(&counted["a"]), counted["a"].pin_waits().count()), (0, 4));
        for tenant in ["a", "b", "c", "d", "a"] {
            counters.count(&refused(tenant));
        }
        let counted = counters.by_tenant();
        let counts: Vec<_> = counted.iter().map(|(name, of)| (name.as_str(), draining(of))).collect();
        assert_eq!(counts, [(OTHER_TENANTS, 2), ("a", 2), ("b", 1)]);
    }

    #[test]
    fn pin_waits_are_counted_by_outcome() {
        let counters = TenantCounters::new(4000);
        let (session, call, since) = (SessionId::from_shown(1), 1, Time::START);
        for end in [WaitEnd::Served, WaitEnd::Served, WaitEnd::Left] {
            counters.count(&Notice::PinWaited { tenant: "a".into(), session, call, since, end });
        }
        let waits: Vec<_> = counters.by_tenant()["a"].pin_waits().map(|(_, count)| count).collect();
        assert_eq!(waits, [2, 0, 0, 1]);
    }
}
