//! Parts that somebody wants on their device: who pins them, and who attached them while they were elsewhere.
//!
//! What finds no room waits in the order in which it was asked for. Where a device is full nothing that came later is
//! brought there first, but for what is guaranteed to its tenant; a tenant that is at its limit keeps only itself waiting.

use std::collections::BTreeSet;

use vramd_types::{AllocationId, PartIndex, SessionId};

use crate::{
    broker::Broker,
    command::{Command, DaemonFrame, PartMove, WaitEnd},
    config::DeviceConfig,
    error::Refusal,
    event::{PartRef, Tier},
    handler::line::make_room::Footprint,
    migration::{Cause, LineEntry, Position, Waiter},
    residency::{Allocation, MapState},
};

impl Broker {
    /// Whether nobody can be sent the part now: it is in another tier, or on its way.
    pub(crate) fn is_off_device(&self, part: PartRef) -> bool {
        match self.migrations.get(&part) {
            Some(migration) => migration.is_unmapped,
            None => {
                self.has_tiers()
                    && self.tier_of(part).is_some_and(|tier| tier != Tier::Device)
                    && !self.is_in_place(part)
            }
        }
    }

    /// Whether the part is mapped where it lies in the host's memory, or would be. What is mapped there is at hand for all, until
    /// the last has unmapped it: advised or not.
    pub(crate) fn is_in_place(&self, part: PartRef) -> bool {
        self.stays_in_place(part) || self.lies_in_host(part) && !self.mappers(part, |_| true).is_empty()
    }

    /// Whether the part lies in the host's memory, and is advised to be mapped there.
    pub(crate) fn stays_in_place(&self, part: PartRef) -> bool {
        let advised = self.allocations.get(part.allocation).is_some_and(|allocation| allocation.in_place);
        let comes = self.migrations.get(&part).is_some_and(|migration| migration.to_tier == Tier::Device);
        advised && !comes && self.lies_in_host(part) && !planted!(self, ComesThoughAdvised)
    }

    fn lies_in_host(&self, part: PartRef) -> bool {
        self.extent_of(part).is_some_and(|it| it.place.tier == Tier::Host && !it.is_dropped())
    }

    /// Those parts of an allocation that nobody can be sent now.
    pub(crate) fn parts_off_device(&self, id: AllocationId) -> BTreeSet<PartRef> {
        match self.has_tiers() {
            true => self.every_part_of(id).filter(|part| self.is_off_device(*part)).collect(),
            false => BTreeSet::new(),
        }
    }

    /// All parts of an allocation, if there is one.
    pub(crate) fn every_part_of(&self, id: AllocationId) -> impl Iterator<Item = PartRef> + use<> {
        let indices = self.allocations.get(id).map(Allocation::indices);
        indices.into_iter().flatten().map(move |part| PartRef { allocation: id, part })
    }

    /// Whether parts can be anywhere else than on their devices.
    pub(crate) fn has_tiers(&self) -> bool {
        let has_below = |device: &DeviceConfig| !(device.host.is_zero() && device.disk.is_zero());
        self.config.files || self.config.devices.iter().any(has_below)
    }

    /// A session is to be sent the part once it is on its device.
    pub(crate) fn add_attach_waiter(&mut self, session: SessionId, part: PartRef) {
        self.attach_waiters.entry(part).or_default().insert(session);
        self.request_fetch(part);
    }

    /// Somebody wants the part on its device: it comes, or stays if it is about to leave.
    pub(crate) fn request_fetch(&mut self, part: PartRef) {
        match self.migrations.get(&part).map(|migration| (migration.to_tier, migration.cause)) {
            Some((Tier::Device, _)) => self.hasten_migration(part),
            Some((_, Cause::Operator)) => self.stop_migration(part, PartMove::Wanted),
            Some((_, Cause::Pressure)) if !self.is_room_awaited(part) => {
                self.stop_migration(part, PartMove::Wanted);
            }
            // Somebody who came before needs the room: it comes back in its turn, and so leaves soon.
            Some(_) => self.hasten_migration(part),
            None if self.is_off_device(part) => {
                let (is_new, steps_up) = (self.enter_line(part), self.line.resume(part));
                if is_new || steps_up {
                    self.note_line_changed(Waiter::Part(part));
                }
            }
            None => {}
        }
    }

