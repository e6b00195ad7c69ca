//! Operators change quotas in mid-flight, end sessions, free memory and drain the node.

use std::time::Duration;

use broker_core::{
    DeviceSelector, Event, EvictionPolicy, OperatorRequest, PressureChange, RequestKey, SettingsChange,
    ShareChange, Target, TenantClass, Tier,
};
use vramd_types::{Bytes, PartIndex, Quantity, SessionId, WaitId};

use super::{World, driver::soon, queue::Action};
use crate::{
    dice::Dice,
    scenario::{Fault, OPERATORS, TENANTS, some_weight},
};

/// Number of requests that operators may repeat.
const REPEATABLE: usize = 8;

impl World {
    pub(super) fn operate(&mut self) {
        if self.calm {
            return;
        }
        if let Some(end) = self.end_of_lull() {
            return self.queue.schedule(end, 0, Action::Operate);
        }
        self.operator_acts += 1;
        let number = u64::MAX / 2 + self.operator_acts;
        let mut dice = Dice::new(self.plan.seed, number);
        let pause = dice.between(1, self.scenario.think_micros * 6);
        self.queue.schedule(self.now.after(Duration::from_micros(pause)), 0, Action::Operate);
        if self.plan.idle.contains(&OPERATORS) || self.plan.skip.contains(&number) {
            return;
        }
        self.acts.push(number);
        // Each change has the whole line scanned, which would hide that a shorter scan came too short.
        if self.scenario.crowds.is_some() && dice.chance(900) {
            return;
        }
        if dice.chance(self.scenario.faults.rate(Fault::DriverLost) * 4) {
            self.story.add_line(self.now, || "the driver is lost".to_owned());
            return self.restart();
        }
        self.check_lists(&mut dice);
        self.cancel_some_prefetch();
        self.change_some_tenant();
        self.overrule_some();
        self.ask_some_owner();
        if let Some(lanes) = self.scenario.lanes {
            let dice = Dice::new(self.plan.seed, u64::MAX / 4 + self.operator_acts);
            match lanes.is_crowded {
                true => self.move_apart(dice),
                false => self.move_back_and_forth(dice),
            }
        }
        if let Some(returning) = self.scenario.returning {
            let mut dice = Dice::new(self.plan.seed, u64::MAX / 8 + self.operator_acts);
            if dice.chance(returning.moves) {
                self.move_detached(&mut dice);
            }
        }
        if dice.chance(600) {
            self.revoke_some(&mut dice);
        }
        let has_below = self.scenario.config.devices.iter().any(|device| !device.host.is_zero())
            || self.scenario.files.is_some();
        if dice.chance(if has_below { 800 } else { 20 }) {
            self.move_some(&mut dice);
        }
        if dice.chance(if has_below { 700 } else { 20 }) {
            self.write_back_some(&mut dice);
        }
        if dice.chance(150) {
            self.cancel_some(&mut dice);
        }
        if dice.chance(100) {
            self.lower_some(&mut dice);
        }
        if has_below && dice.chance(150) {
            self.hold_some(&mut dice);
        }
        if dice.chance(60) {
            self.change_some(&mut dice);
        }
        if dice.chance(200)
            && let Some((key, request)) = dice.pick(&self.operator_asked).cloned()
        {
            let fingerprint = if dice.chance(200) { [0xee; 16] } else { key.fingerprint };
            return self.operator_call(Some(RequestKey { fingerprint, ..key }), request);
        }
        let Some(request) = self.some_request(&mut dice) else { return };
        let key = dice.chance(600).then(|| self.new_key());
        self.remember_request(key, &request);
        self.operator_call(key, request);
    }

    pub(super) fn remember_request(&mut self, key: Option<RequestKey>, request: &OperatorRequest) {
        let Some(key) = key else { return };
        self.operator_asked.push((key, request.clone()));
        if self.operator_asked.len() > REPEATABLE {
            self.operator_asked.remove(0);
        }
    }

    pub(super) fn operator_call(&mut self, key: Option<RequestKey>, request: OperatorRequest) {
        let call = self.new_call(None);
        let when = soon(&mut self.links, self.now, 5, 250);
        self.queue.schedule(when, self.life, Action::Arrive(Event::Operator { call, uid: 0, key, request }));
    }

