//! What the lanes share: each asks its links before it begins a chunk.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use broker_links::{Crossing, Waiting};
use vramd_types::{Bytes, CopyClass, Shares};

use super::LaneId;
use crate::{LinkFacts, Traffic};

/// What is begun at once of what nobody waits for, where chunks are as large as that.
const CHUNK: Bytes = Bytes::mib(8);

/// Below this share of what each carries alone lanes stand in each other's way: in percent. Both ways of an H100 carry 87 to 92.
const SHARED_BELOW: u128 = 95;
const MILLION: u128 = 1_000_000;

/// The link that they share, if they do: with what it would carry for each of them alone. None where one of them carried nothing.
pub(crate) fn shared(name: &str, alone: &[(LaneId, u64)], together: &[u64]) -> Option<LinkFacts> {
    if alone.iter().map(|(_, carries)| carries).chain(together).any(|carries| *carries == 0) {
        return None;
    }
    // Millionths of what each carries alone, summed up: a million for each where nobody is in anybody's way.
    let used =
        alone.iter().zip(together).map(|((_, alone), it)| u128::from(*it) * MILLION / u128::from(*alone));
    let used: u128 = used.sum();
    let is_shared = used * 100 < SHARED_BELOW * MILLION * alone.len() as u128;
    let carries = |alone: u64| u64::try_from(u128::from(alone) * used / MILLION).unwrap_or(u64::MAX);
    is_shared.then(|| LinkFacts {
        name: name.to_owned(),
        lanes: alone.iter().map(|(lane, alone)| (*lane, carries(*alone))).collect(),
    })
}

/// All links: one of each lane, and those that lanes share.
#[derive(Debug)]
pub(crate) struct Links {
    epoch: Instant,
    lanes: Vec<LaneId>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    links: broker_links::Links,
    /// What was begun in each lane.
    begun: Vec<[Bytes; CopyClass::COUNT]>,
}

/// The links that one lane's chunks cross.
#[derive(Debug)]
pub(crate) struct Crossed {
    links: Arc<Links>,
    /// The lane's number there.
    lane: usize,
    waiting: Waiting,
    is_full: bool,
}

/// What a lane begins next, of one of its copies: nothing of what has nothing left to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Next {
    /// The copy's place in the lane.
    pub(super) at: usize,
    pub(super) class: CopyClass,
    pub(super) length: Option<Bytes>,
}

impl Links {
    pub(crate) fn new(lanes: impl Iterator<Item = LaneId>, facts: &[LinkFacts]) -> Self {
        let lanes: Vec<LaneId> = lanes.collect();
        let shared = facts.iter().filter(|link| link.lanes.len() > 1);
        let shared = shared.map(|link| crossings(&lanes, link, facts)).collect();
        let links = broker_links::Links::new(Shares::default(), CHUNK, lanes.len(), shared);
        let begun = vec![[Bytes::ZERO; CopyClass::COUNT]; lanes.len()];
        Self { epoch: Instant::now(), lanes, state: Mutex::new(State { links, begun }) }
    }

    /// From the next chunk on.
    pub(crate) fn share_by(&self, shares: Shares) {
        self.state().links.share_by(shares);
    }

    /// Of a lane that it was made with.
    pub(crate) fn crossed_by(self: &Arc<Self>, lane: LaneId) -> Crossed {
        let lane = self.lanes.iter().position(|it| *it == lane).expect("links are made with all lanes");
        Crossed { links: Arc::clone(self), lane, waiting: Waiting::default(), is_full: false }
    }

    /// What was begun in each lane since the driver was opened.
    pub(crate) fn traffic(&self) -> Vec<Traffic> {
        let state = self.state();
        let lanes = self.lanes.iter().zip(&state.begun);
        lanes.map(|(lane, begun)| Traffic { lane: *lane, begun: *begun }).collect()
    }

    /// Every change is whole before anything could panic, so a poisoned lock is a good one.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The lanes of a link that they share: what each carries by itself is told of its own.
fn crossings(lanes: &[LaneId], link: &LinkFacts, facts: &[LinkFacts]) -> Vec<Crossing> {
    let alone = |lane: LaneId| {
        let own = facts.iter().filter(|link| link.lanes.len() == 1).flat_map(|link| &link.lanes);
        own.filter(|(of, _)| *of == lane).map(|(_, carries)| *carries).next()
    };
    let number = |lane: LaneId| lanes.iter().position(|it| *it == lane);
    let crossing = |(lane, carries): &(LaneId, u64)| {
        Some(Crossing { lane: number(*lane)?, carries: *carries, alone: alone(*lane) })
    };
    link.lanes.iter().filter_map(crossing).collect()
}

impl Crossed {
    /// What waits in the lane now, and whether as much of what nobody waits for is under way there as should be.
    pub(super) fn waits(&mut self, waiting: Waiting, is_full: bool) {
        if (waiting, is_full) != (self.waiting, self.is_full) {
            (self.waiting, self.is_full) = (waiting, is_full);
            let now = self.links.epoch.elapsed();
            self.links.state().links.waits(now, self.lane, waiting, is_full);
        }
    }

