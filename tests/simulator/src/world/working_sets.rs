//! Processes that have turns of working sets: they name allocations, request turns, work, and yield when they are asked
//! to, sooner or never.

use std::{collections::BTreeSet, time::Duration};

use broker_core::{
    AllocationSpec, ChannelId, ClientFrame, ClientRequest, Event, Kind, OperatorRequest, Refusal, Target,
    Tier, TurnState, WorkingSetSpec,
};
use vramd_types::{AllocationId, Bytes, SessionId};

use super::{World, request::spec};
use crate::{
    coverage::TurnStep,
    dice::Dice,
    scenario::{Fault, TURNERS, WorkingSets},
};

/// Streams of their own: all other draws are the same as without working sets.
const OF_PROCESSES: u64 = 1 << 43;
const OF_WORK: u64 = 1 << 45;
const OF_OPERATORS: u64 = 1 << 44;

/// The working set of a process, and its turn.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OwnSet {
    last_set: u64,
    last_turn: u64,
    set: Option<u64>,
    turn: Option<u64>,
    is_granted: bool,
    is_asked: bool,
}

impl World {
    /// Lets a process with a large working set go on with it. Returns whether it does nothing else.
    pub(super) fn work_in_turns(&mut self, seat: usize, pid: u32, number: u64) -> bool {
        let Some(rates) = self.scenario.working_sets.filter(|_| seat < TURNERS) else { return false };
        let mut dice = Dice::new(self.plan.seed, OF_WORK + number);
        let Some(process) = self.processes.get(&pid).filter(|it| it.session.is_some() && !it.stopped) else {
            return false;
        };
        if dice.chance(rates.others) {
            return false;
        }
        let (own, id) = (process.known.iter().any(|known| known.own), process.channel);
        let waits = process.threads.iter().any(|thread| thread.waiting.is_some());
        if !own && dice.chance(300) {
            let total = self.scenario.config.devices[0].total.get();
            let size = Bytes::new(total / 100 * dice.one(&[25, 40, 60, 80]));
            let item = AllocationSpec { part_size: None, unpinned: true, ..spec(size, Kind::Movable) };
            self.call(pid, None, ClientRequest::allocate(vec![item]));
        }
        let id = id.filter(|_| own && !waits);
        // A program may yield with pins that it ends a little later.
        if let Some(id) = id.filter(|_| dice.chance(500)) {
            self.let_go_of_all(pid, id);
        }
        self.take_turns(pid, number);
        if let Some(id) = id {
            self.let_go_of_all(pid, id);
            let is_granted = self.processes.get(&pid).is_some_and(|process| process.own_set.is_granted);
            let known = self.channels.get(&id).map(|channel| channel.slots.keys().copied().collect());
            let known: Vec<_> = known.unwrap_or_default();
            let pinned = match dice.chance(300) {
                true => known,
                false => dice.pick(&known).copied().into_iter().collect(),
            };
            if !pinned.is_empty() && (is_granted || dice.chance(100)) {
                self.pin_step(pid, pinned, &mut dice);
            }
        }
        true
    }

