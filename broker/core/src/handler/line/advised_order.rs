//! The order in which parts leave a device, with what owners and operators say about it.
//!
//! The policy says which tenant is next: each place of a tenant in the policy's order is taken by that tenant's next
//! part, by its rank, and among parts of one rank in the policy's order. There in turn, each place of a part with a
//! pattern is taken by the next part of its allocation in the order of the pattern.
//!
//! Parts of the tenant's sequences have a known next use, which counts before all advice. Parts beyond the windows
//! come first, and parts in use or in a window come last, each the farthest next use first. The walk goes along the
//! steps of the sequences, from the farthest to the nearest, so the first victims cost no look at all other parts.
//!
//! While sessions take turns, it is known when each working set is needed next. So each place of a part of a set is taken
//! by the next part of the set whose turn comes last, among sets of tenants of one class. Memory of no set keeps its
//! places.

use std::{collections::BTreeMap, rc::Rc};

use vramd_types::{AllocationId, DeviceIndex};

use crate::{
    broker::Broker,
    event::PartRef,
    eviction::{Course, Rank},
    tenancy::{TenantClass, TenantId},
};

type Parts<'a> = Box<dyn Iterator<Item = PartRef> + 'a>;

impl Broker {
    /// The parts of a device without known pins, first the best victim. It costs a walk along the policy's order for
    /// each rank that a tenant's parts have, one along the steps of its sequences, and one for each turn that waits.
    pub(crate) fn advised_order(&self, device: DeviceIndex) -> impl Iterator<Item = PartRef> {
        let standing = |tenant| self.tenants.standing(tenant);
        let turns = Rc::new(self.sessions.turns.until_turns(device, self.shell.now, standing));
        planted!(self, TurnOrderIgnored => turns = Rc::default());
        let mut by_class: BTreeMap<TenantClass, Parts<'_>> = BTreeMap::new();
        self.by_tenant(device).filter_map(move |part| {
            let class = turns.get(&part.allocation).and_then(|_| self.class_of(part));
            let Some(class) = class else { return Some(part) };
            by_class.entry(class).or_insert_with(|| self.by_turn(device, class, Rc::clone(&turns))).next()
        })
    }

    /// The parts of working sets of one class of tenants: first those of the set whose turn comes last.
    fn by_turn(
        &self,
        device: DeviceIndex,
        class: TenantClass,
        turns: Rc<BTreeMap<AllocationId, usize>>,
    ) -> Parts<'_> {
        let mut distances: Vec<usize> = turns.values().copied().collect();
        distances.sort_unstable_by(|one, other| other.cmp(one));
        distances.dedup();
        planted!(self, NextTurnFirst => distances.reverse());
        Box::new(distances.into_iter().flat_map(move |distance| {
            let turns = Rc::clone(&turns);
            let of_sets = self.by_tenant(device);
            of_sets.filter(move |part| {
                turns.get(&part.allocation) == Some(&distance) && self.class_of(*part) == Some(class)
            })
        }))
    }

    /// Without regard to turns.
    fn by_tenant(&self, device: DeviceIndex) -> impl Iterator<Item = PartRef> {
        let mut by_tenant: BTreeMap<TenantId, Option<Parts<'_>>> = BTreeMap::new();
        self.usage.residents.order(device).filter_map(move |part| {
            let Some(tenant) = self.tenant_of(part) else { return Some(part) };
            match by_tenant.entry(tenant).or_insert_with(|| self.own_order(device, tenant)) {
                Some(own) => own.next(),
                None => Some(part),
            }
        })
    }

    /// The tenant's parts in the order in which they leave, if that is not the policy's.
    fn own_order(&self, device: DeviceIndex, tenant: TenantId) -> Option<Parts<'_>> {
        let by_rank = self.by_rank(device, tenant);
        planted!(self, SequenceFarthestKept => return by_rank);
        if !self.moves.sequences.has_any(tenant) {
            return by_rank;
        }
        let of_tenant = move |part: &PartRef| self.tenant_of(*part) == Some(tenant);
        let others =
            by_rank.unwrap_or_else(|| Box::new(self.usage.residents.order(device).filter(of_tenant)));
        let others = others.filter(move |part| self.moves.sequences.need_of(tenant, *part).is_none());
        let (later, ahead) = (self.by_need(device, tenant, false), self.by_need(device, tenant, true));
        Some(Box::new(later.chain(others).chain(ahead)))
    }

    /// Parts of the tenant's sequences that are needed in a window, or beyond: first the one that is needed last.
    fn by_need(
        &self,
        device: DeviceIndex,
        tenant: TenantId,
        is_ahead: bool,
    ) -> impl Iterator<Item = PartRef> {
        let residents = &self.usage.residents;
        let parts = self.moves.sequences.by_need((tenant, device), is_ahead);
        parts.filter(move |part| {
            let is_own = self.tenant_of(*part) == Some(tenant);
            is_own && residents.is_listed(*part) && residents.is_candidate(*part)
        })
    }

    /// The tenant's parts by rank, if there is advice for them.
    fn by_rank(&self, device: DeviceIndex, tenant: TenantId) -> Option<Parts<'_>> {
        let now = self.shell.now;
        let is_ignored = self.ignores_advice_of(tenant);
        let ranks = self.usage.advice.ranks(tenant, is_ignored, now)?.into_iter();
        Some(Box::new(ranks.flat_map(move |rank| {
            let own =
                self.usage.residents.order(device).filter(move |part| self.tenant_of(*part) == Some(tenant));
            let own = own.filter(move |part| self.advice_for(*part).at(now).rank() == rank);
            self.by_pattern(own, rank, is_ignored)
        })))
    }

    /// The parts of one rank, with those that have a pattern in its order.
    fn by_pattern<'a>(
        &'a self,
        parts: impl Iterator<Item = PartRef> + 'a,
        rank: Rank,
        is_ignored: bool,
    ) -> impl Iterator<Item = PartRef> + 'a {
        let (advice, residents, now) = (&self.usage.advice, &self.usage.residents, self.shell.now);
        let mut on_course: BTreeMap<(AllocationId, Course), Parts<'a>> = BTreeMap::new();
        parts.filter_map(move |part| {
            let course = self.advice_for(part).course();
            planted!(self, LoopAsLru => course = course.filter(|it| *it == Course::Onward));
            let Some(course) = course else { return Some(part) };
            let id = part.allocation;
            let turns = on_course.entry((id, course)).or_insert_with(|| {
                let all = advice.on_course(id, (rank, course), is_ignored, now);
                Box::new(all.filter(|part| residents.is_listed(*part) && residents.is_candidate(*part)))
            });
            turns.next()
        })
    }

    fn tenant_of(&self, part: PartRef) -> Option<TenantId> {
        self.allocations.get(part.allocation).map(|allocation| allocation.tenant)
    }
}
