//! The order in which parts leave a device, with what owners say about it.
//!
//! The policy says which tenant is next: each place of a tenant in the policy's order is taken by that tenant's next
//! part, by its rank, and among parts of one rank in the policy's order.

use std::collections::BTreeMap;

use vramd_types::DeviceIndex;

use crate::{broker::Broker, event::PartRef, tenancy::TenantId};

type Parts<'a> = Box<dyn Iterator<Item = PartRef> + 'a>;

impl Broker {
    /// The parts of a device without known pins, first the best victim. It costs a walk along the policy's order for
    /// each rank that a tenant's parts have.
    pub(crate) fn advised_order(&self, device: DeviceIndex) -> impl Iterator<Item = PartRef> {
        let mut by_tenant: BTreeMap<TenantId, Option<Parts<'_>>> = BTreeMap::new();
        self.usage.residents.order(device).filter_map(move |part| {
            let Some(tenant) = self.tenant_of(part) else { return Some(part) };
            match by_tenant.entry(tenant).or_insert_with(|| self.by_rank(device, tenant)) {
                Some(own) => own.next(),
                None => Some(part),
            }
        })
    }

    /// The tenant's parts by rank, if it gave advice.
    fn by_rank(&self, device: DeviceIndex, tenant: TenantId) -> Option<Parts<'_>> {
        let ranks = self.usage.advice.ranks(tenant)?.into_iter();
        Some(Box::new(ranks.flat_map(move |rank| {
            let own =
                self.usage.residents.order(device).filter(move |part| self.tenant_of(*part) == Some(tenant));
            own.filter(move |part| self.usage.advice.of(*part).rank() == rank)
        })))
    }

    fn tenant_of(&self, part: PartRef) -> Option<TenantId> {
        self.allocations.get(part.allocation).map(|allocation| allocation.tenant)
    }
}
