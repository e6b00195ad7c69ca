//! Host memory at the limits of the driver or the machine.

use std::{
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use vramd_types::HostNode;

use super::*;
use crate::{HostLimit, PinPace};

fn create_host(raw: u64, size: Bytes) -> Submission {
    Submission::CreateHost { extent: ExtentId::from_raw(raw), node: HostNode(0), size, zeroed: true }
}

fn refused(completions: &Receiver<Completion>) -> DriverError {
    match next(completions) {
        Completion::Created { result: Err(error), .. } => error,
        other => panic!("it can't be made: {other:?}"),
    }
}

fn is_made(completions: &Receiver<Completion>, raw: u64) {
    let reported = next(completions);
    assert!(
        matches!(&reported, Completion::Created { extent, result: Ok(_) } if extent.get() == raw),
        "{reported:?}"
    );
}

#[test]
fn pinning_holds_up_nothing_that_concerns_devices() {
    let fake = Fake::new().with("hang.cuMemCreate(host) = 1");
    let (driver, completions) = opened(&fake);
    let driver = driver.unwrap();
    fake.trigger(true);
    driver.submit(create_host(1, GRANULARITY));
    driver.submit(create(2, ExtentKind::Movable));
    is_made(&completions, 2);
    driver.submit(Submission::Digest { ticket: 1, spans: vec![(ExtentId::from_raw(2), GRANULARITY)] });
    assert!(matches!(next(&completions), Completion::Digested { result: Ok(_), .. }));
    driver.submit(Submission::Survey { device: FIRST, clients: Vec::new() });
    assert!(matches!(next(&completions), Completion::Surveyed { unbrokered: Bytes::ZERO, .. }));
    driver.submit(Submission::Release { extent: ExtentId::from_raw(2) });
    assert!(matches!(next(&completions), Completion::Released { returned: true, .. }));
    fake.trigger(false);
    is_made(&completions, 1);
}

#[test]
fn failing_to_pin_is_an_ordinary_event() {
    let (driver, completions) = opened(&Fake::new().with("host_mib = 4"));
    let driver = driver.unwrap();
    driver.submit(create_host(1, Bytes::mib(6)));
    assert!(matches!(refused(&completions), DriverError::OutOfHostMemory(_)));
    driver.submit(create_host(1, Bytes::mib(4)));
    is_made(&completions, 1);
    driver.submit(create_host(2, Bytes::mib(2)));
    assert!(matches!(refused(&completions), DriverError::OutOfHostMemory(_)));
    driver.submit(Submission::Release { extent: ExtentId::from_raw(1) });
    assert!(matches!(next(&completions), Completion::Released { returned: true, .. }));
    driver.submit(create_host(2, Bytes::mib(4)));
    is_made(&completions, 2);
}

/// In pieces of 2 MiB.
fn pin_ahead(size: Bytes) -> Submission {
    Submission::PinAhead {
        node: HostNode(0),
        size,
        piece: GRANULARITY,
        pieces_max: 1000,
        pace: PinPace::FromStart,
    }
}

fn pinned_ahead(completions: &Receiver<Completion>) -> (Bytes, Option<DriverError>) {
    match next(completions) {
        Completion::PinnedAhead { free, problem, .. } => (free, problem),
        other => panic!("it is being filled: {other:?}"),
    }
}

#[test]
fn the_memlock_limit_is_named() {
    // The first is the buffer that measures the links.
    let fake = Fake::new().with("attribute.141 = 0").with("fail.cuMemHostRegister_v2 = 2@3");
    let (driver, completions) = opened(&fake);
    let driver = driver.unwrap();
    let maximum = getrlimit(Resource::Memlock).maximum;
    let lowest = maximum.unwrap_or(u64::MAX).min(3 << 20);
    setrlimit(Resource::Memlock, Rlimit { current: Some(lowest), maximum }).unwrap();
    let limit = DriverError::OutOfHostMemory(HostLimit::Locked(Bytes::new(lowest)));
    assert_eq!(
        limit.to_string(),
        format!("out of host memory: RLIMIT_MEMLOCK of the daemon is {}; raise it", Bytes::new(lowest))
    );
    driver.submit(pin_ahead(Bytes::mib(8)));
    assert_eq!(
        pinned_ahead(&completions),
        (GRANULARITY, Some(limit.clone())),
        "of all that is locked it is said"
    );
    driver.submit(create_host(1, GRANULARITY));
    is_made(&completions, 1);
    driver.submit(create_host(2, GRANULARITY));
    assert_eq!(refused(&completions), limit);
    driver.submit(Submission::Release { extent: ExtentId::from_raw(1) });
    assert!(matches!(next(&completions), Completion::Released { returned: true, .. }));
    driver.submit(create_host(2, GRANULARITY));
    is_made(&completions, 2);
}

#[test]
fn pinning_ahead_stops_once_the_machine_has_no_more_memory() {
    let (driver, completions) = opened(&Fake::new().with("host_mib = 4"));
    let driver = driver.unwrap();
    let short = DriverError::OutOfHostMemory(HostLimit::Pinned);
    driver.submit(pin_ahead(Bytes::mib(8)));
    assert_eq!(pinned_ahead(&completions), (Bytes::mib(4), Some(short.clone())));
    driver.submit(create_host(1, Bytes::mib(4)));
    is_made(&completions, 1);
    driver.submit(create_host(2, GRANULARITY));
    assert_eq!(refused(&completions), short);
    driver.submit(Submission::Release { extent: ExtentId::from_raw(1) });
    assert!(matches!(next(&completions), Completion::Released { returned: true, .. }));
    driver.submit(create_host(2, GRANULARITY));
    is_made(&completions, 2);
    drop(driver);
    assert_eq!(completions.iter().count(), 0, "once");
}

#[test]
fn a_create_and_the_end_wait_for_one_piece_pinned_ahead() {
    const ALL: Bytes = Bytes::mib(1000);
    let fake = Fake::new().with("hang.cuMemCreate(host) = 1");
    let (driver, completions) = opened(&fake);
    let driver = driver.unwrap();
    fake.trigger(true);
    driver.submit(pin_ahead(ALL));
    driver.submit(create_host(1, Bytes::mib(4)));
    fake.trigger(false);
    is_made(&completions, 1);
    drop(driver);
    let (filled, problem) = pinned_ahead(&completions);
    assert!(filled < ALL && problem.is_some(), "{filled} {problem:?}");
    assert_eq!(completions.iter().count(), 0);
}

#[test]
fn a_half_made_host_extent_leaves_nothing() {
    for fails in [
        "cuMemExportToShareableHandle = 304@triggered",
        "cuMemMap = 1@triggered",
        "cuMemSetAccess = 1@triggered",
    ] {
        let fake = Fake::new().with("host_mib = 2").with(&format!("fail.{fails}"));
        let (driver, completions) = opened(&fake);
        let driver = driver.unwrap();
        fake.trigger(true);
        driver.submit(create_host(1, GRANULARITY));
        assert!(matches!(refused(&completions), DriverError::Failed(_)), "{fails}");
        fake.trigger(false);
        driver.submit(create_host(1, GRANULARITY));
        is_made(&completions, 1);
    }
}

/// Of pieces that replace other sizes, and of other sizes that are unpinned for them.
#[test]
fn a_create_waits_for_one_step_of_a_rebuild() {
    const COUNT: u64 = 16;
    const LARGE: Bytes = Bytes::mib(4);
    const LACKING: u64 = 100;
    for hangs in ["cuMemCreate(host)", "cuMemRelease"] {
        let fake = Arc::new(Fake::new().with("note = 1").with(&format!("hang.{hangs} = 1")));
        let steps =
            |fake: &Fake| ["cuMemCreate(host)", "cuMemRelease"].map(|it| fake.threads_calling(it).len());
        let (sink, completions) = channel();
        let reported = Arc::clone(&fake);
        let report = move |completion| {
            // The thread that reports this goes on with its work afterwards.
            let steps = match &completion {
                Completion::Created { extent, .. } if extent.get() >= LACKING => {
                    let done = steps(&reported);
                    if extent.get() == LACKING {
                        reported.trigger(true);
                    }
                    done
                }
                _ => Default::default(),
            };
            drop(sink.send((completion, steps)));
        };
        let probed = probe(config(&fake)).unwrap();
        let uuids: Vec<String> = probed.found().iter().map(|found| found.info.uuid.clone()).collect();
        let driver = open(probed, &uuids, Arc::new(report)).unwrap();
        let answer = || completions.recv_timeout(Duration::from_secs(20)).unwrap();
        let made = || match answer() {
            (Completion::Created { result: Ok(_), .. }, steps) => steps,
            (other, _) => panic!("{other:?}"),
        };
        driver.submit(pin_ahead(Bytes::new(COUNT * LARGE.get())));
        assert!(matches!(answer().0, Completion::PinnedAhead { problem: None, .. }));
        for raw in 0..COUNT {
            driver.submit(create_host(raw, LARGE));
            made();
        }
        for raw in 0..COUNT {
            driver.submit(Submission::Release { extent: ExtentId::from_raw(raw) });
            assert!(matches!(answer().0, Completion::Released { returned: true, .. }));
        }

        driver.submit(create_host(LACKING, GRANULARITY));
        let before = made();
        let at = usize::from(hangs == "cuMemRelease");
        until(&driver, hangs, || steps(&fake)[at] > before[at]);
        let in_flight = steps(&fake);
        driver.submit(create_host(LACKING + 1, LARGE));
        fake.trigger(false);
        assert_eq!(made(), in_flight, "it waited only for the chunks in flight");
        until(&driver, "half are pieces", || {
            driver.free_pinned().iter().all(|pinned_ahead| pinned_ahead.ordinary >= pinned_ahead.larger)
        });
        assert_eq!(driver.free_pinned()[0].rebuilds, 1);
    }
}

fn until(driver: &CudaDriver, what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < end, "{what}: {:?}", driver.free_pinned());
        thread::sleep(Duration::from_millis(1));
    }
}
