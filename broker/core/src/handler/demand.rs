//! Parts that somebody wants on their device: who pins them, and who attached them while they were elsewhere.
//!
//! What finds no room waits in the order in which it was asked for. Where a device is full nothing that came later is
//! brought there first, but for what is guaranteed to its tenant; a tenant that is at its limit keeps only itself waiting.

use std::collections::{BTreeMap, BTreeSet};

use vramd_types::{AllocationId, Bytes, DeviceIndex, PartIndex, SessionId};

use super::room::{Need, Piece};
use crate::{
    broker::Broker,
    command::{PartMove, WaitEnd},
    error::Refusal,
    event::{PartRef, Tier},
    ledger::{Account, Place, Shortage},
    migration::{Cause, InLine, Waiter},
    residency::MapState,
    tenancy::{Arrival, TenantId},
};

/// For how many of a device's line room is made at once: enough that copies both ways never wait for decisions.
const LOOKAHEAD: usize = 32;

/// One look along the line.
#[derive(Debug, Default)]
struct Pass {
    /// Devices without room.
    full: BTreeSet<DeviceIndex>,
    at_limit: BTreeSet<(TenantId, DeviceIndex)>,
    /// Those that go on waiting, the first of each device.
    waiting: BTreeMap<DeviceIndex, Vec<(Waiter, Need)>>,
}

/// Why nothing was begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lacking {
    Limit,
    Room,
    Extents,
}

impl Lacking {
    const fn of(shortage: &Shortage) -> Self {
        match shortage {
            Shortage::Limit { .. } => Self::Limit,
            Shortage::Room { .. } => Self::Room,
        }
    }
}

impl Pass {
    /// It goes on waiting, and who comes after it with it.
    fn note(&mut self, waiter: Waiter, needs: Vec<Need>, lacking: Option<Lacking>) {
        for need in needs {
            let Piece { tenant, device, .. } = need.piece;
            match lacking {
                Some(Lacking::Limit) => _ = self.at_limit.insert((tenant, device)),
                Some(Lacking::Room | Lacking::Extents) => _ = self.full.insert(device),
                None => {}
            }
            let waiting = self.waiting.entry(device).or_default();
            if waiting.len() < LOOKAHEAD {
                waiting.push((waiter, need));
            }
        }
    }
}

impl Broker {
    /// Whether nobody can be sent the part now: it is in another tier, or on its way.
    pub(crate) fn is_elsewhere(&self, part: PartRef) -> bool {
        match self.migrations.get(&part) {
            Some(migration) => migration.vacated,
            None => self.has_tiers() && self.tier_of(part).is_some_and(|tier| tier != Tier::Device),
        }
    }

    /// Those parts of an allocation that nobody can be sent now.
    pub(crate) fn elsewhere_of(&self, id: AllocationId) -> BTreeSet<PartRef> {
        if !self.has_tiers() {
            return BTreeSet::new();
        }
        let indices = self.allocations.get(id).map(|allocation| allocation.indices());
        let parts = indices.into_iter().flatten().map(|part| PartRef { allocation: id, part });
        parts.filter(|part| self.is_elsewhere(*part)).collect()
    }

    /// Whether parts can be anywhere else than on their devices.
    pub(crate) fn has_tiers(&self) -> bool {
        self.config.devices.iter().any(|device| !device.host.is_zero())
    }

    /// A session is to be sent the part once it is on its device.
    pub(crate) fn comes(&mut self, session: SessionId, part: PartRef) {
        self.comers.entry(part).or_default().insert(session);
        self.want(part);
    }

    /// Somebody wants the part on its device: it comes, or stays if it is about to leave.
    pub(crate) fn want(&mut self, part: PartRef) {
        match self.migrations.get(&part).map(|migration| (migration.towards, migration.cause)) {
            Some((Tier::Device, _)) => {}
            Some((_, Cause::Operator)) => self.stop_migration(part, PartMove::Wanted),
            // Somebody who came before needs the room: it comes back in its turn.
            Some(_) => {}
            None if self.is_elsewhere(part) => {
                self.stand_in_line(part);
                self.demands.step_up(part);
                self.unsettled.demands = true;
            }
            None => {}
        }
    }

    /// The part waits for room, or for better luck.
    pub(crate) fn stand_in_line(&mut self, part: PartRef) {
        let waiter = Waiter::Part(part);
        if !self.demands.contains(waiter) {
            let stood = self.pins.arrive();
            let came = self.pins.first_lacking(part).map_or(stood, |came| came.min(stood));
            self.demands.add(waiter, InLine { came, stood }, self.now);
        }
    }

