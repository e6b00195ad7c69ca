//! Making room on a device: cached extents are the first to go, the oldest first; then parts that nobody uses leave for the
//! tier below, in the order of the policy.
//!
//! Who is short of room, of its own limit or of what is not guaranteed gets no refusal while that could help. What is on its
//! way out already is waited for first, whoever it was given up for. Where even all of it would not help, none is touched.

use std::collections::{BTreeMap, BTreeSet};

use vramd_types::{Bytes, DeviceIndex, ExtentId};

use crate::{
    broker::Broker,
    collections::Few,
    command::{Command, Notice, PartRevocation},
    event::{PartRef, Tier},
    ledger::{Place, Shortage, Spared},
    migration::Cause,
    pool::{Age, Cached, ExtentState},
    residency::AllocationState,
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
    pub(crate) came: Arrival,
    /// Cached extents that it will have itself.
    pub(crate) kept: Vec<Age>,
    /// What it is short of elsewhere, and will be: then nothing is touched for it here.
    pub(crate) hopeless: Option<Shortage>,
}

/// What makes room, and what is not to: cached extents that somebody who waits will have.
#[derive(Clone, Debug, Default)]
pub(crate) struct Choice {
    /// On their way out already.
    pub(crate) awaited: BTreeSet<ExtentId>,
    pub(crate) given_up: BTreeSet<Age>,
    pub(crate) kept: BTreeSet<Age>,
    /// Parts that leave for the tier below, each with when who needs its room came.
    pub(crate) victims: BTreeMap<PartRef, Arrival>,
}

