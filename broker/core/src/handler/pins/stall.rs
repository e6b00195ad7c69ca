//! Pin calls that wait only for each other.
//!
//! A set that is pinned from nothing waits for a session that waits only if it passed that one in the line. But a
//! session that holds pins and asks for more may wait for a session that waits for it, or for itself.
//!
//! The daemon aborts a call that has waited for a while only for sessions that wait themselves, the youngest
//! call first. Its client unpins what it holds, and the others go on; their time starts anew.
//!
//! A call is checked when it may have stalled, not at every event: at most twice in that time
//! (`limits.pin_stall`), however many calls wait.

use std::collections::BTreeSet;

use vramd_types::{AllocationId, DeviceIndex, SessionId};

use crate::{
    broker::Broker,
    command::Notice,
    error::Refusal,
    event::{PartRef, Tier},
    follow_up::Fact,
    line::Waiter,
    ops::OpKind,
    residency::{AllocationState, MapState, Stage},
    shell::Timer,
    tenancy::{PinCall, PinId},
    time::Time,
};

impl Broker {
    /// Schedules the check of a call, unless it is answered before.
    pub(crate) fn schedule_stall_check(&mut self, id: PinId, look: Time) {
        if let Some(call) = self.pins.get_mut(id) {
            call.stall_check = look;
            self.arm(look, Timer::Stall(id.0, id.1));
        }
    }

    pub(crate) fn cancel_stall_check(&mut self, id: PinId, look: Time) {
        self.shell.timers.remove(&(look, Timer::Stall(id.0, id.1)));
    }

    /// Checks calls that are due, and aborts the youngest that has stalled. The others are checked again, since
    /// they may go on now.
    pub(crate) fn abort_stalled(&mut self, calls: Vec<PinId>) {
        let (now, wait) = (self.shell.now, self.config.limits.pin_stall);
        planted!(self, AbortedTooEarly => wait = std::time::Duration::ZERO);
        let mut due = Vec::new();
        for id in calls {
            let Some(call) = self.pins.get(id).filter(|call| call.is_waiting()) else { continue };
            let (arrival, since) = (call.arrival, self.stalled_since(id, call));
            self.follow_ups.count_checked(call.parts.len());
            planted!(self, StallIgnored => since = None);
            match since.filter(|since| since.after(wait) > now) {
                None if since.is_some() => due.push((arrival, id)),
                since => self.schedule_stall_check(id, since.unwrap_or(now).after(wait)),
            }
        }
        let youngest = due.iter().max().copied();
        planted!(self, OldestAborted => youngest = due.iter().min().copied());
        let Some((_, youngest)) = youngest else { return };
        for (_, other) in due.into_iter().filter(|(_, id)| *id != youngest) {
            self.follow_ups.push(Fact::StallCheckDue(other));
        }
        self.refuse_pin(youngest, Refusal::PinStalled { session: youngest.0 });
        self.push_notice(Notice::PinStalled { session: youngest.0, call: youngest.1 });
        self.pins.restart_wait(youngest.0, now);
    }

