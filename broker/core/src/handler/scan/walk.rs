//! The walk: the decisions of one scan, on a read-only view of the broker.
//!
//! [`Scan::next_to_begin`] names the next waiter that may start. The caller starts it and reports the result, since
//! the next waiter can no longer have what this one took. [`Scan::finish`] returns the other decisions: the extents
//! and parts that have to leave, and the waiters that nothing helps.

use std::collections::{BTreeMap, BTreeSet};

use smallvec::SmallVec;
use vramd_types::DeviceIndex;

use super::{
    fairness::BlockedBy,
    incremental::{NextWaiter, ScanScope},
};
use crate::{
    broker::Broker,
    line::{LastScan, Need, Position, RoomPlan, Unmet, Waiter},
    tenancy::{Arrival, TenantId},
};

/// The first waiters of a device that go on waiting.
type Waiting = (DeviceIndex, Vec<(Waiter, Need)>);

/// The state of one scan.
#[derive(Debug)]
pub(super) struct Scan {
    pub(super) scope: ScanScope,
    /// The waiter that it came to last.
    pub(super) last: Option<Position>,
    /// The findings on each device, in the order of the devices. There are few.
    pub(super) devices: Vec<(DeviceIndex, DeviceScan)>,
    /// Tenants at their limits, and how many of their waiters the daemon makes room for.
    pub(super) at_limit: BTreeMap<(TenantId, DeviceIndex), usize>,
    /// Waiters that were read ahead, and the line's changes when they were.
    pub(super) ahead: std::vec::IntoIter<NextWaiter>,
    pub(super) read_at: u64,
    /// No waiter that it came to has stayed in the line.
    pub(super) all_left: bool,
    pub(super) found: LastScan,
    /// Waiters that let others pass, beyond those for which the scan plans.
    pub(super) unplanned: BTreeSet<Waiter>,
    /// Tenants below their guarantee. Set once the scan has stopped for everyone else.
    pub(super) below_guarantee: Option<BTreeSet<TenantId>>,
}

/// The findings of a scan on one device.
#[derive(Debug, Default)]
pub(super) struct DeviceScan {
    /// It has no room for a waiter of the scan.
    pub(super) is_full: bool,
    /// How many waiters the daemon makes room for, beside those of tenants at their limits.
    pub(super) planned: usize,
    /// How many of the waiters for which it makes room let others pass.
    pub(super) passed: usize,
    /// How many waiters were scanned and stay in the line.
    pub(super) scanned: usize,
    /// The waiters that the daemon makes room for.
    pub(super) waiting: Vec<(Waiter, Need)>,
}

/// A waiter that may start.
#[derive(Debug)]
pub(super) struct Candidate {
    pub(super) waiter: Waiter,
    next: NextWaiter,
    needs: SmallVec<[Need; 1]>,
    /// How often the line had changed when the waiter was read.
    changes: u64,
}

/// The result of a scan, once all have started that could.
#[derive(Debug)]
pub(super) struct Decisions {
    /// How far it came.
    pub(super) found: LastScan,
    /// The extents and parts that have to leave, device by device.
    pub(super) plans: Vec<RoomPlan>,
    /// Waiters that no plan helps.
    pub(super) hopeless: BTreeMap<Waiter, Unmet>,
    /// Waiters that let others pass and were not planned for: they remain what they were.
    pub(super) unplanned: BTreeSet<Waiter>,
}

impl Scan {
    pub(super) fn new(scope: ScanScope) -> Self {
        Self {
            scope,
            last: None,
            devices: Vec::new(),
            at_limit: BTreeMap::new(),
            ahead: Vec::new().into_iter(),
            read_at: 0,
            all_left: true,
            found: LastScan::default(),
            unplanned: BTreeSet::new(),
            below_guarantee: None,
        }
    }

    /// The next waiter that no earlier one keeps waiting. Waiters before it that must wait are recorded.
    pub(super) fn next_to_begin(&mut self, view: &Broker) -> Option<Candidate> {
        while let Some(next) = self.next_waiter(view) {
            self.last = Some(next.position);
            let needs = view.needs(next.waiter, next.position.arrived);
            planted!(view, SecondDevicePassed => needs = needs.into_iter().take(1).collect());
            if !needs.iter().any(|need| self.must_wait(view, need)) {
                return Some(Candidate { waiter: next.waiter, changes: view.line.changes(), next, needs });
            }
            self.record_waiter(next.waiter, &needs, None);
            self.count_scanned(&next.devices);
        }
        None
    }

