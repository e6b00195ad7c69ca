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
pub(crate) struct Demand {
    pub(crate) waiter: Waiter,
    pub(crate) since: Time,
    pub(crate) tenant: TenantId,
    /// Where it needs room, or may, each once.
    pub(crate) devices: Few<DeviceIndex>,
}

/// Where somebody stands: by when it came, since all parts of a set came at once, and by when it went to the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) came: Arrival,
    pub(crate) stood: Arrival,
}

/// What the last look along the line found. Until something of that changes it need not be looked at again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sight {
    /// The last one that was looked at: room is being made for so many that no more need be. None where all were.
    pub(crate) until: Option<Place>,
    /// How many of those have left the line since.
    pub(crate) left: usize,
    /// For somebody there was no room, whatever leaves.
    pub(crate) short: bool,
}

/// Where there was no memory for somebody, and how that stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RanOut {
    device: DeviceIndex,
    /// Which look at the device says who holds what the driver had not.
    survey: u64,
    /// How often it was tried though nothing had left.
    in_vain: u32,
    next: Next,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// It is tried again once something has left the device.
    Leaves,
    /// Or once the device has been looked at again: nothing leaves it.
    Looked,
    /// It was tried often enough until it is time to look at all devices again, whatever leaves.
    Rests,
    /// It may be tried.
    Tried,
}

#[derive(Debug, Default)]
pub(crate) struct Demands {
    line: BTreeMap<Place, Demand>,
    places: BTreeMap<Waiter, Place>,
    by_tenant: BTreeSet<(TenantId, Place)>,
    /// How many wait for room on each device where anybody does.
    by_device: BTreeMap<DeviceIndex, usize>,
    /// How many of them are batches.
    batches: usize,
    /// Those that could not be brought, though there was room: not tried at once, or they would fail as fast as the driver
    /// can say so.
    aside: BTreeSet<PartRef>,
    /// Those for which the driver had no memory, though by the books there was room.
    ran_out: BTreeMap<Waiter, RanOut>,
    sight: Sight,
}

impl Demands {
    pub(crate) fn contains(&self, waiter: Waiter) -> bool {
        self.places.contains_key(&waiter)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.line.is_empty()
    }

    /// Behind all that came before, unless it stands in the line.
    pub(crate) fn add(&mut self, place: Place, demand: Demand) {
        let waiter = demand.waiter;
        if let std::collections::btree_map::Entry::Vacant(entry) = self.places.entry(waiter) {
            entry.insert(place);
            self.batches = self.batches.saturating_add(usize::from(matches!(waiter, Waiter::Batch(_))));
            self.by_tenant.insert((demand.tenant, place));
            for device in demand.devices.iter() {
                let waiting = self.by_device.entry(*device).or_default();
                *waiting = waiting.saturating_add(1);
            }
            self.line.insert(place, demand);
        }
    }

    pub(crate) fn stand_aside(&mut self, part: PartRef) {
        self.ran_out.remove(&Waiter::Part(part));
        self.aside.insert(part);
    }

    pub(crate) fn is_aside(&self, part: PartRef) -> bool {
        self.aside.contains(&part)
    }

    /// Somebody wants it anew: it is to be tried. Whether it was not.
    pub(crate) fn step_up(&mut self, part: PartRef) -> bool {
        self.aside.remove(&part)
    }

    /// All are to be tried.
    pub(crate) fn all_step_up(&mut self) {
        self.aside.clear();
    }

    /// The driver had no memory for it there: before it is tried again something has to change.
    pub(crate) fn ran_out(&mut self, waiter: Waiter, device: DeviceIndex, survey: u64, in_vain: u32) {
        self.ran_out.insert(waiter, RanOut { device, survey, in_vain, next: Next::Leaves });
    }

    /// Nothing leaves for the part: whether it is to be tried all the same, which it is not for ever.
    pub(crate) fn may_be_tried_in_vain(&mut self, part: PartRef, tries_max: u32) -> bool {
        let Some(it) = self.ran_out.get_mut(&Waiter::Part(part)) else { return false };
        it.in_vain = it.in_vain.saturating_add(1);
        it.in_vain < tries_max
    }

    /// How often the part was tried though nothing had left.
    pub(crate) fn tried_in_vain(&self, waiter: Waiter) -> u32 {
        self.ran_out.get(&waiter).map_or(0, |it| it.in_vain)
    }

    /// Whether it is not to be tried, since nothing has changed for it.
    pub(crate) fn is_barred(&self, waiter: Waiter) -> bool {
        self.ran_out.get(&waiter).is_some_and(|it| it.next != Next::Tried)
    }

    /// Where there was no memory for it before, if that was so.
    pub(crate) fn where_ran_out(&self, waiter: Waiter) -> Option<DeviceIndex> {
        self.ran_out.get(&waiter).map(|it| it.device)
    }

    /// Those that wait for something to leave a device on which there was no memory for them, and after which look at that it is known
    /// who holds it.
    pub(crate) fn barred(&self) -> Vec<(Waiter, DeviceIndex, u64)> {
        let barred = self.ran_out.iter().filter(|(_, it)| it.next == Next::Leaves);
        barred.map(|(waiter, it)| (*waiter, it.device, it.survey)).collect()
    }

    pub(crate) fn has_anybody_run_out(&self) -> bool {
        !self.ran_out.is_empty()
    }

    /// Something has left the device, back to the driver. Whether somebody may be tried for that.
    pub(crate) fn has_left(&mut self, device: DeviceIndex) -> bool {
        self.may_all_be_tried(device, &[Next::Leaves, Next::Looked])
    }

