//! How far a scan goes, and when a shorter one will do.
//!
//! A full scan ends at the last waiter for which the daemon makes room, and the line remembers it. Until a fact
//! concerns a waiter within that range, returned room needs only a front scan: as far as there is room. Once half of
//! those waiters have left the line, the next scan is full.

use smallvec::SmallVec;
use vramd_types::DeviceIndex;

use super::walk::Scan;
use crate::{
    broker::Broker,
    line::{LOOKAHEAD, LineEntry, Position, Waiter},
};

/// After how many departures from the scanned waiters the next scan is full.
pub(super) const RESCAN_AFTER: usize = LOOKAHEAD / 2;

/// How many waiters a front scan reads at once. Mostly it stops at the second.
const READ_IN_FRONT: usize = 2;

/// How far a scan goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScanScope {
    /// As far as there is room, among the waiters of the last scan.
    Front,
    /// As far as the daemon makes room.
    Full,
}

/// A waiter of the line that the scan comes to.
#[derive(Clone, Debug)]
pub(super) struct NextWaiter {
    pub(super) position: Position,
    pub(super) waiter: Waiter,
    /// The devices on which it needs, or may need, room.
    pub(super) devices: SmallVec<[DeviceIndex; 4]>,
}

impl NextWaiter {
    pub(super) fn of((position, entry): (Position, &LineEntry)) -> Self {
        Self { position, waiter: entry.waiter, devices: entry.devices.clone() }
    }
}

impl Scan {
    /// The next waiter of the scan: all in order until every device has enough, then those within a guarantee
    /// alone.
    pub(super) fn next_waiter(&mut self, view: &Broker) -> Option<NextWaiter> {
        if self.below_guarantee.is_none() {
            let next = self.next_in_line(view)?;
            let is_beyond = self.scope == ScanScope::Front && !view.line.covers(next.position, &next.devices);
            let is_seen = |device, waiting| self.device(device).is_some_and(|found| found.scanned >= waiting);
            let is_enough = |(device, waiting)| self.is_enough(device) || is_seen(device, waiting);
            if !is_beyond && !view.line.devices().all(is_enough) {
                return Some(next);
            }
            self.found.last = self.last;
            self.found.enough_on =
                view.line.devices().map(|(of, _)| of).filter(|of| self.is_enough(*of)).collect();
            self.below_guarantee = Some(Self::tenants_below_guarantee(view));
        }
        let tenants = self.below_guarantee.iter().flatten();
        let position = tenants.filter_map(|tenant| view.line.next_of(*tenant, self.last)).min()?;
        Some(NextWaiter::of((position, view.line.at(position)?)))
    }

    /// The next waiter in order. A scan reads some ahead, and reads again once the line has changed.
    fn next_in_line(&mut self, view: &Broker) -> Option<NextWaiter> {
        if self.read_at == view.line.changes()
            && let Some(next) = self.ahead.next()
        {
            return Some(next);
        }
        let count = if self.scope == ScanScope::Front { READ_IN_FRONT } else { LOOKAHEAD };
        let count = count.min(view.line.len());
        // If all before it have left, it is the first of the line, which takes no search.
        let first = self.all_left.then(|| view.line.after(None).next()).flatten();
        let is_next = first.is_some_and(|(position, _)| self.last.is_none_or(|last| position > last));
        let after = view.line.after(if is_next { None } else { self.last });
        let mut ahead = Vec::with_capacity(count);
        ahead.extend(after.take(count).map(NextWaiter::of));
        (self.ahead, self.read_at) = (ahead.into_iter(), view.line.changes());
        self.ahead.next()
    }

    /// Counts a waiter that stays in the line.
    pub(super) fn count_scanned(&mut self, devices: &[DeviceIndex]) {
        self.all_left = false;
        for device in devices {
            if let Some(found) = self.device_mut(*device) {
                found.scanned = found.scanned.saturating_add(1);
            }
        }
    }

    /// Whether the scan may stop for a device, except for waiters within a guarantee.
    fn is_enough(&self, device: DeviceIndex) -> bool {
        match self.scope {
            ScanScope::Front => self.device(device).is_some_and(|found| found.is_full),
            ScanScope::Full => self.device(device).is_some_and(|found| found.planned >= LOOKAHEAD),
        }
    }
}
