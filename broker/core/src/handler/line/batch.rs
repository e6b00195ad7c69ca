//! Batches of allocations that find no room at once: they stand in the line of those who wait for room.
//!
//! One that is not to wait stays there only while room is being made for it; any other is refused when its time is over.

use std::collections::{BTreeMap, BTreeSet};

use vramd_types::{Bytes, SessionId};

use crate::{
    broker::Broker,
    command::{Notice, WaitEnd},
    error::Refusal,
    event::Tier,
    handler::{
        Started, Timer,
        allocation::admission::Plan,
        line::make_room::{Need, Piece},
    },
    ledger::{Place, PlaceBalances, Shortage},
    migration::{LineEntry, Position, Waiter},
    pool::Age,
    tenancy::{Arrival, OpId, OpKind, Requester, Session, TenantId},
    time::Time,
};

/// What a batch asks for, when it came and how long it waits.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) plans: Vec<Plan>,
    pub(crate) arrived: Arrival,
    pub(crate) until: Time,
    /// How often the driver had no memory for it.
    pub(crate) tries: u32,
}

/// A batch that waits.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) asked: Asked,
    /// What it was short of when it was looked at last.
    pub(crate) why: Refusal,
}

/// What a batch is short of.
#[derive(Debug)]
pub(crate) enum Lack {
    Bytes {
        place: Place,
        shortage: Shortage,
        /// With what is cached for it, which is its own.
        asked: Bytes,
    },
    /// There are too many; these are to be given up.
    Extents(Vec<Age>),
}

impl Batch {
    pub(crate) const fn new(asked: Asked, why: Refusal) -> Self {
        Self { asked, why }
    }
}

impl Broker {
    /// The batch goes to the line, behind all that came before it.
    pub(crate) fn line_up(&mut self, op: OpId, tenant: TenantId, batch: Batch) -> Started {
        let place = Position { arrived: batch.asked.arrived, entered: self.pins.next_arrival() };
        // Also where it may begin below: that is found out each time.
        let devices: BTreeSet<_> = batch.asked.plans.iter().map(|plan| plan.device).collect();
        let devices = devices.into_iter().collect();
        self.line.enter(place, LineEntry { waiter: Waiter::Batch(op), since: self.now, tenant, devices });
        if batch.asked.until > self.now {
            self.arm(batch.asked.until, Timer::Wait(op));
        }
        self.follow_ups.demands = true;
        Started::Waiting(OpKind::BatchWait(Box::new(batch)))
    }

    /// Whether there can ever be as much as the batch asks.
    pub(crate) fn could_ever(&self, tenant: TenantId, lack: &Lack) -> bool {
        let Lack::Bytes { place, asked, .. } = lack else { return true };
        let limit = self.ledger.account(tenant, *place).is_some_and(|account| *asked <= account.limit);
        let of_tenant = BTreeMap::from([(tenant, *asked)]);
        let fits = |balances: &PlaceBalances| {
            *asked <= balances.max_available_to(&of_tenant) || planted!(self, GuaranteeAwaited)
        };
        // Below devices nothing makes room.
        limit && self.ledger.balances(*place).is_some_and(fits) && place.tier == Tier::Device
    }

    pub(crate) fn why_lacking(&self, tenant: TenantId, lack: &Lack) -> Refusal {
        match lack {
            Lack::Bytes { place, shortage, asked, .. } => self.shortage(tenant, *place, *shortage, *asked),
            Lack::Extents(_) => {
                let tenant = self.tenants.name(tenant).to_owned();
                Refusal::AllocationsTooMany { tenant, limit: self.config.limits.extents_max }
            }
        }
    }

    /// Why the batch is not served at once though there would be room: others wait for what it would take.
    pub(crate) fn why_behind(&self, tenant: TenantId, plans: &[Plan]) -> Option<Refusal> {
        if self.line.is_empty() || planted!(self, BatchOvertakes) {
            return None;
        }
        let overtakes = |(place, asked, _): &(Place, Bytes, Vec<Age>)| {
            place.tier == Tier::Device
                && self.is_waited_for(place.device)
                && !self.is_guaranteed(tenant, place.device, *asked)
        };
        let (place, asked, _) = self.asked_by_place(tenant, plans).into_iter().find(overtakes)?;
        Some(self.shortage(tenant, place, Shortage::Room { free: Bytes::ZERO }, asked))
    }

