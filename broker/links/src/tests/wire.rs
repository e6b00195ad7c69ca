//! The share of each class on a wire that carries the begun chunks. Lanes keep some chunks in flight, and those
//! with any share the wire.

use std::collections::VecDeque;

use super::*;

/// As in the drivers.
const IN_FLIGHT_MAX: usize = 6;
const BACKGROUND_MAX: usize = 4;

/// Speeds of a lane and of the wire, in bytes per second.
const LANE: u64 = 55_000_000_000;
const WIRE: u64 = 95_000_000_000;

const STEP: Duration = Duration::from_micros(20);

struct Lane {
    classes: &'static [CopyClass],
    /// Each chunk with the bytes that are left of it.
    in_flight: VecDeque<(CopyClass, Bytes, u64)>,
    /// The shared wire that it crosses below that of the node.
    uplink: Option<usize>,
    bytes_per_s: u64,
}

struct Wires {
    links: Links,
    lanes: Vec<Lane>,
    /// The speed of each wire; the node's last.
    carry: Vec<u64>,
    had: Vec<[u64; CopyClass::COUNT]>,
}

impl Wires {
    /// Lanes that share the node's wire. These classes wait in each forever.
    fn of(shares: Shares, lanes: &[&'static [CopyClass]]) -> Self {
        Self::below(
            shares,
            &[],
            &lanes.iter().map(|classes| (*classes, None, LANE)).collect::<Vec<_>>(),
            WIRE,
        )
    }

    fn below(
        shares: Shares,
        uplinks: &[u64],
        lanes: &[(&'static [CopyClass], Option<usize>, u64)],
        node: u64,
    ) -> Self {
        let carry: Vec<u64> = uplinks.iter().copied().chain([node]).collect();
        let lanes: Vec<Lane> = lanes
            .iter()
            .map(|(classes, uplink, bytes_per_s)| Lane {
                classes,
                in_flight: VecDeque::new(),
                uplink: *uplink,
                bytes_per_s: *bytes_per_s,
            })
            .collect();
        let shared = carry.iter().enumerate().map(|(wire, bytes_per_s)| {
            let there = lanes
                .iter()
                .enumerate()
                .filter(|(_, lane)| lane.uplink == Some(wire) || wire == uplinks.len());
            there
                .map(|(lane, it)| Crossing {
                    lane,
                    bytes_per_s: *bytes_per_s,
                    lane_bytes_per_s: Some(it.bytes_per_s),
                })
                .collect()
        });
        let links = Links::new(shares, CHUNK, lanes.len(), shared.collect());
        let had = vec![[0; CopyClass::COUNT]; lanes.len()];
        Self { links, lanes, carry, had }
    }

    /// Runs 100 ms.
    fn run(mut self) -> Self {
        for step in 0..5_000 {
            let now = STEP * step;
            (0..self.lanes.len()).for_each(|lane| self.begin(now, lane));
            for (lane, rate) in self.rates().into_iter().enumerate() {
                self.carry(now, lane, rate / 50_000);
            }
        }
        self
    }

    fn begin(&mut self, now: Duration, at: usize) {
        let lane = &mut self.lanes[at];
        loop {
            let background = lane.in_flight.iter().filter(|(class, ..)| *class != Demand).count();
            self.links.set_waiting(now, at, waiting(lane.classes), background >= BACKGROUND_MAX);
            let has_room = lane.in_flight.len() < IN_FLIGHT_MAX;
            let Some(class) = self.links.eligible_classes(now, at).next().filter(|_| has_room) else {
                return;
            };
            let length = if class == Demand { Bytes::mib(16) } else { CHUNK };
            self.links.record_begin(now, at, class, length);
            lane.in_flight.push_back((class, length, length.get()));
        }
    }

    /// Lanes with chunks in flight share each wire evenly; what a lane cannot use goes to the others.
    fn rates(&self) -> Vec<u64> {
        let mut left = self.carry.clone();
        let mut rates = vec![0; self.lanes.len()];
        let mut open: Vec<usize> =
            (0..rates.len()).filter(|at| !self.lanes[*at].in_flight.is_empty()).collect();
        while !open.is_empty() {
            let wires = |lane: usize| self.lanes[lane].uplink.into_iter().chain([self.carry.len() - 1]);
            let crossing =
                |wire: usize| open.iter().filter(|lane| wires(**lane).any(|it| it == wire)).count() as u64;
            let more = |lane: usize| {
                let fair = wires(lane).map(|wire| left[wire] / crossing(wire)).min().unwrap_or(0);
                fair.min(self.lanes[lane].bytes_per_s)
            };
            let (least, at) = open.iter().map(|lane| (more(*lane), *lane)).min().unwrap();
            rates[at] = least;
            wires(at).for_each(|wire| left[wire] -= least);
            open.retain(|lane| *lane != at);
        }
        rates
    }

    fn carry(&mut self, now: Duration, at: usize, mut bytes: u64) {
        while let Some((class, length, left)) = self.lanes[at].in_flight.front_mut() {
            let carried = bytes.min(*left);
            *left -= carried;
            bytes -= carried;
            self.had[at][class.index()] += carried;
            if *left > 0 {
                return;
            }
            self.links.record_end(now, at, *class, *length);
            self.lanes[at].in_flight.pop_front();
        }
    }

    fn sum(&self, class: CopyClass) -> u64 {
        self.had.iter().map(|had| had[class.index()]).sum()
    }

    /// Of all bytes on the node's wire, in percent.
    fn percent(&self, class: CopyClass) -> u64 {
        self.sum(class) * 100 / CopyClass::ALL.map(|it| self.sum(it)).iter().sum::<u64>()
    }

    /// Of what the node's wire could have carried, in per mille.
    fn used(&self) -> u64 {
        let all: u64 = CopyClass::ALL.map(|it| self.sum(it)).iter().sum();
        all * 1000 / self.carry.last().unwrap()
    }
}

fn shares(demand: u32, prefetch: u32, write_back: u32) -> Shares {
    Shares::new(demand, prefetch, write_back).unwrap()
}

#[test]
fn a_class_gets_its_share_of_a_lane_with_chunks_in_flight() {
    for (of, percent) in [((30, 50, 20), 20), ((50, 0, 50), 50), ((10, 20, 70), 70), ((0, 0, 100), 98)] {
        let shares = shares(of.0, of.1, of.2);
        let wires = Wires::of(shares, &[&[Demand, WriteBack]]).run();
        let had = wires.percent(WriteBack);
        assert!(had + 2 >= percent && had <= percent + 3, "{of:?}: {had} percent");
    }
    for (of, percent) in [((30, 50, 20), 20), ((0, 50, 50), 50), ((10, 20, 70), 70)] {
        let shares = shares(of.0, of.1, of.2);
        let had = Wires::of(shares, &[&[Prefetch, WriteBack]]).run().percent(WriteBack);
        assert!(had + 2 >= percent && had <= percent + 3, "{of:?}: {had} percent");
    }
}

#[test]
fn a_shared_link_is_shared_beside_demand_in_the_same_lane() {
    let lanes: [&[CopyClass]; 5] = [&[Demand], &[Demand], &[Demand], &[Demand], &[Demand, WriteBack]];
    let wires = Wires::of(Shares::default(), &lanes).run();
    let had = wires.percent(WriteBack);
    // The lane has a fifth of the wire, and demand has its part of the lane.
    assert!((12..=20).contains(&had), "{had} percent: {:?}", wires.had);
    let own = wires.had[4];
    let demand = own[0] * 100 / (own[0] + own[2]);
    assert!(demand >= 28, "demand has {demand} percent of its lane");
}

#[test]
fn a_class_gets_its_share_however_many_lanes_others_have() {
    let lanes: [&[CopyClass]; 5] = [&[Prefetch], &[WriteBack], &[WriteBack], &[WriteBack], &[WriteBack]];
    let wires = Wires::of(Shares::default(), &lanes).run();
    let had = wires.percent(Prefetch);
    assert!((46..=60).contains(&had), "{had} percent: {:?}", wires.had);
    assert!(wires.used() >= 97, "{} percent", wires.used());
    let lanes: [&[CopyClass]; 5] = [&[Demand], &[WriteBack], &[WriteBack], &[WriteBack], &[WriteBack]];
    let had = Wires::of(Shares::default(), &lanes).run().percent(Demand);
    assert!(had >= 28, "{had} percent");
    let lanes: [&[CopyClass]; 5] = [&[WriteBack], &[Prefetch], &[Prefetch], &[Prefetch], &[Prefetch]];
    let had = Wires::of(shares(30, 20, 50), &lanes).run().percent(WriteBack);
    assert!(had >= 46, "{had} percent");
}

/// A share is lent: a lane wants no more than it carries.
#[test]
fn a_share_beyond_the_speed_of_its_lane_is_lent() {
    let slow = LANE / 4;
    let others = [(&[WriteBack][..], None, LANE); 4];
    let lanes: Vec<_> = [(&[Prefetch][..], None, slow)].into_iter().chain(others).collect();
    let wires = Wires::below(Shares::default(), &[], &lanes, WIRE).run();
    assert!(wires.used() >= 95, "{} percent: {:?}", wires.used(), wires.had);
    let prefetch = wires.percent(Prefetch);
    assert!(prefetch >= 13, "{prefetch} percent of the 14 that it could have");
}

/// Write-backs have their share of an uplink beside demand, and are owed on the node's wire. No prefetch of
/// another uplink waits for that.
#[test]
fn no_lane_yields_to_a_class_held_back_elsewhere() {
    let uplinks = [28_000_000_000, 28_000_000_000];
    let node = 60_000_000_000;
    let lanes: [(&[CopyClass], _, _); 4] = [
        (&[Demand], Some(0), LANE),
        (&[WriteBack], Some(0), LANE),
        (&[Prefetch], Some(1), LANE),
        (&[Prefetch], Some(1), LANE),
    ];
    let wires = Wires::below(Shares::default(), &uplinks, &lanes, node).run();
    assert!(wires.used() >= 85, "{} percent: {:?}", wires.used(), wires.had);
}

/// Prefetches are owed on one wire, write-backs on the other, and both wait in lanes that cross both wires.
#[test]
fn two_owed_classes_do_not_wait_for_each_other() {
    let crossing = |lane| Crossing { lane, bytes_per_s: 1 << 40, lane_bytes_per_s: None };
    let both = vec![[0, 1, 2].map(crossing).to_vec(), [0, 1, 3].map(crossing).to_vec()];
    let mut links = Links::new(Shares::new(0, 50, 50).unwrap(), CHUNK, 4, both);
    for (lane, class) in [(0, Prefetch), (1, WriteBack), (2, WriteBack), (3, Prefetch)] {
        links.set_waiting(at(0), lane, waiting(&[class]), false);
    }
    for _ in 0..2 {
        links.record_begin(at(0), 2, WriteBack, CHUNK);
        links.record_begin(at(0), 3, Prefetch, CHUNK);
    }
    let may_go = [0, 1, 2, 3].map(|lane| links.eligible_classes(at(0), lane).next().is_some());
    assert_eq!(may_go, [true, true, false, false]);
}
