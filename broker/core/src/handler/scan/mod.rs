//! The scan: one walk along the line that starts what fits, and plans evictions for what does not.
//!
//! [`Broker::scan_line`] is a full scan. It walks in order of arrival:
//!
//! - A waiter that finds room starts: a part is fetched (`moves/migrate.rs`), a batch is created
//!   (`allocation/allocate.rs`). It leaves the line.
//! - A waiter without room stays, and its device counts as full: later waiters pass only within their tenant's
//!   guarantee.
//! - A waiter at its tenant's limit stays, and keeps only its own tenant's waiters waiting.
//!
//! For the first [`LOOKAHEAD`] waiters of each device the scan then plans what has to leave (`line/victims.rs`)
//! and has that done (`line/make_room.rs`). A waiter that no eviction helps is *hopeless*: a batch without time
//! left is refused.
//!
//! The scan records how far it came. Until something within that range changes, returned memory needs only a
//! front scan ([`Broker::scan_front`]), which walks as far as there is room. Once half of those waiters have
//! left the line, the next scan is full.
//!
//! The price of a full scan is the number of waiters up to [`LOOKAHEAD`] on each device, not the length of the
//! line.

mod batches;
mod out_of_memory;

use std::collections::{BTreeMap, BTreeSet};

use vramd_types::DeviceIndex;

use crate::{
    broker::Broker,
    collections::Few,
    command::WaitEnd,
    event::{PartRef, Tier},
    follow_up::Fact,
    ledger::{Place, Shortage},
    line::{Footprint, LOOKAHEAD, LastScan, LineEntry, Need, Position, RoomPlan, Waiter},
    moves::{Cause, MoveError},
    pool::ExtentError,
    tenancy::TenantId,
};

/// After how many departures from the scanned waiters the next scan is full.
const RESCAN_AFTER: usize = LOOKAHEAD / 2;

/// How many waiters a front scan reads at once. Mostly it stops at the second.
const READ_IN_FRONT: usize = 2;

/// The first waiters of a device that go on waiting.
type Waiting = (DeviceIndex, Vec<(Waiter, Need)>);

/// How far a scan goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScanScope {
    /// As far as there is room, among the waiters of the last scan.
    Front,
    /// As far as the daemon makes room.
    Full,
}

/// The state of one scan.
#[derive(Debug, Default)]
struct Scan {
    /// The findings on each device, in the order of the devices. There are few.
    devices: Vec<(DeviceIndex, DeviceScan)>,
    /// Tenants at their limits, and how many of their waiters the daemon makes room for.
    at_limit: BTreeMap<(TenantId, DeviceIndex), usize>,
    /// Waiters that were read ahead, and the line's changes when they were.
    ahead: std::vec::IntoIter<NextWaiter>,
    read_at: u64,
    found: LastScan,
    /// Tenants below their guarantee. Set once the scan has stopped for everyone else.
    below_guarantee: Option<BTreeSet<TenantId>>,
}

/// The findings of a scan on one device.
#[derive(Debug, Default)]
struct DeviceScan {
    /// It has no room for a waiter of the scan.
    is_full: bool,
    /// How many waiters the daemon makes room for, beside those of tenants at their limits.
    planned: usize,
    /// How many waiters were scanned and stay in the line.
    scanned: usize,
    /// The waiters that the daemon makes room for.
    waiting: Vec<(Waiter, Need)>,
}

/// A waiter of the line that the scan comes to.
#[derive(Clone, Debug)]
struct NextWaiter {
    position: Position,
    waiter: Waiter,
    /// The devices on which it needs, or may need, room.
    devices: Few<DeviceIndex>,
}

impl NextWaiter {
    fn of((position, entry): (Position, &LineEntry)) -> Self {
        Self { position, waiter: entry.waiter, devices: entry.devices.clone() }
    }
}

/// Why a waiter did not start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlockedBy {
    Limit,
    Room,
    Extents,
}

impl BlockedBy {
    const fn of(shortage: &Shortage) -> Self {
        match shortage {
            Shortage::Limit { .. } => Self::Limit,
            Shortage::Room { .. } => Self::Room,
        }
    }
}

