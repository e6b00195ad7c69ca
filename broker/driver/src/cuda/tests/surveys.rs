//! Surveys conclude the right returns even if the figures are wrong.

use std::{
    thread,
    time::{Duration, Instant},
};

use super::{device::accounts::CONFIRM_AFTER, *};

/// Creates an extent of so many MiB.
fn made(driver: &CudaDriver, completions: &Receiver<Completion>, raw: u64, mib: u32) -> Export {
    let (extent, size) = (ExtentId::from_raw(raw), Bytes::mib(mib));
    driver.submit(Submission::Create { extent, device: FIRST, size, kind: ExtentKind::Movable });
    let Completion::Created { result: Ok(handle), .. } = next(completions) else { panic!("it is made") };
    handle
}

fn release(driver: &CudaDriver, completions: &Receiver<Completion>, raw: u64) {
    driver.submit(Submission::Release { extent: ExtentId::from_raw(raw) });
    assert!(matches!(next(completions), Completion::Released { .. }));
}

/// Unbrokered memory and contexts, and the extents reported as returned before the answer.
fn survey(
    driver: &CudaDriver,
    completions: &Receiver<Completion>,
    client: u32,
) -> (Bytes, u32, Vec<ExtentId>) {
    driver.submit(Submission::Survey { device: FIRST, clients: vec![client] });
    let mut returned = Vec::new();
    loop {
        match next(completions) {
            Completion::Surveyed { unbrokered, contexts, .. } => return (unbrokered, contexts, returned),
            Completion::Returned { extent } => returned.push(extent),
            other => panic!("not of a survey: {other:?}"),
        }
    }
}

/// The stale list repeats what it said before, except for this process, whose own extents have changed since.
#[test]
fn a_failed_process_list_changes_nothing() {
    const CONTEXT: u64 = 1;
    const HELD: u64 = 2;
    let fake = Fake::new().with("fail.nvmlDeviceGetComputeRunningProcesses_v3 = 999@triggered");
    let fake = fake.with("context_mib = 24");
    let (driver, completions) = opened(&fake);
    let driver = driver.unwrap();
    // Another process has two pieces of the device: one as large as a context, which stands for its context,
    // and an awaited extent.
    let (context, held) = (made(&driver, &completions, CONTEXT, 24), made(&driver, &completions, HELD, 2));
    let client = Holder::of([&context, &held]);
    drop((context, held));
    let others: Vec<Export> = (3..11).map(|raw| made(&driver, &completions, raw, 2)).collect();
    release(&driver, &completions, CONTEXT);
    release(&driver, &completions, HELD);
    let explained = (0..100).any(|_| {
        let (.., returned) = survey(&driver, &completions, client.pid());
        assert!(!returned.contains(&ExtentId::from_raw(HELD)), "the client has it");
        thread::sleep(CONFIRM_AFTER / 10);
        returned == [ExtentId::from_raw(CONTEXT)]
    });
    assert!(explained, "it is the client's context now");
    let before = (Bytes::ZERO, 1, Vec::new());
    assert_eq!(survey(&driver, &completions, client.pid()), before);
    drop(others);
    (3..11).for_each(|raw| release(&driver, &completions, raw));

    fake.trigger(true);
    for _ in 0..3 {
        assert_eq!(survey(&driver, &completions, client.pid()), before, "the list fails");
    }
    fake.trigger(false);
    assert_eq!(survey(&driver, &completions, client.pid()), before, "and does no more");
}

/// As page tables for host memory do, which come in pieces as large as the smallest extent.
#[test]
fn memory_that_the_driver_takes_during_a_release_hides_no_return() {
    let fake = Fake::new().with("context_mib = 24").with("tables_mib = 2");
    let (driver, completions) = opened(&fake);
    let driver = driver.unwrap();
    // A piece as large as a context stands for that of the client.
    let [context, gone, kept] =
        [(1, 24), (2, 2), (3, 2)].map(|(raw, mib)| made(&driver, &completions, raw, mib));
    let client = Holder::of([&context, &kept]);
    drop((context, gone, kept));
    let returned_within = |time: Duration| {
        let (end, mut all) = (Instant::now() + time, Vec::new());
        while Instant::now() < end {
            all.extend(survey(&driver, &completions, client.pid()).2);
            thread::sleep(CONFIRM_AFTER / 10);
        }
        all
    };
    release(&driver, &completions, 1);
    assert_eq!(returned_within(3 * CONFIRM_AFTER), [ExtentId::from_raw(1)], "it is the client's context now");

    fake.trigger(true);
    for raw in [2, 3] {
        driver.submit(Submission::Release { extent: ExtentId::from_raw(raw) });
        let released = next(&completions);
        assert!(
            matches!(released, Completion::Released { returned: false, .. }),
            "as much is used as before"
        );
    }
    assert_eq!(returned_within(3 * CONFIRM_AFTER), [ExtentId::from_raw(2)], "the client has the other");
}

/// One survey is requested, at the end of a process, and none after it.
#[test]
fn a_lasting_return_is_reported_without_another_request() {
    let (driver, completions) = opened(&Fake::new().with("context_mib = 24"));
    let driver = driver.unwrap();
    let handle = made(&driver, &completions, 1, 2);
    let holder = Holder::of([&handle, &handle]);
    drop(handle);
    release(&driver, &completions, 1);
    drop(holder);
    let requested = Instant::now();
    let survey = || driver.submit(Submission::Survey { device: FIRST, clients: Vec::new() });
    (0..3).for_each(|_| survey());
    let (mut surveyed, mut returned) = (0, false);
    while surveyed < 3 || !returned {
        match next(&completions) {
            Completion::Surveyed { unbrokered: Bytes::ZERO, .. } => surveyed += 1,
            // Before the last of these answers only if the surveys were that slow.
            Completion::Returned { extent } if extent == ExtentId::from_raw(1) && !returned => {
                assert!(requested.elapsed() >= CONFIRM_AFTER, "three surveys at one moment count as one");
                returned = true;
            }
            other => panic!("unexpected: {other:?}"),
        }
    }
    assert!(
        completions.recv_timeout(2 * CONFIRM_AFTER).is_err(),
        "the return is reported once, and no survey is answered twice"
    );
}