    /// The part waits for room, or for better luck. Whether it did not yet.
    pub(crate) fn enter_line(&mut self, part: PartRef) -> bool {
        let waiter = Waiter::Part(part);
        if self.line.contains(waiter) {
            return false;
        }
        let Some(Footprint { tenant, device, .. }) = self.footprint_of(part) else { return false };
        let entered = self.pins.next_arrival();
        let arrived = self.pins.first_missing(part).map_or(entered, |arrived| arrived.min(entered));
        let devices = std::iter::once(device).collect();
        self.line
            .enter(Position { arrived, entered }, LineEntry { waiter, since: self.now, tenant, devices });
        true
    }

    /// Whether anybody waits for the part to be on its device.
    pub(crate) fn is_wanted(&self, part: PartRef) -> bool {
        self.pins.missing(part).next().is_some()
            || self.attach_waiters.get(&part).is_some_and(|attach_waiters| {
                attach_waiters.iter().any(|session| self.map_state(*session, part) == Some(MapState::Away))
            })
    }

    /// Who waits for the part: sessions that pin it, and those that are to be sent it.
    pub(crate) fn sessions_waiting_for(&self, part: PartRef) -> Vec<SessionId> {
        let pinning = self.pins.missing(part).map(|(_, (session, _))| session);
        let attach_waiters = self.attach_waiters.get(&part).into_iter().flatten().copied();
        let sessions: BTreeSet<_> = pinning.chain(attach_waiters).collect();
        sessions.into_iter().collect()
    }

    /// The session waits for the part no more.
    pub(crate) fn forget_attach_waiter(&mut self, session: SessionId, part: PartRef) {
        if let Some(attach_waiters) = self.attach_waiters.get_mut(&part) {
            attach_waiters.remove(&session);
            if attach_waiters.is_empty() {
                self.attach_waiters.remove(&part);
            }
        }
    }

    /// The part is on its device and stays there: it is sent to those who wait for it.
    pub(crate) fn serve_part_waiters(&mut self, part: PartRef) {
        self.note_line_changed(Waiter::Part(part));
        self.leave_line(Waiter::Part(part), WaitEnd::Served);
        for comer in self.attach_waiters.remove(&part).unwrap_or_default() {
            if planted!(self, ComerForgotten) {
                continue;
            }
            if self.map_state(comer, part) == Some(MapState::Away) {
                self.queue_remap(comer, part);
            }
        }
        self.follow_ups.calls.extend(self.pins.missing(part).collect::<Vec<_>>());
    }

    /// What the part holds cannot be had: those that are to be sent it without a pin are told so, and wait no more.
    pub(crate) fn report_content_lost(&mut self, part: PartRef) {
        if planted!(self, LossAwaited) {
            return;
        }
        for comer in self.attach_waiters.remove(&part).unwrap_or_default() {
            let waits = self.map_state(comer, part) == Some(MapState::Away);
            let session = self.sessions.get(comer).filter(|session| waits && session.channel_open);
            if let Some(channel) = session.map(|session| session.channel) {
                self.push_command(Command::Send { channel, frame: DaemonFrame::Lost(part) });
            }
        }
        self.queue_waiter_check(part);
    }

    /// The part can't be brought to its device: who waits for that is told why.
    pub(crate) fn refuse_part_pins(&mut self, part: PartRef, why: &PartMove) {
        let device = self.allocations.get(part.allocation).map(|allocation| allocation.device);
        let refusal = match why {
            PartMove::Refused { refusal } => (**refusal).clone(),
            PartMove::Failed { problem } => Refusal::DriverFailed {
                device: device.map(|device| self.uuid(device).to_owned()).unwrap_or_default(),
                problem: problem.clone(),
            },
            _ => return,
        };
        self.refuse_calls_missing(part, &refusal);
    }

    /// All calls that lack the part are refused.
    pub(crate) fn refuse_calls_missing(&mut self, part: PartRef, why: &Refusal) {
        for (_, call) in self.pins.missing(part).collect::<Vec<_>>() {
            self.refuse_pin(call, why.clone());
        }
    }

    /// Nobody waits for an allocation that is freed.
    pub(crate) fn forget_attach_waiters(&mut self, id: AllocationId) {
        let part = |index| PartRef { allocation: id, part: PartIndex(index) };
        let attach_waiters: Vec<_> =
            self.attach_waiters.range(part(0)..=part(u32::MAX)).map(|(part, _)| *part).collect();
        for part in attach_waiters {
            self.attach_waiters.remove(&part);
            self.queue_waiter_check(part);
        }
    }
}
