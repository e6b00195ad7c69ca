//! Plays a scenario with one policy, and counts.

use std::collections::BTreeMap;

use broker_core::{
    Broker, Config, DeviceConfig, EvictionPolicy, Kind, Limits, PartRef, PressureBounds, Refusal,
    StoredQuotas, Tier, Time,
};
use vramd_types::{AllocationId, Bytes, Quantity, Shares};

use crate::{
    Policy,
    scenario::{Action, Part, Scenario, Step, bytes_of},
    shell::{Moved, Shell, Wanted},
    trace::{Start, index},
};

/// Room below each device, for all parts of any trace.
const HOST: Bytes = Bytes::new(1 << 50);
/// Parts of one batch that start below a full device.
const BATCH: usize = 1024;

/// The counts of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Uses of a part that was on its device, and of one that was not.
    pub hits: u64,
    pub stalls: u64,
    pub fetched_bytes: u64,
    /// Bytes that were copied because parts left their devices.
    pub written_back_bytes: u64,
    /// The sum of the times of all stalls, if each link carries one fetch after the other.
    pub stalled_micros: u64,
    /// Uses with a deadline, and those of them that stalled longer.
    pub deadlines: u64,
    pub deadlines_missed: u64,
    /// Uses that stall until their part is freed or the trace ends: what is pinned leaves no room for them.
    pub unserved: u64,
}

/// Plays the scenario. Fails only if the core refuses what every daemon grants.
pub fn play(scenario: &Scenario, policy: Policy) -> Result<Counts, Refusal> {
    let mut player = Player::new(scenario, policy);
    player.prepare()?;
    for step in &scenario.steps {
        player.take(*step);
    }
    player.give_up(|_| true);
    Ok(player.counts)
}

struct Player<'a> {
    scenario: &'a Scenario,
    shell: Shell,
    /// By the number of the part; `None` before it is created and after it is freed.
    refs: Vec<Option<PartRef>>,
    numbers: BTreeMap<AllocationId, u32>,
    on_device: Vec<bool>,
    /// When the link to each device has carried all fetches.
    link_free_at: Vec<Time>,
    /// Pin calls without an answer.
    waiting: Vec<Waiting>,
    counts: Counts,
}

#[derive(Clone, Copy)]
struct Waiting {
    call: u64,
    part: u32,
    since: Time,
    /// The deadline of a use. `None` for a part that is held without a use.
    of_use: Option<Option<u64>>,
}

impl<'a> Player<'a> {
    fn new(scenario: &'a Scenario, policy: Policy) -> Self {
        let stored = StoredQuotas::default();
        let broker = match policy {
            Policy::Eviction(policy) => Broker::new(config(scenario, policy), stored, Time::START),
            Policy::KnownFuture => {
                Broker::knowing_the_future(config(scenario, EvictionPolicy::Lru), stored, Time::START)
            }
        };
        let mut shell = Shell::new(broker);
        for tenant in &scenario.tenants {
            shell.open_session(tenant);
        }
        Self {
            scenario,
            shell,
            refs: vec![None; scenario.parts.len()],
            numbers: BTreeMap::new(),
            on_device: vec![false; scenario.parts.len()],
            link_free_at: vec![Time::START; scenario.devices.len()],
            waiting: Vec::new(),
            counts: Counts::default(),
        }
    }

    /// Creates the parts that start below their devices, while memory that cannot move fills the devices. So no policy
    /// sees these parts on a device before their first use.
    fn prepare(&mut self) -> Result<(), Refusal> {
        let scenario = self.scenario;
        let filler = self.shell.open_session("vramd-replay");
        let mut fills = Vec::new();
        for (device, room) in scenario.devices.iter().enumerate() {
            let size = bytes_of(room.granules);
            let wanted = Wanted { size, device, kind: Kind::Fixed, may_start_below: false };
            fills.extend(self.shell.allocate(filler, &[wanted])?);
        }
        for tenant in 0..scenario.tenants.len() {
            let below: Vec<u32> = (0..)
                .zip(&scenario.parts)
                .filter(|(_, part)| part.tenant == tenant && part.start == Start::Below)
                .map(|(number, _)| number)
                .collect();
            for numbers in below.chunks(BATCH) {
                let wanted: Vec<_> =
                    numbers.iter().map(|number| wanted(&scenario.parts[index(*number)], true)).collect();
                let parts = self.shell.allocate(tenant, &wanted)?;
                for (number, (part, is_there)) in numbers.iter().zip(parts) {
                    self.enter(*number, part, is_there);
                }
            }
        }
        for (fill, _) in fills {
            self.shell.free(filler, fill);
        }
        Ok(())
    }

