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
    devices: BTreeMap<PartRef, DeviceIndex>,
    order: BTreeSet<(DeviceIndex, usize, PartRef)>,
}

impl Scripted {
    pub(super) fn new(script: &[PartRef]) -> Self {
        let ranks = script.iter().enumerate().map(|(rank, part)| (*part, rank)).collect();
        Self { ranks, devices: BTreeMap::new(), order: BTreeSet::new() }
    }

    fn rank(&self, part: PartRef) -> usize {
        self.ranks.get(&part).copied().unwrap_or(usize::MAX)
    }
}

impl Policy for Scripted {
    fn record_use(&mut self, device: DeviceIndex, part: PartRef, _: Time) {
        self.remove(part);
        self.devices.insert(part, device);
        self.order.insert((device, self.rank(part), part));
    }

    fn remove(&mut self, part: PartRef) {
        if let Some(device) = self.devices.remove(&part) {
            self.order.remove(&(device, self.rank(part), part));
        }
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
