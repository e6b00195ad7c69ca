//! Pins that end when streams have come past them.

use std::{
    thread,
    time::{Duration, Instant},
};

use vramd_proto::v1::{self, Access as MapAccess, Device, HandleType, MapPart, client_frame::Frame as Said};
use vramd_types::{Bytes, Reason};
use vramd_words::{Access, State};

use super::FakeDriver;
use crate::{
    channel::fake::{PART, PATIENCE, Pinning, memory, part, part_ref},
    cuda::Gpus,
    error::{Error, Sentence},
    handles::{
        allocation::Allocation,
        handle::Handle,
        info::{AllocationInfo, PartInfo, Tier},
    },
    session::{
        ReleaseKind,
        call_style::{CallStyle, run_ready},
    },
};

const STREAM: u64 = 0x51;
const IDLE: u64 = 0x52;
/// Of a context that the program made itself.
const OF_ANOTHER_CONTEXT: u64 = 0xd001;

/// Device memory that is allocated, and let go of by its handle.
fn start(fake: &FakeDriver, patience: Duration) -> (Pinning, Allocation) {
    let uuid = "GPU-a0a0a0a0-a0a0-a0a0-a0a0-a0a0a0a0a0a0".to_owned();
    let device = Device { uuid, index: 0, name: String::new(), simulated: false };
    let daemon = Pinning::start(Gpus::new(&[device]).with_driver(&fake.driver), patience);
    daemon.map(
        vec![MapPart { handle_type: HandleType::VmmFd.into(), ..part(7, 0, 1, MapAccess::ReadWrite) }],
        &[memory("streams", 1)],
    );
    assert!(matches!(daemon.next(), Some(Said::Mapped(_))));
    let wire = v1::Allocation { allocation_id: 7, size_bytes: PART, ..Default::default() };
    let only = PartInfo {
        index: 0,
        offset: Bytes::ZERO,
        size: Bytes::new(PART),
        tier: Tier::Device,
        mappers: Vec::new(),
    };
    let info = AllocationInfo { parts: vec![only], ..wire.into() };
    let mut handle = Handle::claim(&daemon.session, info, ReleaseKind::Free).unwrap();
    run_ready(handle.wait_arrived(CallStyle::Blocking, Instant::now() + PATIENCE)).unwrap();
    let mut allocation = Allocation::new(handle);
    allocation.unpin().unwrap();
    fake.calls();
    (daemon, allocation)
}

fn pins(daemon: &Pinning) -> u32 {
    match daemon.word(part_ref(7, 0)).state().unwrap() {
        State::Resident { pins } | State::Revoking { pins } => pins,
        state => panic!("{state:?}"),
    }
}

