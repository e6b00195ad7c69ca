//! Behaviour that the contract leaves to each driver. No test here starts a process, so figures of memory are exact.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
        mpsc::{Receiver, channel},
    },
    time::Duration,
};

use vramd_types::{DeviceIndex, ExtentId, GRANULARITY};

use super::*;
use crate::{Completion, CopyClass, CopyError, Export, Shares, location::Location};

const DEVICE: DeviceIndex = DeviceIndex(0);
const DEADLINE: Duration = Duration::from_secs(60);

fn device() -> DeviceInfo {
    static LAST: AtomicU32 = AtomicU32::new(0);
    let uuid = format!("GPU-sim-{}-{}", std::process::id(), LAST.fetch_add(1, Ordering::Relaxed));
    DeviceInfo { uuid, name: "Simulated".to_owned(), total: Bytes::mib(256), context: Bytes::ZERO }
}

fn config() -> SimConfig {
    SimConfig { devices: vec![device()], host: Bytes::mib(256), ..SimConfig::default() }
}

fn opened() -> (SimDriver, Receiver<Completion>) {
    let (sink, completions) = channel();
    (open(config(), Arc::new(move |completion| drop(sink.send(completion)))).unwrap(), completions)
}

fn create(raw: u64) -> Submission {
    Submission::Create {
        extent: ExtentId::from_raw(raw),
        device: DEVICE,
        size: GRANULARITY,
        kind: ExtentKind::Movable,
    }
}

fn release(raw: u64) -> Submission {
    Submission::Release { extent: ExtentId::from_raw(raw) }
}

fn created(completion: Completion) -> Export {
    match completion {
        Completion::Created { result: Ok(handle), .. } => handle,
        other => panic!("unexpected: {other:?}"),
    }
}

#[test]
fn an_impossible_node_is_refused() {
    let refused = |change: fn(&mut SimConfig)| {
        let mut config = config();
        change(&mut config);
        matches!(open(config, Arc::new(drop)), Err(DriverError::Failed(_)))
    };
    assert!(!refused(|_| ()));
    assert!(!refused(|it| it.devices[0].uuid = "G".repeat(UUID_BYTES_MAX)));
    assert!(refused(|it| it.devices[0].uuid = "G".repeat(UUID_BYTES_MAX + 1)));
    for uuid in ["", "GPU:1", "GPU 1", "GPU\n", "GPU\0"] {
        let mut config = config();
        uuid.clone_into(&mut config.devices[0].uuid);
        assert!(open(config, Arc::new(drop)).is_err(), "{uuid:?}");
    }
    assert!(refused(|it| it.devices.push(it.devices[0].clone())));
    assert!(refused(|it| it.devices[0].total = Bytes::MAX));
    assert!(refused(|it| {
        it.faults.push(Fault { on: Operation::Release, nth: 1, count: 1, effect: Effect::OutOfMemory });
    }));
}

/// In NUMA mode the first nodes are the devices' memory, and the last one has the CPUs.
#[test]
fn host_memory_lies_on_a_node_with_cpus() {
    for (platform, node, others) in [
        (Platform::CoherentNuma, 2, &[0, 1, 3][..]),
        (Platform::CoherentCdmm, 0, &[1]),
        (Platform::Discrete, 0, &[1]),
    ] {
        let (sink, completions) = channel();
        let config = SimConfig { devices: vec![device(), device()], platform, ..config() };
        let driver = open(config, Arc::new(move |completion| drop(sink.send(completion)))).unwrap();
        assert_eq!(driver.host_node(DEVICE), HostNode(node));
        let make = |node: u16| {
            let extent = ExtentId::from_raw(u64::from(node) + 1);
            driver.submit(Submission::CreateHost {
                extent,
                node: HostNode(node),
                size: GRANULARITY,
                zeroed: true,
            });
            completions.recv_timeout(DEADLINE).unwrap()
        };
        for other in others {
            let refused = make(*other);
            assert!(
                matches!(&refused, Completion::Created { result: Err(DriverError::Failed(why)), .. }
                    if why.contains("has no CPU")),
                "{refused:?}"
            );
        }
        created(make(node));
    }
}

/// A caller that waits for the work of that thread would wait forever.
#[test]
fn a_panicking_thread_is_reported() {
    let (sink, completions) = channel();
    let sink = move |completion| {
        assert!(!matches!(completion, Completion::Created { .. }), "this panic is part of the test");
        drop(sink.send(completion));
    };
    let driver = open(config(), Arc::new(sink)).unwrap();
    driver.submit(create(1));
    let mut reported = std::iter::from_fn(|| completions.recv_timeout(DEADLINE).ok());
    let lost = reported.find(|it| matches!(it, Completion::Lost { .. }));
    let Some(Completion::Lost { problem }) = lost else { panic!("no problem is reported") };
    assert!(problem.ends_with(" has panicked"), "{problem}");
}

