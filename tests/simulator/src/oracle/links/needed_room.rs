//! Copies and releases that the first waiters of a device certainly need: the copies run as demand, and the driver
//! was told to release at once.
//!
//! The oracle asks that only of a copy or release without which all else that leaves would not be enough, and
//! with which it is.

use std::collections::{BTreeMap, BTreeSet};

use broker_core::{MoveView, PartRef, Tier, WaitView, invariants::LINK_AWAITED};
use vramd_types::{CopyClass, ExtentId};

use super::awaited::moved_with;
use crate::oracle::{
    Oracle,
    facts::{ExtentFacts, ExtentPhase, Tenant},
    line::{room::Requested, waiting::Leavable},
};

/// How many waiters of a device are judged at most. The core plans for more, but a later one may need what the
/// oracle does not know.
const WAITERS_JUDGED: usize = 1;

/// Memory that leaves a device and is not hurried.
#[derive(Clone, Copy, Debug)]
struct Unhurried {
    /// The destination of the copy, or what is released.
    extent: ExtentId,
    device: usize,
    tenant: Tenant,
    bytes: u64,
}

impl Oracle {
    pub(crate) fn check_needed_room(
        &mut self,
        background: &[(ExtentId, CopyClass)],
        line: &[WaitView],
        moves: &[MoveView],
    ) {
        // Without tiers the core makes no room, except of cached memory.
        let has_tiers = self.facts.places.iter().any(|place| place.tier != Tier::Device);
        let is_unsure = !self.facts.revoking.is_empty() || self.facts.extents_ran_out || !has_tiers;
        if line.is_empty() || is_unsure {
            return;
        }
        let unhurried = self.find_unhurried(background, moves);
        let devices: BTreeSet<_> = unhurried.iter().map(|it| it.device).collect();
        for device in devices {
            let prefixes = self.first_requests(device, line);
            if prefixes.is_empty() {
                continue;
            }
            let certain = self.leaving_by(device, moves.iter());
            let most = self.leaving_at_most(device, moves);
            for it in unhurried.iter().filter(|it| it.device == device) {
                let stays = Some((it.tenant, it.bytes));
                let needed = prefixes.iter().find(|requested| {
                    self.fits_together(device, requested, &certain, None)
                        && !self.fits_together(device, requested, &most, stays)
                });
                self.expect(LINK_AWAITED, needed.is_none(), || {
                    let Unhurried { extent, bytes, .. } = it;
                    format!("{bytes} bytes leave device {device} by {extent} without haste, and its first waiters need them for {needed:?}")
                });
            }
        }
    }

    /// Copies of leaving parts below demand, and releases that the driver may put off.
    fn find_unhurried(&self, background: &[(ExtentId, CopyClass)], moves: &[MoveView]) -> Vec<Unhurried> {
        let copies = background.iter().filter_map(|(to, _)| {
            let it = moved_with(*to, moves)?;
            let allocation = self.facts.allocations.get(&it.part.allocation)?;
            let leaves = self.leaves_device(it, allocation.device);
            let unhurried = Unhurried {
                extent: *to,
                device: allocation.device,
                tenant: allocation.tenant,
                bytes: it.bytes.get(),
            };
            leaves.then_some(unhurried)
        });
        let is_released =
            |it: &&ExtentFacts| matches!(it.phase, ExtentPhase::Releasing | ExtentPhase::GivenUp);
        let deferred = self.facts.put_off.iter().filter_map(|id| {
            let it = self.facts.extents.get(id).filter(is_released)?;
            Some(Unhurried { extent: *id, device: it.place, tenant: it.owner, bytes: it.size })
        });
        copies.chain(deferred).collect()
    }

    /// The requests of the first waiter of a device, of the first two together, and so on, as far as the core
    /// certainly makes room for them.
    fn first_requests(&self, device: usize, line: &[WaitView]) -> Vec<Requested> {
        let mut requested = Requested::new();
        let mut prefixes = Vec::new();
        if self.facts.places[device].surveys_left > 0 {
            return prefixes;
        }
        let waiters = line.iter().filter_map(|wait| self.facts.needs.get(&wait.id));
        for needs in waiters.filter(|needs| needs.bytes.contains_key(&device)).take(WAITERS_JUDGED) {
            let is_certain = needs.is_known()
                && needs.bytes.len() == 1
                && needs.part.is_none_or(|part| !self.facts.failed_parts.contains(&part))
                && !self.facts.failed_batches.contains_key(&needs.key);
            if !is_certain {
                break;
            }
            *requested.entry(needs.tenant).or_default() += needs.bytes.values().sum::<u64>();
            prefixes.push(requested.clone());
        }
        prefixes
    }

    /// The most that may be leaving a device, cached memory aside.
    pub(crate) fn leaving_at_most(&self, device: usize, moves: &[MoveView]) -> Leavable {
        let mut leaving = self.leaving_by(device, std::iter::empty());
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
        for (tenant, bytes) in known.chain(unknown) {
            *leaving.entry(tenant).or_default() += bytes;
        }
        leaving
    }
}
