//! Room for several waiters of one device together, in exact bytes: with what leaves, and without.

use std::collections::{BTreeMap, BTreeSet};

use broker_core::{MoveView, PartRef, Tier};

use super::waiting::Leavable;
use crate::oracle::{
    Oracle,
    facts::{ExtentFacts, ExtentPhase, Tenant},
};

/// Bytes by tenant that several waiters request together.
pub(crate) type Requested = BTreeMap<Tenant, u64>;

impl Oracle {
    /// Whether the device has room for all of these requests once this has left and nothing is cached. `stays` is
    /// part of what leaves, and does not.
    pub(crate) fn fits_together(
        &self,
        device: usize,
        requested: &Requested,
        leaving: &Leavable,
        stays: Option<(Tenant, u64)>,
    ) -> bool {
        let (mut before, mut after) = (0, 0);
        for tenant in 0..self.facts.tenants.len() {
            let (guarantee, limit) = self.quota_now(tenant, device);
            let leaves = leaving.get(&tenant).copied().unwrap_or_default();
            let kept = stays.filter(|(of, _)| *of == tenant).map_or(0, |(_, bytes)| bytes);
            let held = self.charged_in_use(tenant, device).saturating_sub(leaves).saturating_add(kept);
            let more = requested.get(&tenant).copied().unwrap_or_default();
            let with = u128::from(held) + u128::from(more);
            if more > 0 && with > u128::from(limit) {
                return false;
            }
            before += u128::from(guarantee.max(held));
            after += u128::from(guarantee).max(with);
        }
        after <= u128::from(self.capacity(device)) || after <= before
    }

    /// The most that may be leaving a device, cached memory aside.
    pub(crate) fn leaving_at_most(&self, device: usize, moves: &[MoveView]) -> Leavable {
        let is_released = |it: &&ExtentFacts| it.place == device && it.phase == ExtentPhase::Releasing;
        let released = self.facts.extents.values().filter(is_released).map(|it| (it.owner, it.size));
        let moving = moves.iter().map(|it| it.part);
        let asked = self.facts.words_pending.iter().copied();
        let evicted = self.facts.evicting.iter().map(|(_, part)| *part);
        let all = moving.chain(asked).chain(evicted).chain(self.facts.departing.iter().copied());
        let parts: BTreeSet<PartRef> = all.collect();
        let resident: BTreeMap<PartRef, _> =
            parts.into_iter().filter_map(|part| Some((part, self.resident(part)?))).collect();
        let known = resident.into_values().filter(|(_, on, _)| *on == device);
        let known = known.map(|(tenant, _, bytes)| (tenant, bytes));
        // Parts that no session was sent yet, as the core shows them.
        let unknown = moves.iter().filter(|it| it.to != Tier::Device && self.tier_of(it.part).is_none());
        let unknown = unknown.filter_map(|it| {
            let tenant = self.facts.tenants.iter().position(|name| *name == it.tenant)?;
            let is_here = self.facts.place_of(&it.device, Tier::Device) == Some(device);
            is_here.then_some((tenant, it.bytes.get()))
        });
        let mut leaving = Leavable::new();
        for (tenant, bytes) in released.chain(known).chain(unknown) {
            *leaving.entry(tenant).or_default() += bytes;
        }
        leaving
    }
}
