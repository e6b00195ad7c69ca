//! Copies that meet failures which a test cannot cause on a real card.

use vramd_types::{CopyId, HostNode};

use super::*;
use crate::{CopyClass, CopyError};

const DEVICE: u64 = 1;
const HOST: u64 = 2;
/// More chunks than are in flight at once.
const SIZE: Bytes = Bytes::mib(160);

/// With an extent of that size on the device, and one in the host.
fn ready(fake: &Fake, size: Bytes) -> (CudaDriver, Receiver<Completion>) {
    let (driver, completions) = opened(fake);
    let driver = driver.unwrap();
    let [device, host] = [DEVICE, HOST].map(ExtentId::from_raw);
    driver.submit(Submission::Create { extent: device, device: FIRST, size, kind: ExtentKind::Movable });
    assert!(matches!(next(&completions), Completion::Created { result: Ok(_), .. }));
    driver.submit(Submission::CreateHost { extent: host, node: HostNode(0), size, zeroed: true });
    assert!(matches!(next(&completions), Completion::Created { result: Ok(_), .. }));
    (driver, completions)
}

fn copy(raw: u64, from: u64, to: u64, size: Bytes) -> Submission {
    let [from, to] = [from, to].map(ExtentId::from_raw);
    Submission::Copy { copy: CopyId::from_raw(raw), from, to, size, class: CopyClass::Demand }
}

fn copied(completions: &Receiver<Completion>) -> (u64, Result<(), CopyError>) {
    match next(completions) {
        Completion::Copied { copy, result } => (copy.get(), result),
        other => panic!("only copies were requested: {other:?}"),
    }
}

#[test]
fn a_failed_copy_says_why_and_the_next_is_done() {
    for call in ["cuMemcpyDtoHAsync_v2", "cuEventQuery"] {
        let fake = Fake::new().with(&format!("fail.{call} = 54321@triggered"));
        let (driver, completions) = ready(&fake, Bytes::mib(40));
        fake.trigger(true);
        driver.submit(copy(1, DEVICE, HOST, Bytes::mib(40)));
        let (_, result) = copied(&completions);
        let problem = format!("{call}: an error without a name (54321)");
        assert_eq!(result, Err(CopyError::Driver(DriverError::Failed(problem))));
        fake.trigger(false);
        driver.submit(copy(2, DEVICE, HOST, Bytes::mib(40)));
        driver.submit(copy(3, HOST, DEVICE, Bytes::mib(40)));
        let mut reported = [copied(&completions), copied(&completions)];
        reported.sort_by_key(|(copy, _)| *copy);
        assert_eq!(reported, [(2, Ok(())), (3, Ok(()))]);
    }
}

#[test]
fn a_copy_fails_without_a_mapping_and_the_next_copy_maps() {
    let fake = Fake::new().with("fail.cuMemMap = 2@triggered");
    let (driver, completions) = ready(&fake, GRANULARITY);
    fake.trigger(true);
    driver.submit(copy(1, DEVICE, HOST, GRANULARITY));
    assert_eq!(copied(&completions), (1, Err(CopyError::Driver(DriverError::OutOfMemory))));
    fake.trigger(false);
    driver.submit(copy(2, DEVICE, HOST, GRANULARITY));
    assert_eq!(copied(&completions), (2, Ok(())));
}

#[test]
fn a_lost_context_is_the_last_report_of_copies() {
    let fake = Fake::new().with("fail.cuEventQuery = 700@triggered");
    let (driver, completions) = ready(&fake, Bytes::mib(40));
    fake.trigger(true);
    driver.submit(copy(1, DEVICE, HOST, Bytes::mib(40)));
    driver.submit(copy(2, DEVICE, HOST, Bytes::mib(40)));
    let Completion::Lost { problem } = next(&completions) else { panic!("the context is poisoned") };
    assert!(problem.contains("CUDA_ERROR_ILLEGAL_ADDRESS (700)"), "{problem}");
    drop(driver);
    assert!(completions.iter().next().is_none(), "nothing after that");
}

#[test]
fn a_cancelled_copy_stops_and_a_cancelled_waiting_copy_never_begins() {
    let fake = Fake::new().with("hang.cuEventQuery = 1").with("note = 1");
    let (driver, completions) = ready(&fake, SIZE);
    fake.trigger(true);
    driver.submit(copy(1, DEVICE, HOST, SIZE));
    driver.submit(copy(2, DEVICE, HOST, SIZE));
    driver.submit(copy(3, DEVICE, HOST, GRANULARITY));
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while fake.threads_calling("cuEventQuery").is_empty() {
        assert!(std::time::Instant::now() < deadline, "the first chunks are under way");
        std::thread::yield_now();
    }
    for raw in [1, 2] {
        driver.submit(Submission::CancelCopy { copy: CopyId::from_raw(raw) });
    }
    fake.trigger(false);
    let mut reported = [copied(&completions), copied(&completions), copied(&completions)];
    reported.sort_by_key(|(copy, _)| *copy);
    assert_eq!(reported, [(1, Err(CopyError::Cancelled)), (2, Err(CopyError::Cancelled)), (3, Ok(()))]);
    // Others were begun to measure the links.
    let mut chunks = fake.threads_calling("cuMemcpyDtoHAsync_v2");
    chunks.retain(|by| by == "cuda-copy");
    assert!(chunks.len() < 10, "160 MiB are ten chunks, and {} were begun", chunks.len());
}

#[test]
fn an_extent_is_mapped_at_its_first_copy_and_for_life() {
    let fake = Fake::new().with("note = 1");
    let (driver, completions) = ready(&fake, GRANULARITY);
    for raw in 0..3 {
        driver.submit(copy(raw, DEVICE, HOST, GRANULARITY));
        assert_eq!(copied(&completions), (raw, Ok(())));
    }
    let by = |thread: &str| fake.threads_calling("cuMemMap").iter().filter(|by| *by == thread).count();
    assert_eq!((by("cuda-copy"), by("cuda-maker"), by("cuda-host")), (1, 0, 1));
}