    /// Counts as begun what the lane picks of the classes of which a chunk may be begun now, the best first: in one moment, as what a class is
    /// owed of a shared link is not for two lanes at once. Before it is told what waits from now on.
    pub(super) fn begin(&self, pick: impl FnMut(CopyClass) -> Option<Next>) -> Option<Next> {
        let mut state = self.links.state();
        let now = self.links.epoch.elapsed();
        let next = state.links.next(now, self.lane).find_map(pick)?;
        if let Some(length) = next.length {
            state.links.begun(now, self.lane, next.class, length);
            let begun = &mut state.begun[self.lane][next.class.index()];
            *begun = begun.saturating_add(length);
        }
        Some(next)
    }

    /// Though it was told that it is.
    pub(super) fn not_begun(&self, class: CopyClass, length: Bytes) {
        self.ended(class, length);
        let mut state = self.links.state();
        let begun = &mut state.begun[self.lane][class.index()];
        *begun = begun.saturating_sub(length);
    }

    /// As what it was begun, and however it went.
    pub(super) fn ended(&self, class: CopyClass, length: Bytes) {
        let now = self.links.epoch.elapsed();
        self.links.state().links.ended(now, self.lane, class, length);
    }
}

#[cfg(test)]
mod tests {
    use vramd_types::DeviceIndex;

    use super::*;

    const IN: [LaneId; 2] = [LaneId::In(DeviceIndex(0)), LaneId::In(DeviceIndex(1))];

    #[test]
    fn what_is_as_fast_together_as_alone_shares_nothing() {
        assert_eq!(shared("node 0", &[(IN[0], 55), (IN[1], 55)], &[55, 54]), None);
        assert_eq!(shared("node 0", &[(IN[0], 0), (IN[1], 5)], &[0, 5]), None, "nothing is known of it");
    }

    #[test]
    fn what_is_shared_carries_for_each_what_it_has_room_for() {
        let narrow = shared("uplink", &[(IN[0], 50), (IN[1], 50)], &[25, 25]).unwrap();
        assert_eq!(narrow.lanes, [(IN[0], 50), (IN[1], 50)]);
        // Duplex, in GB/s: 100 of 110 on one device, 154 of 220 on two.
        let two = [(IN[0], 55), (LaneId::Out(DeviceIndex(0)), 55)];
        let both = shared("device 0", &two, &[50, 50]).unwrap();
        assert_eq!(both.lanes.iter().map(|(_, carries)| *carries).collect::<Vec<_>>(), [99; 2]);
        let four =
            [(IN[0], 55), (IN[1], 55), (LaneId::Out(DeviceIndex(0)), 55), (LaneId::Out(DeviceIndex(1)), 55)];
        let both = shared("node 0", &four, &[40, 37, 38, 39]).unwrap();
        assert_eq!(both.lanes.iter().map(|(_, carries)| *carries).collect::<Vec<_>>(), [153; 4]);
    }

    #[test]
    fn what_a_class_is_owed_of_a_shared_link_is_for_one_lane_alone() {
        let alone = IN.map(|lane| LinkFacts { name: lane.to_string(), lanes: vec![(lane, 50)] });
        let uplink = LinkFacts { name: "uplink".to_owned(), lanes: IN.map(|lane| (lane, 50)).to_vec() };
        let facts: Vec<LinkFacts> = alone.into_iter().chain([uplink]).collect();
        let links = Arc::new(Links::new(IN.into_iter(), &facts));
        links.share_by(Shares::new(50, 0, 50).unwrap());
        let lanes = IN.map(|lane| {
            let mut crossed = links.crossed_by(lane);
            crossed.waits([CopyClass::Demand, CopyClass::WriteBack].into_iter().collect(), false);
            crossed
        });
        let [one, other] = &lanes;
        let next = |class, length| Some(Next { at: 0, class, length });
        let first = |lane: &Crossed| lane.begin(|class| next(class, None)).map(|next| next.class);
        while first(one) == Some(CopyClass::Demand) {
            one.begin(|class| next(class, Some(CHUNK)));
        }
        assert_eq!([one, other].map(first), [Some(CopyClass::WriteBack); 2], "whoever comes first");
        std::thread::scope(|scope| {
            let mut second = None;
            one.begin(|class| {
                let looks = scope.spawn(|| first(other));
                // It would have looked by now.
                std::thread::sleep(std::time::Duration::from_millis(100));
                second = Some(looks);
                next(class, Some(CHUNK))
            });
            let second = second.expect("there was something to begin").join().unwrap();
            assert_eq!(second, Some(CopyClass::Demand));
        });
    }
}
