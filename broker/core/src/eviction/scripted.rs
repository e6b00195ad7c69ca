//! Evicts in a given order, for tests.

use std::collections::BTreeMap;

use vramd_types::DeviceIndex;

use super::{Part, Policy, Removal, ranking::Ranking};
use crate::{event::PartRef, time::Time};

#[derive(Debug)]
pub(super) struct Scripted {
    ranks: BTreeMap<PartRef, usize>,
    order: Ranking<usize>,
}

impl Scripted {
    /// Parts that the script does not name come last, in the order of their ids.
    pub(super) fn new(script: &[PartRef]) -> Self {
        let ranks = script.iter().enumerate().map(|(rank, part)| (*part, rank)).collect();
        Self { ranks, order: Ranking::default() }
    }

    fn rank(&self, part: PartRef) -> usize {
        self.ranks.get(&part).copied().unwrap_or(usize::MAX)
    }
}

impl Policy for Scripted {
    fn insert(&mut self, Part { device, part, .. }: Part) {
        self.order.insert(device, self.rank(part), part);
    }

    fn record_use(&mut self, _: Part, _: Time, _: bool) {}

    fn remove(&mut self, Part { device, part, .. }: Part, _: Removal) {
        self.order.remove(device, self.rank(part), part);
    }

    fn order(&self, device: DeviceIndex) -> Box<dyn Iterator<Item = PartRef> + '_> {
        Box::new(self.order.order(device, None))
    }
}
