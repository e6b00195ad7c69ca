//! The grant of a turn, and what follows if a client does not yield.

use vramd_types::SessionId;

use super::admit::earlier;
use crate::{
    broker::Broker,
    command::{Command, Notice},
    error::Refusal,
    shell::Timer,
    tenancy::OWN_CALLS,
    time::Time,
    turns::{Asked, Stage, TurnState},
};

impl Broker {
    /// Goes on with turns whose pin calls were answered: all parts are there, or cannot come.
    pub(super) fn take_turn_answers(&mut self) {
        for ((id, call), refusal) in self.sessions.turns.take_answers() {
            let number = call.saturating_sub(OWN_CALLS);
            if self.sessions.turns.get(id).is_none_or(|turn| turn.number != number) {
                continue;
            }
            match refusal {
                None => self.grant_turn(id),
                Some(refusal) => self.refuse_turn(id, refusal),
            }
        }
    }

    pub(super) fn grant_turn(&mut self, id: SessionId) {
        let now = self.shell.now;
        let Some(turn) = self.sessions.turns.get_mut(id) else { return };
        let Stage::HandOver { admitted } = turn.stage else { return };
        turn.stage = Stage::Held { granted: now, asked: None };
        let turn = *turn;
        let tenant = self.tenants.shared(turn.tenant);
        let Some(set) = self.sessions.turns.set_mut((id, turn.set)) else { return };
        set.granted = set.granted.saturating_add(1);
        let set = set.name.clone();
        let bytes = self.set_of_turn(id).map(|set| self.bytes_of_set(set)).unwrap_or_default();
        self.push_notice(Notice::TurnGranted {
            session: id,
            turn: turn.number,
            tenant,
            device: turn.device,
            set,
            bytes,
            since: turn.requested,
            admitted,
        });
        self.tell_turn(id, turn.number, TurnState::Granted);
    }

    /// Asks the owner of a turn to yield, or again if an operator has.
    pub(super) fn ask_to_yield(&mut self, id: SessionId, by_operator: bool) {
        let now = self.shell.now;
        let Some(turn) = self.sessions.turns.get_mut(id) else { return };
        let Stage::Held { asked, .. } = &mut turn.stage else { return };
        *asked = Some(Asked { at: now, by_operator, is_overdue: false, is_killed: false });
        let turn = *turn;
        let tenant = self.tenants.shared(turn.tenant);
        let Some(set) = self.sessions.turns.set((id, turn.set)).map(|set| set.name.clone()) else { return };
        self.push_notice(Notice::TurnEnding { session: id, tenant, device: turn.device, set, by_operator });
        let within = self.config.limits.turns.overdue_after;
        self.tell_turn(id, turn.number, TurnState::Ending { within });
    }

    /// No longer asks an owner to yield. It is not told: a turn may be yielded at any time.
    pub(super) fn withdraw_ask(&mut self, id: SessionId) {
        if let Some(turn) = self.sessions.turns.get_mut(id)
            && let Stage::Held { asked, .. } = &mut turn.stage
        {
            *asked = None;
        }
    }

    /// Refuses turns that were not granted in time. A turn without a wait has the event in which it is requested.
    pub(super) fn refuse_late_turns(&mut self) {
        let now = self.shell.now;
        let late = self.sessions.turns.iter().filter(|(_, turn)| turn.granted().is_none());
        let late = late
            .filter_map(|(id, turn)| Some((id, turn.until.filter(|until| *until < now)?, turn.requested)));
        for (id, until, requested) in late.collect::<Vec<_>>() {
            let waited = self.describe_turn_wait(id);
            self.refuse_turn(id, Refusal::TurnWaitOver { within: until.since(requested), waited });
        }
    }

    /// Reports turns that clients did not yield in time, and kills their processes if so configured. Returns when the
    /// next one is due.
    pub(super) fn pursue_asked(&mut self) -> Option<Time> {
        let (now, limits) = (self.shell.now, self.config.limits.turns.clone());
        let mut next = None;
        let asked: Vec<_> =
            self.sessions.turns.iter().filter_map(|(id, turn)| Some((id, turn.asked()?))).collect();
        for (id, asked) in asked {
            let overdue_at = asked.at.after(limits.overdue_after);
            let kill_at = (!limits.end_after.is_zero()).then(|| asked.at.after(limits.end_after));
            match kill_at.filter(|_| !asked.is_killed && !asked.by_operator) {
                Some(at) if at <= now => self.kill_owner(id, asked),
                Some(at) => next = earlier(next, Some(at)),
                None => {}
            }
            match asked.is_overdue {
                false if overdue_at <= now => self.report_overdue(id, asked),
                false => next = earlier(next, Some(overdue_at)),
                true => {}
            }
        }
        next
    }

    fn report_overdue(&mut self, id: SessionId, asked: Asked) {
        self.change_asked(id, |asked| asked.is_overdue = true);
        let Some(turn) = self.sessions.turns.get(id).copied() else { return };
        let tenant = self.tenants.shared(turn.tenant);
        let Some(set) = self.sessions.turns.set((id, turn.set)).map(|set| set.name.clone()) else { return };
        let (device, asked) = (turn.device, asked.at);
        self.push_notice(Notice::TurnOverdue { session: id, tenant, device, set, asked });
    }

    /// Kills the process of an owner that does not yield. Its session ends with the process.
    fn kill_owner(&mut self, id: SessionId, asked: Asked) {
        self.change_asked(id, |asked| asked.is_killed = true);
        let Some(session) = self.sessions.get(id) else { return };
        let (channel, tenant) = (session.channel, self.tenants.shared(session.tenant));
        let waited = self.shell.now.since(asked.at).as_millis();
        let reason = format!("it did not yield its turn within {waited} ms");
        self.push_notice(Notice::SessionKilled { session: id, tenant, reason });
        self.push_command(Command::KillProcess { channel });
    }

    fn change_asked(&mut self, id: SessionId, change: impl Fn(&mut Asked)) {
        if let Some(turn) = self.sessions.turns.get_mut(id)
            && let Stage::Held { asked: Some(asked), .. } = &mut turn.stage
        {
            change(asked);
        }
    }

    /// Sets the timer of all turns to this time.
    pub(super) fn set_turn_alarm(&mut self, next: Option<Time>) {
        if self.sessions.turns.alarm == next {
            return;
        }
        if let Some(old) = self.sessions.turns.alarm.take() {
            self.shell.timers.remove(&(old, Timer::Turns));
        }
        self.sessions.turns.alarm = next;
        if let Some(next) = next {
            self.arm(next, Timer::Turns);
        }
    }
}