    /// Whether anybody waits for the part to be on its device.
    pub(crate) fn is_wanted(&self, part: PartRef) -> bool {
        self.pins.lacking(part).next().is_some()
            || self.comers.get(&part).is_some_and(|comers| {
                comers.iter().any(|session| self.map_state(*session, part) == Some(MapState::Away))
            })
    }

    /// Who waits for the part: sessions that pin it, and those that are to be sent it.
    pub(crate) fn wanting(&self, part: PartRef) -> Vec<SessionId> {
        let pinning = self.pins.lacking(part).map(|(_, (session, _))| session);
        let comers = self.comers.get(&part).into_iter().flatten().copied();
        let sessions: BTreeSet<_> = pinning.chain(comers).collect();
        sessions.into_iter().collect()
    }

    /// Begins with what there is room for, in the order in which it was asked for; then has room made for the next.
    pub(crate) fn serve_demands(&mut self) {
        let line = self.serve_line();
        let (mut hopeless, mut choices) = (BTreeMap::new(), Vec::with_capacity(line.len()));
        for (device, waiting) in &line {
            let (waiters, needs): (Vec<_>, Vec<_>) = waiting.iter().cloned().unzip();
            let (choice, results) = self.plan_room(*device, &needs);
            let short = waiters.into_iter().zip(results).filter_map(|(waiter, it)| Some((waiter, it.err()?)));
            hopeless.extend(short);
            choices.push(choice);
        }
        // Nothing leaves one device for a batch that is short on another.
        if line.len() > 1 && !hopeless.is_empty() {
            let told = |(waiter, need)| Need { hopeless: hopeless.get(&waiter).copied(), ..need };
            let again = line.into_iter().map(|(device, waiting)| {
                let needs: Vec<_> = waiting.into_iter().map(told).collect();
                self.plan_room(device, &needs).0
            });
            choices = again.collect();
        }
        for choice in choices {
            self.clear(choice, Cause::Demand);
        }
        for waiter in hopeless.into_keys() {
            if let Waiter::Batch(op) = waiter {
                self.lacks_room(op);
            }
        }
        self.trim_all();
    }

    /// Begins with what there is room for; what is first of the rest is said, by device.
    fn serve_line(&mut self) -> BTreeMap<DeviceIndex, Vec<(Waiter, Need)>> {
        let (mut pass, mut last) = (Pass::default(), None);
        while let Some((place, waiter)) = self.demands.next(last) {
            last = Some(place);
            let enough = |device| {
                let looked_at = pass.waiting.get(&device).is_some_and(|waiting| waiting.len() >= LOOKAHEAD);
                looked_at && !self.has_unmet_guarantee(device)
            };
            if self.device_indices().all(enough) {
                break;
            }
            if !self.is_in_earnest(waiter) {
                self.leave_line(waiter, self.why_not_in_earnest(waiter));
                continue;
            }
            let needs = self.needs(waiter, place.came);
            let stays = needs.iter().any(|need| self.must_wait(&pass, need));
            let begun = if stays { Err(None) } else { self.begin(waiter) };
            match begun {
                Ok(()) => {}
                Err(Some(Lacking::Extents)) => break,
                Err(shortage) => pass.note(waiter, needs, shortage),
            }
        }
        pass.waiting
    }

    /// Whether somebody waits still.
    fn is_in_earnest(&self, waiter: Waiter) -> bool {
        match waiter {
            Waiter::Part(part) => {
                self.is_wanted(part) && !self.migrations.contains_key(&part) && self.is_elsewhere(part)
            }
            Waiter::Batch(_) => true,
        }
    }

    /// What is wanted still is on its way, or there: others saw to that.
    fn why_not_in_earnest(&self, waiter: Waiter) -> WaitEnd {
        match waiter {
            Waiter::Part(part) if self.is_wanted(part) => WaitEnd::Served,
            Waiter::Part(_) | Waiter::Batch(_) => WaitEnd::Left,
        }
    }

    fn needs(&self, waiter: Waiter, came: Arrival) -> Vec<Need> {
        match waiter {
            Waiter::Part(part) if self.demands.is_aside(part) => Vec::new(),
            Waiter::Part(part) => {
                let need = |piece| Need { piece, came, kept: Vec::new(), hopeless: None };
                self.piece_of(part).map(need).into_iter().collect()
            }
            Waiter::Batch(op) => self.needs_of(op, came),
        }
    }

    /// Whether somebody who came before waits for the same.
    fn must_wait(&self, pass: &Pass, need: &Need) -> bool {
        let Piece { tenant, device, size } = need.piece;
        let overtakes = pass.full.contains(&device) && !self.is_guaranteed(tenant, device, size);
        overtakes || pass.at_limit.contains(&(tenant, device))
    }