impl Choice {
    /// Whether there is nothing to wait for.
    pub(crate) fn is_nothing(&self) -> bool {
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
    /// Chooses what leaves a device so that those who wait find room, in their order; and says for whom there will be.
    /// Nobody overtakes who finds none, but for what is guaranteed to its tenant.
    pub(crate) fn plan_room(
        &self,
        device: DeviceIndex,
        needs: &[Need],
    ) -> (Choice, Vec<Result<(), Shortage>>) {
        let (mut choice, mut spared) = (Choice::default(), Spared::default());
        let (mut results, mut full) = (Vec::with_capacity(needs.len()), None);
        let mut at_limit: BTreeMap<TenantId, Shortage> = BTreeMap::new();
        for need in needs {
            let need = self.without_given_up(need, &choice);
            let Piece { tenant, size, .. } = need.piece;
            if let Some(shortage) = need.hopeless {
                full = full.or_else(|| Some(shortage).filter(|it| matches!(it, Shortage::Room { .. })));
                results.push(Err(shortage));
                continue;
            }
            let behind = full.filter(|_| !self.is_guaranteed(tenant, device, size));
            // What its tenant waits for keeps it waiting too, and nobody else.
            if let Some(shortage) = at_limit.get(&tenant).copied().or(behind) {
                results.push(Err(shortage));
                continue;
            }
            let (mut more, mut without) = (choice.clone(), spared.clone());
            more.kept.extend(need.kept.iter().copied());
            let result = self.choose_for_need(&mut more, &mut without, &need);
            match result {
                Ok(()) => {
                    (choice, spared) = (more, without);
                    spared.promise(tenant, size);
                }
                Err(shortage @ Shortage::Room { .. }) => full = Some(shortage),
                Err(shortage @ Shortage::Limit { .. }) => _ = at_limit.insert(tenant, shortage),
            }
            results.push(result);
        }
        (choice, results)
    }

    /// What was given up for those who came before is not there to be had.
    fn without_given_up(&self, need: &Need, choice: &Choice) -> Need {
        let (lost, kept): (Vec<Age>, Vec<Age>) =
            need.kept.iter().partition(|age| choice.given_up.contains(age));
        let size = need.piece.size.saturating_add(self.sizes_of(&lost));
        Need { piece: Piece { size, ..need.piece }, kept, ..*need }
    }

    /// Chooses what has to go so that a tenant is admitted to so many bytes more.
    fn choose_for_need(&self, choice: &mut Choice, spared: &mut Spared, need: &Need) -> Result<(), Shortage> {
        let Piece { tenant, device, size } = need.piece;
        let place = Place::device(device);
        let admit = |spared: &Spared| self.ledger.admit_without(tenant, place, size, spared);
        if planted!(self, FullThoughCached) {
            return admit(spared);
        }
        let within_limit = |spared: &Spared| !matches!(admit(spared), Err(Shortage::Limit { .. }));
        let own = |of: TenantId, _: &Spared| of == tenant;
        self.choose(choice, device, spared, (need.came, Some(tenant)), within_limit, own);
        let weighs = |of: TenantId, spared: &Spared| {
            let more = if of == tenant { size } else { Bytes::ZERO };
            self.weighs(of, place, more, spared)
        };
        self.choose(
            choice,
            device,
            spared,
            (need.came, Some(tenant)),
            |spared| admit(spared).is_ok(),
            weighs,
        );
        admit(spared)
    }

    /// Chooses what has to go so that a guarantee is backed; nothing if nothing helps.
    pub(crate) fn choose_for_guarantee(
        &self,
        tenant: TenantId,
        place: Place,
        guarantee: Bytes,
    ) -> Option<Choice> {
        let (mut choice, mut spared) = (Choice::default(), Spared::default());
        let backed =
            |spared: &Spared| self.ledger.unbacked_without(tenant, place, guarantee, spared).is_none();
        let weighs = |of: TenantId, spared: &Spared| {
            let account = self.ledger.account(of, place).unwrap_or_default();
            // What is to be guaranteed less is guaranteed until that is on disk.
            let floor = if of == tenant { guarantee.max(account.guarantee) } else { account.guarantee };
            spared.applied(of, account).held() > floor
        };
        if place.tier == Tier::Device {
            self.choose(&mut choice, place.device, &mut spared, (self.pins.now(), None), backed, weighs);
        }
        backed(&spared).then_some(choice)
    }

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
            if account.held() <= account.limit {
                self.over_limit.remove(&(tenant, device));
                continue;
            }
            // What can't go yet is looked at again whenever something may have changed.
            if self.has_tiers() {
                self.over_limit.insert((tenant, device));
            }
            let (mut choice, mut spared) = (Choice::default(), Spared::default());
            let within = |spared: &Spared| spared.applied(tenant, account).held() <= account.limit;
            let own = |of: TenantId, _: &Spared| of == tenant;
            self.choose(&mut choice, device, &mut spared, (self.pins.now(), Some(tenant)), within, own);
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
        let place = Place::device(device);
        let Some(books) = self.ledger.books(place) else { return };
        let (mut choice, mut spared) = (Choice::default(), Spared::default());
        let weighs = |of: TenantId, spared: &Spared| self.weighs(of, place, Bytes::ZERO, spared);
        let covered = |spared: &Spared| books.shortfall_without(spared).is_zero();
        self.choose(&mut choice, device, &mut spared, (self.pins.now(), None), covered, weighs);
        self.clear(choice, Cause::Rebalance);
    }

    /// Adds what helps, until it is enough: what is going anyhow, then the oldest cached extents, then parts by policy. When
    /// who needs it came, and which tenant that is.
    fn choose(
        &self,
        choice: &mut Choice,
        device: DeviceIndex,
        spared: &mut Spared,
        (came, needing): (Arrival, Option<TenantId>),
        enough: impl Fn(&Spared) -> bool,
        helps: impl Fn(TenantId, &Spared) -> bool,
    ) {
        for (extent, Going { was, .. }) in &self.awaited_room.going {
            if enough(spared) {
                return;
            }
            if was.device == device && !choice.awaited.contains(extent) && helps(was.tenant, spared) {
                spared.add(was.tenant, was.size);
                choice.awaited.insert(*extent);
            }
        }
        for (age, entry) in self.pool.cache().iter() {
            if enough(spared) {
                return;
            }
            let taken = choice.kept.contains(&age) || choice.given_up.contains(&age);
            if entry.device == device && !taken && helps(entry.tenant, spared) {
                spared.add(entry.tenant, entry.size);
                choice.given_up.insert(age);
            }
        }
        for part in self.residents.order(device) {
            if enough(spared) {
                return;
            }
            let Some(piece) = self.piece_of(part).filter(|_| !choice.victims.contains_key(&part)) else {
                continue;
            };
            let own = needing == Some(piece.tenant);
            if helps(piece.tenant, spared)
                && (own || self.is_above_guarantee(piece, choice, spared))
                && self.may_leave(part, came)
            {
                spared.add(piece.tenant, piece.size);
                choice.victims.insert(part, came);
            }
        }
    }

