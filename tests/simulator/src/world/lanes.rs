//! Copies that go by lanes, in worlds that have them: one lane into each device and one out of it, one from
//! the disk and one to it. A copy is cut into chunks, of which each lane has few under way, one behind the
//! other. The links choose which class goes next, as in the drivers.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use broker_core::{Bug, Event, OperatorRequest, Target, Tier, Time};
use broker_links::{Crossing, Flaw, Links, WaitingClasses};
use vramd_types::{Bytes, CopyClass, DeviceIndex, ExtentId, Shares};

use super::{
    World,
    driver::{Job, soon},
    queue::Action,
};
use crate::{
    coverage::DiskStep,
    dice::Dice,
    scenario::{self, Plan, Scenario},
};

/// After how many microseconds a lane that is held back asks again.
const ASK_AGAIN_MICROS: u64 = 50;

const CHUNK_MICROS_MIN: u64 = 20;

/// The most chunks of a lane that are under way at once, and the most of classes that no client waits for.
const UNDER_WAY_MAX: usize = 2;
const BACKGROUND_UNDER_WAY_MAX: usize = 1;

/// Stream of dice by which copies are cut; another one draws the lanes.
const STREAM: u64 = 4;

/// A lane, by what it connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LaneId {
    In(DeviceIndex),
    Out(DeviceIndex),
    FromDisk,
    ToDisk,
}

impl LaneId {
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

/// A chunk that begins, and the copies that waited in its lane at that time.
#[derive(Clone, Debug)]
pub(crate) struct ChunkStart {
    pub(crate) lane_id: LaneId,
    pub(crate) to: ExtentId,
    pub(crate) class: CopyClass,
    pub(crate) length: Bytes,
    /// Target extents of the waiting copies, including this one.
    pub(crate) waiting: Vec<ExtentId>,
}

#[derive(Debug)]
pub(super) struct Lanes {
    dice: Dice,
    drawn: scenario::Lanes,
    /// The most microseconds that a copy takes longer if one end is a disk.
    disk_slower_micros: u64,
    devices: usize,
    flaw: Option<Flaw>,
    lanes: BTreeMap<LaneId, Lane>,
    links: Links,
}

#[derive(Debug, Default)]
struct Lane {
    /// Copies with chunks left to begin, in the order of their arrival.
    waiting: Vec<Queued>,
    /// Chunks under way, in the order of their beginning. A copy with more chunks is in `waiting` too.
    under_way: VecDeque<UnderWay>,
    /// When all of them will have ended.
    free_at: Time,
    /// It is held back and will ask again.
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
    /// Microseconds that each of them takes longer.
    slower: u64,
    is_begun: bool,
}

impl Lanes {
    /// The lanes of a scenario that has some.
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
        let disk_slower_micros = scenario.disks.map_or(0, |disks| disks.slower_micros());
        let links = open_links(drawn, devices, flaw);
        Some(Self { dice, drawn, disk_slower_micros, devices, flaw, lanes: BTreeMap::new(), links })
    }

    /// Starts anew with the driver: nothing is under way.
    pub(super) fn restart(&mut self) {
        self.lanes.clear();
        self.links = open_links(self.drawn, self.devices, self.flaw);
    }

    /// Changes the shares, from the next chunk on.
    pub(super) fn share_by(&mut self, shares: Shares) {
        self.links.set_shares(shares);
    }

    fn lane(&mut self, lane_id: LaneId) -> &mut Lane {
        self.lanes.entry(lane_id).or_default()
    }

