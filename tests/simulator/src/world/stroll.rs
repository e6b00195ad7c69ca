//! Processes that pin the parts of one allocation one after the other, again and again, and sometimes go elsewhere.

use broker_core::{
    Advice, AllocationSpec, ClientRequest, Kind, OperatorRequest, PartRef, Pattern, Retention, Target, Tier,
};
use vramd_types::{AllocationId, Bytes, PartIndex};

use super::{World, request::spec};
use crate::{
    dice::Dice,
    scenario::{STROLLERS, Strolls},
};

/// A stream of its own: all other draws are the same as without strolls.
const OF_PROCESSES: u64 = 1 << 42;

/// The allocation that a process goes through, and the part that it pins next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stroll {
    allocation: AllocationId,
    next: u32,
}

impl World {
    /// Lets a process go on with its stroll, or begin one, in this turn. Returns whether it does nothing else.
    pub(super) fn stroll_some(&mut self, seat: usize, pid: u32, turn: u64) -> bool {
        let Some(strolls) = self.scenario.strolls.filter(|_| seat < STROLLERS) else { return false };
        let mut dice = Dice::new(self.plan.seed, OF_PROCESSES + turn);
        let Some(process) = self.processes.get(&pid).filter(|it| it.session.is_some() && !it.stopped) else {
            return false;
        };
        if !self.scenario.seats[seat].pins || dice.chance(strolls.others) {
            return false;
        }
        let stroll = process.stroll;
        let parts = stroll.map_or(0, |stroll| self.parts_known(pid, stroll.allocation));
        match stroll.filter(|_| parts > 1) {
            Some(stroll) => self.stroll_on(pid, stroll, (parts, strolls), &mut dice),
            None => self.begin_stroll(pid, strolls, &mut dice),
        }
        true
    }

    /// How many parts of the allocation the process can pin.
    fn parts_known(&self, pid: u32, id: AllocationId) -> u32 {
        let channel = self.processes.get(&pid).and_then(|process| self.channels.get(&process.channel?));
        let Some(channel) = channel.filter(|channel| channel.words.is_some()) else { return 0 };
        let known = channel.slots.keys().chain(&channel.unpinned).filter(|part| part.allocation == id);
        let known = known.map(|part| part.part.0 + 1);
        known.max().unwrap_or_default()
    }

    /// Takes the largest own allocation, or asks for one.
    fn begin_stroll(&mut self, pid: u32, strolls: Strolls, dice: &mut Dice) {
        let Some(process) = self.processes.get_mut(&pid) else { return };
        process.stroll = None;
        let own: Vec<_> = process.known.iter().filter(|known| known.own).map(|known| known.id).collect();
        let sized = own.into_iter().map(|id| (self.parts_known(pid, id), id));
        let Some((_, allocation)) = sized.filter(|(parts, _)| u64::from(*parts) >= strolls.parts).max()
        else {
            if dice.chance(300) {
                let (size, part_size) = (Bytes::mib(2).get() * strolls.parts, Some(Bytes::mib(2)));
                let item =
                    AllocationSpec { part_size, unpinned: true, ..spec(Bytes::new(size), Kind::Movable) };
                self.call(pid, None, ClientRequest::allocate(vec![item.clone(), item]));
            }
            return;
        };
        if dice.chance(strolls.advised) {
            let patterns = [Pattern::Loop, Pattern::Sequential, Pattern::Random, Pattern::Sparse];
            let change = Retention::Pattern(Some(dice.one(&patterns)));
            self.call(pid, None, ClientRequest::Advise(allocation, Advice::Retain { parts: None, change }));
        }
        if let Some(process) = self.processes.get_mut(&pid) {
            process.stroll = Some(Stroll { allocation, next: 0 });
        }
    }

    /// Has an operator move all memory of a process into host memory.
    fn demote_all_of(&mut self, pid: u32) {
        let Some(process) = self.processes.get(&pid) else { return };
        let own: Vec<_> = process.known.iter().filter(|known| known.own).map(|known| known.id).collect();
        for id in own {
            let (target, parts) = (Target::Id(id), Vec::new());
            self.operator_call(None, OperatorRequest::MoveParts { target, parts, tier: Tier::Host });
        }
    }

    fn stroll_on(&mut self, pid: u32, stroll: Stroll, (parts, strolls): (u32, Strolls), dice: &mut Dice) {
        let Some(id) = self.processes.get(&pid).and_then(|process| process.channel) else { return };
        let waits = self
            .processes
            .get(&pid)
            .is_some_and(|it| it.threads.iter().any(|thread| thread.waiting.is_some()));
        if waits {
            return;
        }
        let Stroll { allocation, next } = stroll;
        if next == 0 && dice.chance(strolls.demoted) {
            self.let_go_of_all(pid, id);
            self.demote_all_of(pid);
        }
        let next = if dice.chance(strolls.leaps) {
            u32::try_from(dice.roll(parts.into())).unwrap_or(0)
        } else {
            next
        };
        let after = if next + 1 >= parts { 0 } else { next + 1 };
        if let Some(process) = self.processes.get_mut(&pid) {
            // Now and then it looks for another one.
            process.stroll = (!dice.chance(10)).then_some(Stroll { allocation, next: after });
        }
        self.let_go_of_all(pid, id);
        self.pin_step(pid, vec![PartRef { allocation, part: PartIndex(next) }], dice);
    }
}