    /// The device was looked at.
    pub(crate) fn has_been_looked_at(&mut self, device: DeviceIndex) {
        self.may_all_be_tried(device, &[Next::Looked]);
    }

    fn may_all_be_tried(&mut self, device: DeviceIndex, which: &[Next]) -> bool {
        let there = self.ran_out.values_mut().filter(|it| it.device == device && which.contains(&it.next));
        there.map(|it| it.next = Next::Tried).count() > 0
    }

    pub(crate) fn may_be_tried(&mut self, waiter: Waiter) {
        self.ran_out.entry(waiter).and_modify(|it| it.next = Next::Tried);
    }

    /// Nothing leaves, and it has time.
    pub(crate) fn waits_for_a_look(&mut self, waiter: Waiter) {
        self.ran_out.entry(waiter).and_modify(|it| it.next = Next::Looked);
    }

    /// It was tried often enough for now, and has time.
    pub(crate) fn rests(&mut self, waiter: Waiter) {
        self.ran_out.entry(waiter).and_modify(|it| it.next = Next::Rests);
    }

    /// All devices are about to be looked at, since it is time for that.
    pub(crate) fn are_rested(&mut self) {
        let rested = self.ran_out.values_mut().filter(|it| it.next == Next::Rests);
        rested.for_each(|it| it.next = Next::Looked);
    }

    /// Whether it waits for nothing that others could have.
    pub(crate) fn waits_alone(&self, waiter: Waiter) -> bool {
        self.ran_out.get(&waiter).is_some_and(|it| matches!(it.next, Next::Looked | Next::Rests))
    }

    /// Who stood there, if it did.
    pub(crate) fn remove(&mut self, waiter: Waiter) -> Option<Demand> {
        if let Waiter::Part(part) = waiter {
            self.aside.remove(&part);
        }
        self.ran_out.remove(&waiter);
        let place = self.places.remove(&waiter)?;
        self.sight.left = self.sight.left.saturating_add(1);
        self.batches = self.batches.saturating_sub(usize::from(matches!(waiter, Waiter::Batch(_))));
        let demand = self.line.remove(&place)?;
        self.by_tenant.remove(&(demand.tenant, place));
        for device in demand.devices.iter() {
            if let std::collections::btree_map::Entry::Occupied(mut waiting) = self.by_device.entry(*device) {
                *waiting.get_mut() = waiting.get().saturating_sub(1);
                if *waiting.get() == 0 {
                    waiting.remove();
                }
            }
        }
        Some(demand)
    }

    /// Parts of which it was first asked then.
    pub(crate) fn parts_since(&self, came: Arrival) -> impl Iterator<Item = PartRef> {
        let at = |stood| Place { came, stood: Arrival::from_raw(stood) };
        self.line.range(at(u64::MIN)..=at(u64::MAX)).filter_map(|(_, demand)| match demand.waiter {
            Waiter::Part(part) => Some(part),
            Waiter::Batch(_) => None,
        })
    }

    /// How many parts and batches wait.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.places.len().saturating_sub(self.batches), self.batches)
    }

    /// The line was looked along.
    pub(crate) const fn looked(&mut self, sight: Sight) {
        self.sight = sight;
    }

    /// How many have left the line since it was looked along, if there are more than those who were looked at.
    pub(crate) fn left_of_sight(&self) -> Option<usize> {
        self.sight.until.map(|_| self.sight.left)
    }

    /// Whether somebody who was looked at found no room, whatever leaves.
    pub(crate) const fn is_short(&self) -> bool {
        self.sight.short
    }

    /// Whether who stands there was looked at, or would have been.
    pub(crate) fn is_in_sight(&self, waiter: Waiter) -> bool {
        self.places.get(&waiter).is_some_and(|place| self.sight.until.is_none_or(|until| *place <= until))
    }

    /// The first one after that.
    pub(crate) fn next(&self, after: Option<Place>) -> Option<(Place, &Demand)> {
        let from = after.map_or(Unbounded, Excluded);
        self.line.range((from, Unbounded)).next().map(|(place, demand)| (*place, demand))
    }

    /// The first one of a tenant after that.
    pub(crate) fn next_of(&self, tenant: TenantId, after: Option<Place>) -> Option<Place> {
        let start = Place { came: Arrival::from_raw(0), stood: Arrival::from_raw(0) };
        let from =
            after.map_or(std::ops::Bound::Included((tenant, start)), |place| Excluded((tenant, place)));
        let (of, place) = self.by_tenant.range((from, Unbounded)).next()?;
        (*of == tenant).then_some(*place)
    }

    /// Who stands there.
    pub(crate) fn at(&self, place: Place) -> Option<&Demand> {
        self.line.get(&place)
    }

    /// The devices on which room is waited for, and by how many.
    pub(crate) fn devices(&self) -> impl Iterator<Item = (DeviceIndex, usize)> {
        self.by_device.iter().map(|(device, waiting)| (*device, *waiting))
    }

    /// Who went to the line then.
    pub(crate) fn find(&self, stood: Arrival) -> Option<Waiter> {
        self.line.iter().find(|(place, _)| place.stood == stood).map(|(_, demand)| demand.waiter)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Place, &Demand)> {
        self.line.iter().map(|(place, demand)| (*place, demand))
    }

    pub(crate) fn parts(&self) -> impl Iterator<Item = PartRef> {
        self.places.keys().filter_map(|waiter| match waiter {
            Waiter::Part(part) => Some(*part),
            Waiter::Batch(_) => None,
        })
    }
}
