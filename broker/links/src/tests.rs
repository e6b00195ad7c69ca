use vramd_types::CopyClass::{Demand, Prefetch, WriteBack};

use super::*;

const CHUNK: Bytes = Bytes::mib(8);

fn waiting(classes: &[CopyClass]) -> Waiting {
    classes.iter().copied().collect()
}

fn at(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Of so many chunks, each a millisecond after the last, what each class had: while all of these wait.
fn served(link: &mut Link, classes: &[CopyClass], chunks: u64) -> [u64; CopyClass::COUNT] {
    let mut served = [0; CopyClass::COUNT];
    for turn in 0..chunks {
        let Some(class) = link.order(at(turn), waiting(classes)).next() else { break };
        link.begun(at(turn), class, CHUNK, waiting(classes));
        served[class.index()] += 1;
    }
    served
}

fn lane() -> Link {
    Link::of_lane(Shares::default(), CHUNK)
}

/// Some of the first go by before anybody is owed one.
#[track_caller]
fn assert_near(had: [u64; CopyClass::COUNT], expected: [u64; CopyClass::COUNT]) {
    let is_near = |(had, expected): (&u64, u64)| had.abs_diff(expected) <= 3 && (*had > 0) == (expected > 0);
    assert!(had.iter().zip(expected).all(is_near), "{had:?} for {expected:?}");
}

#[test]
fn each_class_has_its_share_at_least_and_what_nobody_owns_goes_in_order() {
    assert_near(served(&mut lane(), &[Demand, WriteBack], 1000), [800, 0, 200]);
    assert_near(served(&mut lane(), &[Prefetch, WriteBack], 1000), [0, 800, 200]);
    let greedy = Shares::new(10, 20, 70).unwrap();
    assert_near(served(&mut Link::of_lane(greedy, CHUNK), &[Demand, WriteBack], 1000), [300, 0, 700]);
    assert_near(served(&mut Link::of_lane(greedy, CHUNK), &[Prefetch, WriteBack], 1000), [0, 300, 700]);
}

#[test]
fn all_of_it_is_lent_while_nobody_else_wants_it() {
    for class in CopyClass::ALL {
        assert_eq!(served(&mut lane(), &[class], 100)[class.index()], 100);
    }
}

#[test]
fn what_was_lent_is_given_back_with_the_first_chunk() {
    let mut link = lane();
    served(&mut link, &[WriteBack], 500);
    assert!(served(&mut link, &[Demand, WriteBack], 10)[Demand.index()] >= 8);
    let mut link = lane();
    served(&mut link, &[Demand], 500);
    // Nothing is saved up for who did not want it.
    assert_eq!(link.order(at(500), waiting(&[Demand, WriteBack])).next(), Some(Demand));
    assert!(served(&mut link, &[Demand, WriteBack], 10)[WriteBack.index()] <= 2);
}

#[test]
fn demand_waits_behind_no_prefetch_but_for_one_chunk_a_second() {
    assert_near(served(&mut lane(), &[Demand, Prefetch], 5_000), [4_995, 5, 0]);
    assert_near(served(&mut lane(), &[Demand, Prefetch, WriteBack], 5_000), [3_996, 4, 1_000]);
}

#[test]
fn shares_of_nothing_leave_nobody_standing_for_ever() {
    let none = Shares::new(0, 0, 0).unwrap();
    let mut link = Link::of_lane(none, CHUNK);
    assert_near(served(&mut link, &[Demand, Prefetch, WriteBack], 3_000), [2_994, 3, 3]);
}

#[test]
fn chunks_are_paid_for_by_their_length() {
    let mut link = lane();
    let all = waiting(&[Demand, WriteBack]);
    let mut bytes = [0; CopyClass::COUNT];
    for turn in 0..1000 {
        let class = link.order(at(turn), all).next().unwrap();
        let length = if class == Demand { Bytes::mib(16) } else { CHUNK };
        link.begun(at(turn), class, length, all);
        bytes[class.index()] += length.get();
    }
    let share = bytes[WriteBack.index()] * 100 / (bytes[Demand.index()] + bytes[WriteBack.index()]);
    assert!((19..=20).contains(&share), "{share} percent");
}

#[test]
fn a_lane_has_one_class_at_a_time() {
    let link = lane();
    let both = waiting(&[Prefetch, WriteBack]);
    assert!(link.permits(at(0), Prefetch, both));
    assert!(!link.permits(at(0), WriteBack, both));
}

/// 1 GiB a second: a chunk of 8 MiB takes 7.8 ms.
fn shared() -> Link {
    Link::shared(Shares::default(), CHUNK, 1 << 30)
}

#[test]
fn a_shared_link_holds_back_what_nobody_waits_for_once_it_is_full() {
    let mut link = shared();
    let both = waiting(&[Demand, Prefetch]);
    assert!(link.permits(at(0), Prefetch, both), "there is room");
    link.begun(at(0), Demand, CHUNK, both);
    assert!(!link.permits(at(0), Prefetch, both));
    assert!(link.permits(at(0), Demand, both), "demand is never held back");
    assert!(!link.permits(at(6), Prefetch, both));
    assert!(link.permits(at(7), Prefetch, both), "it has crossed, nearly");
    let alone = waiting(&[Prefetch]);
    assert!(!link.permits(at(0), Prefetch, alone), "what somebody waits for still crosses it");
    link.ended(at(1), Demand, CHUNK);
    assert!(link.permits(at(1), Prefetch, alone), "it is faster than was measured");
    for _ in 0..4 {
        link.begun(at(8), Prefetch, CHUNK, alone);
        assert!(link.permits(at(8), Prefetch, alone), "nobody else wants it, however fast it is");
    }
}

#[test]
fn a_share_of_a_shared_link_is_had_however_full_it_is() {
    let mut link = shared();
    let both = waiting(&[Demand, WriteBack]);
    let mut begun = 0;
    for _ in 0..100 {
        link.begun(at(0), Demand, CHUNK, both);
        if link.permits(at(0), WriteBack, both) {
            link.begun(at(0), WriteBack, CHUNK, both);
            begun += 1;
        }
    }
    // A fifth of all that was begun.
    assert!((23..=25).contains(&begun), "{begun}");
}

#[test]
fn a_link_that_carries_nothing_to_speak_of_stops_nobody_for_ever() {
    let mut link = Link::shared(Shares::default(), CHUNK, 0);
    let both = waiting(&[Demand, Prefetch]);
    for _ in 0..PASSED_AT_MOST {
        link.begun(at(0), Demand, Bytes::new(u64::MAX), both);
        assert!(!link.permits(at(999), Prefetch, both));
    }
    assert!(link.permits(at(1000), Prefetch, both), "it has stood for a second");
}

#[test]
fn new_shares_hold_from_the_next_chunk_on() {
    let mut link = lane();
    served(&mut link, &[Demand, WriteBack], 100);
    link.share_by(Shares::new(0, 0, 100).unwrap());
    let had = served(&mut link, &[Demand, WriteBack], 100);
    assert!(had[WriteBack.index()] >= 98, "{had:?}");
}

#[test]
fn a_link_that_is_faster_than_was_measured_is_held_back_by_what_is_under_way_alone() {
    let mut link = shared();
    let alone = waiting(&[Prefetch]);
    // Ten minutes of a prefetch at ten times the speed.
    for turn in 0..600_000 {
        assert!(link.permits(at(turn), Prefetch, alone));
        link.begun(at(turn), Prefetch, Bytes::mib(10), alone);
        link.ended(at(turn), Prefetch, Bytes::mib(10));
    }
    link.begun(at(600_000), Demand, CHUNK, waiting(&[Demand, Prefetch]));
    assert!(!link.permits(at(600_000), Prefetch, alone));
    link.ended(at(600_001), Demand, CHUNK);
    assert!(link.permits(at(600_001), Prefetch, alone));
}

#[test]
fn beside_what_never_ends_who_waits_has_a_chunk_a_second() {
    let mut link = shared();
    let alone = waiting(&[Prefetch]);
    link.begun(at(0), Demand, Bytes::gib(64), waiting(&[Demand, Prefetch]));
    link.waits(at(1), alone);
    assert!(!link.permits(at(999), Prefetch, alone));
    assert!(link.permits(at(1001), Prefetch, alone));
    link.begun(at(1001), Prefetch, CHUNK, alone);
    assert!(!link.permits(at(1002), Prefetch, alone));
}
