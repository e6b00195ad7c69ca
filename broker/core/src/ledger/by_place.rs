//! A map by place. A device has three places, so the numbers of device and tier are the index.

use vramd_types::DeviceIndex;

use super::Place;
use crate::event::Tier;

const TIERS: [Tier; 3] = [Tier::Device, Tier::Host, Tier::Disk];

#[derive(Debug)]
pub(crate) struct ByPlace<V>(Vec<Option<V>>);

impl<V> ByPlace<V> {
    pub(crate) fn get(&self, place: Place) -> Option<&V> {
        self.0.get(index(place))?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, place: Place) -> Option<&mut V> {
        self.0.get_mut(index(place))?.as_mut()
    }

    /// Returns all values, in the order of the places.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Place, &V)> {
        let places =
            (0..=u16::MAX).flat_map(|device| TIERS.map(|tier| Place { device: DeviceIndex(device), tier }));
        places.zip(&self.0).filter_map(|(place, value)| Some((place, value.as_ref()?)))
    }
}

impl<V> FromIterator<(Place, V)> for ByPlace<V> {
    fn from_iter<I: IntoIterator<Item = (Place, V)>>(values: I) -> Self {
        let mut map = Self(Vec::new());
        for (place, value) in values {
            let at = index(place);
            if at >= map.0.len() {
                map.0.resize_with(at.saturating_add(1), || None);
            }
            if let Some(slot) = map.0.get_mut(at) {
                *slot = Some(value);
            }
        }
        map
    }
}

fn index(place: Place) -> usize {
    usize::from(place.device.0).saturating_mul(TIERS.len()).saturating_add(place.tier as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_keep_their_order() {
        let place = |device, tier| Place { device: DeviceIndex(device), tier };
        let places =
            [place(0, Tier::Device), place(1, Tier::Device), place(1, Tier::Host), place(2, Tier::Disk)];
        let map: ByPlace<_> = places.into_iter().rev().map(|place| (place, place)).collect();
        assert!(map.iter().eq(places.iter().map(|place| (*place, place))) && places.is_sorted());
        assert_eq!((map.get(place(0, Tier::Host)), map.get(place(9, Tier::Disk))), (None, None));
        assert!(places.iter().all(|place| map.get(*place) == Some(place)));
    }
}
