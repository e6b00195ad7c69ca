//! The line of those that found no room on a device, in the order of asking: parts that somebody wants there, and batches
//! of allocations that wait.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound::{Excluded, Unbounded},
};

use vramd_types::DeviceIndex;

use crate::{
    collections::Few,
    event::PartRef,
    tenancy::{Arrival, OpId, TenantId},
    time::Time,
};

/// Who stands in the line.
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
    /// Where it needs room, or may, each once.
    pub(crate) devices: Few<DeviceIndex>,
}

/// Where somebody stands: by when it came, since all parts of a set came at once, and by when it went to the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position {
    pub(crate) arrived: Arrival,
    pub(crate) entered: Arrival,
}

/// What the last look along the line found. Until something of that changes it need not be looked at again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LastScan {
    /// The last one that was looked at: room is being made for so many that no more need be. None where all were.
    pub(crate) last: Option<Position>,
    /// How many of those have left the line since.
    pub(crate) left_since: usize,
    /// For somebody there was no room, whatever leaves.
    pub(crate) shortage: bool,
}

/// Where there was no memory for somebody, and how that stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OutOfMemory {
    device: DeviceIndex,
    /// Which look at the device says who holds what the driver had not.
    survey: u64,
    /// How often it was tried though nothing had left.
    vain_tries: u32,
    retry: Retry,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Retry {
    /// It is tried again once something has left the device.
    OnRelease,
    /// Or once the device has been looked at again: nothing leaves it.
    OnSurvey,
    /// It was tried often enough until it is time to look at all devices again, whatever leaves.
    Resting,
    /// It may be tried.
    Now,
}

#[derive(Debug, Default)]
pub(crate) struct Line {
    entries: BTreeMap<Position, LineEntry>,
    positions: BTreeMap<Waiter, Position>,
    by_tenant: BTreeSet<(TenantId, Position)>,
    /// How many wait for room on each device where anybody does.
    by_device: BTreeMap<DeviceIndex, usize>,
    /// How many of them are batches.
    batches: usize,
    /// Those that could not be brought, though there was room: not tried at once, or they would fail as fast as the driver
    /// can say so.
    deferred: BTreeSet<PartRef>,
    /// Those for which the driver had no memory, though by the books there was room.
    out_of_memory: BTreeMap<Waiter, OutOfMemory>,
    last_scan: LastScan,
}

