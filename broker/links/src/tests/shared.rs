//! A link that two lanes share: demand in the first, what nobody waits for in the other.

use super::*;

const DEMAND: usize = 0;
const OTHER: usize = 1;

/// 1 GiB a second: a chunk of 8 MiB takes 7.8 ms.
fn shared() -> Links {
    sharing(Shares::default(), 2, 1 << 30)
}

/// At that millisecond this waits in the second lane.
fn permits(links: &mut Links, millis: u64, class: CopyClass) -> bool {
    links.waits(at(millis), OTHER, waiting(&[class]), false);
    links.next(at(millis), OTHER).next() == Some(class)
}

fn permits_in(links: &mut Links, millis: u64, lane: usize) -> bool {
    links.waits(at(millis), lane, waiting(&[Prefetch]), false);
    links.next(at(millis), lane).next().is_some()
}

fn demand_waits(links: &mut Links, millis: u64, waits: bool) {
    let classes: &[CopyClass] = if waits { &[Demand] } else { &[] };
    links.waits(at(millis), DEMAND, waiting(classes), false);
}

#[test]
fn a_shared_link_holds_back_what_nobody_waits_for_once_it_is_full() {
    let mut links = shared();
    demand_waits(&mut links, 0, true);
    assert!(permits(&mut links, 0, Prefetch), "there is room");
    links.begun(at(0), DEMAND, Demand, CHUNK);
    assert!(!permits(&mut links, 0, Prefetch));
    assert_eq!(links.next(at(0), DEMAND).next(), Some(Demand), "demand is never held back");
    assert!(!permits(&mut links, 6, Prefetch));
    assert!(permits(&mut links, 7, Prefetch), "it has crossed, nearly");
    demand_waits(&mut links, 0, false);
    assert!(!permits(&mut links, 0, Prefetch), "what somebody waits for still crosses it");
    links.ended(at(1), DEMAND, Demand, CHUNK);
    assert!(permits(&mut links, 1, Prefetch), "it is faster than was measured");
    for _ in 0..4 {
        links.begun(at(8), OTHER, Prefetch, CHUNK);
        assert!(permits(&mut links, 8, Prefetch), "nobody else wants it, however fast it is");
    }
}

#[test]
fn a_share_of_a_shared_link_is_had_however_full_it_is() {
    let mut links = shared();
    let mut begun = 0;
    demand_waits(&mut links, 0, true);
    for _ in 0..100 {
        links.begun(at(0), DEMAND, Demand, CHUNK);
        if permits(&mut links, 0, WriteBack) {
            links.begun(at(0), OTHER, WriteBack, CHUNK);
            begun += 1;
        }
    }
    // A fifth of all that was begun.
    assert!((23..=25).contains(&begun), "{begun}");
}

#[test]
fn a_link_that_carries_nothing_to_speak_of_stops_nobody_for_ever() {
    let mut links = sharing(Shares::default(), 2, 0);
    demand_waits(&mut links, 0, true);
    assert!(permits(&mut links, 0, Prefetch));
    for _ in 0..PASSED_AT_MOST {
        links.begun(at(0), DEMAND, Demand, Bytes::new(u64::MAX));
        assert!(!permits(&mut links, 999, Prefetch));
    }
    assert!(permits(&mut links, 1000, Prefetch), "it has stood for a second");
}

#[test]
fn a_link_that_is_faster_than_was_measured_is_held_back_by_what_is_under_way_alone() {
    let mut links = shared();
    // A minute of a prefetch at ten times the speed.
    for turn in 0..60_000 {
        assert!(permits(&mut links, turn, Prefetch));
        links.begun(at(turn), OTHER, Prefetch, Bytes::mib(10));
        links.ended(at(turn), OTHER, Prefetch, Bytes::mib(10));
    }
    demand_waits(&mut links, 60_000, true);
    links.begun(at(60_000), DEMAND, Demand, CHUNK);
    demand_waits(&mut links, 60_000, false);
    assert!(!permits(&mut links, 60_000, Prefetch));
    links.ended(at(60_001), DEMAND, Demand, CHUNK);
    assert!(permits(&mut links, 60_001, Prefetch));
}

