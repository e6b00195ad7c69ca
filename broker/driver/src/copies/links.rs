//! The links of all lanes, under one lock: each lane asks before it begins a chunk.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use broker_links::{Crossing, WaitingClasses};
use vramd_types::{Bytes, CopyClass, Shares};

use super::LaneId;
use crate::{LinkFacts, Traffic};

/// The size of a background chunk, at most.
const CHUNK: Bytes = Bytes::mib(8);

/// Lanes share a link if together they reach less than this part of their speeds alone, in percent. Both
/// directions of an H100 reach 87 to 92.
const SHARED_BELOW: u128 = 95;
const MILLION: u128 = 1_000_000;

/// The link that these lanes share, if they share one, with the speed that it would have for each lane alone.
/// None if a lane carried nothing.
pub(crate) fn shared_link(name: &str, alone: &[(LaneId, u64)], together: &[u64]) -> Option<LinkFacts> {
    if alone.iter().map(|(_, carries)| carries).chain(together).any(|carries| *carries == 0) {
        return None;
    }
    // The sum over lanes of the speed together, in millionths of the speed alone: a million for each lane that
    // no other slows down.
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

/// All links: one for each lane, and the shared ones.
#[derive(Debug)]
pub(crate) struct Links {
    epoch: Instant,
    lanes: Vec<LaneId>,
    state: Mutex<LinkState>,
}

#[derive(Debug)]
struct LinkState {
    links: broker_links::Links,
    /// Bytes begun, by lane and class.
    begun: Vec<[Bytes; CopyClass::COUNT]>,
}

/// One lane's access to the links that its chunks cross.
#[derive(Debug)]
pub(crate) struct LaneLinks {
    links: Arc<Links>,
    /// The number of the lane.
    lane: usize,
    waiting: WaitingClasses,
    is_full: bool,
}

/// The next chunk of a lane. Without a length the copy has nothing left to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NextChunk {
    /// The index of the copy in the lane.
    pub(super) at: usize,
    pub(super) class: CopyClass,
    pub(super) length: Option<Bytes>,
}

impl Links {
    pub(crate) fn new(lanes: impl Iterator<Item = LaneId>, facts: &[LinkFacts]) -> Self {
        let lanes: Vec<LaneId> = lanes.collect();
        let shared_link = facts.iter().filter(|link| link.lanes.len() > 1);
        let shared_link = shared_link.map(|link| crossings(&lanes, link, facts)).collect();
        let links = broker_links::Links::new(Shares::default(), CHUNK, lanes.len(), shared_link);
        let begun = vec![[Bytes::ZERO; CopyClass::COUNT]; lanes.len()];
        Self { epoch: Instant::now(), lanes, state: Mutex::new(LinkState { links, begun }) }
    }

    /// Sets the shares, from the next chunk on.
    pub(crate) fn set_shares(&self, shares: Shares) {
        self.state().links.set_shares(shares);
    }

    /// The links of one of the lanes that these were made with.
    pub(crate) fn links_of(self: &Arc<Self>, lane: LaneId) -> LaneLinks {
        let lane = self.lanes.iter().position(|it| *it == lane).expect("links are made with all lanes");
        LaneLinks { links: Arc::clone(self), lane, waiting: WaitingClasses::default(), is_full: false }
    }

    /// Bytes that each lane has begun since the driver was opened.
    pub(crate) fn traffic(&self) -> Vec<Traffic> {
        let state = self.state();
        let lanes = self.lanes.iter().zip(&state.begun);
        lanes.map(|(lane, begun)| Traffic { lane: *lane, begun: *begun }).collect()
    }

    /// Every change is complete before any code could panic, so a poisoned lock is still good.
    fn state(&self) -> MutexGuard<'_, LinkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The lanes of a shared link. The speed of each lane alone comes from its own link.
fn crossings(lanes: &[LaneId], link: &LinkFacts, facts: &[LinkFacts]) -> Vec<Crossing> {
    let alone = |lane: LaneId| {
        let own = facts.iter().filter(|link| link.lanes.len() == 1).flat_map(|link| &link.lanes);
        own.filter(|(of, _)| *of == lane).map(|(_, carries)| *carries).next()
    };
    let number = |lane: LaneId| lanes.iter().position(|it| *it == lane);
    let crossing = |(lane, carries): &(LaneId, u64)| {
        Some(Crossing { lane: number(*lane)?, bytes_per_s: *carries, lane_bytes_per_s: alone(*lane) })
    };
    link.lanes.iter().filter_map(crossing).collect()
}

impl LaneLinks {
    /// Sets which classes wait in the lane, and whether the lane has as many background chunks in flight as it
    /// takes.
    pub(super) fn set_waiting(&mut self, waiting: WaitingClasses, is_full: bool) {
        if (waiting, is_full) != (self.waiting, self.is_full) {
            (self.waiting, self.is_full) = (waiting, is_full);
            let now = self.links.epoch.elapsed();
            self.links.state().links.set_waiting(now, self.lane, waiting, is_full);
        }
    }