    fn some_request(&mut self, dice: &mut Dice) -> Option<OperatorRequest> {
        let tenant = match dice.chance(30) {
            true => "no tenant!".to_owned(),
            false => dice.one(&TENANTS).to_owned(),
        };
        let devices = &self.scenario.config.devices;
        let device = match dice.roll(8) {
            0..4 => DeviceSelector::All,
            4 => DeviceSelector::One("GPU-absent".to_owned()),
            _ => DeviceSelector::One(dice.index(devices.len()).to_string()),
        };
        let tier = match dice.roll(32) {
            0..6 => Tier::Host,
            6..10 => Tier::Disk,
            _ => Tier::Device,
        };
        Some(match dice.roll(20) {
            0..9 => {
                let mib = u32::try_from(devices[0].share.get() >> 20).unwrap_or(64);
                let low = dice.small(mib / 2);
                let guarantee = dice.chance(700).then(|| quantity(dice, low));
                let limit = dice.chance(700).then(|| {
                    let more = low + dice.small(mib);
                    quantity(dice, more)
                });
                OperatorRequest::SetQuota { tenant, device, tier, guarantee, limit }
            }
            9..13 => OperatorRequest::DeleteQuota { tenant, device, tier },
            13..16 => {
                let sessions: Vec<_> =
                    self.processes.values().filter_map(|process| process.session).collect();
                let session = dice.pick(&sessions).copied().unwrap_or(SessionId::from_raw(77));
                OperatorRequest::EndSession { session, kill: dice.chance(500) }
            }
            16..18 => OperatorRequest::FreeAllocation(match dice.chance(400) {
                true => Target::Name(super::request::some_name(dice, Some(&self.scenario.tenants))),
                false => Target::Id(self.guess(dice)),
            }),
            18 => {
                let draining = !self.broker.node().draining && dice.chance(300);
                OperatorRequest::Drain { draining }
            }
            _ if self.broker.node().draining => OperatorRequest::Drain { draining: false },
            _ => return None,
        })
    }

    /// Changes the class or the weight of a tenant, or returns it to the configured ones; some changes are invalid.
    fn change_some_tenant(&mut self) {
        let Some(classes) = self.scenario.classes else { return };
        let mut dice = Dice::new(self.plan.seed, u64::MAX / 16 + self.operator_acts);
        if !dice.chance(classes.changes) {
            return;
        }
        let tenant = match dice.chance(30) {
            true => "no tenant!".to_owned(),
            false => dice.one(&TENANTS).to_owned(),
        };
        let class = dice.one(&TenantClass::ALL);
        let class = (!classes.only_weights && dice.chance(700)).then_some(class);
        let weight = match dice.roll(20) {
            0 => Some(0),
            1 => Some(10_001),
            2..12 => Some(some_weight(&mut dice).get()),
            _ => None,
        };
        let request = match dice.chance(200) {
            true => OperatorRequest::ResetTenant { tenant },
            false => OperatorRequest::SetTenant { tenant, class, weight, advice: None },
        };
        let key = dice.chance(300).then(|| self.new_key());
        self.remember_request(key, &request);
        self.operator_call(key, request);
    }

    /// Revokes mappings of several parts at once, so that sessions wait for each other.
    fn revoke_some(&mut self, dice: &mut Dice) {
        if self.scenario.fences.is_some_and(|fences| dice.chance(fences.joining)) {
            return self.fence_some(dice);
        }
        let wait = dice.chance(500);
        for _ in 0..dice.between(1, 4) {
            let (target, parts) = self.some_parts(dice);
            self.operator_call(None, OperatorRequest::RevokeMappings { target, parts, wait });
        }
    }

