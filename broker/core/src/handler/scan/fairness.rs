//! Fairness: the waiters that a waiter keeps waiting when it stays.
//!
//! A waiter without room fills its devices for all behind it, except within their guarantee. A batch that stands
//! behind such a waiter on one device keeps none waiting on its others. A waiter at its tenant's limit keeps only its
//! own tenant's waiters waiting, and takes no place of another in the lookahead. A waiter that nothing helps keeps
//! none waiting while it lets others pass (`line/turns.rs`).

use std::collections::BTreeSet;

use super::walk::Scan;
use crate::{
    broker::Broker,
    ledger::{Place, Shortage},
    line::{Footprint, LOOKAHEAD, Need, Waiter},
    tenancy::TenantId,
};

/// For how many waiters of a device a scan has room at first.
const ROOM_AT_FIRST: usize = 8;

/// Why a waiter did not start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockedBy {
    Limit,
    Room,
    Extents,
}

impl BlockedBy {
    pub(super) const fn of(shortage: &Shortage) -> Self {
        match shortage {
            Shortage::Limit { .. } => Self::Limit,
            Shortage::Room { .. } => Self::Room,
        }
    }
}

impl Scan {
    /// Whether an earlier waiter waits for the same room or limit.
    pub(super) fn must_wait(&self, view: &Broker, need: &Need) -> bool {
        let Footprint { tenant, device, .. } = need.footprint;
        let is_full = self.device(device).is_some_and(|found| found.is_full);
        let overtakes = is_full && !view.is_guaranteed(need);
        planted!(view, FullDevicePassed => overtakes = false);
        planted!(view, LimitPassed => return overtakes);
        overtakes || self.at_limit.contains_key(&(tenant, device))
    }

    /// Records a waiter that goes on waiting, and what keeps those behind it waiting.
    pub(super) fn record_waiter(&mut self, waiter: Waiter, needs: &[Need], blocked_by: Option<BlockedBy>) {
        for need in needs {
            let Footprint { tenant, device, .. } = need.footprint;
            if blocked_by == Some(BlockedBy::Limit) {
                self.at_limit.entry((tenant, device)).or_default();
            }
            // A waiter at its tenant's limit, or one that lets others pass, takes no other waiter's place in the
            // lookahead.
            let of_tenant = self.at_limit.get_mut(&(tenant, device)).map(|planned| {
                *planned = planned.saturating_add(1);
                *planned
            });
            let Some(found) = self.device_mut(device) else { continue };
            let is_short = matches!(blocked_by, Some(BlockedBy::Room | BlockedBy::Extents));
            found.is_full |= is_short && !need.lets_pass;
            let planned = of_tenant.unwrap_or_else(|| {
                let planned = if need.lets_pass { &mut found.passed } else { &mut found.planned };
                *planned = planned.saturating_add(1);
                *planned
            });
            if planned <= LOOKAHEAD {
                if found.waiting.is_empty() {
                    found.waiting.reserve(ROOM_AT_FIRST);
                }
                found.waiting.push((waiter, need.clone()));
            } else {
                self.found.is_cut = true;
                if need.lets_pass {
                    self.unplanned.insert(waiter);
                }
            }
        }
    }

    /// Tenants with waiters that have less than their guarantee somewhere.
    pub(super) fn tenants_below_guarantee(view: &Broker) -> BTreeSet<TenantId> {
        let mut tenants = BTreeSet::new();
        for (device, _) in view.line.devices() {
            let Some(balances) = view.ledger.balances(Place::device(device)) else { continue };
            for (tenant, account) in balances.accounts() {
                let waits = || view.line.next_of(tenant, None).is_some();
                let is_below = || view.charged_without_cached(tenant, device, account) < account.guarantee;
                if !account.guarantee.is_zero() && is_below() && waits() {
                    tenants.insert(tenant);
                }
            }
        }
        tenants
    }
}