impl Scan {
    /// Records a waiter that goes on waiting, and what keeps those behind it waiting.
    fn record_waiter(&mut self, waiter: Waiter, needs: &[Need], blocked_by: Option<BlockedBy>) {
        for need in needs {
            let Footprint { tenant, device, .. } = need.footprint;
            if blocked_by == Some(BlockedBy::Limit) {
                self.at_limit.entry((tenant, device)).or_default();
            }
            // A waiter at its tenant's limit takes no other waiter's place in the lookahead.
            let of_tenant = self.at_limit.get_mut(&(tenant, device)).map(|planned| {
                *planned = planned.saturating_add(1);
                *planned
            });
            let Some(found) = self.device_mut(device) else { continue };
            found.is_full |= matches!(blocked_by, Some(BlockedBy::Room | BlockedBy::Extents));
            let planned = of_tenant.unwrap_or_else(|| {
                found.planned = found.planned.saturating_add(1);
                found.planned
            });
            if planned <= LOOKAHEAD {
                if found.waiting.is_empty() {
                    found.waiting.reserve(LOOKAHEAD);
                }
                found.waiting.push((waiter, need.clone()));
            }
        }
    }

    fn device(&self, device: DeviceIndex) -> Option<&DeviceScan> {
        self.devices.iter().find(|(of, _)| *of == device).map(|(_, found)| found)
    }

    fn device_mut(&mut self, device: DeviceIndex) -> Option<&mut DeviceScan> {
        let at = self.devices.partition_point(|(of, _)| *of < device);
        if self.devices.get(at).is_none_or(|(of, _)| *of != device) {
            self.devices.insert(at, (device, DeviceScan::default()));
        }
        self.devices.get_mut(at).map(|(_, found)| found)
    }

    /// The waiters of each device that the daemon makes room for.
    fn into_waiting(self) -> Vec<Waiting> {
        let waiting = self.devices.into_iter().map(|(device, found)| (device, found.waiting));
        waiting.filter(|(_, waiting)| !waiting.is_empty()).collect()
    }

    fn count_scanned(&mut self, devices: &[DeviceIndex]) {
        for device in devices {
            if let Some(found) = self.device_mut(*device) {
                found.scanned = found.scanned.saturating_add(1);
            }
        }
    }

    /// Whether a waiter that stays counts on cached extents of one of these devices.
    fn counts_on_cached(&self, needs: &[Need]) -> bool {
        let planned = needs.iter().filter_map(|need| self.device(need.footprint.device));
        planned.flat_map(|found| &found.waiting).any(|(_, need)| !need.own_cached.is_empty())
    }

    /// Whether the scan may stop for a device, except for waiters within a guarantee.
    fn is_enough(&self, scope: ScanScope, device: DeviceIndex) -> bool {
        match scope {
            ScanScope::Front => self.device(device).is_some_and(|found| found.is_full),
            ScanScope::Full => self.device(device).is_some_and(|found| found.planned >= LOOKAHEAD),
        }
    }
}

impl Broker {
    /// Runs a full scan: starts what fits, and makes room for the next waiters.
    pub(crate) fn scan_line(&mut self) {
        let scan = self.run_scan(ScanScope::Full);
        let mut found = scan.found;
        let (plans, hopeless) = self.plan_evictions(&scan.into_waiting());
        found.shortage |= !hopeless.is_empty();
        self.line.record_scan(found);
        for plan in plans {
            self.execute(plan, Cause::Demand);
            self.after_moves();
        }
        for waiter in hopeless.into_keys() {
            if let Waiter::Batch(op) = waiter {
                self.expire_batch(op);
            }
        }
        self.judge_suspended_waiters();
        self.trim_all_to_limits();
    }

    /// Runs a front scan after the room that the last scan made has been returned. Runs a full scan once many
    /// waiters have left.
    pub(crate) fn scan_front(&mut self) {
        let shortage = !self.line.is_empty() && self.run_scan(ScanScope::Front).found.shortage;
        if shortage || self.line.left_since_scan().is_some_and(|left| left >= RESCAN_AFTER) {
            self.scan_line();
        }
    }

