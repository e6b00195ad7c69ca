//! Parts that clients want on their device: sessions pin them, or attached them while they were off their
//! device.
//!
//! [`Broker::request_fetch`] decides what a wanted part needs. A part that is being evicted for an operator or
//! for pressure stays instead. A part that lies below its device enters the line, as a waiter with the arrival
//! of its oldest call. The daemon scans the line at the end of the event (`follow_up.rs`, then
//! `line/scan.rs`).
//!
//! The line is in order of arrival. On a full device no later waiter is served first, except within its
//! tenant's guarantee. A tenant at its limit keeps only its own waiters waiting.
//!
//! [`Broker::serve_part_waiters`] is the end of the wait: the part is there, and goes to all sessions that wait
//! for it (`mapping/frames.rs`, `pins/pin_call.rs`).

use std::collections::BTreeSet;

use vramd_types::{AllocationId, PartIndex, SessionId};

use crate::{
    broker::Broker,
    command::{Command, DaemonFrame, PartMove, WaitEnd},
    config::DeviceConfig,
    error::Refusal,
    event::{PartRef, Tier},
    follow_up::Fact,
    line::Footprint,
    line::{LineEntry, Position, Waiter},
    moves::Cause,
    residency::{Allocation, MapState},
};

impl Broker {
    /// Whether the part cannot be sent to a session now: it lies in another tier, or is moving.
    pub(crate) fn is_off_device(&self, part: PartRef) -> bool {
        match self.moves.migrations.get(&part) {
            Some(migration) => migration.is_unmapped,
            None => {
                self.has_tiers()
                    && self.tier_of(part).is_some_and(|tier| tier != Tier::Device)
                    && !self.is_in_place(part)
            }
        }
    }

    /// Whether the part is mapped where it lies in host memory, or would be. A part that is mapped there can be
    /// sent to every session until the last has unmapped it, advised or not.
    pub(crate) fn is_in_place(&self, part: PartRef) -> bool {
        self.stays_in_place(part) || self.lies_in_host(part) && !self.mappers(part, |_| true).is_empty()
    }

    /// Whether the part lies in host memory, and its owner advised to map it there.
    pub(crate) fn stays_in_place(&self, part: PartRef) -> bool {
        let advised = self.allocations.get(part.allocation).is_some_and(|allocation| allocation.in_place);
        let comes =
            self.moves.migrations.get(&part).is_some_and(|migration| migration.to_tier == Tier::Device);
        planted!(self, FetchedThoughAdvised => advised = false);
        advised && !comes && self.lies_in_host(part)
    }

    fn lies_in_host(&self, part: PartRef) -> bool {
        self.extent_of(part).is_some_and(|it| it.place.tier == Tier::Host && !it.is_dropped())
    }

    /// The parts of an allocation that cannot be sent now.
    pub(crate) fn parts_off_device(&self, id: AllocationId) -> BTreeSet<PartRef> {
        match self.has_tiers() {
            true => self.every_part_of(id).filter(|part| self.is_off_device(*part)).collect(),
            false => BTreeSet::new(),
        }
    }

    /// All parts of an allocation, if it exists.
    pub(crate) fn every_part_of(&self, id: AllocationId) -> impl Iterator<Item = PartRef> + use<> {
        let indices = self.allocations.get(id).map(Allocation::indices);
        indices.into_iter().flatten().map(move |part| PartRef { allocation: id, part })
    }

    /// Whether parts can lie anywhere else than on their devices.
    pub(crate) fn has_tiers(&self) -> bool {
        let has_below = |device: &DeviceConfig| !(device.host.is_zero() && device.disk.is_zero());
        self.config.files || self.config.devices.iter().any(has_below)
    }

    /// Has the part fetched for a session that attached it, and sent once it is on its device.
    pub(crate) fn add_attach_waiter(&mut self, session: SessionId, part: PartRef) {
        self.moves.attach_waiters.entry(part).or_default().insert(session);
        self.request_fetch(part);
    }

