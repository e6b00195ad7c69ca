//! Turns are requested and yielded. A yield, the end of the set, the end of the session and a wait that the client gives
//! up are one way out.

use std::time::Duration;

use vramd_types::SessionId;

use crate::{
    broker::Broker,
    command::{Caller, Command, DaemonFrame, Notice, WaitEnd},
    error::Refusal,
    event::PartRef,
    follow_up::Fact,
    handler::{Start, Started},
    tenancy::{OWN_CALLS, Outcome},
    turns::{Stage, Turn, TurnEnd, TurnState},
};

impl Broker {
    /// Takes a request for a turn. Without `wait` it waits without limit.
    pub(crate) fn on_turn_requested(
        &mut self,
        id: SessionId,
        number: u64,
        set: u64,
        wait: Option<Duration>,
    ) -> Result<(), String> {
        self.check_set_number(id, set)?;
        let session = self.sessions.get_mut(id);
        let Some(words) = session.and_then(|session| session.words.as_mut()) else {
            return Err("a turn in a session without pins".to_owned());
        };
        if number >= OWN_CALLS {
            return Err(format!("turn {number}: numbers from {OWN_CALLS} on are the daemon's own"));
        }
        if let Some(last) = words.last_turn.filter(|last| number <= *last) {
            return Err(format!("turn {number} after {last}"));
        }
        words.last_turn = Some(number);
        if let Err(refusal) = self.check_turn(id, set) {
            self.tell_turn(id, number, TurnState::Refused(refusal));
            return Ok(());
        }
        self.queue_turn(id, number, set, wait);
        Ok(())
    }

    fn check_turn(&self, id: SessionId, number: u64) -> Result<(), Refusal> {
        if self.sessions.get(id).is_none_or(|session| session.ending) {
            return Err(Refusal::SessionLost { session: id });
        }
        if let Some(turn) = self.sessions.turns.get(id) {
            let set =
                self.sessions.turns.set((id, turn.set)).map_or_else(String::new, |set| set.name.to_string());
            return Err(Refusal::TurnHeld { session: id, set });
        }
        let ended =
            Refusal::RequestInvalid { field: "set", problem: "the working set was refused, or has ended" };
        let set = self.sessions.turns.set((id, number)).ok_or(ended)?;
        self.check_pinnable(id, &self.parts_of_set(set)?)
    }

    fn queue_turn(&mut self, id: SessionId, number: u64, set: u64, wait: Option<Duration>) {
        let Some((tenant, device)) = self.sessions.turns.set((id, set)).map(|set| (set.tenant, set.device))
        else {
            return;
        };
        let now = self.shell.now;
        let quantum = self.config.limits.turns.quantum;
        let standing = |tenant| self.tenants.standing(tenant);
        self.sessions.turns.begin_asking(tenant, device, now, quantum, standing);
        let arrival = self.sessions.turns.next_arrival();
        let until = wait.map(|wait| now.after(wait));
        let stage = Stage::Waiting;
        let looked_at = 0;
        let turn = Turn { number, set, tenant, device, arrival, requested: now, until, stage, looked_at };
        self.sessions.turns.insert(id, turn);
        self.follow_ups.push(Fact::TurnsDue);
    }

    /// Ends a turn for its client, or its wait. It may have ended meanwhile.
    pub(crate) fn on_turn_yielded(&mut self, id: SessionId, number: u64) -> Result<(), String> {
        let words = self.sessions.get(id).and_then(|session| session.words.as_ref());
        if words.and_then(|words| words.last_turn).is_none_or(|last| number > last) {
            return Err(format!("turn {number} is yielded and was never requested"));
        }
        planted!(self, TurnYieldLost => if self.sessions.turns.get(id).is_some_and(|turn| turn.asked().is_some()) { return Ok(()) });
        if self.sessions.turns.get(id).is_some_and(|turn| turn.number == number) {
            self.end_turn(id, TurnEnd::Yielded);
        }
        Ok(())
    }

