//! Copies that go by lanes, in the worlds that have them: one into each device and one out of it, one from the disk and one to
//! it. A copy is cut into chunks, of which each lane has few under way, one behind the other; which class goes next its links say, as
//! in the drivers.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use broker_core::{Bug, Event, OperatorRequest, Target, Tier, Time};
use broker_links::{Crossing, Flaw, Links, Waiting};
use vramd_types::{Bytes, CopyClass, DeviceIndex, ExtentId, Shares};

use super::{
    World,
    driver::{Job, soon},
    queue::Happening,
};
use crate::{
    coverage::DiskStep,
    dice::Dice,
    scenario::{self, Plan, Scenario},
};

/// A lane that is held back by others asks again after as many microseconds.
const ASKS_AGAIN_MICROS: u64 = 50;

const CHUNK_MICROS_MIN: u64 = 20;

/// So many chunks of a lane are under way at most, and so many of what nobody waits for.
const UNDER_WAY_MAX: usize = 2;
const BACKGROUND_UNDER_WAY_MAX: usize = 1;

/// How copies are cut: beside the stream that says how lanes are.
const STREAM: u64 = 4;

/// A lane, by what it connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Way {
    In(DeviceIndex),
    Out(DeviceIndex),
    FromDisk,
    ToDisk,
}

impl Way {
    fn of(from: (DeviceIndex, Tier), to: Tier) -> Self {
        match (from, to) {
            ((_, Tier::Disk), _) => Self::FromDisk,
            (_, Tier::Disk) => Self::ToDisk,
            ((device, _), Tier::Device) => Self::In(device),
            ((device, _), Tier::Host) => Self::Out(device),
        }
    }

    /// Its number among the lanes of so many devices.
    fn number(self, devices: usize) -> usize {
        match self {
            Self::In(device) => 2 * usize::from(device.0),
            Self::Out(device) => 2 * usize::from(device.0) + 1,
            Self::FromDisk => 2 * devices,
            Self::ToDisk => 2 * devices + 1,
        }
    }

    /// Whether it goes by the link that lanes share, where there is one.
    pub(crate) fn is_on_bus(self) -> bool {
        !self.is_of_disk()
    }

    fn is_of_disk(self) -> bool {
        matches!(self, Self::FromDisk | Self::ToDisk)
    }
}

/// A chunk that is begun, and what waited in its lane when it was.
#[derive(Clone, Debug)]
pub(crate) struct Begun {
    pub(crate) way: Way,
    pub(crate) to: ExtentId,
    pub(crate) class: CopyClass,
    pub(crate) length: Bytes,
    /// By where they go; this one too.
    pub(crate) waiting: Vec<ExtentId>,
}

#[derive(Debug)]
pub(super) struct Lanes {
    dice: Dice,
    drawn: scenario::Lanes,
    /// So many microseconds more a copy takes that a disk is an end of, at most.
    disk_slower: u64,
    devices: usize,
    flaw: Option<Flaw>,
    lanes: BTreeMap<Way, Lane>,
    links: Links,
}

#[derive(Debug, Default)]
struct Lane {
    /// Of which something is left to begin, in the order in which they came.
    waiting: Vec<Queued>,
    /// Where its chunks go, in the order of their beginning. If more is left of a copy, that is among what waits.
    under_way: VecDeque<UnderWay>,
    /// When all of them have ended.
    free_at: Time,
    /// It is held back, and will ask again.
    asks_again: bool,
}

#[derive(Clone, Copy, Debug)]
struct UnderWay {
    to: ExtentId,
    class: CopyClass,
    length: Bytes,
}

#[derive(Clone, Debug)]
struct Queued {
    to: ExtentId,
    class: CopyClass,
    /// Microseconds of each chunk that is left, the last one first.
    chunks: Vec<u64>,
    /// So many more each of them takes.
    slower: u64,
    is_begun: bool,
}