    /// Since when a call waits only for sessions that wait themselves, if it does.
    ///
    /// These block a call: sessions that map a part which was fenced before the call, sessions that pin
    /// something on a device where the call waits for room, and its own session where that was told to unmap
    /// while it pinned.
    fn stalled_since(&self, id: PinId, call: &PinCall) -> Option<Time> {
        // Without a fence, an eviction or a waiter no session blocks another.
        if self.mapping.evicting == 0 && self.mapping.revocations.is_empty() && self.line.is_empty() {
            return None;
        }
        let words = self.sessions.get(id.0).and_then(|session| session.words.as_ref())?;
        let (mut since, mut is_held_up, mut awaited) = (call.arrived, false, BTreeSet::new());
        for part in call.parts.iter().filter(|part| self.pins.is_missing(id, **part)) {
            let fence = self.mapping.revocations.get(part).filter(|under_way| {
                matches!(under_way.stage, Stage::Fence { .. }) && under_way.began < call.arrival
            });
            if let Some(fence) = fence {
                since = since.max(fence.last_progress);
                for mapping in self.mappings(*part).iter().filter(|mapping| mapping.state.is_mapper()) {
                    is_held_up = true;
                    planted!(self, RunnersIgnored => continue);
                    since = since.max(self.pins.waiting_since(mapping.session)?);
                }
            }
            if self.line.contains(Waiter::Part(*part)) {
                awaited.extend(self.footprint_of(*part).map(|footprint| footprint.device));
            }
            let pinned = !words.unmap_soon.contains(part);
            if pinned && self.map_state(id.0, *part) == Some(MapState::Evicting) {
                since = since.max(self.pins.waiting_since(id.0)?);
                is_held_up = true;
            }
        }
        for last in
            awaited.into_iter().filter_map(|device| self.blocked_by_itself_since(device, id.0, call.arrived))
        {
            since = since.max(last);
            is_held_up = true;
        }
        is_held_up.then_some(since)
    }

    /// Since when all sessions that pin something on a full device wait, if this session would help by
    /// unpinning: there, or on another device with waiters.
    fn blocked_by_itself_since(
        &self,
        device: DeviceIndex,
        session: SessionId,
        arrived: Time,
    ) -> Option<Time> {
        if self.line.room.is_leaving(device) || self.has_older_creation(device, arrived) {
            return None;
        }
        let mut since = Time::START;
        // A session that has a turn yields in time, unless it waits itself.
        let owners = self.sessions.turns.on(device).filter(|(_, turn)| turn.granted().is_some());
        let owners = owners.map(|(owner, _)| owner).filter(|owner| *owner != session);
        for pinning in self.usage.residents.pinning_sessions(device).chain(owners) {
            since = since.max(self.unserved_since(pinning, device)?);
        }
        let has_turn = |other: DeviceIndex| {
            self.sessions
                .turns
                .get(session)
                .is_some_and(|turn| turn.device == other && turn.granted().is_some())
        };
        let pins = |other: DeviceIndex| self.usage.residents.is_pinning(other, session) || has_turn(other);
        let helps = |other: DeviceIndex| pins(other) && (other == device || self.has_waiters_on(other));
        self.device_indices().any(helps).then_some(since)
    }

    /// Since when a session waits, unless one of its calls is being served on that device: everything it lacks
    /// is on its way there, however long that takes.
    fn unserved_since(&self, session: SessionId, device: DeviceIndex) -> Option<Time> {
        let since = self.pins.waiting_since(session)?;
        let is_there =
            |part: &PartRef| self.footprint_of(*part).is_some_and(|footprint| footprint.device == device);
        let is_served = |(id, call): (PinId, &PinCall)| {
            let lacking = || call.parts.iter().filter(|part| self.pins.is_missing(id, **part));
            call.is_waiting()
                && lacking().any(is_there)
                && lacking().all(|part| self.is_arriving(session, *part))
        };
        (!self.pins.of_session(session).any(is_served)).then_some(since)
    }

    /// Whether the session needs only time to have the part: its bytes are being copied, or it is being sent.
    fn is_arriving(&self, session: SessionId, part: PartRef) -> bool {
        match self.moves.migrations.get(part) {
            Some(migration) => migration.to_tier == Tier::Device,
            None => matches!(self.map_state(session, part), Some(MapState::Queued | MapState::Offered)),
        }
    }

    /// Whether allocations are being created there that had their room by then. Their memory can leave for
    /// others once the whole batch is created.
    fn has_older_creation(&self, device: DeviceIndex, by: Time) -> bool {
        let is_there = |id: &AllocationId| self.allocations.get(*id).is_some_and(|it| it.device == device);
        self.allocations.has_any(AllocationState::Creating)
            && self.requests.ops.iter().any(|(_, op)| match &op.kind {
                OpKind::Allocate { since, allocations, .. } => {
                    *since <= by && allocations.iter().any(is_there)
                }
                _ => false,
            })
    }
}
