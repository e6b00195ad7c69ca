//! What the lanes share: each asks its links before it begins a chunk.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use broker_links::{Link, Waiting};
use vramd_types::{Bytes, CopyClass, Shares};

use super::LaneId;
use crate::{LinkFacts, Traffic};

/// What is begun at once of what nobody waits for, where chunks are as large as that.
const CHUNK: Bytes = Bytes::mib(8);

/// Below this share of what each carries alone lanes stand in each other's way: in percent.
const SHARED_BELOW: u128 = 90;
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
    all: Vec<Arc<Busy>>,
}

/// A link, and what waits for it.
#[derive(Debug)]
struct Busy {
    lanes: Vec<(LaneId, u64)>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    link: Link,
    /// What waits in each lane.
    waiting: Vec<Waiting>,
    begun: [Bytes; CopyClass::COUNT],
}

/// The links that one lane's chunks cross.
#[derive(Debug)]
pub(crate) struct Crossed {
    epoch: Instant,
    /// Each with the lane's place there.
    links: Vec<(Arc<Busy>, usize)>,
    waiting: Waiting,
}

impl Links {
    pub(crate) fn new(lanes: impl Iterator<Item = LaneId>, facts: &[LinkFacts]) -> Self {
        let shares = Shares::default();
        let own = lanes.map(|lane| Busy::new(Link::of_lane(shares, CHUNK), vec![(lane, 1)]));
        let shared = facts.iter().filter(|link| link.lanes.len() > 1).map(|LinkFacts { lanes, .. }| {
            let carries = lanes.first().map_or(1, |(_, carries)| *carries);
            Busy::new(Link::shared(shares, CHUNK, carries), lanes.clone())
        });
        Self { epoch: Instant::now(), all: own.chain(shared).map(Arc::new).collect() }
    }

    /// From the next chunk on.
    pub(crate) fn share_by(&self, shares: Shares) {
        self.all.iter().for_each(|link| link.state().link.share_by(shares));
    }

    pub(crate) fn crossed_by(&self, lane: LaneId) -> Crossed {
        let place = |link: &Arc<Busy>| link.lanes.iter().position(|(of, _)| *of == lane);
        let links = self.all.iter().filter_map(|link| Some((Arc::clone(link), place(link)?))).collect();
        Crossed { epoch: self.epoch, links, waiting: Waiting::default() }
    }

    /// What was begun in each lane since the driver was opened.
    pub(crate) fn traffic(&self) -> Vec<Traffic> {
        let own = self.all.iter().filter(|link| link.lanes.len() == 1);
        own.filter_map(|link| Some(Traffic { lane: link.lanes.first()?.0, begun: link.state().begun }))
            .collect()
    }
}

impl Busy {
    fn new(link: Link, lanes: Vec<(LaneId, u64)>) -> Self {
        let waiting = vec![Waiting::default(); lanes.len()];
        let begun = [Bytes::ZERO; CopyClass::COUNT];
        Self { lanes, state: Mutex::new(State { link, waiting, begun }) }
    }

    /// What a chunk costs there in bytes of the first lane.
    fn cost(&self, place: usize, length: Bytes) -> Bytes {
        let carries =
            |place: usize| self.lanes.get(place).map_or(1, |(_, carries)| u128::from(*carries).max(1));
        let cost = u128::from(length.get()) * carries(0) / carries(place);
        Bytes::new(u64::try_from(cost).unwrap_or(u64::MAX))
    }

    /// Every change is whole before anything could panic, so a poisoned lock is a good one.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn waits_anywhere(&self) -> Waiting {
        self.waiting.iter().fold(Waiting::default(), |all, of| all | *of)
    }
}

impl Crossed {
    /// What waits in the lane now.
    pub(super) fn waits(&mut self, waiting: Waiting) {
        if waiting != self.waiting {
            self.waiting = waiting;
            let now = self.epoch.elapsed();
            for (link, place) in &self.links {
                let mut state = link.state();
                state.waiting[*place] = waiting;
                let anywhere = state.waits_anywhere();
                state.link.waits(now, anywhere);
            }
        }
    }

    /// The classes of which a chunk may be begun now, the best first.
    pub(super) fn permitted(&self) -> impl Iterator<Item = CopyClass> {
        let now = self.epoch.elapsed();
        let own = self.links.first().map(|(own, _)| own.state());
        let order: Vec<_> = own.map(|own| own.link.order(now, self.waiting).collect()).unwrap_or_default();
        let permits = move |class: &CopyClass| {
            self.links.iter().skip(1).all(|(link, _)| {
                let state = link.state();
                state.link.permits(now, *class, state.waits_anywhere())
            })
        };
        order.into_iter().filter(permits)
    }

    /// Before it is told what waits from now on.
    pub(super) fn begun(&mut self, class: CopyClass, length: Bytes) {
        let now = self.epoch.elapsed();
        for (link, place) in &self.links {
            let mut state = link.state();
            let waiting = state.waits_anywhere();
            state.link.begun(now, class, link.cost(*place, length), waiting);
            let begun = &mut state.begun[class.index()];
            *begun = begun.saturating_add(length);
        }
    }

    /// As what it was begun, and however it went.
    pub(super) fn ended(&self, class: CopyClass, length: Bytes) {
        let now = self.epoch.elapsed();
        for (link, place) in &self.links {
            link.state().link.ended(now, class, link.cost(*place, length));
        }
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
        // Duplex on two devices, in GB/s: 154 of 220.
        let four =
            [(IN[0], 55), (IN[1], 55), (LaneId::Out(DeviceIndex(0)), 55), (LaneId::Out(DeviceIndex(1)), 55)];
        let both = shared("node 0", &four, &[40, 37, 38, 39]).unwrap();
        assert_eq!(both.lanes.iter().map(|(_, carries)| *carries).collect::<Vec<_>>(), [153; 4]);
    }
}
