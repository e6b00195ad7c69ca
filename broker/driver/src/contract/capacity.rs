//! The capacity of a device: what can be created, and when memory is free again.

use vramd_types::{Bytes, GRANULARITY};

use super::{
    Access, Bench, Harness, Verdict,
    bench::{Extent, FIRST, SECOND, SMALL},
};
use crate::DriverError;

const INEXACT: Verdict = Verdict::NotApplicable("the devices' memory is not all ours, to the byte");

fn is_full(result: Result<Extent, DriverError>) -> bool {
    matches!(result, Err(DriverError::OutOfMemory))
}

pub fn out_of_memory_is_an_answer(harness: &dyn Harness) -> Verdict {
    let mut bench = Bench::new(harness);
    let beyond = bench.total(FIRST).saturating_add(SMALL);
    let too_much = beyond.checked_round_up(GRANULARITY).expect("no device is that large");
    for _ in 0..3 {
        assert!(is_full(bench.create(FIRST, too_much)));
        let extent = bench.make();
        bench.free(extent);
    }
    bench.finish();
    Verdict::Passed
}

pub fn the_whole_capacity_can_be_used_and_is_returned(harness: &dyn Harness) -> Verdict {
    if !harness.facts().exact_capacity {
        return INEXACT;
    }
    let mut bench = Bench::new(harness);
    let total = bench.total(FIRST);
    for _ in 0..3 {
        let mut extents = vec![bench.make()];
        extents.push(bench.create(FIRST, total.saturating_sub(SMALL)).expect("the rest is free"));
        assert!(is_full(bench.create(FIRST, SMALL)), "nothing is left");
        for extent in extents {
            bench.free(extent);
        }
    }
    let all = bench.create(FIRST, total).expect("all of it has come back");
    bench.free(all);
    bench.finish();
    Verdict::Passed
}

pub fn memory_held_by_others_is_not_free(harness: &dyn Harness) -> Verdict {
    if !harness.facts().exact_capacity {
        return INEXACT;
    }
    let mut bench = Bench::new(harness);
    let total = bench.total(FIRST);
    let extent = bench.make();
    let mut holder = bench.mapped(&extent, Access::ReadOnly);
    assert!(!bench.release(extent));
    assert!(is_full(bench.create(FIRST, total)), "a process maps some of it");
    let rest = bench.create(FIRST, total.saturating_sub(SMALL)).expect("the rest is free");
    bench.free(rest);
    holder.kill();
    let all = bench.create(FIRST, total).expect("free as soon as its holder is gone, surveyed or not");
    bench.free(all);
    bench.finish();
    Verdict::Passed
}

pub fn memory_of_an_earlier_driver_is_not_free(harness: &dyn Harness) -> Verdict {
    if !harness.facts().exact_capacity {
        return INEXACT;
    }
    let mut earlier = Bench::new(harness);
    let total = earlier.total(FIRST);
    let extent = earlier.make();
    let mut holder = earlier.mapped(&extent, Access::ReadOnly);
    drop(extent);
    earlier.finish();

    let mut bench = Bench::new(harness);
    assert!(is_full(bench.create(FIRST, total)), "an earlier driver's client maps some of it");
    let rest = bench.create(FIRST, total.saturating_sub(SMALL)).expect("the rest is free");
    bench.free(rest);
    holder.kill();
    let all = bench.create(FIRST, total).expect("free as soon as its holder is gone, surveyed or not");
    bench.free(all);
    bench.finish();
    Verdict::Passed
}

pub fn devices_are_separate(harness: &dyn Harness) -> Verdict {
    if !harness.facts().several_devices {
        return Verdict::NotApplicable("there is one device");
    }
    let mut bench = Bench::new(harness);
    let first = bench.make();
    let second = bench.create(SECOND, SMALL).expect("there is room for 2 MiB");
    let mut one = bench.mapped(&first, Access::ReadWrite);
    let mut other = bench.mapped(&second, Access::ReadWrite);
    assert!(one.write(0, b"first"));
    assert_eq!(other.read(0, 5), [0; 5]);
    drop((first, second));
    bench.finish();

    let mut next = Bench::new(harness);
    let with = [next.survey(FIRST), next.survey(SECOND)];
    one.kill();
    let first = next.survey_until(FIRST, |next, now| next.is_more_by(now, with[0], SMALL));
    let without_one = [first, next.survey(SECOND)];
    other.kill();
    let second = next.survey_until(SECOND, |next, now| next.is_more_by(now, without_one[1], SMALL));
    let without_both = [next.survey(FIRST), second];
    let grown = |more: [Bytes; 2], than: [Bytes; 2]| {
        [next.is_more_by(than[0], more[0], SMALL), next.is_more_by(than[1], more[1], SMALL)]
    };
    assert_eq!(grown(with, without_one), [true, false], "{with:?}, {without_one:?}");
    assert_eq!(grown(without_one, without_both), [false, true], "{without_one:?}, {without_both:?}");
    if harness.facts().exact_capacity {
        let total = next.total(FIRST);
        let all = next.create(FIRST, total).expect("all of the first is free");
        assert!(is_full(next.create(FIRST, SMALL)));
        let small = next.create(SECOND, SMALL).expect("the second is free");
        next.free(all);
        next.free(small);
    }
    next.finish();
    Verdict::Passed
}