impl Lanes {
    /// Where copies go by lanes.
    pub(super) fn of(scenario: &Scenario, plan: &Plan) -> Option<Self> {
        let drawn = scenario.lanes?;
        let devices = scenario.config.devices.len();
        let flaw = match plan.bug {
            Some(Bug::PrefetchBeforeDemand) => Some(Flaw::PrefetchBeforeDemand),
            Some(Bug::ShareLentForEver) => Some(Flaw::ShareLentForEver),
            Some(Bug::ShareSavedUp) => Some(Flaw::ShareSavedUp),
            Some(Bug::FullWantsNothing) => Some(Flaw::FullWantsNothing),
            Some(Bug::FullLacksItsShare) => Some(Flaw::FullLacksItsShare),
            Some(Bug::SharedOnlyVetoes) => Some(Flaw::SharedOnlyVetoes),
            Some(Bug::OthersNotHeldBack) => Some(Flaw::OthersNotHeldBack),
            _ => None,
        };
        let dice = Dice::new(plan.seed, STREAM);
        let disk_slower = scenario.disks.map_or(0, |disks| disks.slower_micros());
        let links = opened(drawn, devices, flaw);
        Some(Self { dice, drawn, disk_slower, devices, flaw, lanes: BTreeMap::new(), links })
    }

    /// The driver is opened: nothing is under way.
    pub(super) fn restart(&mut self) {
        self.lanes.clear();
        self.links = opened(self.drawn, self.devices, self.flaw);
    }

    /// From the next chunk on.
    pub(super) fn share_by(&mut self, shares: Shares) {
        self.links.share_by(shares);
    }

    fn lane(&mut self, way: Way) -> &mut Lane {
        self.lanes.entry(way).or_default()
    }

    /// Cut as the dice say.
    fn push(&mut self, way: Way, to: ExtentId, class: CopyClass) {
        let micros = |dice: &mut Dice| dice.between(CHUNK_MICROS_MIN, self.drawn.chunk_micros_max);
        let (whole, last) = (micros(&mut self.dice), micros(&mut self.dice));
        let mut chunks = vec![last.min(whole)];
        chunks.extend((1..self.dice.between(1, self.drawn.chunks_max())).map(|_| whole));
        let is_slow = way.is_of_disk() && self.disk_slower > 0;
        let slower = if is_slow { self.dice.roll(self.disk_slower) / chunks.len() as u64 } else { 0 };
        self.lane(way).waiting.push(Queued { to, class, chunks, slower, is_begun: false });
    }

    fn hasten(&mut self, to: ExtentId) {
        for lane in self.lanes.values_mut() {
            let Some(at) = lane.waiting.iter().position(|it| it.to == to) else { continue };
            let mut queued = lane.waiting.remove(at);
            queued.class = CopyClass::Demand;
            let place = if queued.is_begun { at } else { lane.waiting.len() };
            lane.waiting.insert(place, queued);
        }
    }

    /// Nothing more of it is begun. Whether it is over with that.
    fn give_up(&mut self, to: ExtentId) -> bool {
        self.lanes.values_mut().any(|lane| {
            let left = lane.waiting.len();
            lane.waiting.retain(|it| it.to != to);
            lane.waiting.len() < left && lane.under_way.iter().all(|it| it.to != to)
        })
    }

    /// The next chunk of the lane, and when it ends.
    fn begin(&mut self, now: Time, way: Way) -> Option<(Begun, Time)> {
        let (at, number) = (now.since(Time::START), way.number(self.devices));
        let lane = self.lanes.get_mut(&way)?;
        self.links.waits(at, number, lane.waits(), lane.is_full());
        if lane.under_way.len() == UNDER_WAY_MAX {
            return None;
        }
        let class = self.links.next(at, number).next()?;
        let waiting = lane.waiting.iter().map(|it| it.to).collect();
        let (to, micros, slower) = lane.take_next(class)?;
        let length = scenario::Lanes::bytes_in(micros);
        lane.under_way.push_back(UnderWay { to, class, length });
        let takes = micros * self.slowed_percent(way) / 100 + slower;
        let lane = self.lanes.get_mut(&way)?;
        lane.free_at = lane.free_at.max(now).after(Duration::from_micros(takes));
        self.links.begun(at, number, class, length);
        Some((Begun { way, to, class, length, waiting }, lane.free_at))
    }

