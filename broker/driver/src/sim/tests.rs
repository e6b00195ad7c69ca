//! What the contract leaves to each driver. No test here starts a process, so what is said of memory is exact.

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
use crate::{Completion, Handle};

const DEVICE: DeviceIndex = DeviceIndex(0);
const DEADLINE: Duration = Duration::from_secs(60);

fn device() -> DeviceInfo {
    static LAST: AtomicU32 = AtomicU32::new(0);
    let uuid = format!("GPU-sim-{}-{}", std::process::id(), LAST.fetch_add(1, Ordering::Relaxed));
    DeviceInfo { uuid, name: "Simulated".to_owned(), total: Bytes::mib(256), context: Bytes::ZERO }
}

fn config() -> SimConfig {
    SimConfig { devices: vec![device()], faults: Vec::new() }
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

fn created(completion: Completion) -> Handle {
    match completion {
        Completion::Created { result: Ok(handle), .. } => handle,
        other => panic!("unexpected: {other:?}"),
    }
}

#[test]
fn a_node_that_cannot_be_is_refused() {
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

#[test]
fn what_nobody_holds_is_always_returned_at_once() {
    let (driver, completions) = opened();
    for raw in 1..=50 {
        driver.submit(create(raw));
        drop(created(completions.recv_timeout(DEADLINE).unwrap()));
        driver.submit(release(raw));
        let answer = completions.recv_timeout(DEADLINE).unwrap();
        assert!(matches!(answer, Completion::Released { returned: true, .. }), "{raw}: {answer:?}");
    }
}

/// The second is held until the first is told, so only a look of its own could have found it free.
#[test]
fn releases_that_wait_together_share_a_look() {
    let held = Arc::new(Mutex::new(None));
    let (sink, completions) = channel();
    let of_sink = Arc::clone(&held);
    let sink = move |completion| {
        drop(of_sink.lock().unwrap().take());
        drop(sink.send(completion));
    };
    let state = State::new(vec![device()], Arc::new(sink)).unwrap();
    for raw in [1, 2] {
        let make =
            maker::Make { extent: ExtentId::from_raw(raw), device: DEVICE, size: GRANULARITY, failure: None };
        *held.lock().unwrap() = Some(make.attempt(&state).unwrap());
    }
    let (looks, waiting) = channel();
    for raw in [1, 2] {
        looks.send(looker::Look::Release { extent: ExtentId::from_raw(raw) }).unwrap();
    }
    drop(looks);
    looker::run(&state, &waiting);
    drop(state);
    let told: Vec<bool> = completions
        .iter()
        .map(|completion| matches!(completion, Completion::Released { returned: true, .. }))
        .collect();
    assert_eq!(told, [true, false]);
}

#[test]
fn a_survey_never_takes_our_own_for_anothers() {
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
fn it_can_be_dropped_from_inside_its_sink() {
    let own: Arc<OnceLock<Mutex<Option<SimDriver>>>> = Arc::new(OnceLock::new());
    let (told, dropped) = channel();
    let of_sink = Arc::clone(&own);
    let sink: Sink = Arc::new(move |_| {
        drop(of_sink.wait().lock().unwrap().take());
        told.send(()).unwrap();
    });
    let driver = open(config(), sink).unwrap();
    driver.submit(create(1));
    own.set(Mutex::new(Some(driver))).unwrap();
    dropped.recv_timeout(DEADLINE).unwrap();
}