    fn take(&mut self, step: Step) {
        self.shell.advance_to(step.at);
        let scenario = self.scenario;
        let (number, tenant) = (step.part, scenario.parts[index(step.part)].tenant);
        match (step.action, self.refs[index(number)]) {
            (Action::Create, _) => self.create(number),
            (Action::Use { deadline }, Some(part)) => {
                self.counts.deadlines += u64::from(deadline.is_some());
                match self.on_device[index(number)] {
                    true => self.counts.hits += 1,
                    false => self.counts.stalls += 1,
                }
                self.pin(number, part, Some(deadline));
            }
            (Action::Write, Some(part)) => {
                self.shell.mark_written(part);
                self.shell.touch(tenant, part);
            }
            (Action::Hold, Some(part)) => {
                self.shell.set_held(part, true);
                self.pin(number, part, None);
            }
            (Action::Release, Some(part)) => {
                self.shell.set_held(part, false);
                self.shell.touch(tenant, part);
            }
            (Action::Free, Some(part)) => {
                self.give_up(|waiting| waiting.part == number);
                self.shell.free(tenant, part);
                (self.refs[index(number)], self.on_device[index(number)]) = (None, false);
            }
            // The core had no room for the part when it was created.
            (Action::Use { deadline }, None) => {
                self.counts.deadlines += u64::from(deadline.is_some());
                self.counts.stalls += 1;
                self.counts.unserved += 1;
            }
            (_, None) => {}
        }
        self.settle();
    }

    /// Takes these calls for unanswered for ever, and counts those that are uses.
    fn give_up(&mut self, is_given_up: impl Fn(&Waiting) -> bool) {
        let gone = self.waiting.extract_if(.., |waiting| is_given_up(waiting));
        let uses = gone.filter(|waiting| waiting.of_use.is_some()).count();
        self.counts.unserved += u64::try_from(uses).unwrap_or(u64::MAX);
    }

    fn create(&mut self, number: u32) {
        let part = &self.scenario.parts[index(number)];
        let tenant = part.tenant;
        // Where all else is pinned, it starts below.
        let made = self.shell.allocate(tenant, &[wanted(part, false)]);
        let made = match made {
            Ok(made) if !made.is_empty() => made,
            _ => self.shell.allocate(tenant, &[wanted(part, true)]).unwrap_or_default(),
        };
        for (part, is_there) in made {
            self.enter(number, part, is_there);
        }
    }

    fn enter(&mut self, number: u32, part: PartRef, is_there: bool) {
        self.refs[index(number)] = Some(part);
        self.numbers.insert(part.allocation, number);
        self.on_device[index(number)] = is_there;
        self.shell.foretell(part, &self.scenario.parts[index(number)].uses);
    }

    /// Pins a part for a moment, or for as long as it is held.
    fn pin(&mut self, number: u32, part: PartRef, of_use: Option<Option<u64>>) {
        let tenant = self.scenario.parts[index(number)].tenant;
        if !self.shell.touch(tenant, part) {
            let call = self.shell.call_pin(tenant, part);
            self.waiting.push(Waiting { call, part: number, since: self.shell.now(), of_use });
        }
    }

