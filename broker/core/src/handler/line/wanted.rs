//! Parts that clients want on their device: sessions pin them, or attached them while they were off their
//! device.
//!
//! [`Broker::request_fetch`] decides what a wanted part needs. A part that is being evicted for an operator or
//! for pressure stays instead. A part that lies below its device enters the line, as a waiter with the arrival
//! of its oldest call. The daemon scans the line at the end of the event (`follow_up.rs`, then
//! `scan/mod.rs`).
//!
//! The line is in order of arrival. On a full device no later waiter is served first, except within its
//! tenant's guarantee. A tenant at its limit keeps only its own waiters waiting.
//!
//! [`Broker::serve_part_waiters`] is the end of the wait: the part is there, and goes to all sessions that wait
//! for it (`mapping/frames.rs`, `pins/pin_call.rs`).

use vramd_types::SessionId;

use crate::{
    broker::Broker,
    command::{Command, DaemonFrame, WaitEnd},
    event::{PartRef, Tier},
    follow_up::Fact,
    line::{Footprint, LineEntry, Position, Waiter},
    moves::{Cause, Stop},
    residency::MapState,
};

impl Broker {
    /// Has the part fetched for a session that attached it, and sent once it is on its device.
    pub(crate) fn add_attach_waiter(&mut self, session: SessionId, part: PartRef) {
        self.moves.attach_waiters.entry(part).or_default().insert(session);
        self.request_fetch(part);
    }

    /// Has the part fetched, or kept if it is about to leave.
    pub(crate) fn request_fetch(&mut self, part: PartRef) {
        match self.moves.migrations.get(&part).map(|migration| (migration.to_tier, migration.cause)) {
            Some((Tier::Device, _)) => self.hasten_migration(part),
            Some((_, Cause::Operator)) => self.stop_migration(part, Stop::Wanted),
            Some((_, Cause::Pressure)) if !self.is_room_awaited(part) => {
                self.stop_migration(part, Stop::Wanted);
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

    /// Sends a part that is on its device and stays there to all sessions that wait for it.
    pub(crate) fn serve_part_waiters(&mut self, part: PartRef) {
        self.note_line_changed(Waiter::Part(part));
        self.leave_line(Waiter::Part(part), WaitEnd::Served);
        for waiter in self.moves.attach_waiters.remove(&part).unwrap_or_default() {
            planted!(self, AttachWaiterForgotten => continue);
            if self.map_state(waiter, part) == Some(MapState::Away) {
                self.queue_remap(waiter, part);
            }
        }
        self.follow_ups.push(Fact::PartAvailable(part));
    }

    /// Tells sessions that wait for the part without a pin that its content is lost.
    pub(crate) fn report_content_lost(&mut self, part: PartRef) {
        planted!(self, LostContentAwaited => return);
        for waiter in self.moves.attach_waiters.remove(&part).unwrap_or_default() {
            let waits = self.map_state(waiter, part) == Some(MapState::Away);
            let session = self.sessions.get(waiter).filter(|session| waits && session.channel_open);
            if let Some(channel) = session.map(|session| session.channel) {
                self.push_command(Command::Send { channel, frame: DaemonFrame::Lost(part) });
            }
        }
        self.follow_ups.push(Fact::WaiterUnwanted(part));
    }
}
