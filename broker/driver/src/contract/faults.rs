//! Scheduled faults strike whom they should and leave the driver usable.

use std::time::{Duration, Instant};

use super::{
    Access, Bench, Harness, Verdict,
    bench::{FIRST, SMALL, new_id, pattern},
};
use crate::{
    CopyError, DriverError, ExtentKind, Submission,
    sim::{Effect, Fault, Operation},
};

const NO_FAULTS: Verdict = Verdict::NotApplicable("this driver's faults can't be scheduled");

pub fn memory_runs_out_on_schedule(harness: &dyn Harness) -> Verdict {
    if !harness.facts().scheduled_faults {
        return NO_FAULTS;
    }
    let fault = Fault { on: Operation::Create, nth: 2, count: 2, effect: Effect::OutOfMemory };
    let mut bench = Bench::with_faults(harness, vec![fault]);
    let met: Vec<_> = (0..4).map(|_| bench.create(FIRST, SMALL).map(drop)).collect();
    assert_eq!(met, [Ok(()), Err(DriverError::OutOfMemory), Err(DriverError::OutOfMemory), Ok(())]);
    bench.finish();
    Verdict::Passed
}

pub fn a_driver_fails_on_schedule(harness: &dyn Harness) -> Verdict {
    if !harness.facts().scheduled_faults {
        return NO_FAULTS;
    }
    let effect = Effect::Fail("the card fell off the bus".to_owned());
    let fault = |on| Fault { on, nth: 1, count: 1, effect: effect.clone() };
    let mut bench = Bench::with_faults(harness, vec![fault(Operation::Create), fault(Operation::Digest)]);
    let failure = DriverError::Failed("the card fell off the bus".to_owned());
    assert_eq!(bench.create(FIRST, SMALL).map(drop), Err(failure.clone()));
    let extent = bench.make();
    assert_eq!(bench.digest(&[(extent.id, SMALL)]), Err(failure));
    assert!(bench.digest(&[(extent.id, SMALL)]).is_ok());
    bench.free(extent);
    bench.finish();
    Verdict::Passed
}

pub fn who_is_delayed_holds_up_nobody(harness: &dyn Harness) -> Verdict {
    if !harness.facts().scheduled_faults {
        return NO_FAULTS;
    }
    let an_hour = |on| delay(on, Duration::from_secs(3600));
    let faults = [Operation::Create, Operation::Digest, Operation::Release].map(an_hour);
    let mut bench = Bench::with_faults(harness, faults.to_vec());
    let late = new_id();
    bench.submit(Submission::Create { extent: late, device: FIRST, size: SMALL, kind: ExtentKind::Movable });
    bench.submit(Submission::Digest { ticket: late.get(), spans: Vec::new() });
    bench.submit(Submission::Release { extent: new_id() });

    let extent = bench.make();
    assert!(bench.digest(&[(extent.id, SMALL)]).is_ok());
    bench.free(extent);
    assert_eq!(bench.end().len(), 3, "the end cuts the delays short, and only those were left");
    Verdict::Passed
}

pub fn a_delay_passes(harness: &dyn Harness) -> Verdict {
    if !harness.facts().scheduled_faults {
        return NO_FAULTS;
    }
    const SHORT: Duration = Duration::from_millis(50);
    let mut bench = Bench::with_faults(harness, vec![delay(Operation::Create, SHORT)]);
    let begun = Instant::now();
    let extent = bench.make();
    assert!(begun.elapsed() >= SHORT);
    bench.free(extent);
    bench.finish();
    Verdict::Passed
}

pub fn host_memory_runs_out_on_schedule(harness: &dyn Harness) -> Verdict {
    if !harness.facts().scheduled_faults {
        return NO_FAULTS;
    }
    let fault = Fault { on: Operation::CreateHost, nth: 2, count: 1, effect: Effect::OutOfMemory };
    let mut bench = Bench::with_faults(harness, vec![fault]);
    let met: Vec<_> = (0..3).map(|_| bench.create_host(SMALL).map(drop)).collect();
    assert_eq!(met, [Ok(()), Err(DriverError::OutOfMemory), Ok(())]);
    bench.finish();
    Verdict::Passed
}

pub fn a_copy_fails_or_is_short_or_corrupt_on_schedule(harness: &dyn Harness) -> Verdict {
    if !harness.facts().scheduled_faults {
        return NO_FAULTS;
    }
    let effects = [Effect::Fail("the link is down".to_owned()), Effect::Short, Effect::Corrupt];
    let faults = (1..).zip(effects).map(|(nth, effect)| Fault { on: Operation::Copy, nth, count: 1, effect });
    let mut bench = Bench::with_faults(harness, faults.collect());
    let bytes = pattern(1, usize::try_from(SMALL.get()).expect("2 MiB fit in memory"));
    let half = bytes.len() / 2;
    let source = bench.make();
    assert!(bench.mapped(&source, Access::ReadWrite).write(0, &bytes));
    let targets: Vec<_> = (0..4).map(|_| bench.make_host()).collect();
    let results: Vec<_> = targets.iter().map(|target| bench.copy(&source, target, SMALL)).collect();
    let failed = |problem: &str| Err(CopyError::Driver(DriverError::Failed(problem.to_owned())));
    let short = format!("copied {half} of {} bytes", bytes.len());
    assert_eq!(results, [failed("the link is down"), failed(&short), Ok(()), Ok(())]);

    let corrupt = [&bytes[..half], &[!bytes[half]], &bytes[half + 1..]].concat();
    let partly = [&bytes[..half], &vec![0; half]].concat();
    for (target, expected) in targets.iter().zip([vec![0; bytes.len()], partly, corrupt, bytes]) {
        assert_eq!(bench.digest(&[(target.id, SMALL)]), Ok(blake3::hash(&expected).into()));
    }
    targets.into_iter().chain([source]).for_each(|extent| bench.free(extent));
    bench.finish();
    Verdict::Passed
}

pub fn a_late_copy_is_overtaken(harness: &dyn Harness) -> Verdict {
    if !harness.facts().scheduled_faults {
        return NO_FAULTS;
    }
    let mut bench = Bench::with_faults(harness, vec![delay(Operation::Copy, Duration::from_millis(20))]);
    let (source, target) = (bench.make(), bench.make_host());
    let late = bench.begin(&source, &target, SMALL);
    let next = bench.begin(&source, &target, SMALL);
    assert_eq!([bench.next_copied(), bench.next_copied()], [next, late]);
    bench.free(source);
    bench.free(target);
    bench.finish();
    Verdict::Passed
}

fn delay(on: Operation, by: Duration) -> Fault {
    Fault { on, nth: 1, count: 1, effect: Effect::Delay(by) }
}
