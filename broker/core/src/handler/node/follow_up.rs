//! Follow-up work: what an event leaves to be done at its end.
//!
//! A step only notes what it changed: a mapping, room, a waiter. So no step has to know which calls,
//! revocations or waiters depend on it, and several changes of one part are checked once.
//! [`Broker::run_follow_ups`] repeats until nothing is left, in this order:
//!
//! 1. parts of pin calls (`pins/pin_call.rs`), then revocations (`mapping/revocation.rs`)
//! 2. changes of quotas, waiters that no session may want, devices that ran out, late backing
//! 3. the line: a full scan, or a front scan (`line/scan.rs`)
//! 4. pressure (`node/pressure.rs`), then parts to be unmapped in place (`moves/advice.rs`)
//! 5. revoke frames, packets of descriptors (`mapping/frames.rs`), and stalled calls (`pins/stall.rs`)
//!
//! Its price is the number of notes. Calls of other sessions on the same part, and answered calls, are not
//! checked.

use std::collections::{BTreeMap, BTreeSet};

use vramd_types::{DeviceIndex, SessionId};

use crate::{
    broker::Broker,
    command::{RevokeReason, RevokedPart},
    event::PartRef,
    invariants,
    ledger::Place,
    migration::Waiter,
    residency::MapEvent,
    tenancy::{OpId, PinId, PinnedPart},
};

/// The work that the steps of an event have noted for its end.
#[derive(Debug, Default)]
pub(crate) struct FollowUps {
    /// Parts of pin calls to check.
    pub(crate) calls: BTreeSet<PinnedPart>,
    /// Revocations to check.
    pub(crate) revocations: BTreeSet<PartRef>,
    /// Calls that may have stalled.
    pub(crate) stall_checks: BTreeSet<PinId>,
    /// Parts in the line that no session may want any longer.
    pub(crate) waiter_checks: BTreeSet<PartRef>,
    /// The line needs a full scan.
    pub(crate) full_scan: bool,
    /// Room that the last scan made was returned: the line needs a front scan.
    pub(crate) front_scan: bool,
    /// Devices whose ledger may be short, since their driver ran out of memory.
    pub(crate) short_devices: BTreeSet<DeviceIndex>,
    /// Places where work for pressure has ended.
    pub(crate) pressed_places: BTreeSet<Place>,
    /// Parts that may be unmapped in place.
    pub(crate) in_place_to_unmap: BTreeSet<PartRef>,
    /// How many of these parts had their words asked in this event.
    pub(crate) words_asked: usize,
    /// Changes of quotas that waited for room, and have it or do not.
    pub(crate) quota_changes: Vec<OpId>,
    /// Evicted mappings by session, to be sent in few frames.
    pub(crate) evictions: BTreeMap<SessionId, Vec<RevokedPart>>,
    /// Sessions with newly queued parts.
    pub(crate) to_pump: BTreeSet<SessionId>,
    /// How many parts of calls were ever checked.
    #[cfg(test)]
    pub(crate) parts_checked: usize,
}

impl FollowUps {
    #[cfg_attr(not(test), allow(clippy::unused_self, reason = "only tests count"))]
    pub(crate) const fn count_checked(&mut self, parts: usize) {
        #[cfg(test)]
        {
            self.parts_checked += parts;
        }
        #[cfg(not(test))]
        let _ = parts;
    }
}

impl Broker {
    /// Notes that a session's mapping of the part has changed.
    pub(crate) fn note_mapping_changed(&mut self, id: SessionId, part: PartRef) {
        self.follow_ups.calls.extend(self.pins.waiting_of(part, id));
        self.queue_revocation_check(part);
        self.queue_waiter_check(part);
        self.queue_in_place_unmap(part);
    }

    /// Queues the check of a waiter: no session may want the part any longer.
    pub(crate) fn queue_waiter_check(&mut self, part: PartRef) {
        if self.line.contains(Waiter::Part(part)) {
            self.follow_ups.waiter_checks.insert(part);
        }
    }

