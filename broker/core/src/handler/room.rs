//! Making room: cached extents are the first to go, the oldest first, whoever needs it.
//!
//! Who is short of room, of its own limit or of what is not guaranteed gets no refusal while giving up cached extents
//! could help: they are released, the request waits until each was given back or was not, and is looked at again. What
//! is on its way to the driver already is waited for first, whoever it was given up for.
//! Where even all of them would not help, none is touched and the refusal comes at once.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use vramd_types::{Bytes, DeviceIndex, ExtentId};

use super::Started;
use crate::{
    broker::Broker,
    collections::Few,
    command::{Command, Notice},
    error::Refusal,
    event::{AllocationSpec, Tier},
    ledger::{Account, Place, Shortage, Spared},
    pool::{Age, Cached},
    tenancy::{OpId, OpKind, Requester, TenantId},
};

/// Extents that were given up and are not back, and the requests that wait for them.
#[derive(Debug, Default)]
pub(crate) struct AwaitedRoom {
    going: BTreeMap<ExtentId, Going>,
    left: BTreeMap<OpId, usize>,
}

#[derive(Debug)]
struct Going {
    was: Cached,
    waiting: Few<OpId>,
}

/// What makes room for a request, and what is not to: cached extents that it will have itself.
#[derive(Debug, Default)]
pub(crate) struct Choice {
    /// On their way to the driver already.
    pub(crate) awaited: BTreeSet<ExtentId>,
    pub(crate) given_up: BTreeSet<Age>,
    pub(crate) kept: BTreeSet<Age>,
}

impl Choice {
    /// Whether there is nothing to wait for.
    pub(crate) fn is_nothing(&self) -> bool {
        self.awaited.is_empty() && self.given_up.is_empty()
    }

    /// How many extents will be gone.
    pub(crate) fn count(&self) -> usize {
        self.awaited.len().saturating_add(self.given_up.len())
    }
}

impl AwaitedRoom {
    /// How many extents an operation waits for.
    pub(crate) fn left(&self, op: OpId) -> usize {
        self.going.values().filter(|going| going.waiting.contains(&op)).count()
    }

