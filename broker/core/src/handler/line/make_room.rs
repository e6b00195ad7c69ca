//! Making room on a device: the daemon executes a [`RoomPlan`], and remembers what is leaving until the driver
//! has returned it.
//!
//! A request that is short of room, of its own limit or of unguaranteed bytes is not refused while a plan could
//! help. Extents that are leaving already count first, for any waiter. If even all of it would not help,
//! nothing is touched.
//!
//! [`Broker::execute`] releases cached extents and evicts victims (`moves/migrate.rs`). [`AwaitedRoom`] has
//! every extent on its way out, so that no second scan chooses another one for the same bytes. When the driver
//! has returned an extent (`allocation/release.rs`), the line is scanned again.

use vramd_types::{DeviceIndex, ExtentId};

use crate::{
    broker::Broker,
    follow_up::Fact,
    ledger::Place,
    line::RoomPlan,
    moves::Cause,
    tenancy::{OpId, TenantId},
};

impl Broker {
    /// Evicts what a tenant has above a lowered limit, as far as possible.
    pub(crate) fn trim_to_limit(&mut self, tenant: TenantId) {
        for device in self.device_indices() {
            let Some(account) = self.ledger.account(tenant, Place::device(device)) else { continue };
            if account.charged() <= account.limit {
                self.line.set_over_limit(tenant, device, false);
                continue;
            }
            // Every full scan tries again for the rest.
            if self.has_tiers() {
                self.line.set_over_limit(tenant, device, true);
            }
            let plan = self.choose_for_limit(tenant, device);
            self.execute(plan, Cause::Rebalance);
        }
    }

    pub(crate) fn trim_all_to_limits(&mut self) {
        for tenant in self.line.tenants_over_limit() {
            self.trim_to_limit(tenant);
        }
    }

    /// Evicts what makes up for memory that other programs took, as far as possible.
    pub(crate) fn cover_shortfall(&mut self, device: DeviceIndex) {
        let plan = self.choose_for_shortfall(device);
        self.execute(plan, Cause::Rebalance);
    }

    /// Executes a plan. Returns the extents that leave because of it.
    pub(crate) fn execute(&mut self, plan: RoomPlan, cause: Cause) -> Vec<ExtentId> {
        let mut leaving = self.start_cached_release(plan.given_up);
        // A batch that waits may have counted on them. The plans of the line itself know that.
        if cause != Cause::Demand && !leaving.is_empty() && !self.line.is_empty() {
            self.follow_ups.push(Fact::CachedTaken);
        }
        if cause == Cause::Demand {
            for extent in &plan.awaited {
                let part = self.pool.get(*extent).and_then(|extent| extent.part);
                if let Some(part) = part.filter(|part| self.is_leaving_unawaited(*part)) {
                    self.hasten_migration(part);
                }
            }
        }
        self.release_now(plan.awaited.into_iter().chain(leaving.iter().copied()));
        let reasons = self.eviction_reasons(plan.victims.iter().map(|(part, _)| *part), cause);
        for ((part, arrived), reason) in plan.victims.into_iter().zip(reasons) {
            leaving.extend(self.evict_victim(part, arrived, (cause, reason)));
        }
        for part in plan.ahead {
            self.ask_ahead(part);
        }
        leaving
    }

    /// Executes a plan for a change of a quota. Returns whether the change has to wait for it: everything may
    /// have left at once, or stay after all.
    pub(crate) fn make_room_for_quota(&mut self, op: OpId, plan: RoomPlan) -> bool {
        let awaited = plan.awaited.clone();
        let leaving = self.execute(plan, Cause::Rebalance);
        for extent in awaited.into_iter().chain(leaving) {
            self.line.room.expect(extent, op);
        }
        self.line.room.is_expected_by(op)
    }
}
