//! What follows, at the end of an event, for parts that pin calls or revocations wait for.
//!
//! Steps only note what they touched. So no step has to know what waits for it, and one event that touches a part in
//! several ways is looked at once, when all of them are done. What a step can't have changed is not looked at: another
//! session's calls on the part, or calls that are answered.

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

#[derive(Debug, Default)]
pub(crate) struct FollowUps {
    /// Parts of calls.
    pub(crate) calls: BTreeSet<PinnedPart>,
    /// Parts that are being revoked.
    pub(crate) revocations: BTreeSet<PartRef>,
    /// Calls that may have stalled.
    pub(crate) stall_checks: BTreeSet<PinId>,
    /// Parts of the line that somebody may want no more.
    pub(crate) waiter_checks: BTreeSet<PartRef>,
    /// The line is to be looked along anew.
    pub(crate) full_scan: bool,
    /// There is more room, as the last look along the line had it made.
    pub(crate) front_scan: bool,
    /// Devices whose books may be short, since their drivers ran out of memory.
    pub(crate) short_devices: BTreeSet<DeviceIndex>,
    /// Where something that was done because of pressure has ended.
    pub(crate) pressed_places: BTreeSet<Place>,
    /// Parts that may be unmapped where they are not to be accessed any more.
    pub(crate) in_place_to_unmap: BTreeSet<PartRef>,
    /// Of how many of these the words were asked because of this event.
    pub(crate) words_asked: usize,
    /// Changes of quotas that waited for room, and have it or do not.
    pub(crate) quota_changes: Vec<OpId>,
    /// To be told so, in few frames.
    pub(crate) evictions: BTreeMap<SessionId, Vec<RevokedPart>>,
    /// Sessions that parts were queued for.
    pub(crate) to_pump: BTreeSet<SessionId>,
    /// How many parts of calls were looked at, ever.
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
    /// A session's hold on the part has changed.
    pub(crate) fn note_mapping_changed(&mut self, id: SessionId, part: PartRef) {
        self.follow_ups.calls.extend(self.pins.waiting_of(part, id));
        self.queue_revocation_check(part);
        self.queue_waiter_check(part);
        self.queue_in_place_unmap(part);
    }

    /// Somebody may want the part on its device no more.
    pub(crate) fn queue_waiter_check(&mut self, part: PartRef) {
        if self.line.contains(Waiter::Part(part)) {
            self.follow_ups.waiter_checks.insert(part);
        }
    }

    /// Who comes to stand in the line, or leaves it, may change what is made for those in sight; or may be guaranteed what it
    /// waits for, wherever it stands.
    pub(crate) fn note_line_changed(&mut self, waiter: Waiter) {
        match self.line.was_scanned(waiter) {
            true => self.follow_ups.full_scan = true,
            false => self.follow_ups.front_scan |= self.line.contains(waiter),
        }
    }

    /// Who does not stand in the line has had room: that may have been made for somebody who does.
    pub(crate) fn note_room_taken(&mut self) {
        self.follow_ups.full_scan |= !self.line.is_empty();
    }

    /// There is more room on a device: who is first may begin.
    pub(crate) fn note_room_freed(&mut self) {
        self.follow_ups.front_scan = true;
        self.note_victims_changed();
    }

    /// Something can leave its device that could not before, or the other way round: that helps whom nothing would have helped.
    pub(crate) fn note_victims_changed(&mut self) {
        self.follow_ups.full_scan |= self.line.scan_found_shortage() || !self.over_limit.is_empty();
    }

    pub(crate) fn queue_revocation_check(&mut self, part: PartRef) {
        if self.revocations.contains_key(&part) {
            self.follow_ups.revocations.insert(part);
        }
    }

    /// Has the revocations looked at that wait for a session.
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

    /// A revocation is looked at once nothing is to be said to calls.
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

    /// Queues a part that the session keeps.
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
