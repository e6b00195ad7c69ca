//! All links of a node, and the lanes that cross them.

use std::time::Duration;

use vramd_types::{Bytes, CopyClass, Shares};

use crate::{STARVED_AFTER, WaitingClasses, link::Link, turn::Turn};

/// All links of a node. A lane is named by its number, from 0.
#[derive(Clone, Debug)]
pub struct Links {
    lanes: Vec<Lane>,
    /// The own link of each lane, by its number, then the shared links.
    pub(crate) links: Vec<Link>,
    /// The lanes that cross each link.
    crossings: Vec<Vec<Crossing>>,
    #[cfg(feature = "planted")]
    pub(crate) planted: Option<crate::Flaw>,
}

#[derive(Clone, Debug)]
struct Lane {
    /// The links that the lane crosses; its own comes first.
    crosses: Vec<usize>,
    waiting: WaitingClasses,
    is_full: bool,
    /// Chunks that have begun and not ended.
    in_flight: usize,
    /// When a chunk last began or ended.
    last_progress: Duration,
}

impl Lane {
    fn new(crosses: Vec<usize>) -> Self {
        Self {
            crosses,
            waiting: WaitingClasses::default(),
            is_full: false,
            in_flight: 0,
            last_progress: Duration::ZERO,
        }
    }

    /// Whether the chunks in flight do not end, so that the lane may never begin another.
    fn is_hung(&self, now: Duration) -> bool {
        self.in_flight > 0 && now.saturating_sub(self.last_progress) >= STARVED_AFTER
    }
}

/// One lane's use of one link.
#[derive(Clone, Copy, Debug)]
pub struct Crossing {
    pub lane: usize,
    /// The speed of the link if this lane has it for itself.
    pub bytes_per_s: u64,
    /// The speed of the lane alone, if it is known.
    pub lane_bytes_per_s: Option<u64>,
}

impl Crossing {
    /// How much of the link the lane can fill, in percent.
    fn percent_filled(&self) -> u32 {
        let percent =
            |lane_bytes_per_s: u64| u128::from(lane_bytes_per_s) * 100 / u128::from(self.bytes_per_s.max(1));
        self.lane_bytes_per_s.map_or(100, |lane_bytes_per_s| {
            u32::try_from(percent(lane_bytes_per_s).clamp(1, 100)).unwrap_or(100)
        })
    }
}

impl Links {
    /// Links for so many lanes, with these shared links. `chunk` is the size of a background chunk.
    pub fn new(shares: Shares, chunk: Bytes, lanes: usize, shared: Vec<Vec<Crossing>>) -> Self {
        let own = (0..lanes).map(|lane| vec![Crossing { lane, bytes_per_s: 1, lane_bytes_per_s: None }]);
        let crossings: Vec<Vec<Crossing>> = own.chain(shared).collect();
        let link = |(at, lanes_there): (usize, &Vec<Crossing>)| match lanes_there.first() {
            Some(first) if at >= lanes => Link::shared(shares, chunk, first.bytes_per_s),
            _ => Link::of_lane(shares, chunk),
        };
        let links = crossings.iter().enumerate().map(link).collect();
        let crosses = |lane: usize| {
            let has_lane = |there: &Vec<Crossing>| there.iter().any(|it| it.lane == lane);
            crossings.iter().enumerate().filter(|(_, there)| has_lane(there)).map(|(at, _)| at).collect()
        };
        let lanes = (0..lanes).map(|lane| Lane::new(crosses(lane))).collect();
        Self {
            lanes,
            links,
            crossings,
            #[cfg(feature = "planted")]
            planted: None,
        }
    }

    /// Sets the shares, from the next chunk on.
    pub fn set_shares(&mut self, shares: Shares) {
        self.links.iter_mut().for_each(|link| link.set_shares(shares));
    }

    /// Sets which classes wait in a lane from now on, and whether the lane is full: whether it has as many
    /// background chunks in flight as it takes.
    pub fn set_waiting(&mut self, now: Duration, lane: usize, waiting: WaitingClasses, is_full: bool) {
        planted!(self, FullWantsNothing => waiting = waiting.without_background(is_full));
        let own = &mut self.lanes[lane];
        (own.waiting, own.is_full) = (waiting, is_full);
        for at in &self.lanes[lane].crosses {
            let percent_filled = |class: CopyClass| {
                let wanted =
                    self.crossings[*at].iter().filter(|it| self.lanes[it.lane].waiting.contains(class));
                wanted.map(Crossing::percent_filled).sum::<u32>()
            };
            self.links[*at].set_waiting(now, CopyClass::ALL.map(percent_filled));
        }
    }