fn wait_for_pins(daemon: &Pinning, wanted: u32) {
    let deadline = Instant::now() + PATIENCE;
    while pins(daemon) != wanted {
        assert!(Instant::now() < deadline, "{} pins", pins(daemon));
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn pin_ends_once_all_its_streams_are_done() {
    let fake = FakeDriver::load();
    let (daemon, allocation) = start(&fake, PATIENCE);
    fake.stream(STREAM, true, false);
    allocation.pin(Access::Write).unwrap().unpin_after(&[IDLE, STREAM, OF_ANOTHER_CONTEXT]).unwrap();
    allocation.pin(Access::Write).unwrap().unpin_after(&[]).unwrap();
    wait_for_pins(&daemon, 1);
    thread::sleep(Duration::from_millis(20));
    assert_eq!(pins(&daemon), 1, "one of its streams is busy");
    fake.stream(STREAM, false, false);
    wait_for_pins(&daemon, 0);
    let calls = fake.calls();
    let wrong: Vec<_> =
        calls.iter().filter(|call| call.chars().any(char::is_uppercase) && call.contains(" IN ")).collect();
    assert_eq!(wrong, [""; 0], "{calls:?}");
    let count = |name: &str| calls.iter().filter(|call| call.starts_with(name)).count();
    assert_eq!(
        (count("cuEventCreate"), count("cuEventRecord"), count("cuEventDestroy")),
        (3, 3, 3),
        "{calls:?}"
    );
    assert_eq!((fake.current(), fake.capture_mode()), (0, 0), "the thread is as it was");
}

#[test]
fn captured_stream_is_refused_and_the_guard_returned() {
    let fake = FakeDriver::load();
    let (daemon, allocation) = start(&fake, PATIENCE);
    fake.stream(STREAM, false, true);
    let failed = allocation.pin(Access::Write).unwrap().unpin_after(&[IDLE, STREAM]).unwrap_err();
    assert_eq!(failed.error.reason(), Some(Reason::StreamCapturing));
    assert_eq!((pins(&daemon), failed.pinned.id()), (1, allocation.id()));
    fake.stream(STREAM, false, false);
    failed.pinned.unpin_after(&[IDLE, STREAM]).unwrap();
    wait_for_pins(&daemon, 0);
    fake.fail("cuEventRecord", 1);
    let failed = allocation.pin(Access::Write).unwrap().unpin_after(&[IDLE]).unwrap_err();
    assert_eq!(failed.error.facts()["problem"], "cuEventRecord: CUDA_ERROR_INVALID_VALUE (1)");
    drop(failed);
    assert_eq!(pins(&daemon), 0);
}

#[test]
fn failed_poll_is_repeated_and_a_lost_context_ends_the_pin() {
    let fake = FakeDriver::load();
    let (daemon, allocation) = start(&fake, PATIENCE);
    fake.stream(STREAM, true, false);
    // A capture forbids the query.
    fake.fail("cuEventQuery", 900);
    allocation.pin(Access::Write).unwrap().unpin_after(&[STREAM]).unwrap();
    thread::sleep(Duration::from_millis(20));
    assert_eq!(pins(&daemon), 1);
    fake.fail("cuEventQuery", 700);
    wait_for_pins(&daemon, 0);
}

#[test]
fn release_waits_for_streams_and_not_for_guards() {
    let fake = FakeDriver::load();
    let (daemon, allocation) = start(&fake, Duration::from_secs(2));
    fake.stream(STREAM, true, false);
    allocation.pin(Access::Write).unwrap().unpin_after(&[STREAM]).unwrap();
    let guard = allocation.pin(Access::Read).unwrap();
    let failed = allocation.seal().unwrap_err();
    assert_eq!(
        failed.error,
        Error::Pinned { allocation: "a-7".to_owned(), pins: 1, said: Sentence::default() }
    );
    drop(guard);
    let failed = failed.allocation.seal().unwrap_err();
    assert_eq!(failed.error, Error::deadline(), "the stream is busy");
    assert_eq!(pins(&daemon), 1);
    thread::scope(|scope| {
        let freer = scope.spawn(|| failed.allocation.free());
        thread::sleep(Duration::from_millis(50));
        assert!(!freer.is_finished());
        fake.stream(STREAM, false, false);
        assert!(matches!(daemon.next(), Some(Said::Unmapped(_))));
        // The fake daemon answers no calls.
        assert_eq!(freer.join().unwrap().unwrap_err().error.reason(), Some(Reason::BrokerGone));
    });
}

/// A waiting caller maps in its own thread, which may have a capture of its own.
#[test]
fn mapping_restores_the_capture_mode_of_its_thread() {
    let fake = FakeDriver::load();
    let (daemon, allocation) = start(&fake, PATIENCE);
    daemon.revoke(part_ref(7, 0), vramd_proto::v1::RevokeReason::Evicted);
    assert!(matches!(daemon.next(), Some(Said::Unmapped(_))));
    thread::scope(|scope| {
        let pinner = scope.spawn(|| {
            let pinned = allocation.pin(Access::Read).unwrap();
            (pinned.is_device_memory(), fake.capture_mode(), fake.current())
        });
        assert!(matches!(daemon.next(), Some(Said::Pin(_))));
        let again = MapPart { handle_type: HandleType::VmmFd.into(), ..part(7, 0, 1, MapAccess::ReadWrite) };
        daemon.map(vec![again], &[memory("streams", 1)]);
        assert_eq!(pinner.join().unwrap(), (true, 0, 0));
    });
    let strict: Vec<_> = fake.calls().into_iter().filter(|call| call.contains("STRICT")).collect();
    assert_eq!(strict, [""; 0]);
}
