//! Batches of allocations that find no room at once. They wait in the line (see `line/scan.rs` for its scan).
//!
//! A batch without a wait time stays in the line only while the daemon makes room for it. Any other is refused
//! when its time is over.

use std::collections::{BTreeMap, BTreeSet};

use vramd_types::{Bytes, SessionId};

use crate::{
    broker::Broker,
    command::{Notice, WaitEnd},
    error::Refusal,
    event::Tier,
    follow_up::Fact,
    handler::{Started, Timer, allocation::admission::AllocationPlan},
    ledger::{Place, PlaceBalances, Shortage},
    line::{Footprint, LineEntry, Need, Position, Waiter},
    pool::Age,
    tenancy::{Arrival, OpId, OpKind, Requester, Session, TenantId},
    time::Time,
};

/// The request of a batch, its arrival, and how long it waits.
#[derive(Debug)]
pub(crate) struct BatchRequest {
    pub(crate) plans: Vec<AllocationPlan>,
    pub(crate) arrived: Arrival,
    pub(crate) until: Time,
    /// How often the driver had no memory for it.
    pub(crate) tries: u32,
}

/// A batch in the line.
#[derive(Debug)]
pub(crate) struct WaitingBatch {
    pub(crate) request: BatchRequest,
    /// Its shortage at the last scan.
    pub(crate) why: Refusal,
}

/// Why a batch cannot start.
#[derive(Debug)]
pub(crate) enum BatchShortage {
    Bytes {
        place: Place,
        shortage: Shortage,
        /// Including the cached extents that the batch would reuse.
        requested: Bytes,
    },
    /// There are too many extents. The daemon has to release these cached ones.
    Extents(Vec<Age>),
}

impl WaitingBatch {
    pub(crate) const fn new(request: BatchRequest, why: Refusal) -> Self {
        Self { request, why }
    }
}

impl Broker {
    /// Adds the batch to the line, behind all that arrived before.
    pub(crate) fn enqueue_batch(&mut self, op: OpId, tenant: TenantId, batch: WaitingBatch) -> Started {
        let position = Position { arrived: batch.request.arrived, entered: self.pins.next_arrival() };
        // This includes devices below which it may begin; each scan decides that anew.
        let devices: BTreeSet<_> = batch.request.plans.iter().map(|plan| plan.device).collect();
        let devices = devices.into_iter().collect();
        self.line
            .enter(position, LineEntry { waiter: Waiter::Batch(op), since: self.shell.now, tenant, devices });
        if batch.request.until > self.shell.now {
            self.arm(batch.request.until, Timer::Wait(op));
        }
        self.follow_ups.push(Fact::BatchEntered);
        Started::Waiting(OpKind::BatchWait(Box::new(batch)))
    }

    /// Whether the places of the batch could ever have as much.
    pub(crate) fn is_ever_possible(&self, tenant: TenantId, missing: &BatchShortage) -> bool {
        let BatchShortage::Bytes { place, requested, .. } = missing else { return true };
        let limit = self.ledger.account(tenant, *place).is_some_and(|account| *requested <= account.limit);
        let of_tenant = BTreeMap::from([(tenant, *requested)]);
        let fits = |balances: &PlaceBalances| *requested <= balances.max_available_to(&of_tenant);
        planted!(self, GuaranteeAwaited => return limit && place.tier == Tier::Device);
        // The daemon makes no room below devices.
        limit && self.ledger.balances(*place).is_some_and(fits) && place.tier == Tier::Device
    }

    pub(crate) fn batch_refusal(&self, tenant: TenantId, missing: &BatchShortage) -> Refusal {
        match missing {
            BatchShortage::Bytes { place, shortage, requested, .. } => {
                self.shortage_refusal(tenant, *place, *shortage, *requested)
            }
            BatchShortage::Extents(_) => {
                let tenant = self.tenants.name(tenant).to_owned();
                Refusal::AllocationsTooMany { tenant, limit: self.config.limits.extents_max }
            }
        }
    }

    /// Why the batch does not start at once though it fits: others wait for the room that it would take.
    pub(crate) fn refusal_behind_others(
        &self,
        tenant: TenantId,
        plans: &[AllocationPlan],
    ) -> Option<Refusal> {
        planted!(self, BatchOvertakes => return None);
        if self.line.is_empty() {
            return None;
        }
        let overtakes = |(place, requested, _): &(Place, Bytes, Vec<Age>)| {
            place.tier == Tier::Device
                && self.has_waiters_on(place.device)
                && !self.is_within_guarantee(tenant, place.device, *requested)
        };
        let (place, requested, _) = self.requested_by_place(tenant, plans).into_iter().find(overtakes)?;
        Some(self.shortage_refusal(tenant, place, Shortage::Room { free: Bytes::ZERO }, requested))
    }

