//! The line of those that found no room on a device, in the order of asking: parts that somebody wants there, and batches
//! of allocations that wait.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    event::PartRef,
    tenancy::{Arrival, OpId},
    time::Time,
};

/// Who stands in the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Waiter {
    Part(PartRef),
    Batch(OpId),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Demand {
    pub(crate) waiter: Waiter,
    pub(crate) since: Time,
}

#[derive(Debug, Default)]
pub(crate) struct Demands {
    line: BTreeMap<Arrival, Demand>,
    places: BTreeMap<Waiter, Arrival>,
    /// Those that could not be brought, though there was room: not tried at once, or they would fail as fast as the driver
    /// can say so.
    aside: BTreeSet<PartRef>,
}

impl Demands {
    pub(crate) fn contains(&self, waiter: Waiter) -> bool {
        self.places.contains_key(&waiter)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.line.is_empty()
    }

    /// At the end of the line, unless it stands in it.
    pub(crate) fn add(&mut self, waiter: Waiter, arrival: Arrival, since: Time) {
        if let std::collections::btree_map::Entry::Vacant(place) = self.places.entry(waiter) {
            place.insert(arrival);
            self.line.insert(arrival, Demand { waiter, since });
        }
    }

    pub(crate) fn stand_aside(&mut self, part: PartRef) {
        self.aside.insert(part);
    }

    pub(crate) fn is_aside(&self, part: PartRef) -> bool {
        self.aside.contains(&part)
    }

    /// Somebody wants it anew: it is to be tried.
    pub(crate) fn step_up(&mut self, part: PartRef) {
        self.aside.remove(&part);
    }

    /// All are to be tried.
    pub(crate) fn all_step_up(&mut self) {
        self.aside.clear();
    }

    pub(crate) fn remove(&mut self, waiter: Waiter) {
        if let Waiter::Part(part) = waiter {
            self.aside.remove(&part);
        }
        if let Some(arrival) = self.places.remove(&waiter) {
            self.line.remove(&arrival);
        }
    }

    /// The first one after that.
    pub(crate) fn next(&self, after: Option<Arrival>) -> Option<(Arrival, Waiter)> {
        use std::ops::Bound::{Excluded, Unbounded};
        let from = after.map_or(Unbounded, Excluded);
        self.line.range((from, Unbounded)).next().map(|(arrival, demand)| (*arrival, demand.waiter))
    }

    pub(crate) fn find(&self, arrival: Arrival) -> Option<Waiter> {
        self.line.get(&arrival).map(|demand| demand.waiter)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Arrival, Demand)> {
        self.line.iter().map(|(arrival, demand)| (*arrival, *demand))
    }

    pub(crate) fn parts(&self) -> impl Iterator<Item = PartRef> {
        self.places.keys().filter_map(|waiter| match waiter {
            Waiter::Part(part) => Some(*part),
            Waiter::Batch(_) => None,
        })
    }
}
