//! How long memory lives: as long as any process maps it or holds its descriptor, and no longer.

use super::{
    Access, Bench, Harness, Verdict,
    bench::{FIRST, SMALL, pattern},
};

/// A process that is starting elsewhere holds everything for a moment: one of these attempts must find no
/// holder.
const ATTEMPTS: usize = 50;

pub fn memory_without_holders_is_returned_at_once(harness: &dyn Harness) -> Verdict {
    let mut bench = Bench::new(harness);
    let at_once = (0..ATTEMPTS).any(|_| {
        let extent = bench.make();
        bench.release(extent)
    });
    assert!(at_once, "{ATTEMPTS} releases, and each found a holder");
    bench.finish();
    Verdict::Passed
}

pub fn a_mapping_elsewhere_keeps_memory(harness: &dyn Harness) -> Verdict {
    let mut bench = Bench::new(harness);
    let extent = bench.make();
    let id = extent.id;
    let mut holder = bench.mapped(&extent, Access::ReadWrite);
    assert!(holder.write(0, &pattern(1, 4096)));
    let before = bench.survey(FIRST);
    assert!(!bench.release(extent), "it is mapped");
    assert_eq!(holder.read(0, 4096), pattern(1, 4096));
    assert!(holder.write(4096, &pattern(2, 4096)));
    assert_eq!(holder.read(4096, 4096), pattern(2, 4096));
    assert!(!bench.check_returned(id), "it is still mapped");
    let now = bench.survey(FIRST);
    assert!(now < before.saturating_add(SMALL), "its return is awaited, so it is explained: {before}, {now}");
    holder.unmap();
    bench.await_return(id);
    bench.finish();
    Verdict::Passed
}

pub fn a_descriptor_elsewhere_keeps_memory(harness: &dyn Harness) -> Verdict {
    let mut bench = Bench::new(harness);
    let extent = bench.make();
    let id = extent.id;
    let mut writer = bench.mapped(&extent, Access::ReadWrite);
    assert!(writer.write(0, &pattern(1, 4096)));
    writer.kill();
    let mut holder = bench.importer();
    holder.import(&extent.export, extent.device, extent.size);
    assert!(!bench.release(extent), "its descriptor is held");
    assert!(!bench.check_returned(id), "its descriptor is still held");
    holder.map(Access::ReadOnly);
    assert_eq!(holder.read(0, 4096), pattern(1, 4096), "mapped after its release");
    holder.close();
    assert!(!bench.check_returned(id), "it is still mapped");
    holder.unmap();
    bench.await_return(id);
    bench.finish();
    Verdict::Passed
}

pub fn an_export_held_by_the_caller_keeps_memory(harness: &dyn Harness) -> Verdict {
    let mut bench = Bench::new(harness);
    let extent = bench.make();
    let id = extent.id;
    let kept = extent.export.clone();
    assert!(!bench.release(extent), "the caller has its handle");
    assert!(!bench.check_returned(id), "the caller still has its handle");
    drop(kept);
    bench.await_return(id);
    bench.finish();
    Verdict::Passed
}

pub fn the_last_of_several_holders_frees(harness: &dyn Harness) -> Verdict {
    let mut bench = Bench::new(harness);
    let extent = bench.make();
    let id = extent.id;
    let mut first = bench.mapped(&extent, Access::ReadOnly);
    let mut last = bench.mapped(&extent, Access::ReadOnly);
    assert!(!bench.release(extent));
    first.unmap();
    assert!(!bench.check_returned(id), "one of two maps it");
    last.unmap();
    bench.await_return(id);
    bench.finish();
    Verdict::Passed
}

pub fn a_killed_holder_frees(harness: &dyn Harness) -> Verdict {
    let mut bench = Bench::new(harness);
    let extent = bench.make();
    let id = extent.id;
    let mut holder = bench.importer();
    holder.import(&extent.export, extent.device, extent.size);
    holder.map(Access::ReadWrite);
    assert!(!bench.release(extent));
    holder.kill();
    bench.await_return(id);
    bench.finish();
    Verdict::Passed
}

pub fn memory_outlives_its_driver(harness: &dyn Harness) -> Verdict {
    let mut bench = Bench::new(harness);
    let extent = bench.make();
    let mut holder = bench.mapped(&extent, Access::ReadWrite);
    assert!(holder.write(0, &pattern(1, 4096)));
    drop(extent);
    bench.finish();
    assert_eq!(holder.read(0, 4096), pattern(1, 4096));

    let mut next = Bench::new(harness);
    let with = next.survey(FIRST);
    holder.kill();
    let without = next.survey_until(FIRST, |next, without| next.is_more_by(without, with, SMALL));
    assert!(
        next.is_more_by(without, with, SMALL),
        "no extent of the new driver explains it: {with}, {without}"
    );
    next.finish();
    Verdict::Passed
}
