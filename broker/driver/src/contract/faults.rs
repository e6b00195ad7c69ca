//! Scheduled faults strike whom they should and leave the driver usable.

use std::time::{Duration, Instant};

use super::{
    Bench, Harness, Verdict,
    bench::{FIRST, SMALL, new_id},
};
use crate::{
    DriverError, ExtentKind, Submission,
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

fn delay(on: Operation, by: Duration) -> Fault {
    Fault { on, nth: 1, count: 1, effect: Effect::Delay(by) }
}
