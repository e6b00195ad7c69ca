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

use std::collections::BTreeSet;

use vramd_types::{DeviceIndex, ExtentId};

use crate::{
    broker::Broker,
    command::{Command, Notice},
    event::{PartRef, Tier},
    follow_up::Fact,
    ledger::Place,
    line::{Footprint, RoomPlan},
    moves::Cause,
    pool::{Age, Cached, ExtentState},
    tenancy::{OpId, TenantId},
};

impl Broker {
    /// Whether this many more extents can exist. `Err` lists cached extents, of any device, that have to be
    /// released first.
    pub(crate) fn check_extent_count(&self, reused: &BTreeSet<Age>, more: usize) -> Result<(), Vec<Age>> {
        let over = self.pool.len().saturating_add(more).saturating_sub(self.config.limits.extents_max);
        planted!(self, CountsIgnored => over = 0);
        if over == 0 {
            return Ok(());
        }
        let released = |(extent, _): &(ExtentId, Footprint)| {
            self.pool.get(*extent).is_some_and(|it| matches!(it.state, ExtentState::Releasing(_)))
        };
        let leaving = self.line.room.iter().filter(released).count();
        let ages = self.pool.cache().iter().map(|(age, _)| age).filter(|age| !reused.contains(age));
        Err(ages.take(over.saturating_sub(leaving)).collect())
    }

    /// Evicts what a tenant has above a lowered limit, as far as possible.
    pub(crate) fn trim_to_limit(&mut self, tenant: TenantId) {
        for device in self.device_indices() {
            let Some(account) = self.ledger.account(tenant, Place::device(device)) else { continue };
            if account.charged() <= account.limit {
                self.line.over_limit.remove(&(tenant, device));
                continue;
            }
            // Every full scan tries again for the rest.
            if self.has_tiers() {
                self.line.over_limit.insert((tenant, device));
            }
            let plan = self.choose_for_limit(tenant, device);
            self.execute(plan, Cause::Rebalance);
        }
    }

    pub(crate) fn trim_all_to_limits(&mut self) {
        for (tenant, _) in self.line.over_limit.clone() {
            self.trim_to_limit(tenant);
        }
    }

    /// Evicts what makes up for memory that other programs took, as far as possible.
    pub(crate) fn cover_shortfall(&mut self, device: DeviceIndex) {
        let plan = self.choose_for_shortfall(device);
        self.execute(plan, Cause::Rebalance);
    }

    pub(crate) fn footprint_of(&self, part: PartRef) -> Option<Footprint> {
        let allocation = self.allocations.get(part.allocation)?;
        let (tenant, device) = (allocation.tenant, allocation.device);
        Some(Footprint { tenant, device, size: allocation.size_of(part.part) })
    }

    /// Executes a plan. Returns the extents that leave because of it.
    pub(crate) fn execute(&mut self, plan: RoomPlan, cause: Cause) -> Vec<ExtentId> {
        let mut leaving = self.start_cached_release(plan.given_up);
        if cause == Cause::Demand {
            let parts = plan.awaited.iter().filter_map(|extent| self.pool.get(*extent)?.part);
            for part in parts.filter(|part| self.is_leaving(*part)).collect::<Vec<_>>() {
                self.hasten_migration(part);
            }
        }
        self.release_now(plan.awaited.into_iter().chain(leaving.iter().copied()));
        for (part, arrived) in plan.victims {
            leaving.extend(self.evict_victim(part, arrived, cause));
        }
        leaving
    }

    /// Has the driver release at once what it was told to release, since a waiter needs it.
    fn release_now(&mut self, extents: impl IntoIterator<Item = ExtentId>) {
        let releasing = extents.into_iter().filter_map(|extent| self.pool.get(extent));
        let releasing = releasing.filter(|extent| matches!(extent.state, ExtentState::Releasing(_)));
        let on_device = releasing.filter(|extent| extent.place.tier == Tier::Device);
        let devices: BTreeSet<_> = on_device.map(|extent| extent.place.device).collect();
        for device in devices {
            self.push_command(Command::ReleaseNow { device });
        }
    }

    /// The same, if there is a waiter: else the driver takes its time.
    pub(crate) fn release_now_if_awaited(&mut self, extents: &[ExtentId]) {
        if self.is_room_wanted() || !self.line.room.pending.is_empty() {
            self.release_now(extents.iter().copied());
        }
    }

    /// Releases cached extents.
    pub(crate) fn release_cached(&mut self, ages: impl IntoIterator<Item = Age>) {
        let given_up = self.start_cached_release(ages);
        self.release_now_if_awaited(&given_up);
    }

    fn start_cached_release(&mut self, ages: impl IntoIterator<Item = Age>) -> Vec<ExtentId> {
        let mut given_up = Vec::new();
        for age in ages {
            let Some(Cached { extent, tenant, device, size, .. }) = self.pool.release_cached(age) else {
                continue;
            };
            self.line.room.track(extent, Footprint { tenant, device, size });
            self.push_command(Command::ReleaseExtent { extent });
            self.push_notice(Notice::GivenUp { extent, bytes: size });
            given_up.push(extent);
        }
        given_up
    }

    /// Executes a plan for a change of a quota, which waits for it.
    pub(crate) fn make_room_for_quota(&mut self, op: OpId, plan: RoomPlan) {
        let awaited = plan.awaited.clone();
        let leaving = self.execute(plan, Cause::Rebalance);
        for extent in awaited.into_iter().chain(leaving) {
            self.line.room.expect(extent, op);
        }
        // Everything left at once, or stays after all.
        if !self.line.room.is_expected_by(op) {
            self.resume_quota(op);
        }
    }

    /// An extent has left its device, or stays there. Operations that waited for it go on.
    pub(crate) fn on_leaving_resolved(&mut self, extent: ExtentId) {
        self.follow_ups.push(Fact::LeavingResolved);
        let ready = self.line.room.take_ready(extent);
        ready.into_iter().for_each(|op| self.follow_ups.push(Fact::QuotaReady(op)));
    }
}
