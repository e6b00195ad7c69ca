//! The line: waiters that found no room on a device, in order of arrival. It owns the order, the reasons for
//! retries, the result of the last scan, the room on its way, and the tenants above their limits. Lookups cost
//! O(log n); the scan itself is in `handler/scan`.

mod batch;
mod out_of_memory;
mod room;
mod turns;

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound::{Excluded, Unbounded},
    time::Duration,
};

use smallvec::SmallVec;
use vramd_types::{DeviceIndex, WaitId};

pub(crate) use batch::{AllocationPlan, BatchRequest, BatchShortage, WaitingBatch, parts_of};
use out_of_memory::OutOfMemory;
pub(crate) use out_of_memory::{MemoryNews, TRIES_MAX, Verdict};
pub(crate) use room::{AwaitedRoom, Footprint, Need, RoomPlan, Unmet};

use crate::{
    collections::PartMap,
    event::PartRef,
    tenancy::{Arrival, OpId, TenantId},
    time::Time,
};

/// For how many waiters of each device the daemon makes room at once: enough that copies in both directions
/// never wait for decisions.
pub(crate) const LOOKAHEAD: usize = 32;

/// A waiter: a part that a client wants on its device, or a batch of allocations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Waiter {
    Part(PartRef),
    Batch(OpId),
}

#[derive(Debug)]
pub(crate) struct LineEntry {
    pub(crate) waiter: Waiter,
    pub(crate) since: Time,
    pub(crate) tenant: TenantId,
    /// The devices on which it needs, or may need, room; each once.
    pub(crate) devices: SmallVec<[DeviceIndex; 4]>,
}

/// A waiter's position: first by the arrival of its request, which all parts of a set share, then by when it
/// entered the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position {
    pub(crate) arrived: Arrival,
    pub(crate) entered: Arrival,
}

impl Position {
    /// The id of the wait, under which clients and operators know it.
    pub(crate) const fn wait(&self) -> WaitId {
        WaitId::from_raw(self.entered.get())
    }
}

/// The result of the last scan. The scanned waiters need no new scan until a fact that it used changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LastScan {
    /// The last scanned waiter. The scan stopped there because room for enough waiters is being made; `None`
    /// means that it reached the end.
    pub(crate) last: Option<Position>,
    /// The devices on which it stopped for that. On any other it covers all waiters.
    pub(crate) enough_on: SmallVec<[DeviceIndex; 4]>,
    /// It came to waiters for which it makes no room yet: enough of their kind stand before them.
    pub(crate) is_cut: bool,
    /// How many waiters have left the line since the scan.
    pub(crate) left_since: usize,
    /// At least one scanned waiter had no room, whatever leaves.
    pub(crate) shortage: bool,
}

/// The position of each waiter.
#[derive(Debug, Default)]
struct Positions {
    parts: PartMap<Position>,
    batches: BTreeMap<OpId, Position>,
}

impl Positions {
    fn get(&self, waiter: Waiter) -> Option<&Position> {
        match waiter {
            Waiter::Part(part) => self.parts.get(part),
            Waiter::Batch(op) => self.batches.get(&op),
        }
    }

    fn insert(&mut self, waiter: Waiter, position: Position) {
        match waiter {
            Waiter::Part(part) => _ = self.parts.insert(part, position),
            Waiter::Batch(op) => _ = self.batches.insert(op, position),
        }
    }

