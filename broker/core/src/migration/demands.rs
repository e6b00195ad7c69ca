//! Parts that somebody wants on their device and that found no room there, in the order in which they were asked for.

use std::collections::{BTreeMap, BTreeSet};

use crate::{event::PartRef, tenancy::Arrival};

#[derive(Debug, Default)]
pub(crate) struct Demands {
    line: BTreeMap<Arrival, PartRef>,
    places: BTreeMap<PartRef, Arrival>,
    /// Those that could not be brought, though there was room: not tried at once, or they would fail as fast as the driver
    /// can say so.
    aside: BTreeSet<PartRef>,
}

impl Demands {
    pub(crate) fn contains(&self, part: PartRef) -> bool {
        self.places.contains_key(&part)
    }

    /// At the end of the line, unless it stands in it.
    pub(crate) fn add(&mut self, part: PartRef, arrival: Arrival) {
        if let std::collections::btree_map::Entry::Vacant(place) = self.places.entry(part) {
            place.insert(arrival);
            self.line.insert(arrival, part);
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

    pub(crate) fn remove(&mut self, part: PartRef) {
        self.aside.remove(&part);
        if let Some(arrival) = self.places.remove(&part) {
            self.line.remove(&arrival);
        }
    }

    /// The first one after that.
    pub(crate) fn next(&self, after: Option<Arrival>) -> Option<(Arrival, PartRef)> {
        use std::ops::Bound::{Excluded, Unbounded};
        let from = after.map_or(Unbounded, Excluded);
        self.line.range((from, Unbounded)).next().map(|(arrival, part)| (*arrival, *part))
    }

    pub(crate) fn parts(&self) -> impl Iterator<Item = PartRef> {
        self.places.keys().copied()
    }
}
