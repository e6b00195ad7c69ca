//! The order in which waiting turns are admitted, and owners are asked to yield.
//!
//! First comes the highest class of tenants, then the tenant that held turns for the least time, divided by its
//! weight, then the turn that was requested first. Time counts and not the number of turns, since a client may yield
//! early.
//!
//! A tenant that begins to ask goes on from its earlier sum, but is no more than one quantum ahead of the least served
//! tenant of its class, nor more than [`TURN_DEBT_QUANTA`] behind it. So a program that asks again at once loses
//! nothing, and what a tenant did not use, or used while no other waited, is soon forgotten.

use std::{cmp::Reverse, collections::BTreeMap, time::Duration};

use vramd_types::{AllocationId, DeviceIndex, SessionId};

use super::{Turn, Turns};
use crate::{
    limits::TURN_DEBT_QUANTA,
    tenancy::{Standing, TenantClass, TenantId, TenantWeight},
    time::Time,
};

/// The distance of a working set whose turn no session wants.
const NEVER: usize = usize::MAX;

/// The place of a waiting turn among those of its device: the smallest is admitted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    class: Reverse<TenantClass>,
    /// The time that the tenant held turns, divided by its weight.
    used: u128,
    arrival: u64,
}

/// A time in the units in which the use of tenants is compared.
pub(crate) fn divide(time: Duration, weight: TenantWeight) -> u128 {
    weight.divide(u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
}

impl Turns {
    /// The sessions whose turns wait there, in the order in which they are admitted.
    pub(crate) fn ranked_on(
        &self,
        device: DeviceIndex,
        now: Time,
        standing: impl Fn(TenantId) -> Standing,
    ) -> Vec<SessionId> {
        let mut used = BTreeMap::new();
        let waiting = self.on(device).filter(|(_, turn)| turn.is_waiting());
        let rank = |(id, turn): (SessionId, &Turn)| {
            let Standing { class, weight, .. } = standing(turn.tenant);
            let use_of = || self.used_by(turn.tenant, device, now, weight);
            let used = *used.entry(turn.tenant).or_insert_with(use_of);
            (Rank { class: Reverse(class), used, arrival: turn.arrival }, id)
        };
        let mut ranked: Vec<_> = waiting.map(rank).collect();
        ranked.sort_unstable();
        ranked.into_iter().map(|(_, id)| id).collect()
    }

    /// How far ahead the turns of a device's working sets are, by allocation: 0 if one is admitted, then the places of
    /// those that wait, and the greatest number if no session wants it. Empty if no session takes turns there.
    pub(crate) fn until_turns(
        &self,
        device: DeviceIndex,
        now: Time,
        standing: impl Fn(TenantId) -> Standing,
    ) -> BTreeMap<AllocationId, usize> {
        let mut until = BTreeMap::new();
        if self.on(device).next().is_none() {
            return until;
        }
        let ranked = self.ranked_on(device, now, standing);
        for ((session, number), set) in self.sets().filter(|(_, set)| set.device == device) {
            let distance = match self.get(session).filter(|turn| turn.set == number) {
                Some(turn) if !turn.is_waiting() => 0,
                Some(_) => ranked.iter().zip(1..).find(|(id, _)| **id == session).map_or(NEVER, |(_, at)| at),
                None => NEVER,
            };
            for member in &set.members {
                let nearest = until.entry(*member).or_insert(distance);
                *nearest = distance.min(*nearest);
            }
        }
        until
    }

    /// The use of a tenant, with the turns that it has now.
    pub(crate) fn used_by(
        &self,
        tenant: TenantId,
        device: DeviceIndex,
        now: Time,
        weight: TenantWeight,
    ) -> u128 {
        let own = self.on(device).filter(|(_, turn)| turn.tenant == tenant);
        let running =
            own.filter_map(|(_, turn)| turn.granted()).map(|granted| divide(now.since(granted), weight));
        running.fold(self.settled(device, tenant).unwrap_or_default(), u128::saturating_add)
    }

    /// Has a tenant begin to ask on a device where it has no turn. See the module.
    pub(crate) fn begin_asking(
        &mut self,
        tenant: TenantId,
        device: DeviceIndex,
        now: Time,
        quantum: Duration,
        standing: impl Fn(TenantId) -> Standing,
    ) {
        if self.on(device).any(|(_, turn)| turn.tenant == tenant) {
            return;
        }
        let own = standing(tenant);
        let others = self.on(device).map(|(_, turn)| turn.tenant);
        let of_class = others.filter(|other| standing(*other).class == own.class);
        let least = of_class.map(|other| self.used_by(other, device, now, standing(other).weight)).min();
        if let Some(least) = least {
            let quanta = |count: u32| divide(quantum.saturating_mul(count), own.weight);
            let (ahead, behind) =
                (least.saturating_sub(quanta(1)), least.saturating_add(quanta(TURN_DEBT_QUANTA)));
            let settled = self.settled(device, tenant).unwrap_or(least).clamp(ahead, behind);
            self.settle(device, tenant, settled);
        }
    }

    /// Adds the time of a turn that has ended to what its tenant used.
    pub(crate) fn charge(&mut self, turn: &Turn, now: Time, weight: TenantWeight) {
        if let Some(granted) = turn.granted() {
            let settled = self.settled(turn.device, turn.tenant).unwrap_or_default();
            let held = divide(now.since(granted), weight);
            self.settle(turn.device, turn.tenant, settled.saturating_add(held));
        }
    }
}
