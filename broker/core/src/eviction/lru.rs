//! Parts by their last use, first those of tenants of the lowest class.
//!
//! Each class has an order of its own, so a tenant's class costs no comparison.

use vramd_types::DeviceIndex;

use super::{Part, ranking::Ranking};
use crate::{event::PartRef, tenancy::TenantClass, time::Time};

/// The parts of each class, first the lowest class.
#[derive(Debug, Default)]
pub(super) struct Lru([Ranking<Time>; TenantClass::ALL.len()]);

impl Lru {
    fn class(&mut self, class: TenantClass) -> Option<&mut Ranking<Time>> {
        self.0.get_mut(class as usize)
    }

    pub(super) fn insert(&mut self, Part { device, part, used, class, .. }: Part) {
        if let Some(parts) = self.class(class) {
            parts.insert(device, used, part);
        }
    }

    pub(super) fn record_use(&mut self, Part { device, part, used, class, .. }: Part, now: Time) {
        if let Some(parts) = self.class(class) {
            parts.remove(device, used, part);
            parts.insert(device, now, part);
        }
    }

    pub(super) fn remove(&mut self, Part { device, part, used, class, .. }: Part) {
        if let Some(parts) = self.class(class) {
            parts.remove(device, used, part);
        }
    }

    /// Returns the parts of a device, first the best victim.
    pub(super) fn order(&self, device: DeviceIndex) -> impl Iterator<Item = PartRef> {
        self.0.iter().flat_map(move |parts| parts.order(device, None))
    }

    /// Returns the parts of one class, from behind the last scanned part. That part need not be there any more.
    pub(super) fn order_of_class(
        &self,
        device: DeviceIndex,
        class: TenantClass,
        behind: Option<(PartRef, Time)>,
    ) -> impl Iterator<Item = PartRef> {
        let behind = behind.map(|(part, used)| (used, part));
        self.0.get(class as usize).into_iter().flat_map(move |parts| parts.order(device, behind))
    }

    /// Whether parts of more than one class lie on the device.
    pub(super) fn is_mixed(&self, device: DeviceIndex) -> bool {
        self.0.iter().filter(|parts| parts.order(device, None).next().is_some()).count() > 1
    }
}

#[cfg(test)]
mod tests {
    use crate::eviction::{EvictionPolicy, tests::*};

    #[test]
    fn lru_orders_the_last_used_part_last() {
        let mut residents = TestDevice::new(EvictionPolicy::Lru);
        residents.arrive_at(0, &[0, 1, 2]);
        residents.leave(0);
        residents.arrive_at(5, &[0]);
        residents.free(2);
        assert_eq!(residents.order(), [1, 0]);
        // Behind a part that is there, and behind one that was there.
        let behind =
            [(1, 1), (2, 2), (0, 0), (0, 5)].map(|(number, micros)| residents.order_after(number, micros));
        assert_eq!(behind, [vec![0], vec![0], vec![1, 0], vec![]]);
    }
}