impl Line {
    pub(crate) fn contains(&self, waiter: Waiter) -> bool {
        self.positions.contains_key(&waiter)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Behind all that came before, unless it stands in the line.
    pub(crate) fn enter(&mut self, position: Position, entry: LineEntry) {
        let waiter = entry.waiter;
        if let std::collections::btree_map::Entry::Vacant(vacant) = self.positions.entry(waiter) {
            vacant.insert(position);
            self.batches = self.batches.saturating_add(usize::from(matches!(waiter, Waiter::Batch(_))));
            self.by_tenant.insert((entry.tenant, position));
            for device in entry.devices.iter() {
                let waiting = self.by_device.entry(*device).or_default();
                *waiting = waiting.saturating_add(1);
            }
            self.entries.insert(position, entry);
        }
    }

    pub(crate) fn defer(&mut self, part: PartRef) {
        self.out_of_memory.remove(&Waiter::Part(part));
        self.deferred.insert(part);
    }

    pub(crate) fn is_deferred(&self, part: PartRef) -> bool {
        self.deferred.contains(&part)
    }

    /// Somebody wants it anew: it is to be tried. Whether it was not.
    pub(crate) fn resume(&mut self, part: PartRef) -> bool {
        self.deferred.remove(&part)
    }

    /// All are to be tried.
    pub(crate) fn resume_all(&mut self) {
        self.deferred.clear();
    }

    /// The driver had no memory for it there: before it is tried again something has to change.
    pub(crate) fn record_out_of_memory(
        &mut self,
        waiter: Waiter,
        device: DeviceIndex,
        survey: u64,
        vain_tries: u32,
    ) {
        self.out_of_memory
            .insert(waiter, OutOfMemory { device, survey, vain_tries, retry: Retry::OnRelease });
    }

    /// Nothing leaves for the part: whether it is to be tried all the same, which it is not for ever.
    pub(crate) fn count_vain_try(&mut self, part: PartRef, tries_max: u32) -> bool {
        let Some(it) = self.out_of_memory.get_mut(&Waiter::Part(part)) else { return false };
        it.vain_tries = it.vain_tries.saturating_add(1);
        it.vain_tries < tries_max
    }

    /// How often the part was tried though nothing had left.
    pub(crate) fn vain_tries(&self, waiter: Waiter) -> u32 {
        self.out_of_memory.get(&waiter).map_or(0, |it| it.vain_tries)
    }

    /// Whether it is not to be tried, since nothing has changed for it.
    pub(crate) fn is_suspended(&self, waiter: Waiter) -> bool {
        self.out_of_memory.get(&waiter).is_some_and(|it| it.retry != Retry::Now)
    }

    /// Where there was no memory for it before, if that was so.
    pub(crate) fn out_of_memory_device(&self, waiter: Waiter) -> Option<DeviceIndex> {
        self.out_of_memory.get(&waiter).map(|it| it.device)
    }

    /// Those that wait for something to leave a device on which there was no memory for them, and after which look at that it is known
    /// who holds it.
    pub(crate) fn awaiting_release(&self) -> Vec<(Waiter, DeviceIndex, u64)> {
        let barred = self.out_of_memory.iter().filter(|(_, it)| it.retry == Retry::OnRelease);
        barred.map(|(waiter, it)| (*waiter, it.device, it.survey)).collect()
    }

    pub(crate) fn has_out_of_memory(&self) -> bool {
        !self.out_of_memory.is_empty()
    }

    /// Something has left the device, back to the driver. Whether somebody may be tried for that.
    pub(crate) fn retry_after_release(&mut self, device: DeviceIndex) -> bool {
        self.allow_retries(device, &[Retry::OnRelease, Retry::OnSurvey])
    }

    /// The device was looked at.
    pub(crate) fn retry_after_survey(&mut self, device: DeviceIndex) {
        self.allow_retries(device, &[Retry::OnSurvey]);
    }

    fn allow_retries(&mut self, device: DeviceIndex, which: &[Retry]) -> bool {
        let there =
            self.out_of_memory.values_mut().filter(|it| it.device == device && which.contains(&it.retry));
        there.map(|it| it.retry = Retry::Now).count() > 0
    }

    pub(crate) fn allow_retry(&mut self, waiter: Waiter) {
        self.out_of_memory.entry(waiter).and_modify(|it| it.retry = Retry::Now);
    }

    /// Nothing leaves, and it has time.
    pub(crate) fn wait_for_survey(&mut self, waiter: Waiter) {
        self.out_of_memory.entry(waiter).and_modify(|it| it.retry = Retry::OnSurvey);
    }

    /// It was tried often enough for now, and has time.
    pub(crate) fn rest(&mut self, waiter: Waiter) {
        self.out_of_memory.entry(waiter).and_modify(|it| it.retry = Retry::Resting);
    }

    /// All devices are about to be looked at, since it is time for that.
    pub(crate) fn end_rests(&mut self) {
        let rested = self.out_of_memory.values_mut().filter(|it| it.retry == Retry::Resting);
        rested.for_each(|it| it.retry = Retry::OnSurvey);
    }

    /// Whether it waits for nothing that others could have.
    pub(crate) fn waits_only_for_survey(&self, waiter: Waiter) -> bool {
        self.out_of_memory.get(&waiter).is_some_and(|it| matches!(it.retry, Retry::OnSurvey | Retry::Resting))
    }

    /// Who stood there, if it did.
    pub(crate) fn remove(&mut self, waiter: Waiter) -> Option<LineEntry> {
        if let Waiter::Part(part) = waiter {
            self.deferred.remove(&part);
        }
        self.out_of_memory.remove(&waiter);
        let position = self.positions.remove(&waiter)?;
        self.last_scan.left_since = self.last_scan.left_since.saturating_add(1);
        self.batches = self.batches.saturating_sub(usize::from(matches!(waiter, Waiter::Batch(_))));
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

    /// Parts of which it was first asked then.
    pub(crate) fn parts_arrived_at(&self, arrived: Arrival) -> impl Iterator<Item = PartRef> {
        let at = |entered| Position { arrived, entered: Arrival::from_raw(entered) };
        self.entries.range(at(u64::MIN)..=at(u64::MAX)).filter_map(|(_, entry)| match entry.waiter {
            Waiter::Part(part) => Some(part),
            Waiter::Batch(_) => None,
        })
    }

    /// How many parts and batches wait.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.positions.len().saturating_sub(self.batches), self.batches)
    }

    /// The line was looked along.
    pub(crate) const fn record_scan(&mut self, last_scan: LastScan) {
        self.last_scan = last_scan;
    }

    /// How many have left the line since it was looked along, if there are more than those who were looked at.
    pub(crate) fn left_since_scan(&self) -> Option<usize> {
        self.last_scan.last.map(|_| self.last_scan.left_since)
    }

    /// Whether somebody who was looked at found no room, whatever leaves.
    pub(crate) const fn scan_found_shortage(&self) -> bool {
        self.last_scan.shortage
    }

    /// Whether who stands there was looked at, or would have been.
    pub(crate) fn was_scanned(&self, waiter: Waiter) -> bool {
        self.positions
            .get(&waiter)
            .is_some_and(|position| self.last_scan.last.is_none_or(|until| *position <= until))
    }

    /// The first one after that.
    pub(crate) fn next(&self, after: Option<Position>) -> Option<(Position, &LineEntry)> {
        let from = after.map_or(Unbounded, Excluded);
        self.entries.range((from, Unbounded)).next().map(|(position, entry)| (*position, entry))
    }

    /// The first one of a tenant after that.
    pub(crate) fn next_of(&self, tenant: TenantId, after: Option<Position>) -> Option<Position> {
        let start = Position { arrived: Arrival::from_raw(0), entered: Arrival::from_raw(0) };
        let from =
            after.map_or(std::ops::Bound::Included((tenant, start)), |position| Excluded((tenant, position)));
        let (of, position) = self.by_tenant.range((from, Unbounded)).next()?;
        (*of == tenant).then_some(*position)
    }

    /// Who stands there.
    pub(crate) fn at(&self, position: Position) -> Option<&LineEntry> {
        self.entries.get(&position)
    }

    /// The devices on which room is waited for, and by how many.
    pub(crate) fn devices(&self) -> impl Iterator<Item = (DeviceIndex, usize)> {
        self.by_device.iter().map(|(device, waiting)| (*device, *waiting))
    }

    /// Who went to the line then.
    pub(crate) fn find(&self, entered: Arrival) -> Option<Waiter> {
        self.entries.iter().find(|(position, _)| position.entered == entered).map(|(_, entry)| entry.waiter)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Position, &LineEntry)> {
        self.entries.iter().map(|(position, entry)| (*position, entry))
    }

    pub(crate) fn parts(&self) -> impl Iterator<Item = PartRef> {
        self.positions.keys().filter_map(|waiter| match waiter {
            Waiter::Part(part) => Some(*part),
            Waiter::Batch(_) => None,
        })
    }
}
