//! The order in one lane that shares no link.

use super::*;

/// Begins so many chunks, one each millisecond, while all these classes wait. Returns how many chunks each
/// class had.
fn served(links: &mut Links, classes: &[CopyClass], chunks: u64) -> [u64; CopyClass::COUNT] {
    let mut served = [0; CopyClass::COUNT];
    for turn in 0..chunks {
        links.set_waiting(at(turn), 0, waiting(classes), false);
        let Some(class) = links.eligible_classes(at(turn), 0).next() else { break };
        links.record_begin(at(turn), 0, class, CHUNK);
        served[class.index()] += 1;
    }
    served
}

fn sharing_by(shares: Shares) -> Links {
    Links::new(shares, CHUNK, 1, Vec::new())
}

fn lane() -> Links {
    sharing_by(Shares::default())
}

/// The first chunks pass before a class is owed one.
#[track_caller]
fn assert_near(had: [u64; CopyClass::COUNT], expected: [u64; CopyClass::COUNT]) {
    let is_near = |(had, expected): (&u64, u64)| had.abs_diff(expected) <= 3 && (*had > 0) == (expected > 0);
    assert!(had.iter().zip(expected).all(is_near), "{had:?} for {expected:?}");
}

#[test]
fn each_class_gets_its_share_and_the_rest_goes_in_order() {
    assert_near(served(&mut lane(), &[Demand, WriteBack], 1000), [800, 0, 200]);
    assert_near(served(&mut lane(), &[Prefetch, WriteBack], 1000), [0, 800, 200]);
    let greedy = Shares::new(10, 20, 70).unwrap();
    assert_near(served(&mut sharing_by(greedy), &[Demand, WriteBack], 1000), [300, 0, 700]);
    assert_near(served(&mut sharing_by(greedy), &[Prefetch, WriteBack], 1000), [0, 300, 700]);
}

#[test]
fn an_unwanted_link_is_lent_whole() {
    for class in CopyClass::ALL {
        assert_eq!(served(&mut lane(), &[class], 100)[class.index()], 100);
    }
}

#[test]
fn a_lent_share_is_returned_with_the_first_chunk() {
    let mut links = lane();
    served(&mut links, &[WriteBack], 500);
    assert!(served(&mut links, &[Demand, WriteBack], 10)[Demand.index()] >= 8);
    let mut links = lane();
    served(&mut links, &[Demand], 500);
    // A class that did not want its share saves nothing up.
    links.set_waiting(at(500), 0, waiting(&[Demand, WriteBack]), false);
    assert_eq!(links.eligible_classes(at(500), 0).next(), Some(Demand));
    assert!(served(&mut links, &[Demand, WriteBack], 10)[WriteBack.index()] <= 2);
}

#[test]
fn demand_yields_to_prefetch_one_chunk_a_second() {
    assert_near(served(&mut lane(), &[Demand, Prefetch], 5_000), [4_995, 5, 0]);
    assert_near(served(&mut lane(), &[Demand, Prefetch, WriteBack], 5_000), [3_996, 4, 1_000]);
}

#[test]
fn classes_without_a_share_are_served_once_starved() {
    let none = Shares::new(0, 0, 0).unwrap();
    assert_near(served(&mut sharing_by(none), &[Demand, Prefetch, WriteBack], 3_000), [2_994, 3, 3]);
}

#[test]
fn chunks_are_charged_by_their_length() {
    let mut links = lane();
    let mut bytes = [0; CopyClass::COUNT];
    for turn in 0..1000 {
        links.set_waiting(at(turn), 0, waiting(&[Demand, WriteBack]), false);
        let class = links.eligible_classes(at(turn), 0).next().unwrap();
        let length = if class == Demand { Bytes::mib(16) } else { CHUNK };
        links.record_begin(at(turn), 0, class, length);
        bytes[class.index()] += length.get();
    }
    let share = bytes[WriteBack.index()] * 100 / (bytes[Demand.index()] + bytes[WriteBack.index()]);
    assert!((19..=20).contains(&share), "{share} percent");
}

#[test]
fn new_shares_apply_from_the_next_chunk() {
    let mut links = lane();
    served(&mut links, &[Demand, WriteBack], 100);
    links.set_shares(Shares::new(0, 0, 100).unwrap());
    let had = served(&mut links, &[Demand, WriteBack], 100);
    assert!(had[WriteBack.index()] >= 98, "{had:?}");
}

#[test]
fn a_full_lane_begins_demand_and_owed_chunks() {
    let mut links = lane();
    let next = |links: &Links, now| links.eligible_classes(at(now), 0).collect::<Vec<_>>();
    links.set_waiting(at(0), 0, waiting(&[Demand, Prefetch, WriteBack]), true);
    assert_eq!(next(&links, 0), [Demand]);
    // Five chunks owe one to write-back.
    (0..5).for_each(|turn| links.record_begin(at(turn), 0, Demand, CHUNK));
    assert_eq!(next(&links, 5), [WriteBack, Demand]);
    links.set_waiting(at(5), 0, waiting(&[Prefetch, WriteBack]), true);
    assert_eq!(next(&links, 5), [], "new demand waits for no more than that");
    links.set_waiting(at(5), 0, waiting(&[Prefetch, WriteBack]), false);
    assert_eq!(next(&links, 5), [WriteBack, Prefetch], "it is owed that still");
}
