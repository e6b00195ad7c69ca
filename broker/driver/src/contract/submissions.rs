//! Every submission is answered once, whatever it requests and however many there are.

use std::collections::BTreeMap;

use vramd_types::{Bytes, DeviceIndex, ExtentId};

use super::{
    Bench, Harness, Verdict,
    bench::{FIRST, SMALL, new_id},
};
use crate::{Completion, DriverError, ExtentKind, Submission};

const MANY: usize = 100;

pub fn invalid_submissions_are_refused(harness: &dyn Harness) -> Verdict {
    let mut bench = Bench::new(harness);
    let nowhere = DeviceIndex(u16::MAX);
    for (device, size) in [
        (FIRST, Bytes::ZERO),
        (FIRST, Bytes::new(1)),
        (FIRST, Bytes::new(SMALL.get() + 4096)),
        (FIRST, Bytes::MAX),
        (nowhere, SMALL),
    ] {
        assert!(matches!(bench.create(device, size), Err(DriverError::Failed(_))), "{size} on {device}");
    }
    let extent = bench.make();
    bench.submit(Submission::Create {
        extent: extent.id,
        device: FIRST,
        size: SMALL,
        kind: ExtentKind::Movable,
    });
    assert!(matches!(bench.created(extent.id), Err(DriverError::Failed(_))), "the id is in use");
    assert!(bench.release_id(new_id()), "an unknown extent has no holder");
    assert_eq!(bench.survey(nowhere), Bytes::ZERO);
    bench.free(extent);
    bench.finish();
    Verdict::Passed
}

pub fn each_submission_is_answered_once(harness: &dyn Harness) -> Verdict {
    let mut bench = Bench::new(harness);
    let ids: Vec<ExtentId> = (0..MANY).map(|_| new_id()).collect();
    for id in &ids {
        bench.submit(Submission::Create {
            extent: *id,
            device: FIRST,
            size: SMALL,
            kind: ExtentKind::Movable,
        });
        bench.submit(Submission::Survey { device: FIRST, clients: Vec::new() });
    }
    // Some find room and some do not; both are answered alike.
    let made: Vec<bool> = ids.iter().map(|id| bench.created(*id).is_ok()).collect();
    assert!(made.contains(&true));
    for id in &ids {
        bench.submit(Submission::Digest { ticket: id.get(), spans: vec![(*id, SMALL)] });
    }
    for (id, made) in ids.iter().zip(made) {
        let result = bench.wait(|completion| match completion {
            Completion::Digested { ticket, result } if *ticket == id.get() => Some(result.clone()),
            _ => None,
        });
        assert_eq!(result.is_ok(), made, "{id}");
    }
    for id in &ids {
        bench.submit(Submission::Release { extent: *id });
    }
    for id in &ids {
        bench.wait(|it| matches!(it, Completion::Released { extent, .. } if extent == id).then_some(()));
    }
    let left = bench.end();
    let surveys = left.iter().filter(|it| matches!(it, Completion::Surveyed { .. })).count();
    let returns = left.iter().filter(|it| matches!(it, Completion::Returned { .. })).count();
    assert_eq!((surveys, left.len()), (MANY, MANY + returns), "{left:?}");
    Verdict::Passed
}

pub fn submissions_are_done_though_the_driver_is_dropped(harness: &dyn Harness) -> Verdict {
    let bench = Bench::new(harness);
    let ids: Vec<ExtentId> = (0..MANY).map(|_| new_id()).collect();
    for id in &ids {
        bench.submit(Submission::Create {
            extent: *id,
            device: FIRST,
            size: SMALL,
            kind: ExtentKind::Movable,
        });
        bench.submit(Submission::Digest { ticket: id.get(), spans: Vec::new() });
    }
    let mut answers: BTreeMap<u64, usize> = BTreeMap::new();
    for completion in bench.end() {
        let of = match completion {
            Completion::Created { extent, .. } => extent.get(),
            Completion::Digested { ticket, .. } => ticket,
            other => panic!("unexpected: {other:?}"),
        };
        *answers.entry(of).or_default() += 1;
    }
    assert_eq!(answers, ids.iter().map(|id| (id.get(), 2)).collect());
    Verdict::Passed
}
