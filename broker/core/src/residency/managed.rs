//! Managed memory: a client allocates it in its own process, so the daemon has nothing of it but the charge, and what it
//! ordered.
//!
//! An allocation of this kind has no parts and no extents. Its charge says what its session may have on the device;
//! which of its pages lie there, only the driver of the client's process knows. The daemon orders them to the device or
//! to the host, and the client executes that. Of one session and device one batch of orders is under way at a time. An
//! allocation has at most one order in it, and one that waits behind it: so a client that never answers costs no more
//! than it has allocations.

use std::collections::{BTreeMap, BTreeSet};

use vramd_types::{AllocationId, Bytes, DeviceIndex, SessionId};

use crate::{
    command::ManagedOrder,
    event::Tier,
    ledger::{Charge, Place},
    limits::MANAGED_ORDERS_PER_FRAME_MAX,
    tenancy::TenantId,
    view::ManagedView,
};

/// The managed allocations of all sessions.
#[derive(Debug, Default)]
pub(crate) struct ManagedMemory {
    rows: BTreeMap<AllocationId, Row>,
    /// Sums of the rows. There is no entry for zero.
    sums: BTreeMap<(Place, TenantId), ManagedSums>,
    /// Orders that wait to be sent.
    queued: BTreeSet<(SessionId, DeviceIndex, AllocationId)>,
    under_way: BTreeMap<(SessionId, DeviceIndex), Batch>,
    last_batch: u64,
}

#[derive(Debug)]
struct Row {
    session: SessionId,
    charge: Charge,
    /// Where the last executed order sent it. `None`: the driver decides.
    ordered: Option<Tier>,
    queued: Option<Tier>,
    sent: Option<Tier>,
}

/// The orders of one frame.
#[derive(Debug)]
struct Batch {
    number: u64,
    allocations: BTreeSet<AllocationId>,
}

/// The managed memory of a tenant in a place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ManagedSums {
    pub(crate) charged: Bytes,
    /// The part of it that was ordered to the device.
    pub(crate) on_device: Bytes,
    /// The part of it that was ordered to the host, and not back since.
    pub(crate) on_host: Bytes,
}

/// An order that its client has answered.
#[derive(Debug)]
pub(crate) struct EndedOrder {
    pub(crate) allocation: AllocationId,
    pub(crate) to: Tier,
    pub(crate) problem: Option<String>,
}

impl Row {
    /// Where its pages lie as far as orders say. An order away from the host counts from the moment at which it is given,
    /// and an order to the host once it is executed: so what is not on the host may be on the device.
    fn place(&self) -> Option<Tier> {
        let is_called_back = [self.queued, self.sent].contains(&Some(Tier::Device));
        self.ordered.filter(|tier| *tier == Tier::Device || !is_called_back)
    }

    fn sums(&self) -> ManagedSums {
        let charged = self.charge.bytes();
        let within = |tier| if self.place() == Some(tier) { charged } else { Bytes::ZERO };
        ManagedSums { charged, on_device: within(Tier::Device), on_host: within(Tier::Host) }
    }

    const fn key(&self) -> (Place, TenantId) {
        (self.charge.place(), self.charge.tenant())
    }
}

impl ManagedSums {
    fn with(self, other: Self, change: impl Fn(Bytes, Bytes) -> Bytes) -> Self {
        Self {
            charged: change(self.charged, other.charged),
            on_device: change(self.on_device, other.on_device),
            on_host: change(self.on_host, other.on_host),
        }
    }
}

impl ManagedMemory {
    pub(crate) fn insert(&mut self, id: AllocationId, session: SessionId, charge: Charge) {
        let row = Row { session, charge, ordered: None, queued: None, sent: None };
        self.add(&row);
        self.rows.insert(id, row);
    }

    /// Forgets an allocation and its orders, and gives up the charge for the ledger to discharge.
    pub(crate) fn take(&mut self, id: AllocationId) -> Option<Charge> {
        let row = self.rows.remove(&id)?;
        self.subtract(&row);
        self.queued.remove(&(row.session, row.charge.place().device, id));
        Some(row.charge)
    }

    /// Orders it there. An order that waits is replaced. None is added to one that is under way to the same place.
    pub(crate) fn order(&mut self, id: AllocationId, to: Tier) {
        self.change(id, |row| row.queued = (row.sent != Some(to)).then_some(to));
        let Some(row) = self.rows.get(&id) else { return };
        let key = (row.session, row.charge.place().device, id);
        match row.queued {
            Some(_) => self.queued.insert(key),
            None => self.queued.remove(&key),
        };
    }

    /// Takes the orders of a session and device that wait, for one frame: its number and the orders. `None` if there are
    /// none, or the client has not answered the last ones.
    pub(crate) fn next_batch(
        &mut self,
        session: SessionId,
        device: DeviceIndex,
    ) -> Option<(u64, Vec<ManagedOrder>)> {
        let key = (session, device);
        if self.under_way.contains_key(&key) {
            return None;
        }
        let first = (session, device, AllocationId::from_raw(0));
        let waiting = self.queued.range(first..).take_while(|of| (of.0, of.1) == key);
        let allocations: BTreeSet<_> = waiting.map(|of| of.2).take(MANAGED_ORDERS_PER_FRAME_MAX).collect();
        let mut orders = Vec::with_capacity(allocations.len());
        for allocation in allocations.iter().copied() {
            self.queued.remove(&(session, device, allocation));
            self.change(allocation, |row| row.sent = row.queued.take());
            let to = self.rows.get(&allocation).and_then(|row| row.sent);
            orders.extend(to.map(|to| ManagedOrder { allocation, to }));
        }
        if orders.is_empty() {
            return None;
        }
        self.last_batch = self.last_batch.saturating_add(1);
        self.under_way.insert(key, Batch { number: self.last_batch, allocations });
        Some((self.last_batch, orders))
    }

