//! Making room on a device: what was chosen for that goes, and who waits for it is told when it is gone.
//!
//! Who is short of room, of its own limit or of what is not guaranteed gets no refusal while that could help. What is on its
//! way out already is waited for first, whoever it was given up for. Where even all of it would not help, none is touched.

use std::collections::{BTreeMap, BTreeSet};

use vramd_types::{Bytes, DeviceIndex, ExtentId};

use crate::{
    broker::Broker,
    collections::Few,
    command::{Command, Notice},
    event::{PartRef, Tier},
    ledger::{Place, Shortage},
    migration::Cause,
    pool::{Age, Cached, ExtentState},
    tenancy::{Arrival, OpId, TenantId},
};

/// Extents that are on their way out of their devices, and the operations that wait for them.
#[derive(Debug, Default)]
pub(crate) struct AwaitedRoom {
    going: BTreeMap<ExtentId, Going>,
    left: BTreeMap<OpId, usize>,
}

#[derive(Debug)]
struct Going {
    was: Piece,
    waiting: Few<OpId>,
}

/// Bytes of a tenant on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) tenant: TenantId,
    pub(crate) device: DeviceIndex,
    pub(crate) size: Bytes,
}

/// What somebody who waits needs on a device.
#[derive(Clone, Debug)]
pub(crate) struct Need {
    pub(crate) piece: Piece,
    /// Parts of pin calls that came before are left alone.
    pub(crate) arrived: Arrival,
    /// Cached extents that it will have itself.
    pub(crate) kept: Vec<Age>,
    /// What it is short of elsewhere, and will be: then nothing is touched for it here.
    pub(crate) hopeless: Option<Shortage>,
}

/// What makes room.
#[derive(Clone, Debug, Default)]
pub(crate) struct Choice {
    /// On their way out already.
    pub(crate) awaited: Vec<ExtentId>,
    pub(crate) given_up: BTreeSet<Age>,
    /// Parts that leave for the tier below, each with when who needs its room came.
    pub(crate) victims: Vec<(PartRef, Arrival)>,
}

impl Choice {
    /// Whether there is nothing to wait for.
    pub(crate) fn is_dropped(&self) -> bool {
        self.awaited.is_empty() && self.given_up.is_empty() && self.victims.is_empty()
    }
}

impl AwaitedRoom {
    /// Something leaves its device.
    pub(crate) fn leaves(&mut self, extent: ExtentId, was: Piece) {
        self.going.entry(extent).or_insert_with(|| Going { was, waiting: Few::default() });
    }

    /// Whether something is on its way out of the device.
    pub(crate) fn is_made_on(&self, device: DeviceIndex) -> bool {
        self.going.values().any(|going| going.was.device == device)
    }

    /// What is on its way out.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (ExtentId, Piece)> {
        self.going.iter().map(|(extent, going)| (*extent, going.was))
    }

    fn expect(&mut self, extent: ExtentId, op: OpId) {
        if let Some(going) = self.going.get_mut(&extent) {
            going.waiting.push(op);
            let left = self.left.entry(op).or_default();
            *left = left.saturating_add(1);
        }
    }

    fn is_expected_by(&self, op: OpId) -> bool {
        self.left.contains_key(&op)
    }

    /// The operations that wait for nothing any more, now that the extent was given back or was not.
    fn returned(&mut self, extent: ExtentId) -> Vec<OpId> {
        let waiting = self.going.remove(&extent).map(|going| going.waiting).unwrap_or_default();
        let mut ready = waiting.to_vec();
        ready.retain(|op| {
            let left = self.left.get(op).map_or(0, |left| left.saturating_sub(1));
            match left {
                0 => self.left.remove(op).is_some(),
                _ => self.left.insert(*op, left).is_none(),
            }
        });
        ready
    }
}

impl Broker {
    /// Whether so many more extents can be made; else which cached ones, of any device, are to be given up for that.
    pub(crate) fn check_count(&self, kept: &BTreeSet<Age>, more: usize) -> Result<(), Vec<Age>> {
        let over = self.pool.len().saturating_add(more).saturating_sub(self.config.limits.extents_max);
        if over == 0 || planted!(self, CountsIgnored) {
            return Ok(());
        }
        let released = |(extent, _): &(ExtentId, Piece)| {
            self.pool.get(*extent).is_some_and(|it| matches!(it.state, ExtentState::Releasing(_)))
        };
        let going = self.awaited_room.iter().filter(released).count();
        let ages = self.pool.cache().iter().map(|(age, _)| age).filter(|age| !kept.contains(age));
        Err(ages.take(over.saturating_sub(going)).collect())
    }