    fn remove(&mut self, waiter: Waiter) -> Option<Position> {
        match waiter {
            Waiter::Part(part) => self.parts.remove(part),
            Waiter::Batch(op) => self.batches.remove(&op),
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Line {
    pub(crate) room: AwaitedRoom,
    /// Tenants whose charge on a device exceeds their limit there.
    over_limit: BTreeSet<(TenantId, DeviceIndex)>,
    entries: BTreeMap<Position, LineEntry>,
    positions: Positions,
    by_tenant: BTreeSet<(TenantId, Position)>,
    /// The number of waiters on each device that has any.
    by_device: BTreeMap<DeviceIndex, usize>,
    /// Parts that could not be fetched although there was room. They are not retried at once, or they would
    /// fail as fast as the driver can answer.
    deferred: BTreeSet<PartRef>,
    /// Waiters for which the driver had no memory although the ledger had room.
    out_of_memory: BTreeMap<Waiter, OutOfMemory>,
    last_scan: LastScan,
    /// Waiters for whose own needs the last scan found no plan. They let others pass in turns (`turns.rs`).
    hopeless: BTreeSet<Waiter>,
    /// How often a waiter has entered or left. A scan reads ahead as long as it stays.
    changes: u64,
}

impl Line {
    pub(crate) fn contains(&self, waiter: Waiter) -> bool {
        self.positions.get(waiter).is_some()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Adds a waiter behind all that arrived before it. Does nothing if it is in the line.
    pub(crate) fn enter(&mut self, position: Position, entry: LineEntry) {
        let waiter = entry.waiter;
        if !self.contains(waiter) {
            self.positions.insert(waiter, position);
            self.changes = self.changes.wrapping_add(1);
            self.by_tenant.insert((entry.tenant, position));
            for device in entry.devices.iter() {
                let waiting = self.by_device.entry(*device).or_default();
                *waiting = waiting.saturating_add(1);
            }
            self.entries.insert(position, entry);
        }
    }

    /// Records whether the tenant's charge on the device exceeds its limit.
    pub(crate) fn set_over_limit(&mut self, tenant: TenantId, device: DeviceIndex, is_over: bool) {
        match is_over {
            true => _ = self.over_limit.insert((tenant, device)),
            false => _ = self.over_limit.remove(&(tenant, device)),
        }
    }

    pub(crate) fn is_any_over_limit(&self) -> bool {
        !self.over_limit.is_empty()
    }

    /// Tenants whose charge on any device exceeds their limit there.
    pub(crate) fn tenants_over_limit(&self) -> Vec<TenantId> {
        self.over_limit.iter().map(|(tenant, _)| *tenant).collect()
    }

    pub(crate) fn defer(&mut self, part: PartRef) {
        self.out_of_memory.remove(&Waiter::Part(part));
        self.deferred.insert(part);
    }

    pub(crate) fn is_deferred(&self, part: PartRef) -> bool {
        self.deferred.contains(&part)
    }

    /// Ends the deferral of a part that a client wants anew. Returns whether it was deferred.
    pub(crate) fn resume(&mut self, part: PartRef) -> bool {
        self.deferred.remove(&part)
    }

    /// Removes a waiter, and returns its entry if it was in the line.
    pub(crate) fn remove(&mut self, waiter: Waiter) -> Option<LineEntry> {
        if let Waiter::Part(part) = waiter {
            self.deferred.remove(&part);
        }
        self.out_of_memory.remove(&waiter);
        self.hopeless.remove(&waiter);
        let position = self.positions.remove(waiter)?;
        self.changes = self.changes.wrapping_add(1);
        self.last_scan.left_since = self.last_scan.left_since.saturating_add(1);
        let entry = self.entries.remove(&position)?;
        self.by_tenant.remove(&(entry.tenant, position));
        for device in entry.devices.iter() {
            if let std::collections::btree_map::Entry::Occupied(mut waiting) = self.by_device.entry(*device) {
                *waiting.get_mut() = waiting.get().saturating_sub(1);
                if *waiting.get() == 0 {
                    waiting.remove();
                }
            }
        }
        Some(entry)
    }

    /// Parts that wait because of the request with that arrival.
    pub(crate) fn parts_arrived_at(&self, arrived: Arrival) -> impl Iterator<Item = PartRef> {
        let at = |entered| Position { arrived, entered: Arrival::from_raw(entered) };
        self.entries.range(at(u64::MIN)..=at(u64::MAX)).filter_map(|(_, entry)| match entry.waiter {
            Waiter::Part(part) => Some(part),
            Waiter::Batch(_) => None,
        })
    }

    /// The tenant of the waiters that arrived then.
    pub(crate) fn tenant_arrived_at(&self, arrived: Arrival) -> Option<TenantId> {
        let at = |entered| Position { arrived, entered: Arrival::from_raw(entered) };
        self.entries.range(at(u64::MIN)..=at(u64::MAX)).next().map(|(_, entry)| entry.tenant)
    }

    /// Returns the numbers of waiting parts and batches.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let batches = self.positions.batches.len();
        (self.entries.len().saturating_sub(batches), batches)
    }

    /// Records the result of a scan.
    pub(crate) fn record_scan(&mut self, last_scan: LastScan) {
        self.last_scan = last_scan;
    }

    /// Records which waiters no plan helps.
    pub(crate) fn record_hopeless(&mut self, hopeless: BTreeSet<Waiter>) {
        self.hopeless = hopeless;
    }

    pub(crate) fn retain_hopeless(&mut self, is_hopeless: impl FnMut(&Waiter) -> bool) {
        self.hopeless.retain(is_hopeless);
    }

    /// The position of the last hopeless waiter.
    pub(crate) fn last_hopeless(&self) -> Option<Position> {
        self.hopeless.iter().filter_map(|waiter| self.positions.get(*waiter)).max().copied()
    }

    /// Whether there is any waiter that no plan helps.
    pub(crate) fn has_hopeless(&self) -> bool {
        !self.hopeless.is_empty()
    }

    /// Whether no plan of the last scan helps the waiter.
    pub(crate) fn is_hopeless(&self, waiter: Waiter) -> bool {
        self.hopeless.contains(&waiter)
    }

    /// Whether it is the waiter's turn to let others pass, if nothing helps it.
    pub(crate) fn is_in_turn_to_pass(&self, waiter: Waiter, now: Time, hold_after: Duration) -> bool {
        self.since(waiter).is_some_and(|since| turns::lets_pass(now.since(since), hold_after))
    }

    /// When a hopeless waiter next begins to let others pass.
    pub(crate) fn next_pass(&self, now: Time, hold_after: Duration) -> Option<Time> {
        let next = |waiter: &Waiter| {
            let since = self.since(*waiter)?;
            Some(since.after(turns::next_pass(now.since(since), hold_after)?))
        };
        self.hopeless.iter().filter_map(next).min()
    }

    /// When the waiter entered the line.
    pub(crate) fn since(&self, waiter: Waiter) -> Option<Time> {
        self.entries.get(self.positions.get(waiter)?).map(|entry| entry.since)
    }

    /// How many waiters have left the line since the last scan.
    pub(crate) const fn left_since_scan(&self) -> usize {
        self.last_scan.left_since
    }

    /// Whether a scanned waiter found no room, whatever leaves.
    pub(crate) const fn scan_found_shortage(&self) -> bool {
        self.last_scan.shortage
    }

    /// Whether the last scan left out waiters because it makes room for enough others.
    pub(crate) fn was_scan_cut(&self) -> bool {
        self.last_scan.is_cut || !self.last_scan.enough_on.is_empty()
    }

    /// Whether the last scan covered the waiter, or would have.
    pub(crate) fn was_scanned(&self, waiter: Waiter) -> bool {
        let Some(position) = self.positions.get(waiter) else { return false };
        self.is_before_last(*position)
            || self.entries.get(position).is_some_and(|entry| self.covers(*position, &entry.devices))
    }

    /// Whether the last scan covered a waiter of these devices at this position, or would have.
    pub(crate) fn covers(&self, position: Position, devices: &[DeviceIndex]) -> bool {
        let is_open = |device: &DeviceIndex| !self.last_scan.enough_on.contains(device);
        self.is_before_last(position) || devices.iter().any(is_open)
    }

    fn is_before_last(&self, position: Position) -> bool {
        self.last_scan.last.is_none_or(|until| position <= until)
    }

    /// A number that changes whenever a waiter enters or leaves.
    pub(crate) const fn changes(&self) -> u64 {
        self.changes
    }

    /// Returns the waiters after a position, in order.
    pub(crate) fn after(&self, position: Option<Position>) -> impl Iterator<Item = (Position, &LineEntry)> {
        let from = position.map_or(Unbounded, Excluded);
        self.entries.range((from, Unbounded)).map(|(position, entry)| (*position, entry))
    }

    /// Returns a tenant's first position after another.
    pub(crate) fn next_of(&self, tenant: TenantId, after: Option<Position>) -> Option<Position> {
        let start = Position { arrived: Arrival::from_raw(0), entered: Arrival::from_raw(0) };
        let from =
            after.map_or(std::ops::Bound::Included((tenant, start)), |position| Excluded((tenant, position)));
        let (of, position) = self.by_tenant.range((from, Unbounded)).next()?;
        (*of == tenant).then_some(*position)
    }

    /// Returns the entry at a position.
    pub(crate) fn at(&self, position: Position) -> Option<&LineEntry> {
        self.entries.get(&position)
    }

    /// Returns the devices that have waiters, with their numbers.
    pub(crate) fn devices(&self) -> impl Iterator<Item = (DeviceIndex, usize)> {
        self.by_device.iter().map(|(device, waiting)| (*device, *waiting))
    }

    /// The position of a waiter.
    pub(crate) fn position(&self, waiter: Waiter) -> Option<Position> {
        self.positions.get(waiter).copied()
    }

    /// The waiter of a [`Position::wait`].
    pub(crate) fn find(&self, wait: WaitId) -> Option<Waiter> {
        self.entries.iter().find(|(position, _)| position.wait() == wait).map(|(_, entry)| entry.waiter)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Position, &LineEntry)> {
        self.entries.iter().map(|(position, entry)| (*position, entry))
    }

    pub(crate) fn parts(&self) -> impl Iterator<Item = PartRef> {
        self.positions.parts.iter().map(|(part, _)| part)
    }
}