#[test]
fn memory_without_holders_always_returns_at_once() {
    let (driver, completions) = opened();
    for raw in 1..=50 {
        driver.submit(create(raw));
        drop(created(completions.recv_timeout(DEADLINE).unwrap()));
        driver.submit(release(raw));
        let answer = completions.recv_timeout(DEADLINE).unwrap();
        assert!(matches!(answer, Completion::Released { returned: true, .. }), "{raw}: {answer:?}");
    }
}

/// The second is held until the first is reported, so only a survey of its own could have found it free.
#[test]
fn releases_that_wait_together_share_a_survey() {
    let held = Arc::new(Mutex::new(None));
    let (sink, completions) = channel();
    let of_sink = Arc::clone(&held);
    let sink = move |completion| {
        drop(of_sink.lock().unwrap().take());
        drop(sink.send(completion));
    };
    let state = State::new(vec![device()], HostNode(0), Bytes::ZERO, Arc::new(sink)).unwrap();
    let location = Location::Device(DEVICE);
    for raw in [1, 2] {
        let make = maker::Make {
            extent: ExtentId::from_raw(raw),
            location,
            size: GRANULARITY,
            zeroed: true,
            failure: None,
        };
        *held.lock().unwrap() = Some(make.attempt(&state).unwrap());
    }
    let (surveys, waiting) = channel();
    for raw in [1, 2] {
        surveys.send(surveyor::SurveyorOrder::Release { extent: ExtentId::from_raw(raw) }).unwrap();
    }
    drop(surveys);
    surveyor::run(&state, &waiting, &channel().0);
    drop(state);
    let reported: Vec<bool> = completions
        .iter()
        .map(|completion| matches!(completion, Completion::Released { returned: true, .. }))
        .collect();
    assert_eq!(reported, [true, false]);
}

#[test]
fn a_survey_never_counts_own_extents_as_unbrokered() {
    let (driver, completions) = opened();
    let mut handles = Vec::new();
    for round in 0..200_u64 {
        driver.submit(Submission::Survey { device: DEVICE, clients: Vec::new() });
        driver.submit(create(round + 1));
        if round >= 50 {
            driver.submit(release(round - 49));
        }
    }
    drop(driver);
    for completion in completions {
        match completion {
            Completion::Surveyed { unbrokered, .. } => assert_eq!(unbrokered, Bytes::ZERO),
            Completion::Created { result, .. } => handles.extend(result.ok()),
            _ => {}
        }
    }
    assert!(!handles.is_empty());
}

#[test]
fn the_driver_can_be_dropped_from_inside_its_sink() {
    let own: Arc<OnceLock<Mutex<Option<SimDriver>>>> = Arc::new(OnceLock::new());
    let (reported, dropped) = channel();
    let of_sink = Arc::clone(&own);
    let sink: Sink = Arc::new(move |_| {
        drop(of_sink.wait().lock().unwrap().take());
        reported.send(()).unwrap();
    });
    let driver = open(config(), sink).unwrap();
    driver.submit(create(1));
    own.set(Mutex::new(Some(driver))).unwrap();
    dropped.recv_timeout(DEADLINE).unwrap();
}

/// Creates an extent there and waits for the answer.
fn make(driver: &SimDriver, completions: &Receiver<Completion>, raw: u64, location: Location, size: Bytes) {
    let extent = ExtentId::from_raw(raw);
    driver.submit(match location {
        Location::Device(device) => Submission::Create { extent, device, size, kind: ExtentKind::Movable },
        Location::Host => Submission::CreateHost { extent, node: HostNode(0), size, zeroed: true },
    });
    drop(created(completions.recv_timeout(DEADLINE).unwrap()));
}

fn copy(raw: u64, from: u64, to: u64, size: Bytes) -> Submission {
    let [from, to] = [from, to].map(ExtentId::from_raw);
    Submission::Copy { copy: CopyId::from_raw(raw), from, to, size, class: CopyClass::Demand }
}

fn copied(completions: &Receiver<Completion>) -> (u64, Result<(), CopyError>) {
    match completions.recv_timeout(DEADLINE).unwrap() {
        Completion::Copied { copy, result } => (copy.get(), result),
        other => panic!("unexpected: {other:?}"),
    }
}

