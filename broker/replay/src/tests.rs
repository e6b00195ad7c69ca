//! Plays traces, and checks what the core did with them.

use broker_core::EvictionPolicy;
use vramd_types::Bytes;

use crate::{Counts, Options, Policy, Scenario, play, read};

const GRANULE: u64 = 2 << 20;
const LRU: Policy = Policy::Eviction(EvictionPolicy::Lru);

fn scenario(text: &str, device_bytes: Option<u64>) -> Scenario {
    let options = Options { device_bytes, link_bytes_per_second: 1 << 30 };
    Scenario::new(&read(text.as_bytes()).unwrap(), options).unwrap()
}

fn played(scenario: &Scenario, policy: Policy) -> Counts {
    play(scenario, policy).unwrap()
}

/// A trace of uses of parts of 2 MiB that lie below a device of `room` parts at first.
fn uses(room: u64, parts: impl IntoIterator<Item = u32>) -> Scenario {
    let mut text = format!("# vramd-trace 1\n0,device,,,{}\n", room * GRANULE);
    for (at, part) in parts.into_iter().enumerate() {
        text += &format!("{},use,1,{part},2MiB\n", at * 1000);
    }
    scenario(&text, None)
}

#[test]
fn known_future_reaches_the_bound_of_a_loop_and_lru_does_not() {
    let looped = uses(4, (0..100).map(|at| at % 5));
    let (bound, is_exact) = looped.bound();
    assert!(is_exact);
    let lru = played(&looped, LRU);
    assert_eq!((lru.hits, lru.stalls, lru.fetched_bytes), (0, 100, 100 * GRANULE));
    let known = played(&looped, Policy::KnownFuture);
    assert_eq!(known.fetched_bytes, bound.get());
    assert_eq!(known.hits + known.stalls, 100);
    assert!(known.fetched_bytes < lru.fetched_bytes / 2, "{known:?}");
    for policy in Policy::all() {
        let counts = played(&looped, policy);
        assert!(counts.fetched_bytes >= bound.get(), "{policy}: {counts:?}");
        assert_eq!((counts.hits + counts.stalls, counts.unserved), (100, 0), "{policy}");
    }
}

#[test]
fn known_future_reaches_the_bound_on_random_uses_of_equal_parts() {
    let mut state = 7_u64;
    let mut draw = |sides: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        u32::try_from((state >> 33) % sides).unwrap()
    };
    for _ in 0..5 {
        let drawn: Vec<_> = (0..400).map(|_| draw(20)).collect();
        let random = uses(6, drawn);
        let known = played(&random, Policy::KnownFuture);
        assert_eq!(known.fetched_bytes, random.bound().0.get());
        assert!(played(&random, LRU).fetched_bytes > known.fetched_bytes);
    }
}

#[test]
fn part_that_starts_on_its_device_needs_no_fetch() {
    let text = "# vramd-trace 1\n0,device,,,4MiB\n0,allocate,1,0,1MiB,a\n0,allocate,1,1,2097152,a\n\
                10,use,1,0\n20,use,1,1\n30,use,1,0\n";
    let counts = played(&scenario(text, None), LRU);
    assert_eq!((counts.hits, counts.stalls, counts.fetched_bytes), (3, 0, 0));
    // On a device of one part, each use fetches what the other one has displaced.
    let small = scenario(text, Some(GRANULE));
    let counts = played(&small, LRU);
    assert_eq!((counts.hits, counts.stalls, counts.fetched_bytes), (0, 3, 3 * GRANULE));
    assert_eq!(small.bound(), (Bytes::new(2 * GRANULE), false));
}

#[test]
fn freed_part_makes_room() {
    let text = "# vramd-trace 1\n0,device,,,4MiB\n0,allocate,1,0,2MiB,a\n0,allocate,2,0,2MiB,b\n\
                5,use,1,0\n10,free,1\n20,allocate,3,0,2MiB,b\n30,use,2,0\n40,use,3,0\n";
    let counts = played(&scenario(text, None), LRU);
    assert_eq!((counts.hits, counts.stalls, counts.fetched_bytes, counts.written_back_bytes), (3, 0, 0, 0));
}

