//! Chooses what a process does next, by its script.

use std::time::Duration;

use broker_core::{Event, Target, Time};

use super::{World, queue::Action};
use crate::{
    dice::Dice,
    scenario::{Fault, Gang, Script},
};

/// Acts are numbered by seat and turn, so that one can be left out and the others stay what they are.
const TURNS_PER_SEAT: u64 = 1_000_000;

/// The acts that a process may choose from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    Allocate,
    Free,
    Detach,
    Seal,
    Attach,
    Repeat,
    Ask,
    Unmap,
    Reopen,
    Leave,
}

impl World {
    pub(super) fn act(&mut self, seat: usize) {
        if self.calm {
            return;
        }
        if let Some(end) = self.end_of_lull() {
            return self.queue.schedule(end, 0, Action::Act(seat));
        }
        let number = u64::try_from(seat).unwrap_or(0) * TURNS_PER_SEAT + self.turn(seat);
        let mut dice = Dice::new(self.plan.seed, 1_000 + number);
        let pause = self.pause(seat, &mut dice);
        self.queue.schedule(self.now.after(pause), 0, Action::Act(seat));
        if self.plan.idle.contains(&seat) || self.plan.skip.contains(&number) {
            return;
        }
        self.acts.push(number);
        let Some(pid) = self.seats[seat] else { return self.spawn(seat) };
        if !self.stroll_some(seat, pid, number) && !self.work_in_turns(seat, pid, number) {
            self.prefetch_some(pid, number);
            self.sequence_some(pid, number);
            self.take_turns(pid, number);
            self.order_some(pid, number);
            self.act_as(pid, &mut dice);
        }
    }

    /// When the lull ends that is under way.
    pub(super) fn end_of_lull(&self) -> Option<Time> {
        self.scenario.lull.and_then(|lull| lull.end_at(self.now))
    }

    /// Counts a turn of the seat, and returns the count. It is kept by seat, since processes come and go.
    fn turn(&mut self, seat: usize) -> u64 {
        let turn = &mut self.turns[seat];
        *turn += 1;
        *turn
    }

    fn pause(&mut self, seat: usize, dice: &mut Dice) -> Duration {
        let think = self.scenario.think_micros;
        let bursty = self.scenario.seats[seat].script == Script::Bursty;
        let process = self.seats[seat].and_then(|pid| self.processes.get_mut(&pid));
        let micros = match process {
            Some(process) if bursty && process.burst > 0 => {
                process.burst -= 1;
                dice.between(1, 20)
            }
            Some(process) if bursty => {
                process.burst = dice.between(5, 30);
                dice.between(think * 5, think * 30)
            }
            _ => dice.between(1, think * 2),
        };
        Duration::from_micros(micros)
    }

    fn act_as(&mut self, pid: u32, dice: &mut Dice) {
        let Some(process) = self.processes.get(&pid) else { return };
        let script = self.scenario.seats[process.seat].script;
        if process.stopped {
            return;
        }
        let rate = |fault, of| self.scenario.faults.rate(fault) * script.factor(of);
        let crash = rate(Fault::Crash, Script::Crashing);
        let stop = rate(Fault::Stop, Script::Stopped);
        let cut = rate(Fault::ChannelCut, Script::Crashing);
        let lies = rate(Fault::Lies, Script::Lying) / 6;
        let garbled = rate(Fault::Malformed, Script::Lying);
        if dice.chance(crash) {
            return self.die(pid);
        }
        let gang = self.scenario.gang.filter(|gang| gang.has(process.seat));
        if dice.chance(stop) {
            return self.stop(pid, dice);
        }
        if let Some(gang) = gang
            && dice.chance(gang.stops)
        {
            return self.stop_gang(gang, dice);
        }
        let (channel, session, known) = (process.channel, process.session, process.known.len());
        let Some(channel) = channel else {
            // The process was refused or has closed its channel. It connects again, but not at once.
            if dice.chance(200) {
                self.reopen(pid, dice);
            }
            return;
        };
        if dice.chance(cut) {
            self.close_by_client(channel);
            if let Some(process) = self.processes.get_mut(&pid) {
                process.lose_session();
            }
            return;
        }
        if dice.chance(garbled) {
            return self.send_up(channel, Event::Malformed { channel, problem: "noise".to_owned() });
        }
        if dice.chance(lies) {
            return self.lie(pid, dice);
        }
        if session.is_some() {
            for _ in 0..dice.roll(if script == Script::Turning { 10 } else { 4 }) {
                self.pin_some(pid, dice);
            }
            let is_settled = self.scenario.crowds.is_some_and(|crowds| known >= crowds.known);
            if !is_settled || dice.chance(60) {
                self.choose(pid, script, dice);
            }
        }
    }