    /// Fences parts that are being evicted, and that sessions ask for at the same time.
    fn fence_some(&mut self, dice: &mut Dice) {
        let open = self.channels.values().filter(|channel| channel.broker_open);
        let pinned = |channel: &super::Channel| {
            channel.slots.keys().copied().filter(|part| channel.is_pinned(*part)).collect::<Vec<_>>()
        };
        let pinned: Vec<_> = open.flat_map(pinned).collect();
        let Some(part) = dice.pick(&pinned).copied() else { return };
        for wait in [false, true, dice.chance(500)] {
            let (target, parts) = (Target::Id(part.allocation), vec![part.part]);
            self.operator_call(None, OperatorRequest::RevokeMappings { target, parts, wait });
        }
        let knows = |process: &&super::Process| {
            let channel = process.channel.and_then(|id| self.channels.get(&id));
            !process.stopped && channel.is_some_and(|channel| channel.slots.contains_key(&part))
        };
        let pids: Vec<_> = self.processes.values().filter(knows).map(|process| process.pid).collect();
        pids.into_iter().for_each(|pid| self.pin_with_another(pid, part, dice));
    }

    /// Moves parts, mostly off their device: clients that pin fetch them again.
    fn move_some(&mut self, dice: &mut Dice) {
        let tier = match dice.roll(50) {
            0..14 => Tier::Disk,
            14..28 => Tier::Device,
            _ => Tier::Host,
        };
        for _ in 0..dice.between(1, 4) {
            let (target, parts) = self.some_parts(dice);
            let key = dice.chance(200).then(|| self.new_key());
            self.operator_call(key, OperatorRequest::MoveParts { target, parts, tier });
        }
        if self.scenario.advising.is_some() {
            self.move_unsent(dice);
        }
    }

    /// Moves a part without a handle pin that no session was sent into host memory, where it may be mapped.
    fn move_unsent(&mut self, dice: &mut Dice) {
        let open = self.channels.values().filter(|channel| channel.broker_open);
        let unsent = |channel: &super::Channel| {
            let sent = &channel.slots;
            channel.unpinned.iter().filter(|part| !sent.contains_key(part)).copied().collect::<Vec<_>>()
        };
        let unsent: Vec<_> = open.flat_map(unsent).collect();
        if let Some(part) = dice.pick(&unsent).copied() {
            let (target, parts) = (Target::Id(part.allocation), vec![part.part]);
            self.operator_call(None, OperatorRequest::MoveParts { target, parts, tier: Tier::Host });
        }
    }

    /// Moves memory of an owner without pins off its device. That works while it is detached.
    fn move_detached(&mut self, dice: &mut Dice) {
        let without_pins = self.processes.values().filter(|it| !self.scenario.seats[it.seat].pins);
        let own: Vec<_> = without_pins.flat_map(|it| &it.known).filter(|known| known.own).collect();
        let Some(target) = dice.pick(&own).map(|known| Target::Id(known.id)) else { return };
        let tier = if dice.chance(800) { Tier::Host } else { Tier::Disk };
        self.operator_call(None, OperatorRequest::MoveParts { target, parts: Vec::new(), tier });
    }

    /// Holds parts, mostly for a while.
    fn hold_some(&mut self, dice: &mut Dice) {
        let (target, parts) = self.some_parts(dice);
        let key = dice.chance(200).then(|| self.new_key());
        let request = OperatorRequest::HoldParts { target, parts, hold: dice.chance(500) };
        self.operator_call(key, request);
    }

    /// Changes levels of pressure, sizes of tiers, shares, the policy, or some of them; some changes are invalid.
    fn change_some(&mut self, dice: &mut Dice) {
        let mut change = SettingsChange::default();
        if dice.chance(700) {
            change.pressure = some_levels(dice);
        }
        let configured = self.broker.configured_settings().tiers;
        if dice.chance(600) {
            change.tiers.host = some_size(dice, configured.host);
            change.tiers.disk = some_size(dice, configured.disk);
        }
        let key = dice.chance(300).then(|| self.new_key());
        if dice.chance(300) {
            change.shares = some_shares(dice);
        }
        if self.scenario.policies.is_some() && dice.chance(700) {
            if dice.chance(500) {
                change = SettingsChange::default();
            }
            change.eviction_policy = Some(dice.one(&EvictionPolicy::ALL));
        }
        let request = OperatorRequest::ChangeSettings(change);
        self.remember_request(key, &request);
        self.operator_call(key, request);
    }

    /// Cancels a wait, or one that does not exist.
    fn cancel_some(&mut self, dice: &mut Dice) {
        let waits: Vec<_> = self.broker.waits().iter().map(|wait| wait.id).collect();
        let nobody = WaitId::from_raw(dice.roll(1_000));
        let wait = dice.pick(&waits).copied().filter(|_| dice.chance(900)).unwrap_or(nobody);
        let key = dice.chance(300).then(|| self.new_key());
        self.operator_call(key, OperatorRequest::CancelWait { wait });
    }

