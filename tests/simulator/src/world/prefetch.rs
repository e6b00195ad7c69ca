//! Processes that ask for parts ahead of their use, and cancel such requests; operators cancel some too.

use std::time::Duration;

use broker_core::{ClientFrame, Event, OperatorRequest, PartRef, PrefetchSpec, Target};
use vramd_types::{PartIndex, SessionId};

use super::World;
use crate::{
    dice::Dice,
    scenario::{Fault, Prefetching},
};

/// Streams of their own: all other draws are the same as without prefetch requests.
const OF_PROCESSES: u64 = 1 << 40;
const OF_OPERATORS: u64 = u64::MAX / 16;

impl World {
    /// Lets a process ask for parts, or cancel a request, in this turn.
    pub(super) fn prefetch_some(&mut self, pid: u32, turn: u64) {
        let Some(prefetching) = self.scenario.prefetching else { return };
        let mut dice = Dice::new(self.plan.seed, OF_PROCESSES + turn);
        let Some(process) = self.processes.get(&pid).filter(|it| it.session.is_some() && !it.stopped) else {
            return;
        };
        let (last, is_asking) = (process.last_prefetch, dice.chance(prefetching.rate));
        let Some(id) = process.channel else { return };
        if dice.chance(self.scenario.faults.rate(Fault::Lies) / 20) {
            return self.lie_about_prefetches(pid, &mut dice);
        }
        if self.channels.get(&id).is_none_or(|channel| channel.words.is_none()) {
            return;
        }
        if last > 0 && dice.chance(prefetching.cancels) {
            let number = last - dice.roll(last.min(3));
            self.send_prefetch(pid, ClientFrame::PrefetchCancelled { number });
        }
        if is_asking && let Some(spec) = self.some_prefetch(pid, prefetching, &mut dice) {
            let number = last + dice.between(1, 2);
            self.send_prefetch(pid, ClientFrame::Prefetch { number, spec });
        }
    }

    /// A request for parts of one device that the process was told of, mostly such as it does not map now.
    fn some_prefetch(&self, pid: u32, prefetching: Prefetching, dice: &mut Dice) -> Option<PrefetchSpec> {
        let channel = self.channels.get(&self.processes.get(&pid)?.channel?)?;
        let unsent = channel.unpinned.iter().filter(|part| !channel.slots.contains_key(part));
        let known: Vec<_> = channel.slots.keys().chain(unsent).copied().collect();
        let device = |part: PartRef| {
            self.broker.show(&Target::Id(part.allocation)).map(|view| view.device).unwrap_or_default()
        };
        let away: Vec<_> = known.iter().copied().filter(|part| !channel.mapped.contains_key(part)).collect();
        let from = if away.is_empty() || dice.chance(200) { &known } else { &away };
        let first = *dice.pick(from)?;
        let others = from.iter().copied().filter(|part| *part != first && device(*part) == device(first));
        let mut others: Vec<_> = others.collect();
        let mut parts = vec![first];
        for _ in 1..dice.between(1, prefetching.parts_max) {
            if !others.is_empty() {
                parts.push(others.swap_remove(dice.index(others.len())));
            }
        }
        let mut within = dice.chance(prefetching.deadlines).then(|| {
            Duration::from_micros(dice.between(prefetching.within_max / 20, prefetching.within_max))
        });
        match dice.roll(50) {
            0 => parts.clear(),
            1 => parts.push(first),
            2 => within = Some(Duration::ZERO),
            3 => parts.push(PartRef { allocation: self.guess(dice), part: PartIndex(dice.small(3)) }),
            4 => parts.extend(known.iter().copied().find(|part| device(*part) != device(first))),
            _ => {}
        }
        let priority = u8::try_from(dice.roll(4)).unwrap_or(0);
        Some(PrefetchSpec { parts, whole: dice.chance(500), within, priority })
    }

    /// Sends a number that was sent before, or cancels what was never asked for.
    fn lie_about_prefetches(&mut self, pid: u32, dice: &mut Dice) {
        let Some(process) = self.processes.get(&pid) else { return };
        let last = process.last_prefetch;
        if let Some(channel) = process.channel.and_then(|id| self.channels.get_mut(&id)) {
            channel.lied = true;
        }
        let part = PartRef { allocation: self.guess(dice), part: PartIndex(0) };
        let spec = PrefetchSpec { parts: vec![part], whole: false, within: None, priority: 0 };
        let frame = match dice.roll(2) {
            0 => ClientFrame::Prefetch { number: last, spec },
            _ => ClientFrame::PrefetchCancelled { number: last + 1 },
        };
        self.send_prefetch(pid, frame);
    }

    fn send_prefetch(&mut self, pid: u32, frame: ClientFrame) {
        let Some(process) = self.processes.get_mut(&pid) else { return };
        if let ClientFrame::Prefetch { number, .. } = &frame {
            process.last_prefetch = process.last_prefetch.max(*number);
        }
        if let Some(channel) = process.channel {
            self.send_up(channel, Event::Frame { channel, frame });
        }
    }

    /// Lets operators cancel a request now and then, or one that does not exist.
    pub(super) fn cancel_some_prefetch(&mut self) {
        let mut dice = Dice::new(self.plan.seed, OF_OPERATORS + self.operator_acts);
        if self.scenario.prefetching.is_none() || !dice.chance(60) {
            return;
        }
        let all: Vec<_> = self.broker.prefetches().iter().map(|it| (it.session, it.number)).collect();
        let (session, number) = match dice.pick(&all).copied() {
            Some((session, number)) if dice.chance(100) => (session, number + 1_000),
            Some(found) => found,
            None => (SessionId::from_raw(77), dice.roll(10)),
        };
        let key = dice.chance(300).then(|| self.new_key());
        let request = OperatorRequest::CancelPrefetch { session, number };
        self.remember_request(key, &request);
        self.operator_call(key, request);
    }
}