    /// Offers the lane the classes that may begin a chunk now, the best first, and records the chunk that the
    /// lane picks. Both happen under one lock, since an owed chunk of a shared link belongs to one lane only.
    /// Called before the lane sets what waits from now on.
    pub(super) fn begin(&self, pick: impl FnMut(CopyClass) -> Option<NextChunk>) -> Option<NextChunk> {
        let mut state = self.links.state();
        let now = self.links.epoch.elapsed();
        let next = state.links.eligible_classes(now, self.lane).find_map(pick)?;
        if let Some(length) = next.length {
            state.links.record_begin(now, self.lane, next.class, length);
            let begun = &mut state.begun[self.lane][next.class.index()];
            *begun = begun.saturating_add(length);
        }
        Some(next)
    }

    /// Takes back a recorded chunk that could not begin.
    pub(super) fn undo_begin(&self, class: CopyClass, length: Bytes) {
        self.record_end(class, length);
        let mut state = self.links.state();
        let begun = &mut state.begun[self.lane][class.index()];
        *begun = begun.saturating_sub(length);
    }

    /// Records the end of a chunk, by the class it was begun as, successful or not.
    pub(super) fn record_end(&self, class: CopyClass, length: Bytes) {
        let now = self.links.epoch.elapsed();
        self.links.state().links.record_end(now, self.lane, class, length);
    }
}

#[cfg(test)]
mod tests {
    use vramd_types::DeviceIndex;

    use super::*;

    const IN: [LaneId; 2] = [LaneId::ToDevice(DeviceIndex(0)), LaneId::ToDevice(DeviceIndex(1))];

    #[test]
    fn lanes_that_are_as_fast_together_as_alone_share_no_link() {
        assert_eq!(shared_link("node 0", &[(IN[0], 55), (IN[1], 55)], &[55, 54]), None);
        assert_eq!(shared_link("node 0", &[(IN[0], 0), (IN[1], 5)], &[0, 5]), None, "nothing is known of it");
    }

    #[test]
    fn a_shared_link_carries_for_each_lane_what_all_used() {
        let narrow = shared_link("uplink", &[(IN[0], 50), (IN[1], 50)], &[25, 25]).unwrap();
        assert_eq!(narrow.lanes, [(IN[0], 50), (IN[1], 50)]);
        // Duplex, in GB/s: 100 of 110 on one device, 154 of 220 on two.
        let two = [(IN[0], 55), (LaneId::FromDevice(DeviceIndex(0)), 55)];
        let both = shared_link("device 0", &two, &[50, 50]).unwrap();
        assert_eq!(both.lanes.iter().map(|(_, carries)| *carries).collect::<Vec<_>>(), [99; 2]);
        let four = [
            (IN[0], 55),
            (IN[1], 55),
            (LaneId::FromDevice(DeviceIndex(0)), 55),
            (LaneId::FromDevice(DeviceIndex(1)), 55),
        ];
        let both = shared_link("node 0", &four, &[40, 37, 38, 39]).unwrap();
        assert_eq!(both.lanes.iter().map(|(_, carries)| *carries).collect::<Vec<_>>(), [153; 4]);
    }

    #[test]
    fn one_lane_alone_takes_a_chunk_owed_on_a_shared_link() {
        let alone = IN.map(|lane| LinkFacts { name: lane.to_string(), lanes: vec![(lane, 50)] });
        let uplink = LinkFacts { name: "uplink".to_owned(), lanes: IN.map(|lane| (lane, 50)).to_vec() };
        let facts: Vec<LinkFacts> = alone.into_iter().chain([uplink]).collect();
        let links = Arc::new(Links::new(IN.into_iter(), &facts));
        links.set_shares(Shares::new(50, 0, 50).unwrap());
        let lanes = IN.map(|lane| {
            let mut lane_links = links.links_of(lane);
            lane_links.set_waiting([CopyClass::Demand, CopyClass::WriteBack].into_iter().collect(), false);
            lane_links
        });
        let [one, other] = &lanes;
        let next = |class, length| Some(NextChunk { at: 0, class, length });
        let first = |lane: &LaneLinks| lane.begin(|class| next(class, None)).map(|next| next.class);
        while first(one) == Some(CopyClass::Demand) {
            one.begin(|class| next(class, Some(CHUNK)));
        }
        assert_eq!(
            [one, other].map(first),
            [Some(CopyClass::WriteBack); 2],
            "for the lane that begins first"
        );
        std::thread::scope(|scope| {
            let mut second = None;
            one.begin(|class| {
                let ask = scope.spawn(|| first(other));
                // By now the other lane would have asked.
                std::thread::sleep(std::time::Duration::from_millis(100));
                second = Some(ask);
                next(class, Some(CHUNK))
            });
            let second = second.expect("there was something to begin").join().unwrap();
            assert_eq!(second, Some(CopyClass::Demand));
        });
    }
}