/// The uplink carries 64 MiB a second, and another device prefetches as much as it can.
#[test]
fn demand_goes_before_another_device_s_prefetch_on_the_uplink() {
    let (sink, completions) = channel();
    let second = DeviceInfo { uuid: format!("{}-2", device().uuid), ..device() };
    let config = SimConfig {
        devices: vec![device(), second],
        uplink: LinkSpeed { to_device: 64 << 20, to_host: 0 },
        ..config()
    };
    let driver = open(config, Arc::new(move |completion| drop(sink.send(completion)))).unwrap();
    let [one, all] =
        [(LaneId::ToDevice(DeviceIndex(0)), 64 << 20), (LaneId::ToDevice(DeviceIndex(1)), 64 << 20)];
    assert_eq!(driver.links(), [LinkFacts { name: "uplink".to_owned(), lanes: vec![one, all] }]);
    let size = Bytes::mib(64);
    make(&driver, &completions, 1, Location::Host, size);
    make(&driver, &completions, 2, Location::Device(DEVICE), size);
    make(&driver, &completions, 3, Location::Device(DeviceIndex(1)), size);
    let prefetch = |raw| {
        let (from, to) = (ExtentId::from_raw(1), ExtentId::from_raw(3));
        let class = CopyClass::Prefetch;
        driver.submit(Submission::Copy { copy: CopyId::from_raw(raw), from, to, size, class });
    };
    prefetch(1);
    prefetch(2);
    let began = Instant::now();
    driver.submit(copy(3, 1, 2, size));
    let mut prefetched = Bytes::ZERO;
    // Once the demand copy is done the other goes on at once.
    let first = loop {
        let begun = driver.traffic().into_iter().find(|it| it.lane == all.0);
        match completions.try_recv() {
            Ok(Completion::Copied { copy, result }) => break (copy.get(), result),
            Ok(other) => panic!("unexpected: {other:?}"),
            Err(_) => prefetched = begun.map_or(prefetched, |it| it.begun[CopyClass::Prefetch.index()]),
        }
        assert!(began.elapsed() < DEADLINE);
        std::thread::sleep(Duration::from_millis(1));
    };
    assert_eq!(first, (3, Ok(())), "the demand copy goes first");
    assert!(prefetched <= Bytes::mib(48), "{prefetched} beside it, where half as much was under way before");
    assert_eq!([copied(&completions), copied(&completions)], [(1, Ok(())), (2, Ok(()))]);
    assert!(began.elapsed() >= Duration::from_secs(2), "the uplink carries no more");
}

/// A link of 160 MiB a second takes a tenth of a second for each chunk.
#[test]
fn a_copy_in_flight_can_be_watched_and_cancelled() {
    let (sink, completions) = channel();
    let link = LinkSpeed { to_device: 0, to_host: 160 << 20 };
    let config = SimConfig { link, ..config() };
    let driver = open(config, Arc::new(move |completion| drop(sink.send(completion)))).unwrap();
    let size = Bytes::mib(192);
    make(&driver, &completions, 1, Location::Device(DEVICE), size);
    make(&driver, &completions, 2, Location::Host, size);
    make(&driver, &completions, 3, Location::Host, GRANULARITY);
    make(&driver, &completions, 4, Location::Device(DEVICE), GRANULARITY);
    let (slow, waits, quick) = (CopyId::from_raw(1), CopyId::from_raw(2), 3);
    driver.submit(copy(slow.get(), 1, 2, size));
    driver.submit(copy(waits.get(), 1, 3, GRANULARITY));
    driver.submit(copy(quick, 3, 4, GRANULARITY));
    assert_eq!(copied(&completions), (quick, Ok(())), "the other direction");
    driver.submit(Submission::CancelCopy { copy: waits });
    assert_eq!(
        copied(&completions),
        (waits.get(), Err(CopyError::Cancelled)),
        "a waiting copy is cancelled at once"
    );

    let begun = Instant::now();
    while driver.copied_bytes(slow).unwrap().is_zero() {
        assert!(begun.elapsed() < DEADLINE);
        std::thread::yield_now();
    }
    driver.submit(Submission::CancelCopy { copy: slow });
    assert!(driver.copied_bytes(slow).unwrap() < size);
    assert_eq!(copied(&completions), (slow.get(), Err(CopyError::Cancelled)));
    assert_eq!(driver.copied_bytes(slow), None);
    driver.submit(Submission::CancelCopy { copy: slow });
    drop(driver);
    assert!(completions.iter().next().is_none(), "a reported copy cannot be cancelled");
}

