//! Pin calls: a session wants a set of parts mapped together, because it could not pin all of them by their pin
//! words.
//!
//! The daemon evicts no part of a call from the moment it takes the call until the client ends it. It answers
//! once all parts are mapped. From then on no fence revokes them either, until the client says that the pin has
//! ended. Only a free, or the end of the session, does not wait for calls.
//!
//! [`Broker::on_pin`] checks a call and queues one check for each part. [`Broker::check_call`] does that check
//! at the end of the event:
//!
//! - The mapping is away and the part lies on its device: the daemon queues it to be sent
//!   (`mapping/frames.rs`).
//! - The part lies below its device: the daemon requests a fetch, which may have to wait for room
//!   (`line/wanted.rs`).
//! - The part is mapped: the call has one part more. With the last one the daemon answers.
//! - The mapping is gone, or about to be: the daemon refuses the call.
//!
//! The same check runs whenever the mapping or the place of the part has changed. A check costs one look-up,
//! whatever else waits.

use std::time::Duration;

use vramd_types::SessionId;

use crate::{
    broker::Broker,
    command::{Caller, Command, DaemonFrame, Notice, WaitEnd},
    error::Refusal,
    event::PartRef,
    follow_up::Fact,
    limits::PIN_PARTS_MAX,
    line::Waiter,
    residency::{AllocationState, MapState},
    shell::Timer,
    tenancy::{OWN_CALLS, PinId},
    time::Time,
};

impl Broker {
    pub(crate) fn on_words_mapped(&mut self, id: SessionId) -> Result<(), String> {
        let session = self.sessions.get_mut(id);
        let Some(words) = session.and_then(|session| session.words.as_mut()) else {
            return Err("there is no word table to map".to_owned());
        };
        words.map_deadline.take().map(drop).ok_or_else(|| "the word table was mapped before".to_owned())
    }

    /// Whether the session still has to map its word table.
    pub(crate) fn owes_word_table(&self, id: SessionId) -> bool {
        let words = self.sessions.get(id).and_then(|session| session.words.as_ref());
        words.is_some_and(|words| words.map_deadline.is_some())
    }

    /// Takes a pin call. Without `wait` it has no deadline.
    pub(crate) fn on_pin(
        &mut self,
        id: SessionId,
        call: u64,
        parts: Vec<PartRef>,
        wait: Option<Duration>,
    ) -> Result<(), String> {
        let session = self.sessions.get_mut(id);
        let Some(words) = session.and_then(|session| session.words.as_mut()) else {
            return Err("a pin in a session without pins".to_owned());
        };
        if call >= OWN_CALLS {
            return Err(format!("pin call {call}: numbers from {OWN_CALLS} on are the daemon's own"));
        }
        if let Some(last) = words.last_call.filter(|last| call <= *last) {
            return Err(format!("pin call {call} after {last}"));
        }
        let count = parts.len();
        if count == 0 || count > PIN_PARTS_MAX {
            return Err(format!("a pin of {count} parts: 1 to {PIN_PARTS_MAX} are allowed"));
        }
        let mut sorted = parts;
        sorted.sort_unstable();
        sorted.dedup();
        if sorted.len() < count {
            return Err(format!("pin call {call} names a part twice"));
        }
        words.last_call = Some(call);
        if let Err(refusal) = self.check_pin(id, &sorted) {
            self.answer_pin((id, call), Some(refusal));
            return Ok(());
        }
        if let Some(words) = self.sessions.get_mut(id).and_then(|session| session.words.as_mut()) {
            words.calls = words.calls.saturating_add(1);
            words.call_parts = words.call_parts.saturating_add(count);
        }
        self.note_call_began((id, call), &sorted);
        // These uses count for the forecast.
        self.learn_from_call(id, &sorted);
        let until = wait.map(|wait| self.shell.now.after(wait));
        self.insert_call((id, call), sorted, until);
        Ok(())
    }

    /// Begins a call of the daemon's own. The parts are in order, each once.
    pub(crate) fn begin_own_call(&mut self, id: PinId, parts: Vec<PartRef>) {
        self.note_call_began(id, &parts);
        self.insert_call(id, parts, None);
    }

    fn note_call_began(&mut self, id: PinId, parts: &[PartRef]) {
        for part in parts.iter().copied() {
            self.record_prefetched_use(part);
            self.follow_ups.push(Fact::CallBegan(id, part));
        }
    }