    /// Lets a process declare a working set, request its turn or yield, in this turn of the process.
    pub(super) fn take_turns(&mut self, pid: u32, number: u64) {
        let Some(rates) = self.scenario.working_sets else { return };
        let mut dice = Dice::new(self.plan.seed, OF_PROCESSES + number);
        let Some(process) = self.processes.get(&pid).filter(|it| it.session.is_some() && !it.stopped) else {
            return;
        };
        let (Some(id), own) = (process.channel, process.own_set) else { return };
        if dice.chance(self.scenario.faults.rate(Fault::Lies) / 20) {
            return self.lie_about_turns(pid, id, &mut dice);
        }
        if self.channels.get(&id).is_none_or(|channel| channel.words.is_none()) {
            return;
        }
        let rate = match own {
            OwnSet { is_asked: true, .. } => rates.obeys,
            OwnSet { is_granted: true, .. } => rates.yields,
            // Some processes wait no longer.
            _ => 10,
        };
        match (own.set, own.turn) {
            (None, _) if dice.chance(rates.declares) => self.declare_set(pid, id, rates, &mut dice),
            (Some(set), _) if dice.chance(rates.ends) => self.end_set(pid, id, set),
            (Some(_), Some(turn)) if dice.chance(rate) => {
                self.yield_turn(pid, id, turn);
                if dice.chance(rates.vacates) {
                    self.vacate(pid, &mut dice);
                }
            }
            (Some(set), None) if dice.chance(rates.requests) => self.request_turn(pid, id, set, &mut dice),
            // A program must not have two turns, and may try to.
            (Some(set), Some(_)) if dice.chance(5) => self.request_turn(pid, id, set, &mut dice),
            _ => {}
        }
    }

    fn declare_set(&mut self, pid: u32, id: ChannelId, rates: WorkingSets, dice: &mut Dice) {
        let Some(channel) = self.channels.get(&id) else { return };
        let known = channel.slots.keys().chain(&channel.unpinned);
        let known: BTreeSet<AllocationId> = known.map(|part| part.allocation).collect();
        let mut known: Vec<_> = known.into_iter().collect();
        let device = |id: AllocationId| self.broker.show(&Target::Id(id)).map(|view| view.device).ok();
        let Some(first) = dice.pick(&known).copied() else { return };
        if !dice.chance(20) {
            let on = device(first);
            known.retain(|other| device(*other) == on);
        }
        let count = usize::try_from(dice.between(1, rates.allocations_max)).unwrap_or(1).min(known.len());
        let mut allocations: Vec<_> =
            (0..count).map(|_| known.swap_remove(dice.index(known.len()))).collect();
        match dice.roll(40) {
            0 => allocations.clear(),
            1 => allocations.push(self.guess(dice)),
            2 => allocations.extend(allocations.clone()),
            _ => {}
        }
        let name = dice.one(&["decode", "prefill", "not a name"]).to_owned();
        let Some(process) = self.processes.get_mut(&pid) else { return };
        process.own_set.last_set += dice.between(1, 2);
        let number = process.own_set.last_set;
        process.own_set.set = Some(number);
        let spec = WorkingSetSpec { name, allocations };
        self.send_turn_frame(id, ClientFrame::WorkingSet { number, spec });
    }

    fn request_turn(&mut self, pid: u32, id: ChannelId, set: u64, dice: &mut Dice) {
        let Some(process) = self.processes.get_mut(&pid) else { return };
        let own = &mut process.own_set;
        own.last_turn += dice.between(1, 2);
        let turn = own.last_turn;
        if own.turn.is_none() {
            own.turn = Some(turn);
        }
        let wait = dice.chance(300).then(|| Duration::from_micros(dice.one(&[0, 2_000, 60_000])));
        self.send_turn_frame(id, ClientFrame::TurnRequested { turn, set, wait });
    }

    fn yield_turn(&mut self, pid: u32, id: ChannelId, turn: u64) {
        self.forget_turn(pid);
        self.send_turn_frame(id, ClientFrame::TurnYielded { turn });
    }

    /// Has a process send an allocation of its own away.
    fn vacate(&mut self, pid: u32, dice: &mut Dice) {
        let Some(process) = self.processes.get(&pid) else { return };
        let own: Vec<_> = process.known.iter().filter(|known| known.own).map(|known| known.id).collect();
        if let Some(id) = dice.pick(&own) {
            self.call(pid, None, ClientRequest::Evict(*id, Tier::Host));
        }
    }

    fn end_set(&mut self, pid: u32, id: ChannelId, number: u64) {
        self.forget_turn(pid);
        if let Some(process) = self.processes.get_mut(&pid) {
            process.own_set.set = None;
        }
        self.send_turn_frame(id, ClientFrame::WorkingSetEnded { number });
    }

