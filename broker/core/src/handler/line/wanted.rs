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

use vramd_types::{AllocationId, SessionId};

use crate::{
    broker::Broker,
    command::{Command, DaemonFrame, WaitEnd},
    event::{PartRef, Tier},
    follow_up::Fact,
    line::Waiter,
    moves::{Cause, Stop},
    residency::MapState,
};

impl Broker {
    /// Has the part fetched for a session that attached it, and sent once it is on its device.
    pub(crate) fn add_attach_waiter(&mut self, session: SessionId, part: PartRef) {
        self.moves.attach_waiters.insert(part, session);
        self.request_fetch(part);
    }

    /// Ends the wait of sessions that attached a freed allocation.
    pub(crate) fn forget_attach_waiters(&mut self, id: AllocationId) {
        for part in self.moves.attach_waiters.take_all_of(id) {
            self.follow_ups.push(Fact::WaiterUnwanted(part));
        }
    }

    /// Has the part fetched, or kept if it is about to leave.
    pub(crate) fn request_fetch(&mut self, part: PartRef) {
        match self.moves.migrations.get(part).map(|migration| (migration.to_tier, migration.cause)) {
            Some((Tier::Device, _)) => self.hasten_migration(part),
            Some((_, Cause::Operator | Cause::Owner)) => self.stop_migration(part, Stop::Wanted),
            Some((_, Cause::Pressure | Cause::Prefetch)) if !self.is_room_awaited(part) => {
                self.stop_migration(part, Stop::Wanted);
            }
            // An earlier waiter needs the room. The part comes back in its turn, so it leaves soon.
            Some(_) => self.hasten_migration(part),
            None if self.is_off_device(part) => {
                if !self.line.contains(Waiter::Part(part)) && self.choose_in_place(part) {
                    return self.serve_part_waiters(part);
                }
                let (is_new, steps_up) = (self.enter_line(part), self.line.resume(part));
                if is_new || steps_up {
                    self.note_line_changed(Waiter::Part(part));
                }
            }
            None => {}
        }
    }

    /// Sends a part that is on its device and stays there to all sessions that wait for it.
    pub(crate) fn serve_part_waiters(&mut self, part: PartRef) {
        self.note_line_changed(Waiter::Part(part));
        self.leave_line(Waiter::Part(part), WaitEnd::Served);
        for waiter in self.moves.attach_waiters.take(part) {
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
        for waiter in self.moves.attach_waiters.take(part) {
            let waits = self.map_state(waiter, part) == Some(MapState::Away);
            let session = self.sessions.get(waiter).filter(|session| waits && session.channel_open);
            if let Some(channel) = session.map(|session| session.channel) {
                self.push_command(Command::Send { channel, frame: DaemonFrame::Lost(part) });
            }
        }
        self.follow_ups.push(Fact::WaiterUnwanted(part));
    }
}