    /// Ends the turn of a session and all its working sets. Nothing is sent.
    pub(crate) fn end_turns_of(&mut self, id: SessionId) {
        self.end_turn(id, TurnEnd::SessionEnded);
        let sets: Vec<_> = self.sessions.turns.sets_of(id).map(|(set, _)| set).collect();
        for set in sets {
            self.sessions.turns.remove_set(set);
        }
    }

    /// Ends the turn of a session, or its wait for one, if it has any.
    pub(super) fn end_turn(&mut self, id: SessionId, end: TurnEnd) {
        let Some(turn) = self.sessions.turns.remove(id) else { return };
        self.follow_ups.push(Fact::TurnsDue);
        if !turn.is_waiting() {
            self.end_pin((id, OWN_CALLS.saturating_add(turn.number)), WaitEnd::Left);
        }
        let Some(granted) = turn.granted() else { return };
        if end == TurnEnd::Yielded {
            self.claim_unpinned_of(id, turn.set);
        }
        let (now, weight) = (self.shell.now, self.tenants.standing(turn.tenant).weight);
        planted!(self, TurnsCounted => now = granted.after(self.config.limits.turns.quantum));
        self.sessions.turns.charge(&turn, now, weight);
        let tenant = self.tenants.shared(turn.tenant);
        let Some(set) = self.sessions.turns.set_mut((id, turn.set)) else { return };
        set.held = set.held.saturating_add(self.shell.now.since(granted));
        let (device, set) = (turn.device, set.name.clone());
        self.push_notice(Notice::TurnEnded {
            session: id,
            turn: turn.number,
            tenant,
            device,
            set,
            granted,
            end,
        });
    }

    /// Has the words of the set asked again, also where a harvest saw it pinned: a yield says that the program no longer
    /// uses it. Otherwise a program that requests its next turn at once would have its parts before earlier waiters.
    fn claim_unpinned_of(&mut self, id: SessionId, set: u64) {
        planted!(self, YieldedPinsBelieved => return);
        let Some(set) = self.sessions.turns.set((id, set)) else { return };
        let members = self.members_of(set);
        let parts: Vec<_> = members
            .flat_map(|(allocation, entry)| entry.indices().map(move |part| PartRef { allocation, part }))
            .collect();
        for part in parts {
            self.usage.residents.claim_unpinned(part, id);
        }
    }

    /// Refuses a turn that is not granted.
    pub(super) fn refuse_turn(&mut self, id: SessionId, refusal: Refusal) {
        if let Some(number) = self.sessions.turns.get(id).map(|turn| turn.number) {
            self.end_turn(id, TurnEnd::Yielded);
            self.tell_turn(id, number, TurnState::Refused(refusal));
        }
    }

    /// Tells a client how its turn stands.
    pub(super) fn tell_turn(&mut self, id: SessionId, turn: u64, state: TurnState) {
        let Some(session) = self.sessions.get(id).filter(|session| session.channel_open) else { return };
        let channel = session.channel;
        if let TurnState::Refused(refusal) = &state {
            let by = Caller::Session { session: id, tenant: self.tenants.shared(session.tenant) };
            self.push_notice(Notice::Refused { by, request: "Turn", refusal: refusal.clone() });
        }
        self.push_command(Command::Send { channel, frame: DaemonFrame::Turn { turn, state } });
    }

    /// Asks the owner of a turn to yield.
    pub(crate) fn ask_for_operator(&mut self, id: SessionId, name: &str) -> Start {
        if self.sessions.get(id).is_none() {
            return Err(Refusal::SessionNotFound { session: id });
        }
        let turn = self.sessions.turns.get(id).filter(|turn| turn.granted().is_some());
        let is_its =
            |turn: &&Turn| self.sessions.turns.set((id, turn.set)).is_some_and(|set| *set.name == *name);
        let not_found = || Refusal::TurnNotFound { session: id, set: name.to_owned() };
        let turn = turn.filter(is_its).ok_or_else(not_found)?;
        if turn.asked().is_none() {
            self.ask_to_yield(id, true);
            self.follow_ups.push(Fact::TurnsDue);
        }
        Ok(Started::Done(Outcome::TurnAsked))
    }
}