    fn choose(&mut self, pid: u32, script: Script, dice: &mut Dice) {
        let w = script.weights();
        let table = [
            (w.allocate, Choice::Allocate),
            (w.free, Choice::Free),
            (w.detach, Choice::Detach),
            (w.seal, Choice::Seal),
            (w.attach, Choice::Attach),
            (w.repeat, Choice::Repeat),
            (w.ask, Choice::Ask),
            (w.unmap, Choice::Unmap),
            (w.reopen, Choice::Reopen),
            (w.leave, Choice::Leave),
        ];
        let mut roll = dice.roll(table.iter().map(|(weight, _)| weight).sum());
        let chosen = table.iter().find(|(weight, _)| {
            let here = roll < *weight;
            roll = roll.saturating_sub(*weight);
            here
        });
        match chosen.map(|(_, choice)| *choice) {
            Some(Choice::Ask) => self.ask(pid, dice),
            Some(Choice::Unmap) => self.unmap_some(pid, script, dice),
            Some(Choice::Reopen) => self.reopen(pid, dice),
            Some(Choice::Leave) => self.die(pid),
            Some(choice) => self.request(pid, choice, dice),
            None => {}
        }
    }

    fn stop(&mut self, pid: u32, dice: &mut Dice) {
        if let Some(process) = self.processes.get_mut(&pid) {
            process.stopped = true;
            let micros = dice.between(2_000, 150_000);
            self.queue.schedule(self.now.after(Duration::from_micros(micros)), 0, Action::Resume(pid));
            self.story.add_line(self.now, || format!("process {pid} is stopped"));
        }
    }

    /// Stops all sessions of the gang. They go on one after the other.
    fn stop_gang(&mut self, gang: Gang, dice: &mut Dice) {
        let stopped =
            self.processes.values_mut().filter(|process| gang.has(process.seat) && !process.stopped);
        for process in stopped {
            process.stopped = true;
            let micros = dice.between(gang.stop_micros / 4, gang.stop_micros);
            let when = self.now.after(Duration::from_micros(micros));
            self.queue.schedule(when, 0, Action::Resume(process.pid));
        }
        self.story.add_line(self.now, || "the gang is stopped".to_owned());
    }

    /// Opens a new channel. An honest process names the earlier sessions of which it has unmapped everything.
    fn reopen(&mut self, pid: u32, dice: &mut Dice) {
        let Some(process) = self.processes.get_mut(&pid) else { return };
        if let Some(channel) = process.channel {
            process.lose_session();
            self.close_by_client(channel);
        }
        let of_process = self.channels.iter_mut().filter(|(_, channel)| channel.pid == pid);
        let mut unmaps_all = dice.chance(700);
        for (_, channel) in of_process {
            if let (true, Some(process)) = (unmaps_all, self.processes.get_mut(&pid)) {
                for mapping in std::mem::take(&mut channel.mapped).into_values() {
                    process.drop_reference(mapping.extent);
                }
            }
        }
        let lies = dice.chance(self.scenario.faults.rate(Fault::Lies));
        unmaps_all |= lies;
        let past = self.processes.get(&pid).map(|process| process.past.clone()).unwrap_or_default();
        self.open_channel(pid, if unmaps_all { past } else { Vec::new() });
    }

    /// Unmaps something without being told, as a free in the SDK does.
    fn unmap_some(&mut self, pid: u32, script: Script, dice: &mut Dice) {
        let Some(id) = self.processes.get(&pid).and_then(|process| process.channel) else { return };
        let Some(channel) = self.channels.get(&id) else { return };
        let parts: Vec<_> = channel.mapped.keys().copied().collect();
        if let Some(part) = dice.pick(&parts).copied() {
            self.unmap_own(id, pid, script, part);
        }
    }

    /// Describes or lists allocations. The process must not be shown what it may not know of.
    fn ask(&mut self, pid: u32, dice: &mut Dice) {
        let Some(process) = self.processes.get(&pid) else { return };
        let (peer, session) = (process.peer(), process.session);
        let Some(session) = session else { return };
        let tenant = self.scenario.seats[process.seat].tenant;
        if dice.chance(500) {
            let target = match dice.chance(500) {
                true => Target::Name(super::request::some_name(dice, Some(&self.scenario.tenants))),
                false => Target::Id(self.guess(dice)),
            };
            let shown = self.broker.describe(session, peer, &target);
            self.oracle.check_described(tenant, &target, shown.as_ref(), &self.broker);
        } else {
            let prefix = super::request::some_name(dice, Some(&self.scenario.tenants));
            let prefix = if dice.chance(300) { "" } else { &prefix };
            let listed = self.broker.list_visible(session, peer, prefix, None, dice.index(40));
            self.oracle.check_listed(tenant, prefix, listed.as_ref(), &self.broker);
        }
        self.check();
    }
}