    /// Queues a copy, cut as the dice say.
    fn push(&mut self, lane_id: LaneId, to: ExtentId, class: CopyClass) {
        let micros = |dice: &mut Dice| dice.between(CHUNK_MICROS_MIN, self.drawn.chunk_micros_max);
        let (whole, last) = (micros(&mut self.dice), micros(&mut self.dice));
        let mut chunks = vec![last.min(whole)];
        chunks.extend((1..self.dice.between(1, self.drawn.chunks_max())).map(|_| whole));
        let is_slow = lane_id.is_of_disk() && self.disk_slower_micros > 0;
        let slower = if is_slow { self.dice.roll(self.disk_slower_micros) / chunks.len() as u64 } else { 0 };
        self.lane(lane_id).waiting.push(Queued { to, class, chunks, slower, is_begun: false });
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

    /// Begins no more chunks of a copy. Returns whether it has ended with that.
    fn give_up(&mut self, to: ExtentId) -> bool {
        self.lanes.values_mut().any(|lane| {
            let left = lane.waiting.len();
            lane.waiting.retain(|it| it.to != to);
            lane.waiting.len() < left && lane.under_way.iter().all(|it| it.to != to)
        })
    }

    /// Begins the next chunk of the lane. Returns when it ends.
    fn begin(&mut self, now: Time, lane_id: LaneId) -> Option<(ChunkStart, Time)> {
        let (at, number) = (now.since(Time::START), lane_id.number(self.devices));
        let lane = self.lanes.get_mut(&lane_id)?;
        self.links.set_waiting(at, number, lane.waits(), lane.is_full());
        if lane.under_way.len() == UNDER_WAY_MAX {
            return None;
        }
        let class = self.links.eligible_classes(at, number).next()?;
        let waiting = lane.waiting.iter().map(|it| it.to).collect();
        let (to, micros, slower) = lane.take_next(class)?;
        let length = scenario::Lanes::bytes_in(micros);
        lane.under_way.push_back(UnderWay { to, class, length });
        let takes = micros * self.slowed_percent(lane_id) / 100 + slower;
        let lane = self.lanes.get_mut(&lane_id)?;
        lane.free_at = lane.free_at.max(now).after(Duration::from_micros(takes));
        self.links.record_begin(at, number, class, length);
        Some((ChunkStart { lane_id, to, class, length, waiting }, lane.free_at))
    }

    /// How long a chunk takes, in percent: lanes that share a link slow each other down.
    fn slowed_percent(&self, lane_id: LaneId) -> u64 {
        let on_bus =
            self.lanes.iter().filter(|(lane_id, lane)| lane_id.is_on_bus() && !lane.under_way.is_empty());
        if lane_id.is_on_bus() { self.drawn.slowed_percent(on_bus.count()) } else { 100 }
    }

    /// Ends the first chunk that is under way. Returns its copy if that has ended too.
    fn end(&mut self, now: Duration, lane_id: LaneId) -> Option<ExtentId> {
        let number = lane_id.number(self.devices);
        let lane = self.lanes.get_mut(&lane_id)?;
        let UnderWay { to, class, length } = lane.under_way.pop_front()?;
        self.links.record_end(now, number, class, length);
        let is_left =
            lane.waiting.iter().any(|it| it.to == to) || lane.under_way.iter().any(|it| it.to == to);
        (!is_left).then_some(to)
    }

    /// Copies with chunks left to begin.
    fn waiting(&self, lane_id: LaneId) -> Vec<ExtentId> {
        let lane = self.lanes.get(&lane_id);
        lane.into_iter().flat_map(|lane| &lane.waiting).map(|it| it.to).collect()
    }

    /// Marks a lane that has work but nothing under way as held back. Returns whether it must now be told to
    /// ask again.
    fn mark_held_back(&mut self, lane_id: LaneId) -> bool {
        let lane = self.lane(lane_id);
        let held_back = lane.under_way.is_empty() && !lane.waiting.is_empty();
        held_back && !std::mem::replace(&mut lane.asks_again, true)
    }
}

impl Lane {
    fn waits(&self) -> WaitingClasses {
        self.waiting.iter().map(|it| it.class).collect()
    }

    fn is_full(&self) -> bool {
        let in_background = self.under_way.iter().filter(|it| it.class != CopyClass::Demand).count();
        in_background >= BACKGROUND_UNDER_WAY_MAX
    }

