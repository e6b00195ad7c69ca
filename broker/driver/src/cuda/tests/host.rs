//! Memory of the host where the driver or the machine has its limits.

use std::{
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use vramd_types::HostNode;

use super::*;
use crate::HostLimit;

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
    let told = next(completions);
    assert!(
        matches!(&told, Completion::Created { extent, result: Ok(_) } if extent.get() == raw),
        "{told:?}"
    );
}

#[test]
fn pinning_holds_up_nothing_that_concerns_devices() {
    let fake = Fake::new().says("hang.cuMemCreate(host) = 1");
    let (driver, completions) = opened(&fake);
    let driver = driver.unwrap();
    fake.tell(true);
    driver.submit(create_host(1, GRANULARITY));
    driver.submit(create(2, ExtentKind::Movable));
    is_made(&completions, 2);
    driver.submit(Submission::Digest { ticket: 1, spans: vec![(ExtentId::from_raw(2), GRANULARITY)] });
    assert!(matches!(next(&completions), Completion::Digested { result: Ok(_), .. }));
    driver.submit(Submission::Survey { device: FIRST, clients: Vec::new() });
    assert!(matches!(next(&completions), Completion::Surveyed { unbrokered: Bytes::ZERO, .. }));
    driver.submit(Submission::Release { extent: ExtentId::from_raw(2) });
    assert!(matches!(next(&completions), Completion::Released { returned: true, .. }));
    fake.tell(false);
    is_made(&completions, 1);
}

#[test]
fn what_cannot_be_pinned_is_an_ordinary_event() {
    let (driver, completions) = opened(&Fake::new().says("host_mib = 4"));
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
fn keep(size: Bytes) -> Submission {
    Submission::KeepHost { node: HostNode(0), size, piece: GRANULARITY, pieces_max: 1000 }
}

fn kept(completions: &Receiver<Completion>) -> (Bytes, Option<DriverError>) {
    match next(completions) {
        Completion::HostKept { kept, problem, .. } => (kept, problem),
        other => panic!("it is being filled: {other:?}"),
    }
}

#[test]
fn the_limit_on_locked_memory_is_named() {
    // The first is the buffer with which the links are measured.
    let fake = Fake::new().says("attribute.141 = 0").says("fail.cuMemHostRegister_v2 = 2@3");
    let (driver, completions) = opened(&fake);
    let driver = driver.unwrap();
    let maximum = getrlimit(Resource::Memlock).maximum;
    let lowest = maximum.unwrap_or(u64::MAX).min(3 << 20);
    setrlimit(Resource::Memlock, Rlimit { current: Some(lowest), maximum }).unwrap();
    let limit = DriverError::OutOfHostMemory(HostLimit::Locked(Bytes::new(lowest)));
    assert_eq!(limit.to_string(), format!("out of host memory: RLIMIT_MEMLOCK is {lowest} bytes"));
    driver.submit(keep(Bytes::mib(8)));
    assert_eq!(kept(&completions), (GRANULARITY, Some(limit.clone())), "of all that is locked it is said");
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
fn where_the_machine_has_less_than_was_configured_filling_stops_and_says_so_once() {
    let (driver, completions) = opened(&Fake::new().says("host_mib = 4"));
    let driver = driver.unwrap();
    let short = DriverError::OutOfHostMemory(HostLimit::Pinned);
    driver.submit(keep(Bytes::mib(8)));
    assert_eq!(kept(&completions), (Bytes::mib(4), Some(short.clone())));
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
fn who_creates_and_who_ends_waits_for_one_piece_of_the_filling() {
    const ALL: Bytes = Bytes::mib(1000);
    let fake = Fake::new().says("hang.cuMemCreate(host) = 1");
    let (driver, completions) = opened(&fake);
    let driver = driver.unwrap();
    fake.tell(true);
    driver.submit(keep(ALL));
    driver.submit(create_host(1, Bytes::mib(4)));
    fake.tell(false);
    is_made(&completions, 1);
    drop(driver);
    let (filled, problem) = kept(&completions);
    assert!(filled < ALL && problem.is_some(), "{filled} {problem:?}");
    assert_eq!(completions.iter().count(), 0);
}

#[test]
fn what_is_begun_and_not_made_leaves_nothing() {
    for fails in ["cuMemExportToShareableHandle = 304@told", "cuMemMap = 1@told", "cuMemSetAccess = 1@told"] {
        let fake = Fake::new().says("host_mib = 2").says(&format!("fail.{fails}"));
        let (driver, completions) = opened(&fake);
        let driver = driver.unwrap();
        fake.tell(true);
        driver.submit(create_host(1, GRANULARITY));
        assert!(matches!(refused(&completions), DriverError::Failed(_)), "{fails}");
        fake.tell(false);
        driver.submit(create_host(1, GRANULARITY));
        is_made(&completions, 1);
    }
}

/// Of pieces that are pinned in the place of other sizes, and of other sizes that go for it.
#[test]
fn who_comes_while_the_pool_is_rebuilt_waits_for_one_step_of_it() {
    const COUNT: u64 = 16;
    const LARGE: Bytes = Bytes::mib(4);
    const LACKING: u64 = 100;
    for hangs in ["cuMemCreate(host)", "cuMemRelease"] {
        let fake = Arc::new(Fake::new().says("note = 1").says(&format!("hang.{hangs} = 1")));
        let steps = |fake: &Fake| ["cuMemCreate(host)", "cuMemRelease"].map(|it| fake.callers(it).len());
        let (sink, completions) = channel();
        let told = Arc::clone(&fake);
        let tell = move |completion| {
            // The thread that tells it goes on with the pool afterwards.
            let steps = match &completion {
                Completion::Created { extent, .. } if extent.get() >= LACKING => {
                    let done = steps(&told);
                    if extent.get() == LACKING {
                        told.tell(true);
                    }
                    done
                }
                _ => Default::default(),
            };
            drop(sink.send((completion, steps)));
        };
        let probed = probe(config(&fake)).unwrap();
        let uuids: Vec<String> = probed.found().iter().map(|found| found.info.uuid.clone()).collect();
        let driver = open(probed, &uuids, Arc::new(tell)).unwrap();
        let answer = || completions.recv_timeout(Duration::from_secs(20)).unwrap();
        let made = || match answer() {
            (Completion::Created { result: Ok(_), .. }, steps) => steps,
            (other, _) => panic!("{other:?}"),
        };
        driver.submit(keep(Bytes::new(COUNT * LARGE.get())));
        assert!(matches!(answer().0, Completion::HostKept { problem: None, .. }));
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
        let under_way = steps(&fake);
        driver.submit(create_host(LACKING + 1, LARGE));
        fake.tell(false);
        assert_eq!(made(), under_way, "it waited for what was under way, and for no more");
        until(&driver, "half are pieces", || driver.kept().iter().all(|kept| kept.usual >= kept.larger));
        assert_eq!(driver.kept()[0].rebuilds, 1);
    }
}

fn until(driver: &CudaDriver, what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < end, "{what}: {:?}", driver.kept());
        thread::sleep(Duration::from_millis(1));
    }
}
