//! Copies that go by lanes, in the worlds that have them: one into each device and one out of it, one from the disk and one to
//! it. A copy is cut into chunks, of which each lane has one under way; which class goes next its links say, as in the drivers.

use std::{collections::BTreeMap, time::Duration};

use broker_core::{Bug, Event, OperatorRequest, Tier, Time};
use broker_links::{Flaw, Link, Waiting};
use vramd_types::{Bytes, CopyClass, DeviceIndex, ExtentId, Shares};

use super::{
    World,
    driver::{Job, soon},
    queue::Happening,
};
use crate::{dice::Dice, scenario};

/// A lane that is held back by others asks again after as many microseconds.
const ASKS_AGAIN_MICROS: u64 = 50;

const CHUNK_MICROS_MIN: u64 = 20;

const CHUNKS_MAX: u64 = 8;

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

    /// Whether it goes by the link that lanes share, where there is one.
    pub(crate) fn is_on_bus(self) -> bool {
        matches!(self, Self::In(_) | Self::Out(_))
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
    flaw: Option<Flaw>,
    /// As operators have changed them since it was opened.
    shares: Shares,
    lanes: BTreeMap<Way, Lane>,
    shared: Option<Link>,
}

#[derive(Debug)]
struct Lane {
    link: Link,
    /// Of which something is left to begin, in the order in which they came.
    waiting: Vec<Queued>,
    /// Where its chunk goes. If more is left of the copy, that is among what waits.
    under_way: Option<UnderWay>,
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
    is_begun: bool,
}

impl Lanes {
    pub(super) fn new(seed: u64, drawn: scenario::Lanes, bug: Option<Bug>) -> Self {
        let flaw = match bug {
            Some(Bug::PrefetchBeforeDemand) => Some(Flaw::PrefetchBeforeDemand),
            Some(Bug::ShareLentForEver) => Some(Flaw::ShareLentForEver),
            Some(Bug::ShareSavedUp) => Some(Flaw::ShareSavedUp),
            _ => None,
        };
        let dice = Dice::new(seed, STREAM);
        let mut lanes =
            Self { dice, drawn, flaw, shares: drawn.shares, lanes: BTreeMap::new(), shared: None };
        lanes.restart();
        lanes
    }

    /// The driver is opened: nothing is under way.
    pub(super) fn restart(&mut self) {
        self.lanes.clear();
        self.shares = self.drawn.shares;
        let carries = |percent: u64| scenario::Lanes::bytes_in(1_000_000).get() / 100 * percent;
        let shared = |percent| Link::shared(self.drawn.shares, self.drawn.chunk(), carries(percent));
        self.shared = self.drawn.shared_percent.map(shared).map(|link| self.flawed(link));
    }

    /// From the next chunk on.
    pub(super) fn share_by(&mut self, shares: Shares) {
        self.shares = shares;
        self.lanes
            .values_mut()
            .map(|lane| &mut lane.link)
            .chain(&mut self.shared)
            .for_each(|it| it.share_by(shares));
    }

    fn flawed(&self, mut link: Link) -> Link {
        link.plant(self.flaw);
        link
    }

    fn lane(&mut self, way: Way) -> &mut Lane {
        let link = self.flawed(Link::of_lane(self.shares, self.drawn.chunk()));
        self.lanes.entry(way).or_insert(Lane {
            link,
            waiting: Vec::new(),
            under_way: None,
            asks_again: false,
        })
    }