    /// Takes the next chunk of a class: a copy that has begun goes on first.
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

/// Links on which nothing has begun.
fn open_links(drawn: scenario::Lanes, devices: usize, flaw: Option<Flaw>) -> Links {
    let carries = drawn.shared_percent.map(|percent| scenario::Lanes::carries() / 100 * percent);
    let on_bus = (0..2 * devices).map(|lane| (lane, scenario::Lanes::carries()));
    let shared = carries.map(|carries| {
        on_bus
            .map(|(lane, alone)| Crossing { lane, bytes_per_s: carries, lane_bytes_per_s: Some(alone) })
            .collect()
    });
    let mut links = Links::new(drawn.shares, drawn.chunk(), 2 * devices + 2, shared.into_iter().collect());
    links.plant(flaw);
    links
}

impl World {
    pub(super) fn queue_copy(&mut self, from: ExtentId, to: ExtentId, class: CopyClass) {
        let place = |id| self.driver.pieces.get(&id).map(|piece| (piece.device, piece.tier));
        let lane_id = place(from).zip(place(to)).map(|(from, (_, to))| LaneId::of(from, to));
        // A copy of something that does not exist is answered like any other.
        let Some((lane_id, lanes)) = lane_id.zip(self.driver.lanes.as_mut()) else {
            return self.submit(Job::Copy { to });
        };
        lanes.push(lane_id, to, class);
        if lane_id.is_of_disk() && lanes.disk_slower_micros > 0 {
            self.coverage.count_step(DiskStep::SlowLane);
        }
        self.begin_chunks(lane_id);
    }

    pub(super) fn hasten_copy(&mut self, to: ExtentId) {
        let Some(lanes) = &mut self.driver.lanes else { return };
        lanes.hasten(to);
        let lane_ids: Vec<_> = lanes.lanes.keys().copied().collect();
        lane_ids.into_iter().for_each(|lane_id| self.begin_chunks(lane_id));
    }

    /// Gives up a copy: it ends with the chunk that is under way, or soon.
    pub(super) fn give_up_copy(&mut self, to: ExtentId) {
        if self.driver.lanes.as_mut().is_some_and(|lanes| lanes.give_up(to)) {
            let when = soon(&mut self.driver.dice, self.now, 1, 100);
            self.queue.schedule(when, self.life, Action::Done(Job::Copy { to }));
        }
    }

    /// Ends the chunk that is under way in the lane.
    pub(super) fn end_chunk(&mut self, lane_id: LaneId) {
        let now = self.now.since(Time::START);
        let Some(lanes) = &mut self.driver.lanes else { return };
        if let Some(to) = lanes.end(now, lane_id) {
            self.submit(Job::ReportCopy { to });
        }
        self.begin_chunks(lane_id);
    }

    pub(super) fn ask_again(&mut self, lane_id: LaneId) {
        if let Some(lanes) = &mut self.driver.lanes {
            lanes.lane(lane_id).asks_again = false;
        }
        self.begin_chunks(lane_id);
    }

    /// Operators move or write back some allocations at once, and fetch them again, so that much waits in the
    /// lanes.
    pub(super) fn move_back_and_forth(&mut self, mut dice: Dice) {
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
                self.queue.schedule(when, self.life, Action::Arrive(event));
            }
        }
    }

    /// Operators fetch everything to one device and move it off the others.
    pub(super) fn move_apart(&mut self, mut dice: Dice) {
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

    fn begin_chunks(&mut self, lane_id: LaneId) {
        let Some(lanes) = &mut self.driver.lanes else { return };
        loop {
            self.oracle.record_lane_waiters(self.now, lane_id, &lanes.waiting(lane_id));
            let Some((begun, ends)) = lanes.begin(self.now, lane_id) else { break };
            let ChunkStart { to, class, .. } = begun;
            self.story
                .add_line(self.now, || format!("a chunk goes to {to}, {lane_id:?}, as {}", class.name()));
            self.oracle.check_chunk(self.now, &begun);
            self.queue.schedule(ends, self.life, Action::Done(Job::Chunk { lane_id }));
        }
        if lanes.mark_held_back(lane_id) {
            let when = self.now.after(Duration::from_micros(ASK_AGAIN_MICROS));
            self.queue.schedule(when, self.life, Action::Done(Job::AskAgain { lane_id }));
        }
    }
}
