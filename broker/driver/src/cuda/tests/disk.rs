//! Copies between memory and disk that meet failures which a test cannot cause on a real card.

use std::{thread, time::Instant};

use vramd_types::{CopyId, HostNode};

use super::*;
use crate::{CopyClass, CopyError, HostLimit, disk::DiskEngine, gate::Gate};

const DEVICE: u64 = 1;
const HOST: u64 = 2;
const DISK: u64 = 3;
/// Twice as many pieces as there are buffers in one direction.
const SIZE: Bytes = Bytes::mib(64);
const BUFFERS: usize = 16;

/// With an extent of that size on the device, one in the host, and a written one on disk.
fn ready(fake: &Fake) -> (CudaDriver, Receiver<Completion>, tempfile::TempDir) {
    ready_by(fake, None)
}

/// The same with a given engine.
fn ready_by(
    fake: &Fake,
    engine: Option<DiskEngine>,
) -> (CudaDriver, Receiver<Completion>, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let disk = DiskConfig { directory: folder.path().to_owned(), capacity: SIZE, engine };
    let (driver, completions) = opened_with(CudaConfig { disk: Some(disk), ..config(fake) });
    let driver = driver.unwrap();
    let [device, host, disk] = [DEVICE, HOST, DISK].map(ExtentId::from_raw);
    let kind = ExtentKind::Movable;
    driver.submit(Submission::Create { extent: device, device: FIRST, size: SIZE, kind });
    assert!(matches!(next(&completions), Completion::Created { result: Ok(_), .. }));
    driver.submit(Submission::CreateHost { extent: host, node: HostNode(0), size: SIZE, zeroed: true });
    assert!(matches!(next(&completions), Completion::Created { result: Ok(_), .. }));
    driver.submit(Submission::CreateDisk { extent: disk, size: SIZE });
    assert!(matches!(next(&completions), Completion::DiskCreated { result: Ok(()), .. }));
    assert_eq!(done(&driver, &completions, HOST, DISK), Ok(()));
    (driver, completions, folder)
}

fn begin(driver: &CudaDriver, from: u64, to: u64) {
    begin_copy(driver, 1, from, to, SIZE);
}

fn begin_copy(driver: &CudaDriver, copy: u64, from: u64, to: u64, size: Bytes) {
    let ([from, to], copy) = ([from, to].map(ExtentId::from_raw), CopyId::from_raw(copy));
    driver.submit(Submission::Copy { copy, from, to, size, class: CopyClass::Demand });
}

fn copied(completions: &Receiver<Completion>) -> Result<(), CopyError> {
    match next(completions) {
        Completion::Copied { result, .. } => result,
        other => panic!("only copies were requested: {other:?}"),
    }
}

fn done(
    driver: &CudaDriver,
    completions: &Receiver<Completion>,
    from: u64,
    to: u64,
) -> Result<(), CopyError> {
    begin(driver, from, to);
    copied(completions)
}

fn digested(driver: &CudaDriver, completions: &Receiver<Completion>, extent: u64) -> Result<(), CopyError> {
    let spans = vec![(ExtentId::from_raw(extent), SIZE)];
    driver.submit(Submission::Digest { ticket: 1, spans });
    match next(completions) {
        Completion::Digested { result, .. } => result.map(drop),
        other => panic!("a digest was requested: {other:?}"),
    }
}

#[test]
fn a_failed_hop_says_why_and_the_next_copy_is_done() {
    let ways = [("cuMemcpyHtoDAsync_v2", DISK, DEVICE), ("cuMemcpyDtoHAsync_v2", DEVICE, DISK)];
    for (call, from, to) in
        ways.into_iter().chain([("cuEventQuery", DISK, DEVICE), ("cuMemHostRegister_v2", DISK, DEVICE)])
    {
        let fake = Fake::new().with(&format!("fail.{call} = 54321@triggered"));
        let (driver, completions, _folder) = ready(&fake);
        fake.trigger(true);
        let problem = format!("{call}: an error without a name (54321)");
        let failed = Err(CopyError::Driver(DriverError::Failed(problem)));
        assert_eq!(done(&driver, &completions, from, to), failed);
        fake.trigger(false);
        assert_eq!(done(&driver, &completions, from, HOST), Ok(()));
        assert_eq!(done(&driver, &completions, DEVICE, DISK), Ok(()));
        assert_eq!(done(&driver, &completions, DISK, DEVICE), Ok(()));
    }
}