    fn insert_call(&mut self, id: PinId, parts: Vec<PartRef>, until: Option<Time>) {
        let look = self.shell.now.after(self.config.limits.pin_stall);
        self.pins.insert(id, parts, self.shell.now, (look, until));
        self.schedule_stall_check(id, look);
        planted!(self, PinTimerLost => until = None);
        if let Some(until) = until {
            self.arm(until, Timer::Pin(id.0, id.1));
        }
    }

    /// Ends a call: the client has pinned the set, or gives up. The daemon may have refused the call meanwhile.
    pub(crate) fn on_pin_ended(&mut self, id: SessionId, call: u64) -> Result<(), String> {
        let words = self.sessions.get(id).and_then(|session| session.words.as_ref());
        if words.and_then(|words| words.last_call).is_none_or(|last| call > last) {
            return Err(format!("pin call {call} has ended and never began"));
        }
        planted!(self, EndedPinAnswered => if self.is_waiting((id, call)) { return Ok(()) });
        self.end_pin((id, call), WaitEnd::Left);
        Ok(())
    }

    fn check_pin(&self, id: SessionId, parts: &[PartRef]) -> Result<(), Refusal> {
        let Some(session) = self.sessions.get(id) else { return Err(Refusal::SessionLost { session: id }) };
        if session.ending {
            return Err(Refusal::SessionLost { session: id });
        }
        let limits = &self.config.limits;
        if let Some(words) = &session.words {
            let (call_limit, part_limit) = (limits.pins_waiting_max, limits.pin_parts_waiting_max);
            if words.calls >= call_limit {
                return Err(Refusal::QueueFull { limit: call_limit });
            }
            planted!(self, PinPartsUnbounded => part_limit = usize::MAX);
            if words.call_parts.saturating_add(parts.len()) > part_limit {
                return Err(Refusal::QueueFull { limit: part_limit });
            }
        }
        self.check_pinnable(id, parts)
    }

    /// Checks that a session can pin these parts together. The bounds of pin calls do not count here.
    pub(crate) fn check_pinnable(&self, id: SessionId, parts: &[PartRef]) -> Result<(), Refusal> {
        let Some(session) = self.sessions.get(id) else { return Err(Refusal::SessionLost { session: id }) };
        if let Some(part) =
            parts.iter().find(|part| self.map_state(id, **part).is_none_or(MapState::is_leaving))
        {
            return Err(self.why_unpinnable(id, *part));
        }
        self.check_feasible(session.tenant, parts.iter().copied())
    }

    /// Why the session cannot pin a part that it does not map, or soon will not.
    fn why_unpinnable(&self, id: SessionId, part: PartRef) -> Refusal {
        if self.sessions.get(id).is_none_or(|session| session.ending) {
            return Refusal::SessionLost { session: id };
        }
        let allocation = self.allocations.get(part.allocation);
        let (state, owner) = (allocation.map(|it| it.state), allocation.and_then(|it| it.owner));
        let is_held = self.map_state(id, part).is_some();
        let seals = matches!(state, Some(AllocationState::Unmapping | AllocationState::Digesting));
        match state {
            Some(AllocationState::Freeing) | None => {}
            Some(_) if is_held || (seals && owner == Some(id)) => {
                return Refusal::Raced { allocation: part.allocation };
            }
            Some(_) => {}
        }
        Refusal::AllocationNotFound { allocation: part.allocation.to_string() }
    }

    /// Checks one part of a call: has it sent, fetched, or counted as there. See the module.
    pub(crate) fn check_call(&mut self, id: PinId, part: PartRef) {
        self.follow_ups.count_checked(1);
        let Some(call) = self.pins.get(id).filter(|call| call.is_waiting()) else { return };
        let (times, elsewhere_since) =
            ((call.stall_check, call.deadline), call.elsewhere.then_some(call.arrived));
        let (held_up, state) =
            (self.is_blocked_by_revocation(part, call.arrival), self.map_state(id.0, part));
        let waits = held_up || !self.pins.is_missing(id, part);
        match state {
            None | Some(MapState::OfferedRevoked | MapState::Revoking) => {
                let why = self.why_unpinnable(id.0, part);
                self.refuse_pin(id, why);
            }
            Some(MapState::Away) if !waits && self.is_off_device(part) => {
                if let Some(call) = self.pins.get_mut(id) {
                    call.elsewhere = true;
                }
                self.request_fetch(part);
                planted!(self, PinGrantedElsewhere => self.grant_pin(id, part, times));
            }
            Some(MapState::Away) if !waits => self.queue_remap(id.0, part),
            Some(MapState::Mapped) if !waits => {
                if self.pins.mark_mapped(id, part) {
                    self.cancel_pin_timers(id, times);
                    self.note_pin_waited(id, elsewhere_since, WaitEnd::Served);
                    self.answer_pin(id, None);
                }
            }
            Some(_) => {}
        }
    }

