//! The requests of clients: good ones, edges, and nonsense.

use std::time::Duration;

use broker_core::{
    AllocationSpec, CallId, ClientRequest, Event, Kind, Lifetime, OperatorRequest, RequestKey, Target, Tier,
};
use vramd_types::{AllocationId, Bytes};

use super::{World, act::Choice, driver::soon, process::Known, queue::Action};
use crate::{
    dice::Dice,
    scenario::{Script, TENANTS},
};

const NAMES: [&str; 4] = ["llama", "gpt", "cache", "x"];

/// How long a batch waits at most.
pub(super) const WAIT_MAX: Duration = Duration::from_millis(300);

/// Number of requests that a process may repeat.
const REPEATABLE: usize = 12;

/// A name, sometimes prefixed with one of these tenants, sometimes invalid.
pub(super) fn some_name(dice: &mut Dice, anybody: Option<&[&'static str]>) -> String {
    let name = dice.one(&NAMES);
    match (dice.roll(50), anybody) {
        (0, _) => "no name!".to_owned(),
        (1..30, Some(tenants)) => format!("{}/{name}", dice.one(tenants)),
        _ => name.to_owned(),
    }
}

impl World {
    pub(super) fn request(&mut self, pid: u32, choice: Choice, dice: &mut Dice) {
        let Some(process) = self.processes.get(&pid) else { return };
        if choice == Choice::Repeat {
            return self.repeat(pid, dice);
        }
        let pins = self.scenario.seats[process.seat].pins;
        let own: Vec<_> = process.known.iter().filter(|known| known.own).map(|known| known.id).collect();
        let any: Vec<_> = process.known.iter().map(|known: &Known| known.id).collect();
        let choice = match choice {
            Choice::Free | Choice::Seal if own.is_empty() => Choice::Allocate,
            Choice::Detach if any.is_empty() => Choice::Attach,
            _ => choice,
        };
        let one_of = |ids: &[AllocationId], dice: &mut Dice| match dice.chance(60) {
            true => self.guess(dice),
            false => dice.pick(ids).copied().unwrap_or_else(|| self.guess(dice)),
        };
        let some_of = |ids: &[AllocationId], dice: &mut Dice| -> Vec<AllocationId> {
            let count = match dice.roll(50) {
                0 => 0,
                1 => 5,
                _ => dice.between(1, 3),
            };
            (0..count).map(|_| one_of(ids, dice)).collect()
        };
        let request = match choice {
            _ if !own.is_empty() && self.chooses_advice(dice) => self.some_advice(one_of(&own, dice), dice),
            _ if !own.is_empty() && self.chooses_retention(dice) => {
                Self::some_retention(one_of(&own, dice), dice)
            }
            _ if !own.is_empty() && self.chooses_eviction(dice) => {
                Self::some_eviction(one_of(&own, dice), dice)
            }
            Choice::Free => ClientRequest::FreeBatch(some_of(&own, dice)),
            Choice::Detach => ClientRequest::Detach(some_of(&any, dice)),
            Choice::Seal => ClientRequest::Seal(one_of(&own, dice)),
            Choice::Attach => {
                let loaded = self.some_loaded(dice);
                let returns = self.scenario.seats[process.seat].script == Script::Returning;
                let target = match loaded.is_none() && dice.chance(600) {
                    _ if returns && dice.chance(900) => Target::Id(one_of(&own, dice)),
                    true => Target::Name(some_name(dice, Some(&self.scenario.tenants))),
                    false if loaded.is_some() => loaded.unwrap_or_else(|| Target::Id(self.guess(dice))),
                    false if dice.chance(400) => Target::Id(one_of(&any, dice)),
                    false => Target::Id(self.guess(dice)),
                };
                Self::attach(target, pins, dice)
            }
            _ if self.chooses_load(dice) => self.some_load(pins, dice),
            _ => ClientRequest::AllocateBatch { items: self.some_specs(pins, dice), wait: some_wait(dice) },
        };
        if let ClientRequest::Seal(id) = request {
            self.race_for_name(pid, id, dice);
        }
        let key = dice.chance(700).then(|| self.new_key());
        if let (Some(key), Some(process)) = (key, self.processes.get_mut(&pid)) {
            process.asked.push((key, request.clone()));
            if process.asked.len() > REPEATABLE {
                process.asked.remove(0);
            }
        }
        self.call(pid, key, request);
    }

    /// Whether a process that would make a request evicts its own memory instead.
    fn chooses_eviction(&self, dice: &mut Dice) -> bool {
        self.scenario.evictions.is_some_and(|evictions| dice.chance(evictions.rate))
    }

    /// An eviction, now and then to the device, which is refused.
    fn some_eviction(id: AllocationId, dice: &mut Dice) -> ClientRequest {
        let tier = match dice.roll(12) {
            0 => Tier::Device,
            1..4 => Tier::Disk,
            _ => Tier::Host,
        };
        ClientRequest::Evict(id, tier)
    }

    /// Gives the name that a process is about to take by a seal to another allocation, now and then.
    fn race_for_name(&mut self, pid: u32, id: AllocationId, dice: &mut Dice) {
        let Some(name) = self.broker.show(&Target::Id(id)).ok().map(|view| view.name) else { return };
        let bearer = self.broker.show(&Target::Name(name.clone())).map(|view| view.id);
        if bearer.is_err() || bearer == Ok(id) || !dice.chance(200) {
            return;
        }
        let name_alone = name.split_once('/').map(|(_, name)| name.to_owned());
        self.operator_call(None, OperatorRequest::FreeAllocation(Target::Name(name)));
        let plain = AllocationSpec { name: name_alone, ..spec(Bytes::mib(2), Kind::Movable) };
        self.call(pid, None, ClientRequest::allocate(vec![plain]));
    }

    /// An attach; without a handle pin mostly where the process has pins, since it could not map it
    /// otherwise.
    fn attach(target: Target, pins: bool, dice: &mut Dice) -> ClientRequest {
        match dice.chance(if pins { 350 } else { 15 }) {
            true => ClientRequest::AttachUnpinned(target),
            false => ClientRequest::Attach(target),
        }
    }

    /// Repeats an earlier request; now and then another under the same id.
    fn repeat(&mut self, pid: u32, dice: &mut Dice) {
        let Some(process) = self.processes.get(&pid) else { return };
        let last_ones = process.asked.len().min(if dice.chance(600) { 2 } else { REPEATABLE });
        let from = process.asked.len() - last_ones;
        let Some((key, request)) = dice.pick(&process.asked[from..]).cloned() else { return };
        if dice.chance(150) {
            let other = RequestKey { fingerprint: [0xff; 16], ..key };
            return self.call(pid, Some(other), request);
        }
        self.call(pid, Some(key), request);
    }

    pub(super) fn new_key(&mut self) -> RequestKey {
        self.last_key += 1;
        let mut id = [0; 16];
        id[..8].copy_from_slice(&self.last_key.to_be_bytes());
        RequestKey { id, fingerprint: id }
    }

    pub(super) fn call(&mut self, pid: u32, key: Option<RequestKey>, request: ClientRequest) {
        let Some(process) = self.processes.get(&pid) else { return };
        let session = process.session.unwrap_or(vramd_types::SessionId::from_raw(0));
        let peer = process.peer();
        let call = self.new_call(Some(pid));
        if matches!(request, ClientRequest::AttachUnpinned(_)) {
            self.attaching_unpinned.insert(call);
        }
        let when = soon(&mut self.links, self.now, 5, 250);
        let event = Event::Client { call, session, peer, key, request };
        self.queue.schedule(when, self.life, Action::Arrive(event));
    }

    pub(super) fn new_call(&mut self, pid: Option<u32>) -> CallId {
        self.last_call += 1;
        let call = CallId(self.last_call);
        self.calls.insert(call, pid);
        call
    }

    /// An allocation that exists or existed, or none.
    pub(super) fn guess(&self, dice: &mut Dice) -> AllocationId {
        let at = dice.index(self.recent.len() + 1);
        self.recent.get(at).copied().unwrap_or(AllocationId::from_raw(3))
    }

    fn some_specs(&self, pins: bool, dice: &mut Dice) -> Vec<AllocationSpec> {
        if dice.chance(15) {
            return overflowing(dice);
        }
        let count = match dice.roll(20) {
            0 => 0,
            1 => 6,
            2..6 => 3,
            6..10 => 2,
            _ => 1,
        };
        (0..count).map(|_| self.some_spec(pins, dice)).collect()
    }

    pub(super) fn some_spec(&self, pins: bool, dice: &mut Dice) -> AllocationSpec {
        let size = match dice.roll(40) {
            0 => Bytes::ZERO,
            1 => Bytes::MAX,
            2 => Bytes::mib(64),
            3..8 => Bytes::new(dice.between(1, 3 << 20)),
            8..14 => Bytes::mib(dice.small(24) + 1),
            _ => Bytes::mib(dice.small(8) + 1),
        };
        let devices = &self.scenario.config.devices;
        let device = match dice.roll(24) {
            0 => Some("GPU-9".to_owned()),
            1..9 => Some(dice.index(devices.len()).to_string()),
            9 => Some(devices[0].uuid.clone()),
            _ => None,
        };
        let kind = match dice.roll(24) {
            0 => Kind::Managed,
            1..4 => Kind::Fixed,
            _ => Kind::Movable,
        };
        let named = dice.chance(450);
        let persistent = if named { dice.chance(500) } else { dice.chance(20) };
        let readers = match (kind, dice.roll(16)) {
            (Kind::Fixed, 1..16) => Vec::new(),
            (_, 0) => vec!["*".to_owned()],
            (_, 1..4) => vec![dice.one(&self.scenario.tenants).to_owned()],
            (_, 4) => vec![dice.one(&TENANTS).to_owned(), "not a name".to_owned()],
            (_, 5) => vec![dice.one(&TENANTS).to_owned(), dice.one(&self.scenario.tenants).to_owned()],
            _ => Vec::new(),
        };
        let part_size = match (kind, dice.roll(24)) {
            (_, 0) => Some(Bytes::new(5)),
            (Kind::Movable, 1 | 2) => Some(Bytes::mib(2)),
            (Kind::Movable, 3) => Some(Bytes::mib(6)),
            _ => None,
        };
        let replace = named && kind != Kind::Fixed && dice.chance(400);
        // An allocation that is to be sealed is refused as discardable.
        let plain = kind == Kind::Movable && !persistent && !replace && readers.is_empty();
        let discardable = dice.chance(if plain { 250 } else { 10 });
        // A process without pins could never map it, and a fixed allocation is always mapped.
        let unpinned = dice.chance(if pins && kind == Kind::Movable { 300 } else { 15 });
        let (size, part_size) = match dice.roll(4) {
            // Many parts, so that many can be waited for.
            1..4 if self.scenario.crowds.is_some() && kind == Kind::Movable => {
                (Bytes::mib(16 + dice.small(32)), None)
            }
            // A discardable allocation lies on its device or nowhere.
            0 if unpinned && !discardable => self.larger_than_device(dice),
            _ => (size, part_size),
        };
        if kind == Kind::Managed && dice.chance(850) {
            return AllocationSpec { device, ..spec(size, kind) };
        }
        AllocationSpec {
            size,
            device,
            kind,
            lifetime: if persistent && kind == Kind::Movable {
                Lifetime::Persistent
            } else {
                Lifetime::Session
            },
            name: named.then(|| some_name(dice, None)),
            readers,
            part_size,
            replace,
            uninitialized: dice.chance(500),
            unpinned,
            discardable,
        }
    }

    /// A size around that of a device, in parts so large that there are slots for most of it.
    pub(super) fn larger_than_device(&self, dice: &mut Dice) -> (Bytes, Option<Bytes>) {
        let device = u32::try_from(self.scenario.config.devices[0].total.get() >> 20).unwrap_or(64);
        let size = Bytes::mib(device / 2 + dice.small(device + device / 2) + 1);
        (size, Some(Bytes::mib(dice.one(&[4, 8, 16]))))
    }
}

/// Memory without a name or any wish.
pub(super) fn spec(size: Bytes, kind: Kind) -> AllocationSpec {
    AllocationSpec {
        size,
        device: None,
        kind,
        lifetime: Lifetime::Session,
        name: None,
        readers: Vec::new(),
        part_size: None,
        replace: false,
        uninitialized: false,
        unpinned: false,
        discardable: false,
    }
}

/// How long a batch may wait: mostly not at all, sometimes longer than anything takes.
fn some_wait(dice: &mut Dice) -> Duration {
    match dice.roll(10) {
        0..6 => Duration::ZERO,
        6 | 7 => Duration::from_micros(dice.between(1, 20_000)),
        _ => Duration::from_millis(dice.between(50, 300)).min(WAIT_MAX),
    }
}

/// Sizes whose sum does not fit in 64 bits, behind one that would be admitted.
fn overflowing(dice: &mut Dice) -> Vec<AllocationSpec> {
    let half = Bytes::new(1 << 63);
    let kind = if dice.chance(800) { Kind::Fixed } else { Kind::Movable };
    vec![spec(Bytes::mib(2), Kind::Movable), spec(half, kind), spec(half, kind)]
}