    fn forget_turn(&mut self, pid: u32) {
        if let Some(process) = self.processes.get_mut(&pid) {
            let own = &mut process.own_set;
            (own.turn, own.is_granted, own.is_asked) = (None, false, false);
        }
    }

    /// Yields the turn of a process, and its wait for one.
    pub(super) fn yield_any(&mut self, pid: u32) {
        let Some(process) = self.processes.get(&pid).filter(|process| !process.stopped) else { return };
        if let (Some(id), Some(turn)) = (process.channel, process.own_set.turn) {
            self.yield_turn(pid, id, turn);
        }
    }

    /// A process hears that its working set was taken or refused.
    pub(super) fn hear_of_set(&mut self, pid: u32, number: u64, is_refused: bool) {
        if let Some(process) = self.processes.get_mut(&pid)
            && process.own_set.set == Some(number)
            && is_refused
        {
            process.own_set.set = None;
            self.forget_turn(pid);
        }
    }

    /// A process hears how its turn stands.
    pub(super) fn hear_of_turn(&mut self, pid: u32, turn: u64, state: &TurnState) {
        let Some(process) = self.processes.get_mut(&pid) else { return };
        let own = &mut process.own_set;
        if own.turn != Some(turn) {
            return;
        }
        match state {
            TurnState::Granted => own.is_granted = true,
            TurnState::Ending { .. } => {
                own.is_asked = true;
                self.coverage.count_step(TurnStep::Asked);
            }
            // It makes another set of what it has now.
            TurnState::Refused(Refusal::AllocationNotFound { .. } | Refusal::QuotaLimit { .. }) => {
                let set = own.set;
                if let Some((id, set)) = process.channel.zip(set) {
                    self.end_set(pid, id, set);
                }
            }
            TurnState::Refused(_) => self.forget_turn(pid),
        }
        if self.calm {
            self.yield_any(pid);
        }
    }

    /// Lets an operator ask the owner of a turn to yield.
    pub(super) fn ask_some_owner(&mut self) {
        if self.scenario.working_sets.is_none() {
            return;
        }
        let mut dice = Dice::new(self.plan.seed, OF_OPERATORS + self.operator_acts);
        if !dice.chance(100) {
            return;
        }
        let sets = self.broker.working_sets();
        let (session, set) = match dice.pick(&sets).filter(|_| dice.clone().chance(900)) {
            Some(view) => (view.session, view.name.to_string()),
            None => (SessionId::from_raw(77), "decode".to_owned()),
        };
        let key = dice.chance(300).then(|| self.new_key());
        let request = OperatorRequest::YieldTurn { session, set };
        self.remember_request(key, &request);
        self.operator_call(key, request);
    }

    /// Sends a number that was sent before, or names what was never declared.
    fn lie_about_turns(&mut self, pid: u32, id: ChannelId, dice: &mut Dice) {
        let Some(process) = self.processes.get(&pid) else { return };
        let OwnSet { last_set, last_turn, .. } = process.own_set;
        if let Some(channel) = self.channels.get_mut(&id) {
            channel.lied = true;
        }
        let frame = match dice.roll(5) {
            0 => {
                let spec = WorkingSetSpec { name: "decode".to_owned(), allocations: Vec::new() };
                ClientFrame::WorkingSet { number: last_set, spec }
            }
            1 => ClientFrame::WorkingSetEnded { number: last_set + 3 },
            2 => ClientFrame::TurnRequested { turn: last_turn + 1, set: last_set + 3, wait: None },
            3 => ClientFrame::TurnRequested { turn: 1 << 63, set: last_set, wait: None },
            _ => ClientFrame::TurnYielded { turn: last_turn + 3 },
        };
        self.send_turn_frame(id, frame);
    }

    fn send_turn_frame(&mut self, channel: ChannelId, frame: ClientFrame) {
        self.send_up(channel, Event::Frame { channel, frame });
    }
}