    /// Refuses a call whose deadline has passed.
    pub(crate) fn expire_pin(&mut self, id: PinId) {
        let waits = self.pins.get(id).filter(|call| call.is_waiting());
        if let Some(within) = waits.and_then(|call| Some(call.deadline?.since(call.arrived))) {
            let waited = self.describe_pin_wait(id);
            self.refuse_pin(id, Refusal::WaitOver { within, waited });
        }
    }

    /// Removes the timers of a call that no longer waits.
    pub(crate) fn cancel_pin_timers(&mut self, id: PinId, (look, until): (Time, Option<Time>)) {
        self.cancel_stall_check(id, look);
        if let Some(until) = until {
            self.shell.timers.remove(&(until, Timer::Pin(id.0, id.1)));
        }
    }

    pub(crate) fn refuse_pin(&mut self, id: PinId, why: Refusal) {
        self.end_pin(id, WaitEnd::Refused);
        planted!(self, PinCallLost => if matches!(why, Refusal::AllocationNotFound { .. }) { return });
        self.answer_pin(id, Some(why));
    }

    /// Notes the end of a wait for a part that was off its device.
    fn note_pin_waited(&mut self, (session, call): PinId, since: Option<Time>, end: WaitEnd) {
        if let Some(since) = since.filter(|_| call < OWN_CALLS)
            && let Some(tenant) = self.sessions.get(session).map(|session| session.tenant)
        {
            let tenant = self.tenants.shared(tenant);
            self.push_notice(Notice::PinWaited { tenant, session, call, since, end });
        }
    }

    pub(crate) fn answer_pin(&mut self, (id, call): PinId, refusal: Option<Refusal>) {
        if call >= OWN_CALLS {
            self.sessions.turns.report_answer((id, call), refusal);
            return self.follow_ups.push(Fact::TurnsDue);
        }
        let Some(session) = self.sessions.get(id).filter(|session| session.channel_open) else { return };
        let channel = session.channel;
        if let Some(refusal) = refusal.clone() {
            let by = Caller::Session { session: id, tenant: self.tenants.shared(session.tenant) };
            self.push_notice(Notice::Refused { by, request: "Pin", refusal });
        }
        self.push_command(Command::Send { channel, frame: DaemonFrame::PinAnswer { call, refusal } });
    }

    /// Ends the protection of its parts. `end` says how its wait ends, if it still waits.
    pub(crate) fn end_pin(&mut self, id: PinId, end: WaitEnd) {
        let Some(call) = self.pins.remove(id) else { return };
        let session = self.sessions.get_mut(id.0).filter(|_| id.1 < OWN_CALLS);
        if let Some(words) = session.and_then(|session| session.words.as_mut()) {
            words.calls = words.calls.saturating_sub(1);
            words.call_parts = words.call_parts.saturating_sub(call.parts.len());
        }
        if call.is_waiting() {
            self.cancel_pin_timers(id, (call.stall_check, call.deadline));
            self.note_pin_waited(id, call.elsewhere.then_some(call.arrived), end);
        }
        // Its parts may leave now, and those that it waited for may be wanted by no session.
        self.follow_ups.push(Fact::VictimsChanged);
        for part in call.parts {
            self.reconsider_in_place(part);
            self.note_in_place(part);
            // A session that wants it later enters the line anew.
            let waiter = Waiter::Part(part);
            if self.line.contains(waiter) && !self.is_wanted(part) {
                self.note_line_changed(waiter);
                self.leave_line(waiter, WaitEnd::Left);
            }
            // A later revocation was held up by this call.
            if self.mapping.revocations.get(&part).is_some_and(|under_way| call.arrival < under_way.began) {
                self.follow_ups.push(Fact::RevocationEased(part));
            }
        }
    }

    /// Ends all calls of a session that sends nothing further. No answer is sent.
    pub(crate) fn end_pins_of(&mut self, id: SessionId) {
        self.push_if_waiters(Fact::CallsEnded);
        let calls: Vec<_> = self.pins.of_session(id).map(|(call, _)| call).collect();
        for call in calls {
            self.end_pin(call, WaitEnd::Left);
        }
    }
}
