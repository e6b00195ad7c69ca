//! The cost of planning moves: each pin needs a part on a full device, so that another part must leave it.
//!
//! Nearly all parts lie in host memory. Every part that moves was written, so it is copied both ways. The
//! shell is perfect: copies, unmaps and answers take no time, so a waiting pin waits only for the core.

use std::{collections::BTreeMap, time::Duration};

use broker_core::{AllocationSpec, CallId, ClientFrame, Config, Event, Limits, PartRef, Tier};
use vramd_types::{AllocationId, Bytes, PartIndex};

use crate::{
    client::{self, Client},
    dice::Dice,
    meter::{Meter, Pace, processor_time},
    shell::{self, Shell},
};

const TENANTS: u32 = 10;
pub(crate) const PART: Bytes = Bytes::mib(2);
const PARTS_PER_ALLOCATION: u32 = 1_000;
/// A tenth of all parts fits on the device.
const FITS: u32 = 10;
/// Virtual time between two rounds of answers.
const ROUND_MICROS: u64 = 10;

/// One stretch of moves.
#[derive(Clone, Copy, Debug)]
pub struct Planned {
    pub moves: u64,
    /// Time inside the core.
    pub core: Duration,
    /// Time including the stand-ins of the shell.
    pub all: Duration,
}

impl Planned {
    pub fn micros_per_move(&self) -> f64 {
        per_move(self.core, self.moves)
    }

    pub fn micros_per_move_of_all(&self) -> f64 {
        per_move(self.all, self.moves)
    }
}

#[allow(clippy::cast_precision_loss, reason = "a mean, not a count")]
fn per_move(time: Duration, moves: u64) -> f64 {
    time.as_secs_f64() * 1e6 / moves as f64
}

/// Measures stretches of `moves` moves while `waiting` pins wait at a time.
pub fn measure(parts: u32, waiting: usize, slices: usize, moves: u64) -> Vec<Planned> {
    let mut pins = Pins::new(parts, Pace::Bursts);
    pins.wait_with(waiting);
    // Warm up until everything that lay on the device at first has left it.
    pins.slice(u64::from(2 * parts / FITS));
    (0..slices).map(|_| pins.slice(moves)).collect()
}

/// Runs `moves` moves in counted regions while `waiting` pins wait at a time. Returns how many there were.
pub fn count(parts: u32, waiting: usize, moves: u64) -> u64 {
    let mut pins = Pins::new(parts, Pace::Untimed);
    pins.wait_with(waiting);
    pins.run(u64::from(2 * parts / FITS));
    pins.shell.meter.counting = true;
    pins.run(moves)
}

/// The cost of one operator call that moves `parts` parts off their device: the longest single event, and the
/// whole per part.
#[derive(Clone, Copy, Debug)]
pub struct AtOnce {
    pub parts: u32,
    pub longest_event: Duration,
    pub micros_per_part: f64,
}

pub fn measure_at_once(parts: u32) -> AtOnce {
    let mut shell = Shell::with(config(parts, parts), Pace::Single);
    let client = Client::open(&mut shell, 0);
    let allocation = client.allocate(&mut shell, CallId(0), spec(parts, false));
    shell.moved.clear();
    shell.meter = Meter::new(Pace::Single);
    client::evict(&mut shell, CallId(1), allocation);
    assert_eq!(shell.moved.len(), usize::try_from(parts).expect("64 bits"), "all of it has left");
    let longest = shell.meter.samples.iter().flatten().max().copied().unwrap_or_default();
    AtOnce {
        parts,
        longest_event: Duration::from_nanos(u64::from(longest)),
        micros_per_part: per_move(shell.meter.core, u64::from(parts)),
    }
}

/// Sessions of several tenants that pin random parts which lie off their device.
struct Pins {
    shell: Shell,
    dice: Dice,
    clients: Vec<Client>,
    owners: BTreeMap<AllocationId, usize>,
    /// Parts of each client that have left the device and for which no pin waits.
    away: Vec<Vec<PartRef>>,
    calls: u64,
    moves: u64,
}

impl Pins {
    fn new(parts: u32, pace: Pace) -> Self {
        let mut shell = Shell::with(config(parts, parts / FITS), pace);
        let clients: Vec<_> = (0..TENANTS).map(|tenant| Client::open(&mut shell, tenant)).collect();
        let (mut owners, mut away) = (BTreeMap::new(), vec![Vec::new(); clients.len()]);
        for number in 0..parts / PARTS_PER_ALLOCATION {
            let at = usize::try_from(number % TENANTS).expect("64 bits");
            let call = CallId(u64::from(number));
            let id = clients[at].allocate(&mut shell, call, spec(PARTS_PER_ALLOCATION, true));
            owners.insert(id, at);
            let parts = (0..PARTS_PER_ALLOCATION).map(PartIndex);
            away[at].extend(parts.map(|part| PartRef { allocation: id, part }));
        }
        Self { shell, dice: Dice::new(7), clients, owners, away, calls: 0, moves: 0 }
    }

    /// Adds `waiting` calls that wait at a time.
    fn wait_with(&mut self, waiting: usize) {
        for _ in 0..waiting {
            self.pin();
        }
    }

    /// Runs that many moves, and some more that are under way. Each answered call is replaced at once, so that
    /// the number of waiting calls stays.
    fn run(&mut self, moves: u64) -> u64 {
        let before = self.moves;
        while self.moves < before + moves {
            self.round();
        }
        self.moves - before
    }

    /// Times a stretch.
    fn slice(&mut self, moves: u64) -> Planned {
        let core_before = self.shell.meter.core;
        let start = processor_time();
        Planned {
            moves: self.run(moves),
            core: self.shell.meter.core.saturating_sub(core_before),
            all: processor_time().saturating_sub(start),
        }
    }

    fn round(&mut self) {
        self.shell.advance(ROUND_MICROS);
        assert!(self.shell.step(), "pins wait, and nothing happens");
        for (part, tier) in std::mem::take(&mut self.shell.moved) {
            self.moves += 1;
            if tier == Tier::Host {
                let owner = self.owners[&part.allocation];
                self.away[owner].push(part);
            }
        }
        for (channel, call) in std::mem::take(&mut self.shell.pinned) {
            self.shell.send(Event::Frame { channel, frame: ClientFrame::PinEnded { call } });
            self.pin();
        }
    }

    /// Pins a part of the next tenant in turn.
    fn pin(&mut self) {
        let at = usize::try_from(self.calls % u64::from(TENANTS)).expect("64 bits");
        let part = self.dice.take(&mut self.away[at]).expect("most of what it has is away");
        self.calls += 1;
        let frame = ClientFrame::Pin { call: self.calls, parts: vec![part], write: true, wait: None };
        self.shell.send(Event::Frame { channel: self.clients[at].channel, frame });
    }
}

/// Memory of so many parts. With `unpinned` it starts below a full device.
pub(crate) fn spec(parts: u32, unpinned: bool) -> AllocationSpec {
    AllocationSpec { unpinned, ..client::spec(bytes(parts), PART) }
}

/// A device on which `on_device` parts fit, and a host tier for `parts`.
pub(crate) fn config(parts: u32, on_device: u32) -> Config {
    let mut config = Config { limits: Limits::default(), ..shell::config() };
    config.devices.truncate(1);
    for device in &mut config.devices {
        device.context_bytes = Bytes::ZERO;
        (device.total, device.share, device.host) = (bytes(on_device), bytes(on_device), bytes(parts));
    }
    config
}

pub(crate) fn bytes(parts: u32) -> Bytes {
    Bytes::new(u64::from(parts) * PART.get())
}