    /// Has the part fetched, or kept if it is about to leave.
    pub(crate) fn request_fetch(&mut self, part: PartRef) {
        match self.moves.migrations.get(&part).map(|migration| (migration.to_tier, migration.cause)) {
            Some((Tier::Device, _)) => self.hasten_migration(part),
            Some((_, Cause::Operator)) => self.stop_migration(part, PartMove::Wanted),
            Some((_, Cause::Pressure)) if !self.is_room_awaited(part) => {
                self.stop_migration(part, PartMove::Wanted);
            }
            // An earlier waiter needs the room. The part comes back in its turn, so it leaves soon.
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

    /// Adds the part to the line, unless it is there. Returns whether it was added.
    pub(crate) fn enter_line(&mut self, part: PartRef) -> bool {
        let waiter = Waiter::Part(part);
        if self.line.contains(waiter) {
            return false;
        }
        let Some(Footprint { tenant, device, .. }) = self.footprint_of(part) else { return false };
        let entered = self.pins.next_arrival();
        let arrived = self.pins.first_missing(part).map_or(entered, |arrived| arrived.min(entered));
        let devices = std::iter::once(device).collect();
        self.line.enter(
            Position { arrived, entered },
            LineEntry { waiter, since: self.shell.now, tenant, devices },
        );
        true
    }

    /// Whether a session waits for the part to be on its device.
    pub(crate) fn is_wanted(&self, part: PartRef) -> bool {
        self.pins.missing(part).next().is_some()
            || self.moves.attach_waiters.get(&part).is_some_and(|attach_waiters| {
                attach_waiters.iter().any(|session| self.map_state(*session, part) == Some(MapState::Away))
            })
    }

    /// Sessions that wait for the part: they pin it, or are to be sent it.
    pub(crate) fn sessions_waiting_for(&self, part: PartRef) -> Vec<SessionId> {
        let pinning = self.pins.missing(part).map(|(_, (session, _))| session);
        let attach_waiters = self.moves.attach_waiters.get(&part).into_iter().flatten().copied();
        let sessions: BTreeSet<_> = pinning.chain(attach_waiters).collect();
        sessions.into_iter().collect()
    }

    /// Stops waiting for the part on behalf of a session.
    pub(crate) fn forget_attach_waiter(&mut self, session: SessionId, part: PartRef) {
        if let Some(attach_waiters) = self.moves.attach_waiters.get_mut(&part) {
            attach_waiters.remove(&session);
            if attach_waiters.is_empty() {
                self.moves.attach_waiters.remove(&part);
            }
        }
    }

    /// Sends a part that is on its device and stays there to all sessions that wait for it.
    pub(crate) fn serve_part_waiters(&mut self, part: PartRef) {
        self.note_line_changed(Waiter::Part(part));
        self.leave_line(Waiter::Part(part), WaitEnd::Served);
        for comer in self.moves.attach_waiters.remove(&part).unwrap_or_default() {
            planted!(self, AttachWaiterForgotten => continue);
            if self.map_state(comer, part) == Some(MapState::Away) {
                self.queue_remap(comer, part);
            }
        }
        self.follow_ups.push(Fact::PartAvailable(part));
    }

    /// Tells sessions that wait for the part without a pin that its content is lost.
    pub(crate) fn report_content_lost(&mut self, part: PartRef) {
        planted!(self, LostContentAwaited => return);
        for comer in self.moves.attach_waiters.remove(&part).unwrap_or_default() {
            let waits = self.map_state(comer, part) == Some(MapState::Away);
            let session = self.sessions.get(comer).filter(|session| waits && session.channel_open);
            if let Some(channel) = session.map(|session| session.channel) {
                self.push_command(Command::Send { channel, frame: DaemonFrame::Lost(part) });
            }
        }
        self.follow_ups.push(Fact::WaiterUnwanted(part));
    }

    /// Refuses the calls that wait for a part which could not be fetched, with the reason.
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

    /// Refuses all calls that still need the part.
    pub(crate) fn refuse_calls_missing(&mut self, part: PartRef, why: &Refusal) {
        for (_, call) in self.pins.missing(part).collect::<Vec<_>>() {
            self.refuse_pin(call, why.clone());
        }
    }

    /// Drops the attach waiters of a freed allocation.
    pub(crate) fn forget_attach_waiters(&mut self, id: AllocationId) {
        let part = |index| PartRef { allocation: id, part: PartIndex(index) };
        let attach_waiters: Vec<_> =
            self.moves.attach_waiters.range(part(0)..=part(u32::MAX)).map(|(part, _)| *part).collect();
        for part in attach_waiters {
            self.moves.attach_waiters.remove(&part);
            self.follow_ups.push(Fact::WaiterUnwanted(part));
        }
    }
}
