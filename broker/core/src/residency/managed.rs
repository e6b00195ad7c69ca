//! Managed memory: a client allocates it in its own process, so the daemon has nothing of it but the charge.
//!
//! An allocation of this kind has no parts and no extents. Its charge says what its session may have on the device;
//! which of its pages lie there, only the driver of the client's process knows.

use std::collections::BTreeMap;

use vramd_types::{AllocationId, Bytes};

use crate::{
    ledger::{Charge, Place},
    tenancy::TenantId,
};

/// The charges of managed allocations.
#[derive(Debug, Default)]
pub(crate) struct ManagedCharges {
    charges: BTreeMap<AllocationId, Charge>,
    /// Their sums. There is no entry for zero.
    sums: BTreeMap<(Place, TenantId), Bytes>,
}

impl ManagedCharges {
    pub(crate) fn insert(&mut self, id: AllocationId, charge: Charge) {
        let sum = self.sums.entry((charge.place(), charge.tenant())).or_default();
        *sum = sum.saturating_add(charge.bytes());
        self.charges.insert(id, charge);
    }

    /// Gives up the charge of an allocation, for the ledger to discharge.
    pub(crate) fn take(&mut self, id: AllocationId) -> Option<Charge> {
        let charge = self.charges.remove(&id)?;
        let key = (charge.place(), charge.tenant());
        if let Some(sum) = self.sums.get_mut(&key) {
            *sum = sum.saturating_sub(charge.bytes());
            if sum.is_zero() {
                self.sums.remove(&key);
            }
        }
        Some(charge)
    }

    /// The bytes of one allocation; none if it is of another kind.
    pub(crate) fn bytes_of(&self, id: AllocationId) -> Bytes {
        self.charges.get(&id).map_or(Bytes::ZERO, Charge::bytes)
    }

    /// The bytes of a tenant in a place.
    pub(crate) fn sum_of(&self, tenant: TenantId, place: Place) -> Bytes {
        self.sums.get(&(place, tenant)).copied().unwrap_or_default()
    }

    /// The bytes of all tenants in a place.
    pub(crate) fn sum_in(&self, place: Place) -> Bytes {
        let sums = self.sums.iter().filter(|((of, _), _)| *of == place);
        sums.fold(Bytes::ZERO, |sum, (_, bytes)| sum.saturating_add(*bytes))
    }

    /// The bytes of each tenant in a place.
    pub(crate) fn sums_in(&self, place: Place) -> impl Iterator<Item = (TenantId, Bytes)> {
        let sums = self.sums.iter().filter(move |((of, _), _)| *of == place);
        sums.map(|((_, tenant), bytes)| (*tenant, *bytes))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (AllocationId, &Charge)> {
        self.charges.iter().map(|(id, charge)| (*id, charge))
    }
}
