//! A link that two lanes share: demand in the first, background copies in the other.

use super::*;

const DEMAND: usize = 0;
const OTHER: usize = 1;

/// 1 GiB a second: a chunk of 8 MiB takes 7.8 ms.
fn shared() -> Links {
    sharing(Shares::default(), 2, 1 << 30)
}

/// Whether a class that waits in the second lane may go at that millisecond.
fn permits(links: &mut Links, millis: u64, class: CopyClass) -> bool {
    links.set_waiting(at(millis), OTHER, waiting(&[class]), false);
    links.eligible_classes(at(millis), OTHER).next() == Some(class)
}

fn permits_in(links: &mut Links, millis: u64, lane: usize) -> bool {
    links.set_waiting(at(millis), lane, waiting(&[Prefetch]), false);
    links.eligible_classes(at(millis), lane).next().is_some()
}

fn demand_waits(links: &mut Links, millis: u64, waits: bool) {
    let classes: &[CopyClass] = if waits { &[Demand] } else { &[] };
    links.set_waiting(at(millis), DEMAND, waiting(classes), false);
}

#[test]
fn a_full_shared_link_holds_back_background_copies() {
    let mut links = shared();
    demand_waits(&mut links, 0, true);
    assert!(permits(&mut links, 0, Prefetch), "there is room");
    links.record_begin(at(0), DEMAND, Demand, CHUNK);
    assert!(!permits(&mut links, 0, Prefetch));
    assert_eq!(links.eligible_classes(at(0), DEMAND).next(), Some(Demand), "demand is never held back");
    assert!(!permits(&mut links, 6, Prefetch));
    assert!(permits(&mut links, 7, Prefetch), "it has crossed, nearly");
    demand_waits(&mut links, 0, false);
    assert!(!permits(&mut links, 0, Prefetch), "demand still crosses it");
    links.record_end(at(1), DEMAND, Demand, CHUNK);
    assert!(permits(&mut links, 1, Prefetch), "it is faster than was measured");
    for _ in 0..4 {
        links.record_begin(at(8), OTHER, Prefetch, CHUNK);
        assert!(permits(&mut links, 8, Prefetch), "no other class wants it, however fast it is");
    }
}

#[test]
fn a_class_gets_its_share_of_a_full_shared_link() {
    let mut links = shared();
    let mut begun = 0;
    demand_waits(&mut links, 0, true);
    for _ in 0..100 {
        links.record_begin(at(0), DEMAND, Demand, CHUNK);
        if permits(&mut links, 0, WriteBack) {
            links.record_begin(at(0), OTHER, WriteBack, CHUNK);
            begun += 1;
        }
    }
    // A fifth of all begun chunks.
    assert!((23..=25).contains(&begun), "{begun}");
}

#[test]
fn a_nearly_dead_link_blocks_no_class_forever() {
    let mut links = sharing(Shares::default(), 2, 0);
    demand_waits(&mut links, 0, true);
    assert!(permits(&mut links, 0, Prefetch));
    for _ in 0..STARVED_AFTER_CHUNKS {
        links.record_begin(at(0), DEMAND, Demand, Bytes::new(u64::MAX));
        assert!(!permits(&mut links, 999, Prefetch));
    }
    assert!(permits(&mut links, 1000, Prefetch), "it has stood for a second");
}

#[test]
fn a_link_faster_than_measured_is_limited_by_chunks_in_flight() {
    let mut links = shared();
    // A minute of prefetches at ten times the measured speed.
    for turn in 0..60_000 {
        assert!(permits(&mut links, turn, Prefetch));
        links.record_begin(at(turn), OTHER, Prefetch, Bytes::mib(10));
        links.record_end(at(turn), OTHER, Prefetch, Bytes::mib(10));
    }
    demand_waits(&mut links, 60_000, true);
    links.record_begin(at(60_000), DEMAND, Demand, CHUNK);
    demand_waits(&mut links, 60_000, false);
    assert!(!permits(&mut links, 60_000, Prefetch));
    links.record_end(at(60_001), DEMAND, Demand, CHUNK);
    assert!(permits(&mut links, 60_001, Prefetch));
}