    /// Plans what has to leave each device, and lists the waiters that no plan helps.
    fn plan_evictions(&self, line: &[Waiting]) -> (Vec<RoomPlan>, BTreeMap<Waiter, Shortage>) {
        let (mut hopeless, mut plans) = (BTreeMap::new(), Vec::with_capacity(line.len()));
        for (device, waiting) in line {
            let (plan, results) = self.plan_room(*device, waiting.iter().map(|(_, need)| need));
            let waiters = waiting.iter().map(|(waiter, _)| *waiter);
            hopeless.extend(waiters.zip(results).filter_map(|(waiter, it)| Some((waiter, it.err()?))));
            plans.push(plan);
        }
        // Nothing leaves one device for a batch that stays short on another.
        if line.len() > 1 && !hopeless.is_empty() {
            let with_shortage_elsewhere = |(waiter, need): &(Waiter, Need)| {
                let hopeless = hopeless.get(waiter).copied();
                Need { hopeless, ..need.clone() }
            };
            let again = line.iter().map(|(device, waiting)| {
                let needs: Vec<_> = waiting.iter().map(with_shortage_elsewhere).collect();
                self.plan_room(*device, needs.iter()).0
            });
            plans = again.collect();
        }
        (plans, hopeless)
    }

    /// Walks the line and starts what fits. Returns the waiters that stay.
    fn run_scan(&mut self, scope: ScanScope) -> Scan {
        let (mut scan, mut last) = (Scan::default(), None);
        while let Some(next) = self.next_waiter(&mut scan, scope, last) {
            let NextWaiter { position, waiter, devices } = next;
            let changes = self.line.changes();
            last = Some(position);
            let needs = self.needs(waiter, position.arrived);
            let stays = needs.iter().any(|need| self.must_wait(&scan, need));
            let begun = if stays { Err(None) } else { self.start_waiter(waiter) };
            match begun {
                // It may have taken cached extents that a waiter counted on: the next scan plans for that one
                // anew.
                Ok(()) if scan.counts_on_cached(&needs) => self.follow_ups.push(Fact::CachedTaken),
                Ok(()) => {}
                Err(Some(BlockedBy::Extents)) => {
                    scan.found.shortage = true;
                    break;
                }
                Err(shortage) => scan.record_waiter(waiter, &needs, shortage),
            }
            if self.line.changes() == changes || self.line.at(position).is_some() {
                scan.count_scanned(&devices);
            }
        }
        scan
    }

    /// The next waiter of the scan: all in order until every device has enough, then those within a guarantee
    /// alone.
    fn next_waiter(&self, scan: &mut Scan, scope: ScanScope, last: Option<Position>) -> Option<NextWaiter> {
        match &scan.below_guarantee {
            None => {
                let next = self.next_in_line(scan, scope, last)?;
                let is_beyond = scope == ScanScope::Front && !self.line.covers(next.position);
                let is_seen =
                    |device, waiting| scan.device(device).is_some_and(|found| found.scanned >= waiting);
                let is_enough = |(device, waiting)| scan.is_enough(scope, device) || is_seen(device, waiting);
                if is_beyond || self.line.devices().all(is_enough) {
                    scan.found.last = last;
                    scan.below_guarantee = Some(self.tenants_below_guarantee());
                    return self.next_waiter(scan, scope, last);
                }
                Some(next)
            }
            Some(below_guarantee) => {
                let position =
                    below_guarantee.iter().filter_map(|tenant| self.line.next_of(*tenant, last)).min()?;
                Some(NextWaiter::of((position, self.line.at(position)?)))
            }
        }
    }

    /// The next waiter in order. A scan reads some ahead, and reads again once the line has changed.
    fn next_in_line(&self, scan: &mut Scan, scope: ScanScope, last: Option<Position>) -> Option<NextWaiter> {
        if scan.read_at == self.line.changes()
            && let Some(next) = scan.ahead.next()
        {
            return Some(next);
        }
        let count = if scope == ScanScope::Front { READ_IN_FRONT } else { LOOKAHEAD };
        let ahead: Vec<_> = self.line.after(last).take(count).map(NextWaiter::of).collect();
        (scan.ahead, scan.read_at) = (ahead.into_iter(), self.line.changes());
        scan.ahead.next()
    }