#[test]
fn held_part_does_not_leave_before_its_release() {
    let text = "# vramd-trace 1\n0,device,,,4MiB\n0,use,1,0,2MiB\n1,hold,1,0\n2,use,1,1,2MiB\n3,use,1,2,2MiB\n\
                4,use,1,0\n5,release,1,0\n6,use,1,1\n7,use,1,2\n8,use,1,0\n";
    let counts = played(&scenario(text, None), LRU);
    // Part 0 stays while it is held. Then it is the least recently used one.
    assert_eq!((counts.hits, counts.stalls), (1, 6));
    // A device of one part has no room beside it, until it is released.
    let small = played(&scenario(text, Some(GRANULE)), LRU);
    assert_eq!(small.unserved, 0, "{small:?}");
    let without_release: String =
        text.lines().filter(|line| !line.contains("release")).map(|line| format!("{line}\n")).collect();
    let stuck = played(&scenario(&without_release, Some(GRANULE)), LRU);
    assert_eq!((stuck.unserved, stuck.fetched_bytes), (4, GRANULE), "{stuck:?}");
}

#[test]
fn only_written_parts_are_copied_when_they_leave() {
    let reads = uses(1, [0, 1, 0, 1]);
    assert_eq!(played(&reads, LRU).written_back_bytes, 0);
    let text = "# vramd-trace 1\n0,device,,,2MiB\n0,use,1,0,2MiB\n1,write,1,0\n2,use,1,1,2MiB\n3,use,1,0\n4,use,1,1\n";
    assert_eq!(played(&scenario(text, None), LRU).written_back_bytes, GRANULE);
}

#[test]
fn stalls_take_as_long_as_the_link_and_deadlines_are_judged_by_that() {
    // 2 MiB take 1,954 us at 1 GiB/s, and the second fetch waits for the first.
    let text =
        "# vramd-trace 1\n0,device,,,8MiB\n0,use,1,0,2MiB,,,2000\n10,use,1,1,2MiB,,,2000\n20,use,1,0,,,,0\n";
    let counts = played(&scenario(text, None), LRU);
    assert_eq!((counts.deadlines, counts.deadlines_missed), (3, 1));
    assert_eq!(counts.stalled_micros, 1954 + (1954 + 1954 - 9));
}

#[test]
fn devices_are_bounded_each_for_itself() {
    let text = "# vramd-trace 1\n0,device,,,2MiB,,one\n0,device,,,4MiB,,two\n0,use,1,0,2MiB,a,one\n\
                1,use,2,0,2MiB,b,two\n2,use,2,1,2MiB,b,two\n3,use,1,0\n4,use,2,0\n5,use,2,1\n";
    let two = scenario(text, None);
    let counts = played(&two, LRU);
    assert_eq!((counts.hits, counts.stalls), (3, 3));
    assert_eq!(two.bound().0.get(), counts.fetched_bytes);
}

#[test]
fn scenario_needs_room_for_each_part_and_a_use() {
    let fails = |text: &str, device_bytes| {
        let options = Options { device_bytes, link_bytes_per_second: 1 };
        Scenario::new(&read(text.as_bytes()).unwrap(), options).unwrap_err().to_string()
    };
    let no_device = "# vramd-trace 1\n0,use,7,3,4MiB\n";
    assert!(fails(no_device, None).contains("how many bytes device 0 has"));
    assert!(fails(no_device, Some(GRANULE)).contains("part 3 of allocation 7 has 4 MiB"));
    assert!(fails(no_device, Some(1)).contains("at least 2 MiB"));
    assert!(fails("# vramd-trace 1\n0,device,,,2MiB\n", None).contains("no use"));
    let late = format!("# vramd-trace 1\n{max},use,1,0,2MiB\n{max},use,1,0\n", max = u64::MAX);
    assert!(fails(&late, Some(GRANULE)).contains("too large"));
}