    /// Ends a batch that the session has executed, except the orders that failed. Memory that was freed meanwhile has no
    /// order any longer. Returns the device, and the orders that have ended.
    pub(crate) fn end_batch(
        &mut self,
        session: SessionId,
        number: u64,
        failed: Vec<(AllocationId, String)>,
    ) -> Result<(DeviceIndex, Vec<EndedOrder>), String> {
        let mut of_session =
            self.under_way.range((session, DeviceIndex(0))..=(session, DeviceIndex(u16::MAX)));
        let found = of_session.find(|(_, batch)| batch.number == number).map(|(key, _)| *key);
        let unknown = || format!("managed orders {number} are answered, and are not under way");
        let (key, batch) =
            found.and_then(|key| Some((key, self.under_way.remove(&key)?))).ok_or_else(unknown)?;
        let mut problems: BTreeMap<_, _> = failed.into_iter().collect();
        if let Some(id) = problems.keys().find(|id| !batch.allocations.contains(id)) {
            return Err(format!("managed orders {number} have none for {id}"));
        }
        let mut ended = Vec::with_capacity(batch.allocations.len());
        for allocation in batch.allocations {
            let problem = problems.remove(&allocation);
            let is_executed = problem.is_none();
            let Some(to) = self.change(allocation, |row| {
                let to = row.sent.take();
                row.ordered = to.filter(|_| is_executed);
                to
            }) else {
                continue;
            };
            ended.extend(to.map(|to| EndedOrder { allocation, to, problem }));
        }
        Ok((key.1, ended))
    }

    /// Forgets the orders of a session whose channel has ended: no answer follows.
    pub(crate) fn abandon(&mut self, session: SessionId) {
        self.under_way.retain(|(of, _), _| *of != session);
        self.queued.retain(|(of, ..)| *of != session);
        let of_session = self.rows.iter().filter(|(_, row)| row.session == session);
        for id in of_session.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.change(id, |row| {
                row.queued = None;
                if row.sent.take().is_some() {
                    row.ordered = None;
                }
            });
        }
    }

    pub(crate) fn view(&self, id: AllocationId) -> Option<ManagedView> {
        let row = self.rows.get(&id)?;
        Some(ManagedView { ordered: row.place(), under_way: row.queued.or(row.sent) })
    }

    /// The bytes of one allocation; none if it is of another kind.
    pub(crate) fn bytes_of(&self, id: AllocationId) -> Bytes {
        self.rows.get(&id).map_or(Bytes::ZERO, |row| row.charge.bytes())
    }

    /// The sums of a tenant in a place.
    pub(crate) fn sums_of(&self, tenant: TenantId, place: Place) -> ManagedSums {
        self.sums.get(&(place, tenant)).copied().unwrap_or_default()
    }

    /// The sums of all tenants in a place.
    pub(crate) fn sums_in(&self, place: Place) -> ManagedSums {
        let of_place = self.sums.iter().filter(|((of, _), _)| *of == place);
        of_place.fold(ManagedSums::default(), |sum, (_, sums)| sum.with(*sums, Bytes::saturating_add))
    }

    /// The bytes of each tenant in a place.
    pub(crate) fn charged_in(&self, place: Place) -> impl Iterator<Item = (TenantId, Bytes)> {
        let of_place = self.sums.iter().filter(move |((of, _), _)| *of == place);
        of_place.map(|((_, tenant), sums)| (*tenant, sums.charged))
    }

    pub(crate) fn charges(&self) -> impl Iterator<Item = &Charge> {
        self.rows.values().map(|row| &row.charge)
    }

    /// The sums of all rows, recomputed.
    pub(crate) fn recomputed(&self) -> BTreeMap<(Place, TenantId), ManagedSums> {
        self.rows.values().fold(BTreeMap::new(), |mut all: BTreeMap<_, ManagedSums>, row| {
            let sums = all.entry(row.key()).or_default();
            *sums = sums.with(row.sums(), Bytes::saturating_add);
            all
        })
    }

    pub(crate) const fn running_sums(&self) -> &BTreeMap<(Place, TenantId), ManagedSums> {
        &self.sums
    }

    /// Takes an order as executed, for planted bugs.
    #[cfg(feature = "planted")]
    pub(crate) fn set_ordered(&mut self, id: AllocationId, to: Tier) {
        self.change(id, |row| row.ordered = Some(to));
    }

    /// Changes a row and its share of the sums. Returns what the change returns; `None` if the allocation is gone.
    fn change<T>(&mut self, id: AllocationId, change: impl FnOnce(&mut Row) -> T) -> Option<T> {
        let mut row = self.rows.remove(&id)?;
        self.subtract(&row);
        let outcome = change(&mut row);
        self.add(&row);
        self.rows.insert(id, row);
        Some(outcome)
    }

    fn add(&mut self, row: &Row) {
        let sums = self.sums.entry(row.key()).or_default();
        *sums = sums.with(row.sums(), Bytes::saturating_add);
    }

    fn subtract(&mut self, row: &Row) {
        let Some(sums) = self.sums.get_mut(&row.key()) else { return };
        *sums = sums.with(row.sums(), Bytes::saturating_sub);
        if *sums == ManagedSums::default() {
            self.sums.remove(&row.key());
        }
    }
}