/// The missing memory is the host's, whatever the card has.
#[test]
fn failing_to_pin_a_buffer_is_out_of_host_memory() {
    let fake = Fake::new().with("fail.cuMemHostRegister_v2 = 2@triggered");
    let (driver, completions, _folder) = ready(&fake);
    fake.trigger(true);
    // `pinned` tests which limit it was.
    let is_short = |result: &Result<(), CopyError>| {
        let limit = match result {
            Err(CopyError::Driver(DriverError::OutOfHostMemory(limit))) => limit,
            other => panic!("{other:?}"),
        };
        matches!(limit, HostLimit::Pinned | HostLimit::Locked(_))
    };
    assert!(is_short(&done(&driver, &completions, DISK, DEVICE)));
    assert!(is_short(&digested(&driver, &completions, DEVICE)));
    assert!(is_short(&digested(&driver, &completions, DISK)), "a digest needs a buffer too");
    fake.trigger(false);
    assert_eq!(done(&driver, &completions, DISK, DEVICE), Ok(()));
    assert_eq!(digested(&driver, &completions, DISK), Ok(()));
}

#[test]
fn pieces_wait_for_the_few_buffers_that_can_be_pinned() {
    let others = {
        let fake = Fake::new().with("note = 1");
        let _opened = ready(&fake);
        fake.threads_calling("cuMemHostRegister_v2").len()
    };
    let fake = Fake::new().with(&format!("note = 1\nfail.cuMemHostRegister_v2 = 2@{}", others + 3));
    let (driver, completions, _folder) = ready(&fake);
    assert_eq!(done(&driver, &completions, DISK, DEVICE), Ok(()));
    let requested = fake.threads_calling("cuMemHostRegister_v2").len() - others;
    assert!((3..32).contains(&requested), "two were had, and no piece asks again: {requested}");
}

/// No borrower keeps an unused buffer: there is room for three buffers of the disk, or for one of a digest and
/// two of these.
#[test]
fn borrowers_take_turns_with_few_buffers() {
    let fake = Fake::new().with("register_mib = 6");
    let (driver, completions, _folder) = ready(&fake);
    for _ in 0..2 {
        assert_eq!(done(&driver, &completions, DISK, DEVICE), Ok(()));
        assert_eq!(done(&driver, &completions, DEVICE, DISK), Ok(()));
        assert_eq!(digested(&driver, &completions, DISK), Ok(()));
    }
    let fake = Fake::new().with("register_mib = 21");
    let (driver, completions, _folder) = ready(&fake);
    for _ in 0..2 {
        assert_eq!(done(&driver, &completions, DISK, DEVICE), Ok(()));
        assert_eq!(digested(&driver, &completions, DEVICE), Ok(()));
        assert_eq!(done(&driver, &completions, DEVICE, DISK), Ok(()));
        assert_eq!(digested(&driver, &completions, DISK), Ok(()));
    }
}

/// There is room for one buffer. The first lane uses it again and again, until another asks.
#[test]
fn a_lane_without_a_buffer_gets_the_next_returned_one() {
    const OTHER_DEVICE: u64 = 4;
    const OTHER_DISK: u64 = 5;
    let fake =
        Fake::new().with("register_mib = 2").with("fail.cuEventQuery = 600@triggered").with("note = 1");
    let folder = tempfile::tempdir().unwrap();
    let disk = DiskConfig { directory: folder.path().to_owned(), capacity: SIZE, engine: None };
    let (driver, completions) = opened_with(CudaConfig { disk: Some(disk), ..config(&fake) });
    let driver = driver.unwrap();
    let half = Bytes::mib(32);
    for device in [DEVICE, OTHER_DEVICE] {
        let (extent, kind) = (ExtentId::from_raw(device), ExtentKind::Movable);
        driver.submit(Submission::Create { extent, device: FIRST, size: half, kind });
        assert!(matches!(next(&completions), Completion::Created { result: Ok(_), .. }));
    }
    for disk in [DISK, OTHER_DISK] {
        driver.submit(Submission::CreateDisk { extent: ExtentId::from_raw(disk), size: half });
        assert!(matches!(next(&completions), Completion::DiskCreated { result: Ok(()), .. }));
    }
    begin_copy(&driver, 1, DEVICE, DISK, half);
    assert_eq!(copied(&completions), Ok(()));
    let (inward, outward) = ((DISK, DEVICE), (OTHER_DEVICE, OTHER_DISK));
    for (call, long, short) in
        [("cuMemcpyHtoDAsync_v2", inward, outward), ("cuMemcpyDtoHAsync_v2", outward, inward)]
    {
        let before = hops(&fake, call);
        fake.trigger(true);
        begin_copy(&driver, 1, long.0, long.1, half);
        until_hops(&fake, call, before + 1);
        begin_copy(&driver, 2, short.0, short.1, GRANULARITY);
        // Until it has asked for a buffer.
        std::thread::sleep(Duration::from_millis(300));
        fake.trigger(false);
        let ended: Vec<u64> = (0..2)
            .map(|_| match next(&completions) {
                Completion::Copied { copy, result: Ok(()) } => copy.get(),
                other => panic!("both are done: {other:?}"),
            })
            .collect();
        assert_eq!(ended, [2, 1]);
    }
}