#[test]
fn a_held_copy_can_be_seen_and_cancelled() {
    let (sink, completions) = channel();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("goes-on");
    let fault = Fault { on: Operation::Copy, nth: 1, count: 1, effect: Effect::Hold(file.clone()) };
    let config = SimConfig { faults: vec![fault], ..config() };
    let driver = open(config, Arc::new(move |completion| drop(sink.send(completion)))).unwrap();
    make(&driver, &completions, 1, Location::Device(DEVICE), GRANULARITY);
    make(&driver, &completions, 2, Location::Host, GRANULARITY);
    driver.submit(copy(1, 1, 2, GRANULARITY));
    assert_eq!(driver.copied_bytes(CopyId::from_raw(1)), Some(Bytes::ZERO));
    driver.submit(copy(2, 1, 2, GRANULARITY));
    driver.submit(Submission::CancelCopy { copy: CopyId::from_raw(1) });
    assert_eq!(copied(&completions), (2, Ok(())), "it overtakes the held one");
    assert!(completions.try_recv().is_err());
    std::fs::write(file, "").unwrap();
    assert_eq!(copied(&completions), (1, Err(CopyError::Cancelled)));
}

#[test]
fn held_submissions_begin_when_the_driver_ends() {
    let (sink, completions) = channel();
    let hold = Effect::Hold("/vramd-no-such-file".into());
    let fault = Fault { on: Operation::Create, nth: 1, count: 2, effect: hold };
    let config = SimConfig { faults: vec![fault], ..config() };
    let driver = open(config, Arc::new(move |completion| drop(sink.send(completion)))).unwrap();
    (1..=3).for_each(|raw| driver.submit(create(raw)));
    let next = || match completions.recv_timeout(DEADLINE).unwrap() {
        Completion::Created { extent, result } => (extent.get(), result.is_ok()),
        other => panic!("unexpected: {other:?}"),
    };
    assert_eq!(next(), (3, true), "it is not held");
    drop(driver);
    assert_eq!([next(), next()], [(1, true), (2, true)]);
}

#[test]
fn the_host_has_a_capacity_and_one_node() {
    let (driver, completions) = opened();
    let refused = |raw, node, size| {
        driver.submit(Submission::CreateHost { extent: ExtentId::from_raw(raw), node, size, zeroed: true });
        match completions.recv_timeout(DEADLINE).unwrap() {
            Completion::Created { result, .. } => result.err().map(|error| error.to_string()),
            other => panic!("unexpected: {other:?}"),
        }
    };
    let capacity = "out of host memory: the configured size is 256 MiB".to_owned();
    assert_eq!(refused(1, HostNode(0), Bytes::mib(258)), Some(capacity.clone()));
    assert_eq!(
        refused(1, HostNode(1), GRANULARITY),
        Some("host node 1 has no CPU, or does not exist".to_owned())
    );
    assert_eq!(refused(1, HostNode(0), Bytes::mib(256)), None);
    assert_eq!(refused(2, HostNode(0), GRANULARITY), Some(capacity));
}

/// The uplink carries 64 MiB a second, beside as many prefetches to two other devices as these can take.
#[test]
fn a_class_gets_its_share_of_the_uplink_beside_many_lanes() {
    let (sink, completions) = channel();
    let devices: Vec<DeviceInfo> = (0..3).map(|_| device()).collect();
    let uplink = LinkSpeed { to_device: 64 << 20, to_host: 0 };
    let config = SimConfig { devices, uplink, ..config() };
    let driver = open(config, Arc::new(move |completion| drop(sink.send(completion)))).unwrap();
    let shares = Shares::new(30, 20, 50).unwrap();
    driver.submit(Submission::SetShares { shares });
    let size = Bytes::mib(64);
    make(&driver, &completions, 1, Location::Host, size);
    let began = Instant::now();
    let begun = |class: CopyClass| {
        let lanes = driver.traffic().into_iter();
        lanes.map(|it| it.begun[class.index()]).fold(Bytes::ZERO, Bytes::saturating_add)
    };
    for (raw, class) in [(2, CopyClass::WriteBack), (3, CopyClass::Prefetch), (4, CopyClass::Prefetch)] {
        let device = DeviceIndex(u16::try_from(raw - 2).unwrap());
        make(&driver, &completions, raw, Location::Device(device), size);
        let (from, to) = (ExtentId::from_raw(1), ExtentId::from_raw(raw));
        driver.submit(Submission::Copy { copy: CopyId::from_raw(raw), from, to, size, class });
        // It waits before the others do.
        while begun(CopyClass::WriteBack).is_zero() {
            assert!(began.elapsed() < DEADLINE);
            std::thread::yield_now();
        }
    }
    // Before its last chunk: then the others may have all of the link.
    while begun(CopyClass::WriteBack) < Bytes::mib(56) {
        assert!(began.elapsed() < DEADLINE);
        std::thread::sleep(Duration::from_millis(1));
    }
    let others = begun(CopyClass::Prefetch);
    assert!(others <= Bytes::mib(80), "{others:?} beside half of the link");
}