    /// Lanes that share a link are slower while others are at it.
    fn slowed_percent(&self, way: Way) -> u64 {
        let on_bus = self.lanes.iter().filter(|(way, lane)| way.is_on_bus() && !lane.under_way.is_empty());
        if way.is_on_bus() { self.drawn.slowed_percent(on_bus.count()) } else { 100 }
    }

    /// The first chunk that is under way has ended. Its copy too, if that is told.
    fn end(&mut self, now: Duration, way: Way) -> Option<ExtentId> {
        let number = way.number(self.devices);
        let lane = self.lanes.get_mut(&way)?;
        let UnderWay { to, class, length } = lane.under_way.pop_front()?;
        self.links.ended(now, number, class, length);
        let is_left =
            lane.waiting.iter().any(|it| it.to == to) || lane.under_way.iter().any(|it| it.to == to);
        (!is_left).then_some(to)
    }

    /// What has something left to begin.
    fn waiting(&self, way: Way) -> Vec<ExtentId> {
        let lane = self.lanes.get(&way);
        lane.into_iter().flat_map(|lane| &lane.waiting).map(|it| it.to).collect()
    }

    /// Whether it has something to do, and is not to ask again yet.
    fn is_held_back(&mut self, way: Way) -> bool {
        let lane = self.lane(way);
        let held_back = lane.under_way.is_empty() && !lane.waiting.is_empty();
        held_back && !std::mem::replace(&mut lane.asks_again, true)
    }
}

impl Lane {
    fn waits(&self) -> Waiting {
        self.waiting.iter().map(|it| it.class).collect()
    }

    fn is_full(&self) -> bool {
        let in_background = self.under_way.iter().filter(|it| it.class != CopyClass::Demand).count();
        in_background >= BACKGROUND_UNDER_WAY_MAX
    }

    /// Of a class: what was begun goes on first.
    fn take_next(&mut self, class: CopyClass) -> Option<(ExtentId, u64, u64)> {
        let of_class = |it: &Queued| it.class == class;
        let begun = self.waiting.iter().position(|it| of_class(it) && it.is_begun);
        let at = begun.or_else(|| self.waiting.iter().position(of_class))?;
        let queued = self.waiting.get_mut(at)?;
        queued.is_begun = true;
        let next = (queued.to, queued.chunks.pop()?, queued.slower);
        if queued.chunks.is_empty() {
            self.waiting.remove(at);
        }
        Some(next)
    }
}

/// Links of which nothing has been begun.
fn opened(drawn: scenario::Lanes, devices: usize, flaw: Option<Flaw>) -> Links {
    let carries = drawn.shared_percent.map(|percent| scenario::Lanes::carries() / 100 * percent);
    let on_bus = (0..2 * devices).map(|lane| (lane, scenario::Lanes::carries()));
    let shared = carries
        .map(|carries| on_bus.map(|(lane, alone)| Crossing { lane, carries, alone: Some(alone) }).collect());
    let mut links = Links::new(drawn.shares, drawn.chunk(), 2 * devices + 2, shared.into_iter().collect());
    links.plant(flaw);
    links
}

impl World {
    pub(super) fn queue_copy(&mut self, from: ExtentId, to: ExtentId, class: CopyClass) {
        let place = |id| self.driver.pieces.get(&id).map(|piece| (piece.device, piece.tier));
        let way = place(from).zip(place(to)).map(|(from, (_, to))| Way::of(from, to));
        // Who copies what is not there is told so.
        let Some((way, lanes)) = way.zip(self.driver.lanes.as_mut()) else {
            return self.submit(Job::Copy { to });
        };
        lanes.push(way, to, class);
        if way.is_of_disk() && lanes.disk_slower > 0 {
            self.coverage.saw(DiskStep::SlowLane);
        }
        self.go_on(way);
    }

