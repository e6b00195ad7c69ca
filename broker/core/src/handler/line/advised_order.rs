//! The order in which parts leave a device, with what owners say about it.
//!
//! The policy says which tenant is next: each place of a tenant in the policy's order is taken by that tenant's next
//! part, by its rank, and among parts of one rank in the policy's order. There in turn, each place of a part with a
//! pattern is taken by the next part of its allocation in the order of the pattern.

use std::collections::BTreeMap;

use vramd_types::{AllocationId, DeviceIndex};

use crate::{
    broker::Broker,
    event::PartRef,
    eviction::{Course, Rank},
    tenancy::TenantId,
};

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
        let now = self.shell.now;
        let ranks = self.usage.advice.ranks(tenant, now)?.into_iter();
        Some(Box::new(ranks.flat_map(move |rank| {
            let own =
                self.usage.residents.order(device).filter(move |part| self.tenant_of(*part) == Some(tenant));
            let own = own.filter(move |part| self.usage.advice.of(*part).at(now).rank() == rank);
            self.by_pattern(own, rank)
        })))
    }

    /// The parts of one rank, with those that have a pattern in its order.
    fn by_pattern<'a>(
        &'a self,
        parts: impl Iterator<Item = PartRef> + 'a,
        rank: Rank,
    ) -> impl Iterator<Item = PartRef> + 'a {
        let (advice, residents, now) = (&self.usage.advice, &self.usage.residents, self.shell.now);
        let mut on_course: BTreeMap<(AllocationId, Course), Parts<'a>> = BTreeMap::new();
        parts.filter_map(move |part| {
            let course = advice.of(part).course();
            planted!(self, LoopAsLru => course = course.filter(|it| *it == Course::Onward));
            let Some(course) = course else { return Some(part) };
            let id = part.allocation;
            let turns = on_course.entry((id, course)).or_insert_with(|| {
                let all = advice.on_course(id, (rank, course), now);
                Box::new(all.filter(|part| residents.is_listed(*part) && residents.is_candidate(*part)))
            });
            turns.next()
        })
    }

    fn tenant_of(&self, part: PartRef) -> Option<TenantId> {
        self.allocations.get(part.allocation).map(|allocation| allocation.tenant)
    }
}