    /// Cut as the dice say.
    fn push(&mut self, way: Way, to: ExtentId, class: CopyClass) {
        let micros = |dice: &mut Dice| dice.between(CHUNK_MICROS_MIN, self.drawn.chunk_micros_max);
        let (whole, last) = (micros(&mut self.dice), micros(&mut self.dice));
        let mut chunks = vec![last.min(whole)];
        chunks.extend((1..self.dice.between(1, CHUNKS_MAX)).map(|_| whole));
        self.lane(way).waiting.push(Queued { to, class, chunks, is_begun: false });
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
            lane.waiting.len() < left && lane.under_way.is_none_or(|it| it.to != to)
        })
    }

    /// What waits in all lanes of the shared link.
    fn waits_on_bus(&self) -> Waiting {
        let on_bus = self.lanes.iter().filter(|(way, _)| way.is_on_bus());
        on_bus.fold(Waiting::default(), |all, (_, lane)| all | lane.waits())
    }

    /// The next chunk of the lane, with its microseconds.
    fn begin(&mut self, now: Duration, way: Way) -> Option<(Begun, u64)> {
        let on_bus = self.waits_on_bus();
        let mut shared = self.shared.as_mut().filter(|_| way.is_on_bus());
        let lane = self.lanes.get_mut(&way)?;
        let waits = lane.waits();
        lane.link.waits(now, waits);
        shared.iter_mut().for_each(|it| it.waits(now, on_bus));
        if lane.under_way.is_some() {
            return None;
        }
        let permits = |class: &CopyClass| shared.as_ref().is_none_or(|it| it.permits(now, *class, on_bus));
        let class = lane.link.order(now, waits).find(permits)?;
        let waiting = lane.waiting.iter().map(|it| it.to).collect();
        let (to, micros) = lane.take_next(class)?;
        let length = scenario::Lanes::bytes_in(micros);
        lane.under_way = Some(UnderWay { to, class, length });
        lane.link.begun(now, class, length, waits);
        if let Some(shared) = shared {
            shared.begun(now, class, length, on_bus);
        }
        Some((Begun { way, to, class, length, waiting }, micros))
    }

    /// The chunk that is under way has ended. Its copy too, if that is told.
    fn end(&mut self, now: Duration, way: Way) -> Option<ExtentId> {
        let shared = self.shared.as_mut().filter(|_| way.is_on_bus());
        let lane = self.lanes.get_mut(&way)?;
        let UnderWay { to, class, length } = lane.under_way.take()?;
        lane.link.ended(now, class, length);
        shared.into_iter().for_each(|it| it.ended(now, class, length));
        (!lane.waiting.iter().any(|it| it.to == to)).then_some(to)
    }

    /// What has something left to begin.
    fn waiting(&self, way: Way) -> Vec<ExtentId> {
        let lane = self.lanes.get(&way);
        lane.into_iter().flat_map(|lane| &lane.waiting).map(|it| it.to).collect()
    }

    /// Whether it has something to do, and is not to ask again yet.
    fn is_held_back(&mut self, way: Way) -> bool {
        let lane = self.lane(way);
        let held_back = lane.under_way.is_none() && !lane.waiting.is_empty();
        held_back && !std::mem::replace(&mut lane.asks_again, true)
    }
}

impl Lane {
    fn waits(&self) -> Waiting {
        self.waiting.iter().map(|it| it.class).collect()
    }

    /// Of a class: what was begun goes on first.
    fn take_next(&mut self, class: CopyClass) -> Option<(ExtentId, u64)> {
        let of_class = |it: &Queued| it.class == class;
        let begun = self.waiting.iter().position(|it| of_class(it) && it.is_begun);
        let at = begun.or_else(|| self.waiting.iter().position(of_class))?;
        let queued = self.waiting.get_mut(at)?;
        queued.is_begun = true;
        let (to, micros) = (queued.to, queued.chunks.pop()?);
        if queued.chunks.is_empty() {
            self.waiting.remove(at);
        }
        Some((to, micros))
    }
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

    fn go_on(&mut self, way: Way) {
        let Some(lanes) = &mut self.driver.lanes else { return };
        let now = self.now.since(Time::START);
        self.oracle.lane_waits(self.now, way, &lanes.waiting(way));
        let (job, micros) = match lanes.begin(now, way) {
            Some((begun, micros)) => {
                let Begun { to, class, .. } = begun;
                self.story.say(self.now, || format!("a chunk goes to {to}, {way:?}, as {}", class.name()));
                self.oracle.chunk_begun(self.now, &begun);
                (Job::Chunk { way }, micros)
            }
            None if lanes.is_held_back(way) => (Job::AskAgain { way }, ASKS_AGAIN_MICROS),
            None => return,
        };
        self.queue.at(self.now.after(Duration::from_micros(micros)), self.life, Happening::Done(job));
    }
}