    /// Counts what has moved, and ends the calls that were answered.
    fn settle(&mut self) {
        loop {
            for moved in self.shell.take_moves() {
                self.count_move(&moved);
            }
            let answered =
                self.waiting.iter().enumerate().find_map(|(at, waiting)| {
                    self.shell.take_answer(waiting.call).map(|refusal| (at, refusal))
                });
            let Some((at, refusal)) = answered else { return };
            let waiting = self.waiting.swap_remove(at);
            let Part { tenant, device, .. } = self.scenario.parts[index(waiting.part)];
            let Some(part) = self.refs[index(waiting.part)] else { continue };
            if refusal.is_some() {
                self.counts.unserved += u64::from(waiting.of_use.is_some());
                continue;
            }
            self.shell.end_call(tenant, waiting.call);
            self.shell.touch(tenant, part);
            if let Some(deadline) = waiting.of_use {
                let arrived = self.link_free_at[device].max(self.shell.now());
                let micros = u64::try_from(arrived.since(waiting.since).as_micros()).unwrap_or(u64::MAX);
                self.counts.stalled_micros = self.counts.stalled_micros.saturating_add(micros);
                self.counts.deadlines_missed += u64::from(deadline.is_some_and(|limit| micros > limit));
            }
        }
    }

    fn count_move(&mut self, moved: &Moved) {
        let Some(number) = self.numbers.get(&moved.part.allocation).copied() else { return };
        let bytes = moved.bytes.get();
        match (moved.from, moved.to) {
            (_, Tier::Device) => {
                self.on_device[index(number)] = true;
                self.counts.fetched_bytes = self.counts.fetched_bytes.saturating_add(bytes);
                if let Some(free_at) = self.link_free_at.get_mut(usize::from(moved.device.0)) {
                    let per_second = u128::from(self.scenario.link_bytes_per_second.max(1));
                    let micros = (u128::from(bytes) * 1_000_000).div_ceil(per_second);
                    let began = (*free_at).max(self.shell.now());
                    let ends = began.as_micros().saturating_add(u64::try_from(micros).unwrap_or(u64::MAX));
                    *free_at = Time::from_micros(ends);
                }
            }
            (Tier::Device, _) => {
                self.on_device[index(number)] = false;
                if moved.copied {
                    self.counts.written_back_bytes = self.counts.written_back_bytes.saturating_add(bytes);
                }
            }
            _ => {}
        }
    }
}

fn wanted(part: &Part, may_start_below: bool) -> Wanted {
    Wanted { size: bytes_of(part.granules), device: part.device, kind: Kind::Movable, may_start_below }
}

/// The daemon's defaults, without what a trace says nothing of: quotas, other programs and pressure.
fn config(scenario: &Scenario, eviction: EvictionPolicy) -> Config {
    let parts = scenario.parts.len().saturating_add(scenario.devices.len());
    let sessions = scenario.tenants.len().saturating_add(1);
    let usual = Limits::default();
    let limits = Limits {
        sessions_max: sessions.max(usual.sessions_max),
        allocations_per_tenant_max: parts.max(usual.allocations_per_tenant_max),
        extents_max: parts.saturating_mul(4).max(usual.extents_max),
        words_per_session_max: u32::try_from(parts).unwrap_or(u32::MAX).max(usual.words_per_session_max),
        pins_waiting_max: parts.max(usual.pins_waiting_max),
        pin_parts_waiting_max: parts.max(usual.pin_parts_waiting_max),
        ..usual
    };
    let device = |(number, room): (usize, &crate::scenario::Device)| DeviceConfig {
        uuid: format!("replayed-{number}"),
        name: room.name.clone(),
        total: bytes_of(room.granules),
        share: bytes_of(room.granules),
        host: HOST,
        maps_host: true,
        disk: Bytes::ZERO,
        context_bytes: Bytes::ZERO,
        makes_fixed: true,
    };
    Config {
        boot_epoch: 1,
        devices: scenario.devices.iter().enumerate().map(device).collect(),
        part_size: broker_core::limits::PART_SIZE_MAX,
        default_limit: Quantity::Percent(100),
        default_host_limit: Quantity::Percent(100),
        default_disk_limit: Quantity::Percent(100),
        sessions_reserved: 0,
        eviction,
        victim_script: Vec::new(),
        check_clean_backings: false,
        pressure: PressureBounds { cold_after: std::time::Duration::ZERO, ..PressureBounds::default() },
        files: false,
        shares: Shares::default(),
        tenants: std::collections::BTreeMap::new(),
        limits,
    }
}