/// Waits until so many pieces have moved between device and buffers.
fn until_hops(fake: &Fake, call: &str, count: usize) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while hops(fake, call) < count {
        assert!(Instant::now() < deadline, "only {} pieces of {count}", hops(fake, call));
        std::thread::yield_now();
    }
}

fn hops(fake: &Fake, call: &str) -> usize {
    fake.threads_calling(call).iter().filter(|by| *by == "disk-copy").count()
}

/// The device hangs for a while, and the disk goes on until all buffers are full.
#[test]
fn the_disk_reads_ahead_as_far_as_buffers_reach() {
    let fake = Fake::new().with("fail.cuEventQuery = 600@triggered").with("note = 1");
    let (driver, completions, _folder) = ready(&fake);
    fake.trigger(true);
    begin(&driver, DISK, DEVICE);
    until_hops(&fake, "cuMemcpyHtoDAsync_v2", BUFFERS);
    driver.submit(Submission::CancelCopy { copy: CopyId::from_raw(1) });
    fake.trigger(false);
    assert_eq!(copied(&completions), Err(CopyError::Cancelled));
    let begun = hops(&fake, "cuMemcpyHtoDAsync_v2");
    assert_eq!(begun, BUFFERS, "nothing more is begun once it is cancelled");
    assert_eq!(done(&driver, &completions, DISK, DEVICE), Ok(()));
}

/// The disk hangs for a while, and the device goes on until all buffers are full.
#[test]
fn the_device_copies_ahead_as_far_as_buffers_reach() {
    let filtered = thread::spawn(|| {
        let gate = Gate::before(libc::SYS_pwritev2);
        let fake = Fake::new().with("note = 1");
        let (driver, completions, _folder) = ready_by(&fake, Some(DiskEngine::Threads));
        gate.close();
        begin(&driver, DEVICE, DISK);
        until_hops(&fake, "cuMemcpyDtoHAsync_v2", BUFFERS);
        driver.submit(Submission::CancelCopy { copy: CopyId::from_raw(1) });
        gate.open();
        assert_eq!(copied(&completions), Err(CopyError::Cancelled));
        let begun = hops(&fake, "cuMemcpyDtoHAsync_v2");
        assert_eq!(begun, BUFFERS, "nothing more is begun once it is cancelled");
        assert_eq!(done(&driver, &completions, DEVICE, DISK), Ok(()));
    });
    filtered.join().unwrap();
}

#[test]
fn few_buffers_are_reused_and_host_memory_needs_none() {
    let fake = Fake::new().with("note = 1");
    let (driver, completions, _folder) = ready(&fake);
    let buffers =
        || fake.threads_calling("cuMemHostRegister_v2").iter().filter(|by| *by == "disk-copy").count();
    assert_eq!(done(&driver, &completions, DISK, HOST), Ok(()));
    assert_eq!(buffers(), 0);
    for _ in 0..3 {
        assert_eq!(done(&driver, &completions, DISK, DEVICE), Ok(()));
        assert_eq!(done(&driver, &completions, DEVICE, DISK), Ok(()));
    }
    assert!((2..=2 * BUFFERS).contains(&buffers()), "{}", buffers());
}

#[test]
fn an_unusable_directory_fails_before_any_device_is_opened() {
    let fake = Fake::new().with("note = 1");
    let disk = DiskConfig { directory: "/nowhere/at/all".into(), capacity: SIZE, engine: None };
    let (driver, _completions) = opened_with(CudaConfig { disk: Some(disk), ..config(&fake) });
    let error = driver.unwrap_err();
    assert_eq!(error.to_string(), "directory /nowhere/at/all does not exist");
    assert!(fake.threads_calling("cuDevicePrimaryCtxRetain").is_empty());
}