    /// Whether a tenant has more than its guarantee there without all that leaves: what is only promised to it is not there.
    fn is_above_guarantee(&self, piece: Piece, choice: &Choice, spared: &Spared) -> bool {
        let Piece { tenant, device, .. } = piece;
        let account = self.ledger.account(tenant, Place::device(device)).unwrap_or_default();
        let also = |(extent, was): &(ExtentId, Piece)| {
            (was.tenant, was.device) == (tenant, device) && !choice.awaited.contains(extent)
        };
        let leaving = self.awaited_room.iter().filter(also).map(|(_, was)| was.size);
        let leaving = leaving.fold(spared.less_of(tenant), Bytes::saturating_add);
        let floor = if planted!(self, EvictedBelowGuarantee) { Bytes::ZERO } else { account.guarantee };
        account.held().saturating_sub(leaving) > floor
    }

    /// Whether a part that could leave is used by nobody, as far as is known, that came before.
    fn may_leave(&self, part: PartRef, came: Arrival) -> bool {
        let state = self.allocations.get(part.allocation).map(|allocation| allocation.state);
        matches!(state, Some(AllocationState::Open | AllocationState::Sealed))
            && !self.migrations.contains_key(&part)
            && !self.revocations.contains_key(&part)
            && self.backings.contains(&part)
            // It may just have come for who has not been sent it yet: if it left again at once, this could go on for ever.
            && self.pins.lacking(part).next().is_none()
            && (!self.held_by_hand.contains(&part) || planted!(self, EvictedThoughHeld))
            && matches!(self.cannot_begin(part, false, came), None | Some(PartRevocation::Revoked))
    }

    pub(crate) fn piece_of(&self, part: PartRef) -> Option<Piece> {
        let allocation = self.allocations.get(part.allocation)?;
        let (tenant, device) = (allocation.tenant, allocation.device);
        Some(Piece { tenant, device, size: allocation.size_of(part.part) })
    }

    /// Whether less would be committed with less of what the tenant has there: what is guaranteed stays committed.
    fn weighs(&self, tenant: TenantId, place: Place, more: Bytes, spared: &Spared) -> bool {
        let account = self.ledger.account(tenant, place).unwrap_or_default();
        let floor = if planted!(self, EvictedBelowGuarantee) { Bytes::ZERO } else { account.guarantee };
        spared.applied(tenant, account).held().saturating_add(more) > floor
    }

    /// Does what was chosen, and says which extents will go.
    pub(crate) fn clear(&mut self, choice: Choice, cause: Cause) -> Vec<ExtentId> {
        let mut going = self.release_cached(choice.given_up);
        self.hasten(choice.awaited.into_iter().chain(going.iter().copied()));
        for (part, came) in choice.victims {
            going.extend(self.evict_for(part, came, cause));
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
            self.command(Command::ReleaseNow { device });
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
            let Some(Cached { extent, tenant, device, size, .. }) = self.pool.give_up(age) else { continue };
            self.awaited_room.leaves(extent, Piece { tenant, device, size });
            self.command(Command::ReleaseExtent { extent });
            self.notice(Notice::GivenUp { extent, bytes: size });
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
        let ready = self.awaited_room.returned(extent);
        self.unsettled.resumed.extend(ready);
    }
}