    pub(super) fn hasten_copy(&mut self, to: ExtentId) {
        let Some(lanes) = &mut self.driver.lanes else { return };
        lanes.hasten(to);
        let ways: Vec<_> = lanes.lanes.keys().copied().collect();
        ways.into_iter().for_each(|way| self.go_on(way));
    }

    /// It ends with the chunk that is under way, or soon.
    pub(super) fn give_up_copy(&mut self, to: ExtentId) {
        if self.driver.lanes.as_mut().is_some_and(|lanes| lanes.give_up(to)) {
            let when = soon(&mut self.driver.dice, self.now, 1, 100);
            self.queue.at(when, self.life, Happening::Done(Job::Copy { to }));
        }
    }

    /// The chunk that is under way in the lane has ended.
    pub(super) fn chunk_ended(&mut self, way: Way) {
        let now = self.now.since(Time::START);
        let Some(lanes) = &mut self.driver.lanes else { return };
        if let Some(to) = lanes.end(now, way) {
            self.submit(Job::Told { to });
        }
        self.go_on(way);
    }

    pub(super) fn ask_again(&mut self, way: Way) {
        if let Some(lanes) = &mut self.driver.lanes {
            lanes.lane(way).asks_again = false;
        }
        self.go_on(way);
    }

    /// Operators move or write back some allocations at once, and have them back, so that much waits in the lanes.
    pub(super) fn stir(&mut self, mut dice: Dice) {
        for _ in 0..dice.between(1, 5) {
            let target = self.some_parts(&mut dice).0;
            let mut when = self.now;
            for _ in 0..dice.between(1, 3) {
                let (target, parts) = (target.clone(), Vec::new());
                let request = match dice.roll(6) {
                    0..2 => OperatorRequest::MoveParts { target, parts, tier: Tier::Device },
                    2 | 3 => OperatorRequest::MoveParts { target, parts, tier: Tier::Host },
                    4 => OperatorRequest::MoveParts { target, parts, tier: Tier::Disk },
                    _ => OperatorRequest::WriteBackParts { target, parts },
                };
                when = soon(&mut dice, when, 5, 5_000);
                let event = Event::Operator { call: self.new_call(None), uid: 0, key: None, request };
                self.queue.at(when, self.life, Happening::Arrive(event));
            }
        }
    }

    /// All that there is comes to one device and leaves the others.
    pub(super) fn part_ways(&mut self, mut dice: Dice) {
        let coming = dice.pick(&self.scenario.config.devices).map(|device| device.uuid.clone());
        for view in self.broker.list_allocations(None, None, usize::MAX).0 {
            let (target, parts) = (Target::Id(view.id), Vec::new());
            let request = match (Some(view.device) == coming, dice.chance(500)) {
                (true, _) => OperatorRequest::MoveParts { target, parts, tier: Tier::Device },
                (false, true) => OperatorRequest::MoveParts { target, parts, tier: Tier::Host },
                (false, false) => OperatorRequest::WriteBackParts { target, parts },
            };
            self.operator_call(None, request);
        }
    }

    fn go_on(&mut self, way: Way) {
        let Some(lanes) = &mut self.driver.lanes else { return };
        loop {
            self.oracle.lane_waits(self.now, way, &lanes.waiting(way));
            let Some((begun, ends)) = lanes.begin(self.now, way) else { break };
            let Begun { to, class, .. } = begun;
            self.story.say(self.now, || format!("a chunk goes to {to}, {way:?}, as {}", class.name()));
            self.oracle.chunk_begun(self.now, &begun);
            self.queue.at(ends, self.life, Happening::Done(Job::Chunk { way }));
        }
        if lanes.is_held_back(way) {
            let when = self.now.after(Duration::from_micros(ASKS_AGAIN_MICROS));
            self.queue.at(when, self.life, Happening::Done(Job::AskAgain { way }));
        }
    }
}
