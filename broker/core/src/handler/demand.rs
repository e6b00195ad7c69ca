//! Parts that somebody wants on their device: who pins them, and who attached them while they were elsewhere.
//!
//! What finds no room waits in the order in which it was asked for. Where a device is full nothing that came later is
//! brought there first, but for what is guaranteed to its tenant; a tenant that is at its limit keeps only itself waiting.

use std::collections::BTreeSet;

use vramd_types::{AllocationId, Bytes, DeviceIndex, PartIndex, SessionId};

use super::room::Choice;
use crate::{
    broker::Broker,
    command::PartMove,
    error::Refusal,
    event::{PartRef, Tier},
    ledger::{Account, Place, Shortage},
    migration::{Cause, Waiter},
    residency::MapState,
    tenancy::TenantId,
};

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
        match self.migrations.get(&part).map(|migration| migration.towards) {
            Some(Tier::Device) => {}
            Some(_) => self.stop_migration(part, PartMove::Wanted),
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
            let arrival = self.pins.arrive();
            self.demands.add(waiter, arrival, self.now);
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

    /// Begins to bring in what there is room for, in the order in which it was asked for.
    pub(crate) fn serve_demands(&mut self) {
        // Devices without room; of these, such where nobody is below its guarantee; and tenants at their limits.
        let (mut full, mut closed, mut at_limit) = (BTreeSet::new(), 0, BTreeSet::new());
        let mut last = None;
        while let Some((arrival, waiter)) = self.demands.next(last)
            && closed < self.config.devices.len()
        {
            last = Some(arrival);
            let Waiter::Part(part) = waiter else { continue };
            if !self.is_wanted(part) || self.migrations.contains_key(&part) || !self.is_elsewhere(part) {
                self.demands.remove(waiter);
                continue;
            }
            let Some(allocation) = self.allocations.get(part.allocation) else { continue };
            let (tenant, device, size) =
                (allocation.tenant, allocation.device, allocation.size_of(part.part));
            let overtakes = full.contains(&device) && !self.is_guaranteed(tenant, device, size);
            if overtakes || at_limit.contains(&(tenant, device)) || self.demands.is_aside(part) {
                continue;
            }
            match self.begin_migration(part, Tier::Device, Cause::Demand, None) {
                Ok(()) => self.demands.remove(waiter),
                Err(Refusal::QuotaLimit { .. } | Refusal::DeviceFull { .. }) => {
                    let mut choice = Choice::default();
                    let room = self.choose_for_bytes(&mut choice, tenant, device, size);
                    // What is cached makes room: it is asked again when that is back.
                    if room.is_ok() {
                        self.give_up(choice.given_up);
                    }
                    if matches!(room, Err(Shortage::Limit { .. })) {
                        at_limit.insert((tenant, device));
                    } else if full.insert(device) && !self.has_unmet_guarantee(device) {
                        closed += 1;
                    }
                }
                // There are too many extents on all devices together.
                Err(_) => {
                    let mut choice = Choice::default();
                    self.choose_for_count(&mut choice, 1);
                    self.give_up(choice.given_up);
                    return;
                }
            }
        }
    }

    /// Whether a tenant would be within its guarantee with so much more on a device: that is set aside for it, whoever
    /// else waits.
    fn is_guaranteed(&self, tenant: TenantId, device: DeviceIndex, more: Bytes) -> bool {
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
        self.demands.remove(Waiter::Part(part));
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
        for (_, call) in self.pins.lacking(part).collect::<Vec<_>>() {
            self.refuse_pin(call, refusal.clone());
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
