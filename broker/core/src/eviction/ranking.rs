//! Parts of each device in ascending order of a rank.

use std::{collections::BTreeSet, ops::Bound};

use vramd_types::DeviceIndex;

use crate::event::PartRef;

#[derive(Debug)]
pub(super) struct Ranking<K> {
    /// By the number of the device.
    devices: Vec<BTreeSet<(K, PartRef)>>,
}

impl<K> Default for Ranking<K> {
    fn default() -> Self {
        Self { devices: Vec::new() }
    }
}

impl<K: Copy + Ord> Ranking<K> {
    pub(super) fn insert(&mut self, device: DeviceIndex, rank: K, part: PartRef) {
        let at = usize::from(device.0);
        if at >= self.devices.len() {
            self.devices.resize_with(at.saturating_add(1), BTreeSet::new);
        }
        if let Some(parts) = self.devices.get_mut(at) {
            parts.insert((rank, part));
        }
    }

    pub(super) fn remove(&mut self, device: DeviceIndex, rank: K, part: PartRef) {
        if let Some(parts) = self.devices.get_mut(usize::from(device.0)) {
            parts.remove(&(rank, part));
        }
    }

    /// Returns the parts of a device: all of them, or those behind a part of that rank, whether or not it is there.
    pub(super) fn order(
        &self,
        device: DeviceIndex,
        behind: Option<(K, PartRef)>,
    ) -> impl DoubleEndedIterator<Item = PartRef> + use<'_, K> {
        let from = behind.map_or(Bound::Unbounded, Bound::Excluded);
        let parts = self.devices.get(usize::from(device.0)).into_iter();
        parts.flat_map(move |parts| parts.range((from, Bound::Unbounded))).map(|(_, part)| *part)
    }
}

/// A value for each device.
#[derive(Debug)]
pub(super) struct EachDevice<T>(Vec<T>);

impl<T> Default for EachDevice<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Default> EachDevice<T> {
    pub(super) fn get(&self, device: DeviceIndex) -> Option<&T> {
        self.0.get(usize::from(device.0))
    }

    /// The value of a device. `None` only for a device that does not exist.
    pub(super) fn entry(&mut self, device: DeviceIndex) -> Option<&mut T> {
        let at = usize::from(device.0);
        if at >= self.0.len() {
            self.0.resize_with(at.saturating_add(1), T::default);
        }
        self.0.get_mut(at)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut()
    }
}