    /// A limit was lowered: what is above it goes, as far as it can.
    pub(crate) fn trim_to_limit(&mut self, tenant: TenantId) {
        for device in self.device_indices() {
            let Some(account) = self.ledger.account(tenant, Place::device(device)) else { continue };
            if account.charged() <= account.limit {
                self.over_limit.remove(&(tenant, device));
                continue;
            }
            // What can't go yet is looked at again whenever something may have changed.
            if self.has_tiers() {
                self.over_limit.insert((tenant, device));
            }
            let choice = self.choose_for_limit(tenant, device);
            self.clear(choice, Cause::Rebalance);
        }
    }

    pub(crate) fn trim_all(&mut self) {
        for (tenant, _) in self.over_limit.clone() {
            self.trim_to_limit(tenant);
        }
    }

    /// Others took memory of the device: what can go makes up for it.
    pub(crate) fn cover_shortfall(&mut self, device: DeviceIndex) {
        let choice = self.choose_for_shortfall(device);
        self.clear(choice, Cause::Rebalance);
    }

    pub(crate) fn piece_of(&self, part: PartRef) -> Option<Piece> {
        let allocation = self.allocations.get(part.allocation)?;
        let (tenant, device) = (allocation.tenant, allocation.device);
        Some(Piece { tenant, device, size: allocation.size_of(part.part) })
    }

    /// Does what was chosen, and says which extents will go.
    pub(crate) fn clear(&mut self, choice: Choice, cause: Cause) -> Vec<ExtentId> {
        let mut going = self.release_cached(choice.given_up);
        if cause == Cause::Demand {
            let parts = choice.awaited.iter().filter_map(|extent| self.pool.get(*extent)?.part);
            for part in parts.filter(|part| self.is_leaving(*part)).collect::<Vec<_>>() {
                self.hasten_migration(part);
            }
        }
        self.hasten(choice.awaited.into_iter().chain(going.iter().copied()));
        for (part, arrived) in choice.victims {
            going.extend(self.evict_for(part, arrived, cause));
        }
        going
    }

    /// Somebody waits for these: those that the driver was told to release it releases now.
    fn hasten(&mut self, extents: impl IntoIterator<Item = ExtentId>) {
        let releasing = extents.into_iter().filter_map(|extent| self.pool.get(extent));
        let releasing = releasing.filter(|extent| matches!(extent.state, ExtentState::Releasing(_)));
        let on_device = releasing.filter(|extent| extent.place.tier == Tier::Device);
        let devices: BTreeSet<_> = on_device.map(|extent| extent.place.device).collect();
        for device in devices {
            self.push_command(Command::ReleaseNow { device });
        }
    }

    /// The driver was told to release them, and takes its time unless somebody waits for room.
    pub(crate) fn hasten_if_waited_for(&mut self, extents: &[ExtentId]) {
        if self.is_room_wanted() || !self.awaited_room.left.is_empty() {
            self.hasten(extents.iter().copied());
        }
    }

    /// Gives cached extents back to the driver.
    pub(crate) fn give_up(&mut self, ages: impl IntoIterator<Item = Age>) {
        let given_up = self.release_cached(ages);
        self.hasten_if_waited_for(&given_up);
    }

    fn release_cached(&mut self, ages: impl IntoIterator<Item = Age>) -> Vec<ExtentId> {
        let mut given_up = Vec::new();
        for age in ages {
            let Some(Cached { extent, tenant, device, size, .. }) = self.pool.release_cached(age) else {
                continue;
            };
            self.awaited_room.leaves(extent, Piece { tenant, device, size });
            self.push_command(Command::ReleaseExtent { extent });
            self.push_notice(Notice::GivenUp { extent, bytes: size });
            given_up.push(extent);
        }
        given_up
    }

    /// Does what was chosen; the operation waits for it.
    pub(crate) fn make_room(&mut self, op: OpId, choice: Choice) {
        let awaited = choice.awaited.clone();
        let going = self.clear(choice, Cause::Rebalance);
        for extent in awaited.into_iter().chain(going) {
            self.awaited_room.expect(extent, op);
        }
        // All of it is over already: left at once, or used after all.
        if !self.awaited_room.is_expected_by(op) {
            self.resume_quota(op);
        }
    }

    /// An extent is out of its device, or stays there: who waited for it may be looked at again.
    pub(crate) fn room_returned(&mut self, extent: ExtentId) {
        self.follow_ups.demands |= self.line.has_out_of_memory();
        let ready = self.awaited_room.returned(extent);
        self.follow_ups.resumed.extend(ready);
    }
}