    /// Tenants with waiters that have less than their guarantee somewhere.
    fn tenants_below_guarantee(&self) -> BTreeSet<TenantId> {
        let mut tenants = BTreeSet::new();
        for (device, _) in self.line.devices() {
            let Some(balances) = self.ledger.balances(Place::device(device)) else { continue };
            for (tenant, account) in balances.accounts() {
                let waits = || self.line.next_of(tenant, None).is_some();
                if self.charged_without_cached(tenant, device, account) < account.guarantee && waits() {
                    tenants.insert(tenant);
                }
            }
        }
        tenants
    }

    /// Whether a scan would find what the last one found: everything that has to leave for its waiters is
    /// leaving, or not even that would be enough. The invariants check this.
    pub(crate) fn is_scan_current(&self) -> bool {
        let mut scan = Scan::default();
        for (position, entry) in self.line.iter() {
            if self.line.was_scanned(entry.waiter) {
                scan.record_waiter(entry.waiter, &self.needs(entry.waiter, position.arrived), None);
            }
        }
        let (plans, hopeless) = self.plan_evictions(&scan.into_waiting());
        let is_done = |plan: &RoomPlan| plan.given_up.is_empty() && plan.victims.is_empty();
        self.line.scan_found_shortage() || (hopeless.is_empty() && plans.iter().all(is_done))
    }

    /// Takes a part out of the line once no session waits for it.
    pub(crate) fn check_waiter(&mut self, part: PartRef) {
        let waiter = Waiter::Part(part);
        if self.line.contains(waiter) && !self.still_waits(waiter) {
            self.note_line_changed(waiter);
            // A part that is still wanted is moving or there: other steps saw to that.
            let end = if self.is_wanted(part) { WaitEnd::Served } else { WaitEnd::Left };
            self.leave_line(waiter, end);
        }
    }

    /// Whether the waiter still has a reason to wait.
    pub(crate) fn still_waits(&self, waiter: Waiter) -> bool {
        match waiter {
            Waiter::Part(part) => {
                self.is_wanted(part) && !self.moves.migrations.contains_key(&part) && self.is_off_device(part)
            }
            Waiter::Batch(_) => true,
        }
    }

    /// Whether an earlier waiter waits for the same room or limit.
    fn must_wait(&self, scan: &Scan, need: &Need) -> bool {
        let Footprint { tenant, device, size } = need.footprint;
        let is_full = scan.device(device).is_some_and(|found| found.is_full);
        let overtakes = is_full && !self.is_within_guarantee(tenant, device, size);
        overtakes || scan.at_limit.contains_key(&(tenant, device))
    }

    /// Starts a waiter. `Err` says what blocks it.
    fn start_waiter(&mut self, waiter: Waiter) -> Result<(), Option<BlockedBy>> {
        let part = match waiter {
            // The waiters behind it need not wait for that.
            Waiter::Batch(_) if self.line.waits_only_for_survey(waiter) => return Err(None),
            Waiter::Batch(op) => {
                return self.try_batch(op).map_err(|shortage| Some(BlockedBy::of(&shortage)));
            }
            Waiter::Part(part) if self.line.is_deferred(part) => return Ok(()),
            Waiter::Part(part) => part,
        };
        // A cached extent needs nothing from the driver.
        if self.line.is_suspended(waiter) && !self.has_cached_for(part) {
            return Err(Some(BlockedBy::Room));
        }
        self.check_part_room(part).map_err(|shortage| Some(BlockedBy::of(&shortage)))?;
        let begun = self.start_move(part, (Tier::Device, Cause::Demand), None, self.pins.after_all());
        // A part that needs no copy has arrived already.
        self.after_moves();
        match begun {
            Ok(_) => {
                self.note_retry(waiter);
                self.leave_line(waiter, WaitEnd::Served);
                Ok(())
            }
            Err(MoveError::Extent(ExtentError::Shortage { shortage, .. })) => {
                Err(Some(BlockedBy::of(&shortage)))
            }
            // All devices together have too many extents.
            Err(_) => {
                let ages = self.check_extent_count(&BTreeSet::new(), 1).err().unwrap_or_default();
                self.release_cached(ages);
                Err(Some(BlockedBy::Extents))
            }
        }
    }
}