    /// Records a waiter that started, or the reason why it did not. Returns whether it took cached extents that
    /// another counted on: for that one the next scan plans anew.
    pub(super) fn record(
        &mut self,
        view: &Broker,
        candidate: &Candidate,
        begun: Result<(), Option<BlockedBy>>,
    ) -> bool {
        let Candidate { waiter, next, needs, changes } = candidate;
        let takes_cached = begun.is_ok() && self.counts_on_cached(needs);
        if let Err(blocked_by) = begun {
            self.record_waiter(*waiter, needs, blocked_by);
        }
        if view.line.changes() == *changes || view.line.at(next.position).is_some() {
            self.count_scanned(&next.devices);
        }
        takes_cached
    }

    /// Plans the room for the waiters that stay.
    pub(super) fn finish(mut self, view: &Broker) -> Decisions {
        let (mut found, unplanned) = (std::mem::take(&mut self.found), std::mem::take(&mut self.unplanned));
        let (plans, hopeless) = Self::plan_evictions(view, &self.into_waiting());
        found.shortage |= !hopeless.is_empty();
        Decisions { found, plans, hopeless, unplanned }
    }

    /// Plans what has to leave each device, and lists the waiters that no plan helps. Nothing leaves one device for a
    /// batch that stays short on another, so the devices are planned again until no further waiter is short.
    ///
    /// Until then the batch takes room on the other devices. So those behind it are judged once it is known to be short.
    fn plan_evictions(view: &Broker, line: &[Waiting]) -> (Vec<RoomPlan>, BTreeMap<Waiter, Unmet>) {
        let mut hopeless = BTreeMap::<Waiter, Unmet>::new();
        loop {
            let (mut found, mut plans) = (BTreeMap::<Waiter, Unmet>::new(), Vec::with_capacity(line.len()));
            for (device, waiting) in line {
                let needs = waiting.iter().map(|(waiter, need)| (need, hopeless.get(waiter).copied()));
                let (plan, results) = view.plan_room(*device, needs);
                let waiters = waiting.iter().map(|(waiter, _)| *waiter);
                let unmet = waiters.zip(results).filter_map(|(waiter, it)| Some((waiter, it.err()?)));
                for (waiter, unmet) in unmet.filter(|(waiter, _)| !hopeless.contains_key(waiter)) {
                    // A batch that is short of its own on one device is so, whomever it stands behind on another.
                    if found.get(&waiter).is_none_or(|on_another| on_another.is_behind) {
                        found.insert(waiter, unmet);
                    }
                }
                plans.push(plan);
            }
            let is_last = found.is_empty() || line.len() == 1;
            if let Some(first) = Self::first_split(line, &found) {
                let is_ahead = |(waiter, need): &(Waiter, Need)| (need.arrived <= first).then_some(*waiter);
                let judged: BTreeSet<Waiter> =
                    line.iter().flat_map(|(_, waiting)| waiting).filter_map(is_ahead).collect();
                found.retain(|waiter, _| judged.contains(waiter));
            }
            hopeless.append(&mut found);
            if is_last {
                return (plans, hopeless);
            }
        }
    }

    /// The arrival of the first of these waiters that needs room on several devices.
    fn first_split(line: &[Waiting], of: &BTreeMap<Waiter, Unmet>) -> Option<Arrival> {
        let mut once = BTreeSet::new();
        let waiting =
            line.iter().flat_map(|(_, waiting)| waiting).filter(|(waiter, _)| of.contains_key(waiter));
        let again = waiting.filter(|(waiter, _)| !once.insert(*waiter));
        again.map(|(_, need)| need.arrived).min()
    }

    pub(super) fn device(&self, device: DeviceIndex) -> Option<&DeviceScan> {
        self.devices.iter().find(|(of, _)| *of == device).map(|(_, found)| found)
    }

    pub(super) fn device_mut(&mut self, device: DeviceIndex) -> Option<&mut DeviceScan> {
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

    /// Whether a waiter that stays counts on cached extents of one of these devices.
    fn counts_on_cached(&self, needs: &[Need]) -> bool {
        let planned = needs.iter().filter_map(|need| self.device(need.footprint.device));
        planned.flat_map(|found| &found.waiting).any(|(_, need)| !need.own_cached.is_empty())
    }
}
