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
//!
//! The reason that is reported for a victim is the last of these rules that orders its part.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use vramd_types::{AllocationId, DeviceIndex};

use crate::{
    broker::Broker,
    event::PartRef,
    eviction::{Course, EvictionReason, PartAdvice, Rank},
    moves::Cause,
    tenancy::{TenantClass, TenantId},
};

type Parts<'a> = Box<dyn Iterator<Item = PartRef> + 'a>;

/// The allocations whose parts leave in the order of turns: the class of their tenant, and how far ahead the turn of
/// their set is.
type TurnOrder = BTreeMap<AllocationId, (TenantClass, usize)>;

impl Broker {
    /// The parts of a device without known pins, first the best victim. It costs a walk along the policy's order for
    /// each rank that a tenant's parts have, one along the steps of its sequences, and one for each class of tenants
    /// with working sets while sessions take turns.
    pub(crate) fn advised_order(&self, device: DeviceIndex) -> impl Iterator<Item = PartRef> {
        let turns = self.turn_order(device);
        let mut by_class: BTreeMap<TenantClass, std::vec::IntoIter<PartRef>> = BTreeMap::new();
        self.by_tenant(device).filter_map(move |part| {
            let Some((class, _)) = turns.get(&part.allocation) else { return Some(part) };
            by_class.entry(*class).or_insert_with(|| self.by_turn(device, *class, &turns)).next()
        })
    }

    /// Why each of these parts leaves before others.
    pub(super) fn eviction_reasons(
        &self,
        parts: impl Iterator<Item = PartRef>,
        cause: Cause,
    ) -> Vec<EvictionReason> {
        let mut by_device: BTreeMap<DeviceIndex, TurnOrder> = BTreeMap::new();
        let reason = |part: PartRef| {
            // Pressure takes cold parts by their last use (`node/pressure.rs`).
            if cause == Cause::Pressure {
                return EvictionReason::Cold;
            }
            let device = self.allocations.get(part.allocation).map(|allocation| allocation.device);
            let turns = device.map(|on| by_device.entry(on).or_insert_with(|| self.turn_order(on)));
            match turns.is_some_and(|turns| turns.contains_key(&part.allocation)) {
                true => EvictionReason::Turn,
                false => self.own_reason(part),
            }
        };
        parts.map(reason).collect()
    }

    /// Why a part leaves before others of its tenant.
    fn own_reason(&self, part: PartRef) -> EvictionReason {
        let tenant = self.tenant_of(part);
        if tenant.is_some_and(|tenant| self.moves.sequences.need_of(tenant, part).is_some()) {
            return EvictionReason::Sequence;
        }
        let advice = self.advice_for(part).at(self.shell.now);
        if advice.course().is_some() {
            return EvictionReason::Pattern;
        }
        if advice.rank() != PartAdvice::default().rank() {
            return EvictionReason::Advice;
        }
        EvictionReason::Policy(self.node.settings.eviction_policy)
    }

    /// The allocations that turns order on the device. A class whose sets are all as far ahead is left out.
    fn turn_order(&self, device: DeviceIndex) -> TurnOrder {
        planted!(self, TurnOrderIgnored => return TurnOrder::new());
        let standing = |tenant| self.tenants.standing(tenant);
        let until = self.sessions.turns.until_turns(device, self.shell.now, standing);
        let with_class = |(id, distance)| {
            let tenant = self.allocations.get(id)?.tenant;
            Some((id, (standing(tenant).class, distance)))
        };
        let mut turns: TurnOrder = until.into_iter().filter_map(with_class).collect();
        let distances: BTreeSet<(TenantClass, usize)> = turns.values().copied().collect();
        let of_class = |class| distances.range((class, 0)..=(class, usize::MAX));
        turns.retain(|_, (class, _)| of_class(*class).nth(1).is_some());
        turns
    }

    /// The parts of working sets of one class of tenants: first those of the set whose turn comes last.
    fn by_turn(
        &self,
        device: DeviceIndex,
        class: TenantClass,
        turns: &TurnOrder,
    ) -> std::vec::IntoIter<PartRef> {
        let distance_of = |part: &PartRef| turns.get(&part.allocation).map(|(_, distance)| *distance);
        let is_of_class = |part: &PartRef| turns.get(&part.allocation).is_some_and(|(of, _)| *of == class);
        let mut parts: Vec<PartRef> = self.by_tenant(device).filter(is_of_class).collect();
        parts.sort_by_cached_key(|part| Reverse(distance_of(part)));
        planted!(self, NextTurnFirst => parts.sort_by_key(distance_of));
        parts.into_iter()
    }

    /// The order of victims without regard to turns.
    pub(crate) fn by_tenant(&self, device: DeviceIndex) -> impl Iterator<Item = PartRef> {
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