    /// Begins with one of the line; `Err`: what it is short of.
    fn begin(&mut self, waiter: Waiter) -> Result<(), Option<Lacking>> {
        let part = match waiter {
            Waiter::Batch(op) => {
                return self.try_batch(op).map_err(|shortage| Some(Lacking::of(&shortage)));
            }
            Waiter::Part(part) if self.demands.is_aside(part) => return Ok(()),
            Waiter::Part(part) => part,
        };
        match self.begin_migration(part, Tier::Device, Cause::Demand, None) {
            Ok(()) => {
                self.leave_line(waiter, WaitEnd::Served);
                Ok(())
            }
            Err(Refusal::QuotaLimit { .. }) => Err(Some(Lacking::Limit)),
            Err(Refusal::DeviceFull { .. }) => Err(Some(Lacking::Room)),
            // There are too many extents on all devices together.
            Err(_) => {
                let ages = self.check_count(&BTreeSet::new(), 1).err().unwrap_or_default();
                self.give_up(ages);
                Err(Some(Lacking::Extents))
            }
        }
    }

    /// Whether anybody waits for room on the device.
    pub(crate) fn is_waited_for(&self, device: DeviceIndex) -> bool {
        let needs = self.demands.iter().flat_map(|(place, demand)| self.needs(demand.waiter, place.came));
        let mut devices = needs.map(|need| need.piece.device);
        devices.any(|of| of == device)
    }

    /// Whether a tenant would be within its guarantee with so much more on a device: that is set aside for it, whoever
    /// else waits.
    pub(crate) fn is_guaranteed(&self, tenant: TenantId, device: DeviceIndex, more: Bytes) -> bool {
        let account = self.ledger.account(tenant, Place::device(device));
        account.is_some_and(|account| {
            self.in_use(tenant, device, &account).saturating_add(more) <= account.guarantee
        })
    }

    fn has_unmet_guarantee(&self, device: DeviceIndex) -> bool {
        let books = self.ledger.books(Place::device(device));
        books.is_some_and(|books| {
            books.accounts().any(|(tenant, account)| self.in_use(tenant, device, account) < account.guarantee)
        })
    }

    /// What is cached for the tenant is given up for what it wants itself.
    fn in_use(&self, tenant: TenantId, device: DeviceIndex, account: &Account) -> Bytes {
        account.held().saturating_sub(self.pool.cache().bytes_of(tenant, device))
    }

    /// The session waits for the part no more.
    pub(crate) fn forget_comer(&mut self, session: SessionId, part: PartRef) {
        if let Some(comers) = self.comers.get_mut(&part) {
            comers.remove(&session);
            if comers.is_empty() {
                self.comers.remove(&part);
            }
        }
    }

    /// The part is on its device and stays there: it is sent to those who wait for it.
    pub(crate) fn at_hand(&mut self, part: PartRef) {
        self.leave_line(Waiter::Part(part), WaitEnd::Served);
        for comer in self.comers.remove(&part).unwrap_or_default() {
            if planted!(self, ComerForgotten) {
                continue;
            }
            if self.map_state(comer, part) == Some(MapState::Away) {
                self.bring_back(comer, part);
            }
        }
        self.unsettled.calls.extend(self.pins.lacking(part).collect::<Vec<_>>());
    }

    /// The part can't be brought to its device: who waits for that is told why.
    pub(crate) fn refuse_pins_of(&mut self, part: PartRef, why: &PartMove) {
        let device = self.allocations.get(part.allocation).map(|allocation| allocation.device);
        let refusal = match why {
            PartMove::Refused { refusal } => (**refusal).clone(),
            PartMove::Failed { problem } => Refusal::DriverFailed {
                device: device.map(|device| self.uuid(device).to_owned()).unwrap_or_default(),
                problem: problem.clone(),
            },
            _ => return,
        };
        self.refuse_lacking(part, &refusal);
    }

    /// All calls that lack the part are refused.
    pub(crate) fn refuse_lacking(&mut self, part: PartRef, why: &Refusal) {
        for (_, call) in self.pins.lacking(part).collect::<Vec<_>>() {
            self.refuse_pin(call, why.clone());
        }
    }

    /// Nobody waits for an allocation that is freed.
    pub(crate) fn forget_demands(&mut self, id: AllocationId) {
        let part = |index| PartRef { allocation: id, part: PartIndex(index) };
        let comers: Vec<_> = self.comers.range(part(0)..=part(u32::MAX)).map(|(part, _)| *part).collect();
        for part in comers {
            self.comers.remove(&part);
        }
    }
}
