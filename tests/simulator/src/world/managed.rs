//! Managed memory: processes allocate it, have it ordered to the device and to the host, and execute the orders.

use std::time::Duration;

use broker_core::{
    Advice, AllocationSpec, ChannelId, ClientFrame, ClientRequest, DeviceSelector, Event, Kind, ManagedOrder,
    OperatorRequest, Retention, Target, Tier,
};
use vramd_types::{AllocationId, Bytes, PartIndex, Quantity};

use super::{World, queue::Action, request::spec};
use crate::{
    dice::Dice,
    scenario::{Fault, ManagedOrdering},
};

/// A stream of its own: all other draws are the same as without orders.
const OF_PROCESSES: u64 = 1 << 44;

/// How many managed allocations a process has at most.
const MANAGED_MAX: usize = 8;

impl World {
    /// Lets a process allocate managed memory, have it ordered elsewhere, or free it.
    pub(super) fn order_some(&mut self, pid: u32, turn: u64) {
        let Some(ordering) = self.scenario.managed else { return };
        let mut dice = Dice::new(self.plan.seed, OF_PROCESSES + turn);
        let Some(process) = self.processes.get(&pid).filter(|it| it.session.is_some() && !it.stopped) else {
            return;
        };
        if dice.chance(self.scenario.faults.rate(Fault::Lies) / 20) {
            return self.lie_about_orders(pid, &mut dice);
        }
        if !dice.chance(ordering.rate) {
            return;
        }
        let managed: Vec<_> = process.managed.keys().copied().collect();
        let tenant = self.scenario.seats[process.seat].tenant.to_owned();
        if dice.chance(ordering.limits) {
            return self.limit_some(tenant, &mut dice);
        }
        if managed.is_empty() || (managed.len() < MANAGED_MAX && dice.chance(300)) {
            let size = Bytes::mib(dice.small(8) + 1);
            let items = vec![AllocationSpec { device: None, ..spec(size, Kind::Managed) }];
            return self.call(pid, None, ClientRequest::allocate(items));
        }
        let Some(id) = dice.pick(&managed).copied() else { return };
        if dice.chance(80) {
            // Orders for it may be under way.
            return self.call(pid, None, ClientRequest::FreeBatch(vec![id]));
        }
        for _ in 0..dice.between(1, 3) {
            self.order_one(pid, dice.pick(&managed).copied().unwrap_or(id), &mut dice);
        }
    }

    fn order_one(&mut self, pid: u32, id: AllocationId, dice: &mut Dice) {
        let to = if dice.chance(500) { Tier::Host } else { Tier::Device };
        let key = dice.chance(300).then(|| self.new_key());
        if dice.chance(250) {
            let parts = if dice.chance(50) { vec![PartIndex(0)] } else { Vec::new() };
            let tier = if dice.chance(50) { Tier::Disk } else { to };
            let request = OperatorRequest::MoveParts { target: Target::Id(id), parts, tier };
            return self.operator_call(key, request);
        }
        let request = match to {
            Tier::Host if dice.chance(800) => ClientRequest::Evict(id, to),
            _ => {
                let change = Retention::Location(Some(to));
                ClientRequest::Advise(id, Advice::Retain { parts: None, change })
            }
        };
        self.call(pid, key, request);
    }

    fn limit_some(&mut self, tenant: String, dice: &mut Dice) {
        let (device, tier) = (DeviceSelector::All, Tier::Device);
        let request = match dice.chance(600) {
            true => {
                let limit = Some(Quantity::Bytes(Bytes::mib(dice.small(24))));
                OperatorRequest::SetQuota { tenant, device, tier, guarantee: None, limit }
            }
            false => OperatorRequest::DeleteQuota { tenant, device, tier },
        };
        self.operator_call(None, request);
    }

    /// Answers orders that it may not have, or failures that they cannot have.
    fn lie_about_orders(&mut self, pid: u32, dice: &mut Dice) {
        let Some(id) = self.processes.get(&pid).and_then(|process| process.channel) else { return };
        if let Some(channel) = self.channels.get_mut(&id) {
            channel.lied = true;
        }
        let failed = match dice.chance(500) {
            true => vec![(self.guess(dice), "no".to_owned())],
            false => Vec::new(),
        };
        let frame = ClientFrame::ManagedOrdersDone { number: dice.roll(40), failed };
        self.send_up(id, Event::Frame { channel: id, frame });
    }

    /// A client executes a batch, which takes a while; now and then it never answers.
    pub(super) fn execute_orders(&mut self, id: ChannelId, pid: u32, number: u64, orders: &[ManagedOrder]) {
        let quick = ManagedOrdering { rate: 0, limits: 0, failures: 0, silences: 0, slow_micros: 500 };
        let ordering = self.scenario.managed.unwrap_or(quick);
        if !self.calm && self.links.chance(ordering.silences) {
            return;
        }
        let Some(process) = self.processes.get(&pid) else { return };
        let mut failed = Vec::new();
        for order in orders {
            let problem = match process.managed.contains_key(&order.allocation) {
                true if !self.links.chance(ordering.failures) => continue,
                true => "CUDA_ERROR_INVALID_VALUE",
                false => "no such memory",
            };
            failed.push((order.allocation, problem.to_owned()));
        }
        let frame = ClientFrame::ManagedOrdersDone { number, failed };
        let when = self.now.after(Duration::from_micros(self.links.between(1, ordering.slow_micros)));
        self.queue.schedule(when, 0, Action::Say(id, frame));
    }

    /// A thread of a client sends a frame, if the channel still stands and the process runs.
    pub(super) fn say(&mut self, id: ChannelId, frame: ClientFrame) {
        let Some(channel) = self.channels.get(&id).filter(|channel| channel.client_open) else { return };
        match self.processes.get(&channel.pid) {
            Some(process) if process.stopped => {
                let later = self.now.after(Duration::from_millis(1));
                self.queue.schedule(later, 0, Action::Say(id, frame));
            }
            Some(_) => self.send_up(id, Event::Frame { channel: id, frame }),
            None => {}
        }
    }
}