    /// Tries a batch of the line. `Err`: where it is short, and of what.
    pub(crate) fn try_batch(&mut self, op: OpId) -> Result<(), Shortage> {
        let Some((session, tenant, batch)) = self.batch_of(op) else {
            self.leave_line(Waiter::Batch(op), WaitEnd::Left);
            return Ok(());
        };
        let (plans, arrived, until, tries) = (
            std::mem::take(&mut batch.asked.plans),
            batch.asked.arrived,
            batch.asked.until,
            batch.asked.tries,
        );
        let connected = self.sessions.get(session).is_some_and(Session::is_connected);
        let checked = match connected {
            true => self.check_plans(session, tenant, &plans),
            false => Err(Refusal::SessionLost { session }),
        };
        if let Err(refusal) = checked {
            self.refuse_batch(op, refusal);
            return Ok(());
        }
        if self.line.is_suspended(Waiter::Batch(op)) {
            if let Some((_, _, batch)) = self.batch_of(op) {
                batch.asked.plans = plans;
            }
            return Err(Shortage::Room { free: Bytes::ZERO });
        }
        if let Err(lack) = self.check_room(tenant, &plans) {
            let why = self.why_lacking(tenant, &lack);
            if let Some((_, _, batch)) = self.batch_of(op) {
                (batch.asked.plans, batch.why) = (plans, why);
            }
            return Err(match lack {
                // Below devices nothing makes room.
                Lack::Bytes { place, .. } if place.tier != Tier::Device => {
                    self.give_up_batch(op);
                    return Ok(());
                }
                Lack::Bytes { shortage, .. } => shortage,
                Lack::Extents(ages) => {
                    self.give_up(ages);
                    Shortage::Room { free: Bytes::ZERO }
                }
            });
        }
        self.tried_again(Waiter::Batch(op));
        self.leave_line(Waiter::Batch(op), WaitEnd::Served);
        self.push_notice(Notice::RoomMade { tenant: Some(self.tenants.name(tenant).to_owned()) });
        // What is cached may have been counted upon by several.
        self.unsettle_overtaken();
        match self.make_all(op, session, tenant, Asked { plans, arrived, until, tries }) {
            Ok(kind) => {
                if let Some(op) = self.ops.get_mut(op) {
                    op.kind = kind;
                }
                self.check_op(op);
            }
            Err(refusal) => self.finish(op, Err(refusal)),
        }
        Ok(())
    }

    /// What a batch of the line needs on each device.
    pub(crate) fn needs_of(&self, op: OpId, arrived: Arrival) -> Vec<Need> {
        let Some((tenant, batch)) = self.waiting(op) else { return Vec::new() };
        let asked = self.asked_by_place(tenant, &batch.asked.plans).into_iter();
        let on_device = asked.filter(|(place, ..)| place.tier == Tier::Device);
        let need = |(place, asked, kept): (Place, Bytes, Vec<Age>)| {
            let size = asked.saturating_sub(self.sizes_of(&kept));
            Need { piece: Piece { tenant, device: place.device, size }, arrived, kept, hopeless: None }
        };
        on_device.map(need).collect()
    }

    /// There is no room for it, and none is being made; or its time is over.
    pub(crate) fn lacks_room(&mut self, op: OpId) {
        let now = self.now;
        if self.batch_of(op).is_some_and(|(_, _, batch)| batch.asked.until <= now) {
            self.give_up_batch(op);
        }
    }

    /// What it asks for can never be there.
    pub(crate) fn refuse_hopeless_batch(&mut self, op: OpId) {
        let Some((tenant, batch)) = self.waiting(op) else { return };
        let lack = self.check_room(tenant, &batch.asked.plans).err();
        if let Some(lack) = lack.filter(|lack| !self.could_ever(tenant, lack)) {
            let why = self.why_lacking(tenant, &lack);
            self.refuse_batch(op, why);
        }
    }

    /// What of it begins below its devices finds no room there, and nothing makes any.
    pub(crate) fn refuse_without_room_below(&mut self, op: OpId) {
        let Some((tenant, batch)) = self.waiting(op) else { return };
        let asked = self.asked_by_place(tenant, &batch.asked.plans).into_iter();
        let mut below = asked.filter(|(place, ..)| place.tier != Tier::Device);
        let lack = below.find_map(|(place, asked, _)| {
            let shortage = self.ledger.admit(tenant, place, asked).err()?;
            Some(self.shortage(tenant, place, shortage, asked))
        });
        if let Some(why) = lack {
            self.refuse_batch(op, why);
        }
    }

    fn give_up_batch(&mut self, op: OpId) {
        let Some((_, tenant, batch)) = self.batch_of(op) else { return };
        let (plans, why) = (std::mem::take(&mut batch.asked.plans), batch.why.clone());
        // As it is now; but what was undone of its own, since the driver had no memory, is not back yet.
        let ran_out = self.line.out_of_memory_device(Waiter::Batch(op)).is_some();
        let lack = self.check_room(tenant, &plans).err().filter(|_| !ran_out);
        self.refuse_batch(op, lack.map_or(why, |lack| self.why_lacking(tenant, &lack)));
    }

    pub(crate) fn refuse_batch(&mut self, op: OpId, why: Refusal) {
        self.leave_line(Waiter::Batch(op), WaitEnd::Refused);
        self.finish(op, Err(why));
        self.follow_ups.demands = true;
    }

    /// A batch that waits, and whose it is.
    pub(crate) fn waiting(&self, op: OpId) -> Option<(TenantId, &Batch)> {
        let waiting = self.ops.get(op)?;
        match (waiting.requester, &waiting.kind) {
            (Requester::Session { tenant, .. }, OpKind::BatchWait(batch)) => Some((tenant, batch)),
            _ => None,
        }
    }

    pub(crate) fn batch_of(&mut self, op: OpId) -> Option<(SessionId, TenantId, &mut Batch)> {
        let waiting = self.ops.get_mut(op)?;
        match (waiting.requester, &mut waiting.kind) {
            (Requester::Session { session, tenant }, OpKind::BatchWait(batch)) => {
                Some((session, tenant, batch))
            }
            _ => None,
        }
    }
}