    /// Notes a waiter that enters or leaves the line. Within the last scan it changes what room is made for;
    /// beyond it, it may be within its guarantee.
    pub(crate) fn note_line_changed(&mut self, waiter: Waiter) {
        match self.line.was_scanned(waiter) {
            true => self.follow_ups.full_scan = true,
            false => self.follow_ups.front_scan |= self.line.contains(waiter),
        }
    }

    /// Notes room that was taken outside the line. It may have been made for a waiter.
    pub(crate) fn note_room_taken(&mut self) {
        self.follow_ups.full_scan |= !self.line.is_empty();
    }

    /// Notes returned room on a device: the first waiter may start.
    pub(crate) fn note_room_freed(&mut self) {
        self.follow_ups.front_scan = true;
        self.note_victims_changed();
    }

    /// Notes that a part can leave its device, or no longer can. That may help a waiter that nothing would have
    /// helped.
    pub(crate) fn note_victims_changed(&mut self) {
        self.follow_ups.full_scan |= self.line.scan_found_shortage() || !self.over_limit.is_empty();
    }

    pub(crate) fn queue_revocation_check(&mut self, part: PartRef) {
        if self.revocations.contains_key(&part) {
            self.follow_ups.revocations.insert(part);
        }
    }

    /// Queues the check of all revocations that wait for a session.
    pub(crate) fn queue_revocation_checks_of(&mut self, id: SessionId) {
        let of_session = self.revocations.keys().filter(|part| self.map_state(id, **part).is_some());
        let parts: Vec<_> = of_session.copied().collect();
        self.follow_ups.revocations.extend(parts);
    }

    pub(crate) fn run_follow_ups(&mut self) {
        self.follow_ups.words_asked = 0;
        loop {
            self.run_queued_follow_ups();
            for (id, parts) in std::mem::take(&mut self.follow_ups.evictions) {
                self.send_revoke(id, parts, RevokeReason::Evicted);
            }
            for id in std::mem::take(&mut self.follow_ups.to_pump) {
                self.pump(id);
            }
            if !self.abort_stalled() && !self.follow_ups.full_scan {
                return;
            }
        }
    }

    /// Runs queued follow-ups until none is left. Revocations come after calls.
    fn run_queued_follow_ups(&mut self) {
        loop {
            if let Some((part, id)) = self.follow_ups.calls.pop_first() {
                self.check_call(id, part);
            } else if let Some(part) = self.follow_ups.revocations.pop_first() {
                self.check_revocation(part);
            } else if let Some(op) = self.follow_ups.quota_changes.pop() {
                self.resume_quota(op);
            } else if let Some(part) = self.follow_ups.waiter_checks.pop_first() {
                self.check_waiter(part);
            } else if let Some(device) = self.follow_ups.short_devices.pop_first() {
                self.cover_shortfall(device);
            } else if let Some(device) = self.ledger.relieved.pop_first() {
                if self.backings.missing().is_any_on(device) {
                    self.reserve_late_backings(device);
                }
            } else if std::mem::take(&mut self.follow_ups.full_scan) {
                self.follow_ups.front_scan = false;
                self.scan_line();
            } else if std::mem::take(&mut self.follow_ups.front_scan) {
                self.scan_front();
            } else if let Some(place) = self.ledger.changed.pop_first() {
                self.update_pressure(place);
            } else if let Some(place) = self.follow_ups.pressed_places.pop_first() {
                self.relieve_pressure(place);
            } else if let Some(part) = self.next_in_place_unmap() {
                self.unmap_in_place(part);
            } else {
                return;
            }
        }
    }

    /// Sends a session a part that is away for it.
    pub(crate) fn queue_remap(&mut self, id: SessionId, part: PartRef) {
        if planted!(self, EvictedStaysAway) {
            return;
        }
        match self.advance_mapping(id, part, MapEvent::Pin) {
            Ok(_) => _ = self.follow_ups.to_pump.insert(id),
            Err(problem) => self.report_violation(invariants::TRANSITIONS, problem),
        }
    }
}
