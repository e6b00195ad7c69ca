//! Parts that somebody wants on their device and that found no room there, in the order in which they were asked for.

use std::collections::BTreeMap;

use crate::{event::PartRef, tenancy::Arrival};

#[derive(Debug, Default)]
pub(crate) struct Demands {
    line: BTreeMap<Arrival, PartRef>,
    places: BTreeMap<PartRef, Arrival>,
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

    pub(crate) fn remove(&mut self, part: PartRef) {
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
