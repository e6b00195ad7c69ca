//! Processes that declare in which order they use their parts, and go through the steps: mostly in order, sometimes with
//! steps left out, and with other pins between.

use broker_core::{ChannelId, ClientFrame, Event, PartRange, PartRef, SequenceSpec, SequenceState, Target};
use vramd_types::PartIndex;

use super::World;
use crate::{
    dice::Dice,
    scenario::{Fault, Sequencing},
};

/// A stream of its own: all other draws are the same as without sequences.
const OF_PROCESSES: u64 = 1 << 41;

/// A sequence of a process, and the step that it has begun.
#[derive(Clone, Debug)]
pub(super) struct Walk {
    number: u64,
    steps: Vec<Vec<PartRef>>,
    passes: u64,
    begun: Option<u64>,
}

impl World {
    /// Lets a process declare a sequence, begin its next step or end it, in this turn.
    pub(super) fn sequence_some(&mut self, pid: u32, turn: u64) {
        let Some(sequencing) = self.scenario.sequencing else { return };
        let mut dice = Dice::new(self.plan.seed, OF_PROCESSES + turn);
        let Some(process) = self.processes.get(&pid).filter(|it| it.session.is_some() && !it.stopped) else {
            return;
        };
        let Some(id) = process.channel else { return };
        if dice.chance(self.scenario.faults.rate(Fault::Lies) / 20) {
            return self.lie_about_sequences(pid, id, &mut dice);
        }
        if self.channels.get(&id).is_none_or(|channel| channel.words.is_none()) {
            return;
        }
        match process.walk.clone() {
            None if dice.chance(sequencing.rate) => self.declare(pid, id, sequencing, &mut dice),
            Some(walk) if dice.chance(sequencing.ends) => self.end_walk(pid, id, walk.number),
            Some(walk) if dice.chance(sequencing.pace) => self.walk_on(pid, id, walk, &mut dice),
            Some(_) | None => {}
        }
    }

    fn declare(&mut self, pid: u32, id: ChannelId, sequencing: Sequencing, dice: &mut Dice) {
        let Some(channel) = self.channels.get(&id) else { return };
        let mut known: Vec<_> = channel.slots.keys().copied().collect();
        let device = |part: PartRef| {
            self.broker.show(&Target::Id(part.allocation)).map(|view| view.device).unwrap_or_default()
        };
        let Some(first) = dice.pick(&known).copied() else { return };
        let on = device(first);
        if !dice.chance(20) {
            known.retain(|part| device(*part) == on);
        }
        let mut steps: Vec<Vec<PartRef>> = Vec::new();
        for _ in 0..dice.between(2, sequencing.steps_max) {
            let mut rest = known.clone();
            let count = usize::try_from(dice.between(1, sequencing.parts_max)).unwrap_or(1).min(rest.len());
            steps.push((0..count).map(|_| rest.swap_remove(dice.index(rest.len()))).collect());
        }
        match dice.roll(40) {
            0 => steps.push(Vec::new()),
            1 => steps.clear(),
            2 => steps[0].extend([first, first]),
            3 => steps[0].push(PartRef { allocation: self.guess(dice), part: PartIndex(dice.small(3)) }),
            _ => {}
        }
        let passes = dice.one(&[0, 0, 1, 3]);
        let range = |part: &PartRef| PartRange { allocation: part.allocation, first: part.part, count: 1 };
        let spec = SequenceSpec {
            steps: steps.iter().map(|step| step.iter().map(range).collect()).collect(),
            passes,
        };
        let Some(process) = self.processes.get_mut(&pid) else { return };
        process.last_sequence += dice.between(1, 2);
        let number = process.last_sequence;
        process.walk = Some(Walk { number, steps, passes, begun: None });
        self.send_up(id, Event::Frame { channel: id, frame: ClientFrame::Sequence { number, spec } });
    }

    /// Begins the next step, or a later one, and pins its parts.
    fn walk_on(&mut self, pid: u32, id: ChannelId, walk: Walk, dice: &mut Dice) {
        let skipped = if dice.chance(120) { dice.between(1, 3) } else { 0 };
        let step = walk.begun.map_or(0, |begun| begun + 1) + skipped;
        let count = u64::try_from(walk.steps.len()).unwrap_or(u64::MAX);
        if count == 0 || (walk.passes > 0 && step >= walk.passes * count) {
            return self.end_walk(pid, id, walk.number);
        }
        // Some programs hold on to what they said to have ended.
        if !dice.chance(100) {
            self.let_go_of_all(pid, id);
        }
        let number = walk.number;
        let parts = walk.steps[usize::try_from(step % count).unwrap_or(0)].clone();
        if let Some(process) = self.processes.get_mut(&pid) {
            process.walk = Some(Walk { begun: Some(step), ..walk });
        }
        let frame = ClientFrame::SequenceStepBegun { number, step };
        self.send_up(id, Event::Frame { channel: id, frame });
        if !dice.chance(100) {
            self.pin_step(pid, parts, dice);
        }
    }

    fn end_walk(&mut self, pid: u32, id: ChannelId, number: u64) {
        if let Some(process) = self.processes.get_mut(&pid) {
            process.walk = None;
        }
        self.send_up(id, Event::Frame { channel: id, frame: ClientFrame::SequenceEnded { number } });
    }

    /// The daemon has ended the sequence, or never took it.
    pub(super) fn hear_of_sequence(&mut self, pid: u32, number: u64, state: &SequenceState) {
        let process = self.processes.get_mut(&pid);
        let walk = process.map(|process| &mut process.walk);
        if let Some(walk) = walk.filter(|walk| walk.as_ref().is_some_and(|walk| walk.number == number))
            && !matches!(state, SequenceState::Window(_))
        {
            *walk = None;
        }
    }

    /// Sends a number that was sent before, or goes on with what was never declared.
    fn lie_about_sequences(&mut self, pid: u32, id: ChannelId, dice: &mut Dice) {
        let Some(process) = self.processes.get(&pid) else { return };
        let (last, begun) = (process.last_sequence, process.walk.as_ref().and_then(|walk| walk.begun));
        if let Some(channel) = self.channels.get_mut(&id) {
            channel.lied = true;
        }
        let frame = match (dice.roll(4), begun) {
            (0, Some(step)) => ClientFrame::SequenceStepBegun { number: last, step },
            (0 | 1, _) => {
                ClientFrame::Sequence { number: last, spec: SequenceSpec { steps: Vec::new(), passes: 0 } }
            }
            (2, _) => ClientFrame::SequenceStepBegun { number: last + 1, step: 0 },
            _ => ClientFrame::SequenceEnded { number: last + 1 },
        };
        self.send_up(id, Event::Frame { channel: id, frame });
    }
}