#[test]
fn beside_what_never_ends_who_waits_has_a_chunk_a_second() {
    let mut links = shared();
    demand_waits(&mut links, 0, true);
    links.begun(at(0), DEMAND, Demand, Bytes::gib(64));
    demand_waits(&mut links, 1, false);
    assert!(!permits(&mut links, 1, Prefetch) && !permits(&mut links, 999, Prefetch));
    assert!(permits(&mut links, 1001, Prefetch));
    links.begun(at(1001), OTHER, Prefetch, CHUNK);
    assert!(!permits(&mut links, 1002, Prefetch));
}

/// What is lent to a class is its own as soon as it lacks a chunk of its share.
#[test]
fn what_is_alone_in_its_lane_yields_to_who_lacks_its_share() {
    let mut links = shared();
    links.waits(at(0), DEMAND, waiting(&[Prefetch]), true);
    let begins = [0, 1, 2].map(|_| {
        let begins = permits(&mut links, 0, WriteBack);
        links.begun(at(0), OTHER, WriteBack, CHUNK);
        links.ended(at(0), OTHER, WriteBack, CHUNK);
        begins
    });
    assert_eq!(
        begins,
        [true, true, false],
        "half of each belongs to the prefetch, which wants more than is under way"
    );
    links.begun(at(0), DEMAND, Prefetch, CHUNK);
    links.begun(at(0), DEMAND, Prefetch, CHUNK);
    assert!(permits(&mut links, 16, WriteBack), "once there is room");
}

#[test]
fn demand_yields_to_no_other_lane_whatever_that_lacks() {
    let mut links = shared();
    demand_waits(&mut links, 0, true);
    links.waits(at(0), OTHER, waiting(&[WriteBack]), true);
    for _ in 0..20 {
        assert_eq!(links.next(at(0), DEMAND).next(), Some(Demand));
        links.begun(at(0), DEMAND, Demand, CHUNK);
    }
}

/// Beside endless demand a prefetch has a chunk a second; each lane in its turn.
#[test]
fn who_stood_longest_goes_first_whoever_asks_first() {
    let mut links = sharing(Shares::default(), 3, 1);
    demand_waits(&mut links, 0, true);
    let mut had = [0_u64; 3];
    for turn in 0..6_000 {
        links.begun(at(turn), DEMAND, Demand, Bytes::mib(64));
        for lane in [1, 2] {
            links.waits(at(turn), lane, waiting(&[Prefetch]), false);
            if links.next(at(turn), lane).next().is_some() {
                links.begun(at(turn), lane, Prefetch, CHUNK);
                links.ended(at(turn), lane, Prefetch, CHUNK);
                had[lane] += 1;
            }
        }
    }
    assert!(had[1] >= 2 && had[1].abs_diff(had[2]) <= 1, "{had:?}");
}

/// Chunks of a prefetch in the last of three lanes, for four seconds beside endless demand in the first.
fn had_beside_demand(links: &mut Links) -> u32 {
    let mut had = 0;
    for turn in 1..4_000 {
        demand_waits(links, turn, true);
        links.begun(at(turn), DEMAND, Demand, Bytes::mib(64));
        links.waits(at(turn), 2, waiting(&[Prefetch]), false);
        if links.next(at(turn), 2).next().is_some() {
            links.begun(at(turn), 2, Prefetch, CHUNK);
            links.ended(at(turn), 2, Prefetch, CHUNK);
            had += 1;
        }
    }
    had
}

#[test]
fn who_stood_longest_and_can_begin_nothing_has_nobody_wait_behind_it() {
    let mut links = sharing(Shares::default(), 3, 1);
    // As much is under way there as should be, and none of it ends.
    links.waits(at(0), 1, waiting(&[Prefetch]), true);
    (0..4).for_each(|_| links.begun(at(0), 1, Prefetch, CHUNK));
    let had = had_beside_demand(&mut links);
    assert!((2..=4).contains(&had), "{had}");
}

#[test]
fn nobody_waits_behind_who_hangs_with_as_much_demand_as_its_lane_takes() {
    let mut links = sharing(Shares::default(), 3, 1);
    links.waits(at(0), 1, waiting(&[Prefetch]), false);
    (0..6).for_each(|_| links.begun(at(0), 1, Demand, Bytes::mib(16)));
    let had = had_beside_demand(&mut links);
    assert!((2..=4).contains(&had), "{had}");
    // Once it goes on it is the first.
    links.ended(at(5_000), 1, Demand, Bytes::mib(16));
    assert!(!permits_in(&mut links, 5_000, 2) && permits_in(&mut links, 5_000, 1));
}
