//! Making room: cached extents are the first to go, the oldest first, whoever needs it.
//!
//! Who is short of room, of its own limit or of what is not guaranteed gets no refusal while giving up cached extents
//! could help: they are released, the request waits until each was given back or was not, and is looked at again.
//! Where even all of them would not help, none is touched and the refusal comes at once.

use std::collections::{BTreeMap, BTreeSet};

use vramd_types::{Bytes, DeviceIndex, ExtentId};

use super::Started;
use crate::{
    broker::Broker,
    command::{Command, Notice},
    error::Refusal,
    event::AllocationSpec,
    ledger::{Account, Place, Shortage, Spared},
    pool::{Age, Cached},
    tenancy::{OpId, OpKind, Requester, TenantId},
};

/// Extents that were given up for a request, and how many of them each request still waits for.
#[derive(Debug, Default)]
pub(crate) struct AwaitedRoom {
    by_extent: BTreeMap<ExtentId, OpId>,
    left: BTreeMap<OpId, usize>,
}

/// Cached extents that are to be given up, and those that are not, since the request itself will have them.
#[derive(Debug, Default)]
pub(crate) struct Choice {
    pub(crate) given_up: BTreeSet<Age>,
    pub(crate) kept: BTreeSet<Age>,
}

impl AwaitedRoom {
    /// How many extents an operation waits for.
    pub(crate) fn left(&self, op: OpId) -> usize {
        self.by_extent.values().filter(|of| **of == op).count()
    }

    fn expect(&mut self, extent: ExtentId, op: OpId) {
        self.by_extent.insert(extent, op);
        let left = self.left.entry(op).or_default();
        *left = left.saturating_add(1);
    }

    /// The operation that waits for nothing any more, now that the extent was given back or was not.
    fn returned(&mut self, extent: ExtentId) -> Option<OpId> {
        let op = self.by_extent.remove(&extent)?;
        let left = self.left.get_mut(&op)?;
        *left = left.saturating_sub(1);
        if *left > 0 {
            return None;
        }
        self.left.remove(&op);
        Some(op)
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
    ) -> Option<BTreeSet<Age>> {
        let (mut choice, mut spared) = (Choice::default(), Spared::default());
        let backed =
            |spared: &Spared| self.ledger.unbacked_without(tenant, place, guarantee, spared).is_none();
        let weighs = |entry: &Cached, spared: &Spared| {
            let account = self.ledger.account(entry.tenant, place).unwrap_or_default();
            let floor = if entry.tenant == tenant { guarantee } else { account.guarantee };
            account.without(spared.of(entry.tenant)).held() > floor
        };
        self.choose(&mut choice, place.device, &mut spared, backed, weighs);
        backed(&spared).then_some(choice.given_up)
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
            self.give_up(choice.given_up, None);
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
        self.give_up(choice.given_up, None);
    }

    /// Adds extents of the device that help, the oldest first, until it is enough.
    fn choose(
        &self,
        choice: &mut Choice,
        device: DeviceIndex,
        spared: &mut Spared,
        enough: impl Fn(&Spared) -> bool,
        helps: impl Fn(&Cached, &Spared) -> bool,
    ) {
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

    /// Gives cached extents back to the driver, for an operation that waits for that, or for nobody.
    pub(crate) fn give_up(&mut self, ages: impl IntoIterator<Item = Age>, op: Option<OpId>) {
        for age in ages {
            let Some(Cached { extent, size, .. }) = self.pool.give_up(age) else { continue };
            if let Some(op) = op {
                self.awaited_room.expect(extent, op);
            }
            self.command(Command::ReleaseExtent { extent });
            self.notice(Notice::GivenUp { extent, bytes: size });
        }
    }

    /// An extent that was let go was given back, or was not: who waited for it may be looked at again.
    pub(crate) fn room_returned(&mut self, extent: ExtentId) {
        let Some(op) = self.awaited_room.returned(extent) else { return };
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
            true => self.allocate(op, session, tenant, items),
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