#[test]
fn a_class_beside_an_endless_chunk_gets_one_a_second() {
    let mut links = shared();
    demand_waits(&mut links, 0, true);
    links.record_begin(at(0), DEMAND, Demand, Bytes::gib(64));
    demand_waits(&mut links, 1, false);
    assert!(!permits(&mut links, 1, Prefetch) && !permits(&mut links, 999, Prefetch));
    assert!(permits(&mut links, 1001, Prefetch));
    links.record_begin(at(1001), OTHER, Prefetch, CHUNK);
    assert!(!permits(&mut links, 1002, Prefetch));
}

/// A class gets back its lent share once it is owed a chunk.
#[test]
fn a_class_alone_in_its_lane_yields_to_an_owed_class() {
    let mut links = shared();
    links.set_waiting(at(0), DEMAND, waiting(&[Prefetch]), true);
    let begins = [0, 1, 2].map(|_| {
        let begins = permits(&mut links, 0, WriteBack);
        links.record_begin(at(0), OTHER, WriteBack, CHUNK);
        links.record_end(at(0), OTHER, WriteBack, CHUNK);
        begins
    });
    assert_eq!(
        begins,
        [true, true, false],
        "half of each belongs to the prefetch, which wants more than is under way"
    );
    links.record_begin(at(0), DEMAND, Prefetch, CHUNK);
    links.record_begin(at(0), DEMAND, Prefetch, CHUNK);
    assert!(permits(&mut links, 16, WriteBack), "once there is room");
}

#[test]
fn demand_yields_to_no_other_lane() {
    let mut links = shared();
    demand_waits(&mut links, 0, true);
    links.set_waiting(at(0), OTHER, waiting(&[WriteBack]), true);
    for _ in 0..20 {
        assert_eq!(links.eligible_classes(at(0), DEMAND).next(), Some(Demand));
        links.record_begin(at(0), DEMAND, Demand, CHUNK);
    }
}

/// Beside endless demand a prefetch gets a chunk a second; the lanes take turns.
#[test]
fn the_longest_starved_lane_goes_first() {
    let mut links = sharing(Shares::default(), 3, 1);
    demand_waits(&mut links, 0, true);
    let mut had = [0_u64; 3];
    for turn in 0..6_000 {
        links.record_begin(at(turn), DEMAND, Demand, Bytes::mib(64));
        for lane in [1, 2] {
            links.set_waiting(at(turn), lane, waiting(&[Prefetch]), false);
            if links.eligible_classes(at(turn), lane).next().is_some() {
                links.record_begin(at(turn), lane, Prefetch, CHUNK);
                links.record_end(at(turn), lane, Prefetch, CHUNK);
                had[lane] += 1;
            }
        }
    }
    assert!(had[1] >= 2 && had[1].abs_diff(had[2]) <= 1, "{had:?}");
}

/// Counts prefetch chunks in the last of three lanes, in four seconds beside endless demand in the first.
fn had_beside_demand(links: &mut Links) -> u32 {
    let mut had = 0;
    for turn in 1..4_000 {
        demand_waits(links, turn, true);
        links.record_begin(at(turn), DEMAND, Demand, Bytes::mib(64));
        links.set_waiting(at(turn), 2, waiting(&[Prefetch]), false);
        if links.eligible_classes(at(turn), 2).next().is_some() {
            links.record_begin(at(turn), 2, Prefetch, CHUNK);
            links.record_end(at(turn), 2, Prefetch, CHUNK);
            had += 1;
        }
    }
    had
}

#[test]
fn a_hung_prefetch_lane_is_not_waited_for() {
    let mut links = sharing(Shares::default(), 3, 1);
    // The lane is full of background chunks, and none ends.
    links.set_waiting(at(0), 1, waiting(&[Prefetch]), true);
    (0..4).for_each(|_| links.record_begin(at(0), 1, Prefetch, CHUNK));
    let had = had_beside_demand(&mut links);
    assert!((2..=4).contains(&had), "{had}");
}

#[test]
fn a_lane_hung_on_demand_is_not_waited_for() {
    let mut links = sharing(Shares::default(), 3, 1);
    links.set_waiting(at(0), 1, waiting(&[Prefetch]), false);
    (0..6).for_each(|_| links.record_begin(at(0), 1, Demand, Bytes::mib(16)));
    let had = had_beside_demand(&mut links);
    assert!((2..=4).contains(&had), "{had}");
    // Once it makes progress it is the first.
    links.record_end(at(5_000), 1, Demand, Bytes::mib(16));
    assert!(!permits_in(&mut links, 5_000, 2) && permits_in(&mut links, 5_000, 1));
}
