//! Other programs use the device too: the memory that they take is an ordinary event.

use vramd_types::{Bytes, GRANULARITY};

use super::{
    Access, Bench, Harness, Verdict,
    bench::{FIRST, SMALL},
};
use crate::DriverError;

const NONE: Verdict = Verdict::NotApplicable("importers of this machine take no memory of their own");

pub fn memory_of_other_programs_is_unbrokered(harness: &dyn Harness) -> Verdict {
    if !harness.facts().other_programs {
        return NONE;
    }
    let mut bench = Bench::new(harness);
    let half = Bytes::new(bench.total(FIRST).get() / 2 / GRANULARITY.get() * GRANULARITY.get());
    let mut other_program = bench.importer();
    assert!(other_program.allocate(SMALL), "it has its context now");
    let before = bench.survey(FIRST);
    assert!(other_program.allocate(half), "half of the device is free");
    let taken = bench.survey(FIRST);
    assert!(taken >= before.saturating_add(half), "{before}, {taken}");
    let too_much = half.saturating_add(SMALL);
    assert_eq!(bench.create(FIRST, too_much).map(drop), Err(DriverError::OutOfMemory));
    let small = bench.make();
    other_program.kill();
    let less = taken.saturating_sub(half).saturating_add(SMALL);
    assert!(bench.survey_until(FIRST, |_, now| now < less) < less, "its memory is free");
    bench.free(small);
    bench.finish();
    Verdict::Passed
}

pub fn clients_contexts_are_counted_apart(harness: &dyn Harness) -> Verdict {
    if !harness.facts().other_programs {
        return NONE;
    }
    let mut bench = Bench::new(harness);
    let extent = bench.make();
    let before = bench.survey(FIRST);
    let mut client = bench.mapped(&extent, Access::ReadWrite);
    let pid = client.pid();
    let as_stranger = bench.survey(FIRST);
    let (as_client, contexts) = bench.survey_beside(FIRST, &[pid]);
    if contexts == 0 {
        return Verdict::NotApplicable("processes that use the device are not listed");
    }
    assert_eq!(contexts, 1);
    // Contexts of processes of the same kind differ little.
    let half = Bytes::new(bench.context().get() / 2);
    assert!(as_stranger >= before.saturating_add(half), "{before}, {as_stranger}, half a context is {half}");
    assert!(
        as_client <= as_stranger.saturating_sub(half),
        "{as_client}, {as_stranger}, half a context is {half}"
    );
    client.kill();
    bench.survey_until(FIRST, |_, now| now <= before);
    assert_eq!(bench.survey_beside(FIRST, &[pid]).1, 0);
    bench.free(extent);
    bench.finish();
    Verdict::Passed
}