    /// Lowers the limit of a tenant whose memory is moving.
    fn lower_some(&mut self, dice: &mut Dice) {
        let tenants: Vec<_> = self.broker.moves().into_iter().map(|moves| moves.tenant).collect();
        let Some(tenant) = dice.pick(&tenants).cloned() else { return };
        let limit = Some(Quantity::Bytes(Bytes::mib(dice.small(24))));
        let (device, tier) = (DeviceSelector::All, Tier::Device);
        let request = OperatorRequest::SetQuota { tenant, device, tier, guarantee: None, limit };
        self.operator_call(None, request);
    }

    /// Parts that some session maps or mapped, or others.
    pub(super) fn some_parts(&self, dice: &mut Dice) -> (Target, Vec<PartIndex>) {
        let open = self.channels.values().filter(|channel| channel.broker_open);
        let parts: Vec<_> = open.flat_map(|channel| channel.slots.keys().copied()).collect();
        let part = dice.pick(&parts).copied();
        let id = part.map_or_else(|| self.guess(dice), |part| part.allocation);
        let target = match dice.chance(40) {
            true => Target::Name(super::request::some_name(dice, Some(&self.scenario.tenants))),
            false => Target::Id(id),
        };
        let parts = match dice.roll(8) {
            0 => vec![PartIndex(dice.small(3))],
            1 => vec![PartIndex(0), PartIndex(dice.small(2))],
            2..5 => part.map(|part| part.part).into_iter().collect(),
            _ => Vec::new(),
        };
        (target, parts)
    }

    /// Checks lists and tables against the oracle.
    fn check_lists(&mut self, dice: &mut Dice) {
        if dice.chance(200) {
            let rows = self.broker.list_quotas(None);
            self.oracle.check_quota_list(&rows);
            let (sessions, _) = self.broker.list_sessions(None, None, usize::MAX);
            self.oracle.check_session_list(&sessions);
            self.check();
        }
    }
}

/// The levels of another world, or random ones.
fn some_levels(dice: &mut Dice) -> PressureChange {
    let levels = crate::scenario::pressure(dice);
    if dice.chance(600) {
        return PressureChange {
            elevated_percent: Some(levels.elevated_percent),
            high_percent: Some(levels.high_percent),
            critical_percent: Some(levels.critical_percent),
            fall_percent: Some(levels.fall_percent),
            evict_to_percent: Some(levels.evict_to_percent),
            cold_after: dice.chance(500).then_some(levels.cold_after),
        };
    }
    let percent = |dice: &mut Dice, max| dice.chance(300).then(|| dice.small(max));
    PressureChange {
        elevated_percent: percent(dice, 103),
        high_percent: percent(dice, 103),
        critical_percent: percent(dice, 103),
        fall_percent: percent(dice, 12),
        evict_to_percent: percent(dice, 103),
        cold_after: dice.chance(300).then_some(levels.cold_after),
    }
}

/// Shares that at times exceed a link.
fn some_shares(dice: &mut Dice) -> ShareChange {
    let mut percent = || dice.chance(700).then(|| dice.small(60));
    ShareChange { demand_percent: percent(), prefetch_percent: percent(), write_back_percent: percent() }
}

/// A size that is mostly the configured one, so that no tier stays closed for ever.
fn some_size(dice: &mut Dice, configured: Bytes) -> Option<Bytes> {
    let size = match dice.roll(8) {
        0 | 1 => return None,
        2 => Bytes::ZERO,
        3 | 4 => Bytes::mib(dice.small(16) * 2),
        5 => configured.saturating_add(Bytes::mib(dice.small(3))),
        _ => configured,
    };
    Some(size).filter(|_| !configured.is_zero() || dice.chance(50))
}

fn quantity(dice: &mut Dice, mib: u32) -> Quantity {
    match dice.roll(6) {
        0 => Quantity::Percent(u8::try_from(dice.roll(101)).unwrap_or(0)),
        _ => Quantity::Bytes(Bytes::mib(mib)),
    }
}