    /// Starts a batch of the line if it fits. `Err` says where it is short.
    pub(crate) fn try_batch(&mut self, op: OpId) -> Result<(), Shortage> {
        let Some((session, tenant, batch)) = self.waiting_batch_mut(op) else {
            self.leave_line(Waiter::Batch(op), WaitEnd::Left);
            return Ok(());
        };
        let (plans, arrived, until, tries) = (
            std::mem::take(&mut batch.request.plans),
            batch.request.arrived,
            batch.request.until,
            batch.request.tries,
        );
        let connected = self.sessions.get(session).is_some_and(Session::is_connected);
        let checked = match connected {
            true => self.recheck_plans(session, tenant, &plans),
            false => Err(Refusal::SessionLost { session }),
        };
        if let Err(refusal) = checked {
            self.refuse_batch(op, refusal);
            return Ok(());
        }
        if self.line.is_suspended(Waiter::Batch(op)) {
            if let Some((_, _, batch)) = self.waiting_batch_mut(op) {
                batch.request.plans = plans;
            }
            return Err(Shortage::Room { free: Bytes::ZERO });
        }
        if let Err(missing) = self.check_batch_room(tenant, &plans) {
            let why = self.batch_refusal(tenant, &missing);
            if let Some((_, _, batch)) = self.waiting_batch_mut(op) {
                (batch.request.plans, batch.why) = (plans, why);
            }
            return Err(match missing {
                // Below devices nothing makes room.
                BatchShortage::Bytes { place, .. } if place.tier != Tier::Device => {
                    self.refuse_short_batch(op);
                    return Ok(());
                }
                BatchShortage::Bytes { shortage, .. } => shortage,
                BatchShortage::Extents(ages) => {
                    self.release_cached(ages);
                    Shortage::Room { free: Bytes::ZERO }
                }
            });
        }
        self.note_retry(Waiter::Batch(op));
        self.leave_line(Waiter::Batch(op), WaitEnd::Served);
        self.push_notice(Notice::RoomMade { tenant: Some(self.tenants.name(tenant).to_owned()) });
        // Several waiters may have counted on the cached extents.
        self.push_if_waiters(Fact::RoomTaken);
        match self.create_batch(op, session, tenant, BatchRequest { plans, arrived, until, tries }) {
            Ok(kind) => {
                if let Some(op) = self.requests.ops.get_mut(op) {
                    op.kind = kind;
                }
                self.finish_if_complete(op);
            }
            Err(refusal) => self.finish(op, Err(refusal)),
        }
        Ok(())
    }

    /// The room that a batch of the line needs on each device.
    pub(crate) fn batch_needs(&self, op: OpId, arrived: Arrival) -> Vec<Need> {
        let Some((tenant, batch)) = self.waiting_batch(op) else { return Vec::new() };
        let requested = self.requested_by_place(tenant, &batch.request.plans).into_iter();
        let on_device = requested.filter(|(place, ..)| place.tier == Tier::Device);
        let need = |(place, requested, cached): (Place, Bytes, Vec<Age>)| {
            let size = requested.saturating_sub(self.cached_sizes(&cached));
            Need {
                footprint: Footprint { tenant, device: place.device, size },
                arrived,
                own_cached: cached,
                hopeless: None,
            }
        };
        on_device.map(need).collect()
    }

    /// Refuses the batch if its time is over.
    pub(crate) fn expire_batch(&mut self, op: OpId) {
        let now = self.shell.now;
        if self.waiting_batch_mut(op).is_some_and(|(_, _, batch)| batch.request.until <= now) {
            self.refuse_short_batch(op);
        }
    }

    /// Refuses the batch if no wait can meet it.
    pub(crate) fn refuse_impossible_batch(&mut self, op: OpId) {
        let Some((tenant, batch)) = self.waiting_batch(op) else { return };
        let missing = self.check_batch_room(tenant, &batch.request.plans).err();
        if let Some(missing) = missing.filter(|missing| !self.is_ever_possible(tenant, missing)) {
            let why = self.batch_refusal(tenant, &missing);
            self.refuse_batch(op, why);
        }
    }

    /// Refuses the batch if its parts that begin below devices find no room there: the daemon makes none.
    pub(crate) fn refuse_without_room_below(&mut self, op: OpId) {
        let Some((tenant, batch)) = self.waiting_batch(op) else { return };
        let requested = self.requested_by_place(tenant, &batch.request.plans).into_iter();
        let mut below = requested.filter(|(place, ..)| place.tier != Tier::Device);
        let missing = below.find_map(|(place, requested, _)| {
            let shortage = self.ledger.admit(tenant, place, requested).err()?;
            Some(self.shortage_refusal(tenant, place, shortage, requested))
        });
        if let Some(why) = missing {
            self.refuse_batch(op, why);
        }
    }

    fn refuse_short_batch(&mut self, op: OpId) {
        let Some((_, tenant, batch)) = self.waiting_batch_mut(op) else { return };
        let (plans, why) = (std::mem::take(&mut batch.request.plans), batch.why.clone());
        // The reason is the present shortage. After the driver ran out, the memory of the undone batch is not
        // back yet, so its first reason stays.
        let ran_out = self.line.out_of_memory_device(Waiter::Batch(op)).is_some();
        let missing = self.check_batch_room(tenant, &plans).err().filter(|_| !ran_out);
        self.refuse_batch(op, missing.map_or(why, |missing| self.batch_refusal(tenant, &missing)));
    }

    pub(crate) fn refuse_batch(&mut self, op: OpId, why: Refusal) {
        self.leave_line(Waiter::Batch(op), WaitEnd::Refused);
        self.finish(op, Err(why));
        self.follow_ups.push(Fact::BatchRefused);
    }

    /// A batch of the line, with its tenant.
    pub(crate) fn waiting_batch(&self, op: OpId) -> Option<(TenantId, &WaitingBatch)> {
        let waiting = self.requests.ops.get(op)?;
        match (waiting.requester, &waiting.kind) {
            (Requester::Session { tenant, .. }, OpKind::BatchWait(batch)) => Some((tenant, batch)),
            _ => None,
        }
    }

    pub(crate) fn waiting_batch_mut(&mut self, op: OpId) -> Option<(SessionId, TenantId, &mut WaitingBatch)> {
        let waiting = self.requests.ops.get_mut(op)?;
        match (waiting.requester, &mut waiting.kind) {
            (Requester::Session { session, tenant }, OpKind::BatchWait(batch)) => {
                Some((session, tenant, batch))
            }
            _ => None,
        }
    }
}
