//! Evicts in a given order, for tests.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
};

use vramd_types::DeviceIndex;

use super::Policy;
use crate::{event::PartRef, time::Time};

#[derive(Debug)]
pub(super) struct Scripted {
    ranks: BTreeMap<PartRef, usize>,
    order: BTreeSet<(DeviceIndex, usize, PartRef)>,
}

impl Scripted {
    pub(super) fn new(script: &[PartRef]) -> Self {
        let ranks = script.iter().enumerate().map(|(rank, part)| (*part, rank)).collect();
        Self { ranks, order: BTreeSet::new() }
    }

    fn rank(&self, part: PartRef) -> usize {
        self.ranks.get(&part).copied().unwrap_or(usize::MAX)
    }
}

impl Policy for Scripted {
    fn insert(&mut self, device: DeviceIndex, part: PartRef, _: Time) {
        self.order.insert((device, self.rank(part), part));
    }

    fn remove(&mut self, device: DeviceIndex, part: PartRef, _: Time) {
        self.order.remove(&(device, self.rank(part), part));
    }

    fn order(
        &self,
        device: DeviceIndex,
        behind: Option<(PartRef, Time)>,
    ) -> Box<dyn Iterator<Item = PartRef> + '_> {
        let from = match behind {
            Some((part, _)) => Bound::Excluded((device, self.rank(part), part)),
            None => Bound::Included((device, 0, PartRef::FIRST)),
        };
        let of = self.order.range((from, Bound::Unbounded)).take_while(move |(of, ..)| *of == device);
        Box::new(of.map(|(.., part)| *part))
    }
}