    fn expect(&mut self, extent: ExtentId, op: OpId) {
        if let Some(going) = self.going.get_mut(&extent) {
            going.waiting.push(op);
            let left = self.left.entry(op).or_default();
            *left = left.saturating_add(1);
        }
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
    /// Chooses what has to go so that a tenant is admitted to so many bytes more on a device.
    pub(crate) fn choose_for_bytes(
        &self,
        choice: &mut Choice,
        tenant: TenantId,
        device: DeviceIndex,
        asked: Bytes,
    ) -> Result<(), Shortage> {
        let place = Place::device(device);
        let mut spared = Spared::default();
        let admit = |spared: &Spared| self.ledger.admit_without(tenant, place, asked, spared);
        if planted!(self, FullThoughCached) {
            return admit(&spared);
        }
        let within_limit = |spared: &Spared| !matches!(admit(spared), Err(Shortage::Limit { .. }));
        let own = |entry: &Cached, _: &Spared| entry.tenant == tenant;
        self.choose(choice, device, &mut spared, within_limit, own);
        let weighs = |entry: &Cached, spared: &Spared| {
            let more = if entry.tenant == tenant { asked } else { Bytes::ZERO };
            self.weighs(entry.tenant, place, more, spared)
        };
        self.choose(choice, device, &mut spared, |spared| admit(spared).is_ok(), weighs);
        admit(&spared)
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
        let weighs = |entry: &Cached, spared: &Spared| {
            let account = self.ledger.account(entry.tenant, place).unwrap_or_default();
            let floor = if entry.tenant == tenant { guarantee } else { account.guarantee };
            account.without(spared.of(entry.tenant)).held() > floor
        };
        if place.tier == Tier::Device {
            self.choose(&mut choice, place.device, &mut spared, backed, weighs);
        }
        backed(&spared).then_some(choice)
    }

    /// Chooses extents of any device, so that so many more can be made.
    pub(crate) fn choose_for_count(&self, choice: &mut Choice, more: usize) {
        let left =
            |choice: &Choice| self.pool.len().saturating_sub(choice.given_up.len()).saturating_add(more);
        for (age, _) in self.pool.cache().iter() {
            if left(choice) <= self.config.limits.extents_max {
                return;
            }
            if !choice.kept.contains(&age) {
                choice.given_up.insert(age);
            }
        }
    }

    /// A limit was lowered: what is cached above it goes.
    pub(crate) fn trim_to_limit(&mut self, tenant: TenantId) {
        for device in self.device_indices() {
            let Some(account) = self.ledger.account(tenant, Place::device(device)) else { continue };
            let (mut choice, mut spared) = (Choice::default(), Spared::default());
            let within = |spared: &Spared| account.without(spared.of(tenant)).held() <= account.limit;
            self.choose(&mut choice, device, &mut spared, within, |entry, _| entry.tenant == tenant);
            self.give_up(choice.given_up);
        }
    }

    /// Others took memory of the device: what is cached makes up for it.
    pub(crate) fn cover_shortfall(&mut self, device: DeviceIndex) {
        let place = Place::device(device);
        let Some(books) = self.ledger.books(place) else { return };
        let (mut choice, mut spared) = (Choice::default(), Spared::default());
        let weighs = |entry: &Cached, spared: &Spared| self.weighs(entry.tenant, place, Bytes::ZERO, spared);
        let covered = |spared: &Spared| books.shortfall_without(spared).is_zero();
        self.choose(&mut choice, device, &mut spared, covered, weighs);
        self.give_up(choice.given_up);
    }

    /// Adds extents of the device that help, until it is enough: those that are going anyhow, then the oldest.
    fn choose(
        &self,
        choice: &mut Choice,
        device: DeviceIndex,
        spared: &mut Spared,
        enough: impl Fn(&Spared) -> bool,
        helps: impl Fn(&Cached, &Spared) -> bool,
    ) {
        for (extent, Going { was, .. }) in &self.awaited_room.going {
            if enough(spared) {
                return;
            }
            if was.device == device && !choice.awaited.contains(extent) && helps(was, spared) {
                spared.add(was.tenant, was.size);
                choice.awaited.insert(*extent);
            }
        }
        for (age, entry) in self.pool.cache().iter() {
            if enough(spared) {
                return;
            }
            let taken = choice.kept.contains(&age) || choice.given_up.contains(&age);
            if entry.device == device && !taken && helps(entry, spared) {
                spared.add(entry.tenant, entry.size);
                choice.given_up.insert(age);
            }
        }
    }

    /// Whether less would be committed with less of what the tenant has there: what is guaranteed stays committed.
    fn weighs(&self, tenant: TenantId, place: Place, more: Bytes, spared: &Spared) -> bool {
        let account: Account = self.ledger.account(tenant, place).unwrap_or_default();
        account.without(spared.of(tenant)).held().saturating_add(more) > account.guarantee
    }

    /// Gives cached extents back to the driver.
    pub(crate) fn give_up(&mut self, ages: impl IntoIterator<Item = Age>) -> Vec<ExtentId> {
        let mut given_up = Vec::new();
        for age in ages {
            let Some(was) = self.pool.give_up(age) else { continue };
            let Cached { extent, size, .. } = was;
            self.awaited_room.going.insert(extent, Going { was, waiting: Few::default() });
            self.command(Command::ReleaseExtent { extent });
            self.notice(Notice::GivenUp { extent, bytes: size });
            given_up.push(extent);
        }
        given_up
    }

    /// Does what was chosen; the operation waits for it.
    pub(crate) fn make_room(&mut self, op: OpId, choice: Choice) {
        let given_up = self.give_up(choice.given_up);
        for extent in choice.awaited.into_iter().chain(given_up) {
            self.awaited_room.expect(extent, op);
        }
    }

    /// An extent that was let go was given back, or was not: who waited for it may be looked at again.
    pub(crate) fn room_returned(&mut self, extent: ExtentId) {
        for op in self.awaited_room.returned(extent) {
            self.room_made(op);
        }
    }

    fn room_made(&mut self, op: OpId) {
        let Some(waiting) = self.ops.get_mut(op) else { return };
        let requester = waiting.requester;
        let items = match &mut waiting.kind {
            OpKind::Room { items } => Some(std::mem::take(items)),
            _ => None,
        };
        let tenant = requester.tenant().map(|tenant| self.tenants.name(tenant).to_owned());
        self.notice(Notice::RoomMade { tenant });
        match (items, requester) {
            (Some(items), Requester::Session { session, tenant }) => {
                self.allocate_again(op, session, tenant, items);
            }
            _ => self.resume_quota(op),
        }
    }

    fn allocate_again(
        &mut self,
        op: OpId,
        session: vramd_types::SessionId,
        tenant: TenantId,
        items: Vec<AllocationSpec>,
    ) {
        let connected = self.sessions.get(session).is_some_and(crate::tenancy::Session::is_connected);
        let start = match connected {
            true => self.allocate(op, session, tenant, items, Duration::ZERO),
            false => Err(Refusal::SessionLost { session }),
        };
        match start {
            Ok(Started::Waiting(kind)) => {
                if let Some(op) = self.ops.get_mut(op) {
                    op.kind = kind;
                }
                self.check_op(op);
            }
            Ok(Started::Done(outcome)) => self.finish(op, Ok(outcome)),
            Err(refusal) => self.finish(op, Err(refusal)),
        }
    }
}