    /// The classes that may begin a chunk in a lane now, the best first.
    pub fn eligible_classes(&self, now: Duration, lane: usize) -> impl Iterator<Item = CopyClass> + use<> {
        let mut turns = CopyClass::ALL.map(|class| (self.turn(now, lane, class), class));
        turns.sort();
        turns.into_iter().filter(|(turn, _)| turn.may_begin()).map(|(_, class)| class)
    }

    /// Records that a chunk has begun in a lane. The caller records this before it sets what waits from now on.
    pub fn record_begin(&mut self, now: Duration, lane: usize, class: CopyClass, length: Bytes) {
        let own = &mut self.lanes[lane];
        (own.in_flight, own.last_progress) = (own.in_flight + 1, now);
        for at in &self.lanes[lane].crosses {
            let cost = cost(&self.crossings[*at], lane, length);
            self.links[*at].record_begin(now, class, cost);
        }
    }

    /// Records the end of a chunk, by the class it was begun as, successful or not.
    pub fn record_end(&mut self, now: Duration, lane: usize, class: CopyClass, length: Bytes) {
        let own = &mut self.lanes[lane];
        (own.in_flight, own.last_progress) = (own.in_flight.saturating_sub(1), now);
        for at in &self.lanes[lane].crosses {
            let cost = cost(&self.crossings[*at], lane, length);
            self.links[*at].record_end(now, class, cost);
        }
    }

    fn turn(&self, now: Duration, lane: usize, class: CopyClass) -> Turn {
        let Lane { crosses, waiting, is_full, .. } = &self.lanes[lane];
        if !waiting.contains(class) {
            return Turn::HeldBack;
        }
        let turns = crosses.iter().map(|at| self.turn_at(now, *at, lane, class));
        let turn = turns.fold(Turn::InOrder, Turn::combine);
        // Beside demand the share of a class may be more than the background chunks that a lane takes.
        let is_beside_demand = waiting.contains(CopyClass::Demand);
        planted!(self, FullLacksItsShare => is_beside_demand = false);
        let has_room = class == CopyClass::Demand || !is_full || is_beside_demand && turn.goes_out_of_order();
        if has_room { turn } else { Turn::HeldBack }
    }

    fn turn_at(&self, now: Duration, at: usize, lane: usize, class: CopyClass) -> Turn {
        let link = &self.links[at];
        planted!(self, SharedOnlyVetoes => if link.is_shared() { return self.turn_by_veto(now, at, class) });
        if link.is_starved(now, class) && self.waits_longest(now, at, lane, class) {
            Turn::Starved
        } else if link.is_owed(class) {
            Turn::Owed
        } else if link.holds_back(now, class) {
            Turn::HeldBack
        } else if self.must_yield(now, at, class) {
            Turn::Yielding
        } else {
            Turn::InOrder
        }
    }

    /// Whether a lane has waited longest of those that wait for a class on a link. Hung lanes do not count.
    fn waits_longest(&self, now: Duration, at: usize, lane: usize, class: CopyClass) -> bool {
        let since = |lane: usize| self.links[lane].waiting_since(class);
        let Some(its) = since(lane) else { return false };
        let others = self.crossings[at].iter().filter(|other| !self.lanes[other.lane].is_hung(now));
        others.filter_map(|other| since(other.lane)).all(|other| its <= other)
    }

    /// Whether a class yields on a shared link, because another class is owed there.
    fn must_yield(&self, now: Duration, at: usize, class: CopyClass) -> bool {
        let is_shared = self.links[at].is_shared();
        planted!(self, OthersNotHeldBack => is_shared = false);
        let mut others = CopyClass::ALL.into_iter().filter(|other| *other != class);
        is_shared && class != CopyClass::Demand && others.any(|other| self.is_deprived(now, at, other))
    }

    /// Whether a class is owed on a link and could go: in some lane no other link holds it back.
    fn is_deprived(&self, now: Duration, at: usize, class: CopyClass) -> bool {
        let elsewhere = |link: &usize| {
            *link != at && self.links[*link].holds_back(now, class) && !self.links[*link].is_owed(class)
        };
        let could_go = |lane: &Lane| lane.waiting.contains(class) && !lane.crosses.iter().any(elsewhere);
        self.links[at].is_owed(class) && self.crossings[at].iter().any(|it| could_go(&self.lanes[it.lane]))
    }
}

/// The cost of a chunk on a link, in bytes of the first lane there.
fn cost(there: &[Crossing], lane: usize, length: Bytes) -> Bytes {
    let bytes_per_s = |it: Option<&Crossing>| it.map_or(1, |it| u128::from(it.bytes_per_s).max(1));
    let (first, own) = (there.first(), there.iter().find(|it| it.lane == lane));
    let cost = u128::from(length.get()) * bytes_per_s(first) / bytes_per_s(own);
    Bytes::new(u64::try_from(cost).unwrap_or(u64::MAX))
}
