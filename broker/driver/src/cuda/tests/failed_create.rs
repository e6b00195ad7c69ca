//! Extents whose creation fails halfway: which thread frees them, and what surveys conclude meanwhile.

use super::{device::accounts::CONFIRM_AFTER, *};

/// Two fixed extents fail, with a movable one between them, while `cuMemFree` hangs: the maker answers all the
/// same.
fn are_freed_apart(fake: Fake, problem: &str) {
    let fake = fake.with("note = 1").with("hang.cuMemFree_v2 = 1");
    let (driver, completions) = opened(&fake);
    let driver = driver.unwrap();
    fake.trigger(true);
    driver.submit(create(1, ExtentKind::Fixed));
    driver.submit(create(2, ExtentKind::Movable));
    driver.submit(create(3, ExtentKind::Fixed));
    for raw in 1..=3 {
        let Completion::Created { extent, result } = next(&completions) else { panic!("only creations") };
        assert_eq!(extent, ExtentId::from_raw(raw), "a device has one maker");
        match result {
            Ok(handle) => assert!(handle.fd().is_some(), "only the movable one is made"),
            Err(error) => assert!(error.to_string().contains(problem), "{error}"),
        }
    }
    fake.trigger(false);
    drop(driver);
    let freed = fake.threads_calling("cuMemFree_v2");
    assert_eq!(freed.iter().filter(|by| *by == "cuda-freer").count(), 2, "{freed:?}");
    assert!(!freed.contains(&"cuda-maker".to_owned()), "{freed:?}");
}

#[test]
fn a_block_cut_from_a_larger_one_is_refused_and_freed() {
    are_freed_apart(Fake::new().with("cut = 1"), "cut the block from a larger one");
}

#[test]
fn a_block_without_a_handle_is_freed_by_another_thread() {
    are_freed_apart(Fake::new().with("fail.cuIpcGetMemHandle = 801@triggered"), "cuIpcGetMemHandle");
}

#[test]
fn a_block_that_cannot_be_zeroed_is_freed_by_another_thread() {
    let fake = Fake::new().with("fail.cuMemsetD8Async = 54321@triggered");
    std::fs::write(fake.params(), "RegistryDwords: \"RMDisableScrubOnFree=1\"\n").unwrap();
    are_freed_apart(fake, "cuMemsetD8Async");
}

/// No part of it could return, and no completion would report it.
#[test]
fn a_failed_create_can_be_released_before_it_is_freed() {
    let fake = Fake::new().with("cut = 1").with("hang.cuMemFree_v2 = 1");
    let (driver, completions) = opened(&fake);
    let driver = driver.unwrap();
    fake.trigger(true);
    for raw in 1..=2 {
        driver.submit(create(raw, ExtentKind::Fixed));
        assert!(matches!(next(&completions), Completion::Created { result: Err(_), .. }));
    }
    // The freer is busy with the first.
    driver.submit(Submission::Release { extent: ExtentId::from_raw(2) });
    let reported = next(&completions);
    assert!(matches!(reported, Completion::Released { returned: true, .. }), "{reported:?}");
    fake.trigger(false);
}

/// While a failed extent is being freed, its bytes disappear. That is no extent's return.
#[test]
fn freeing_a_failed_create_is_not_taken_for_another_return() {
    let fake = Fake::new().with("lists = 0").with("context_mib = 32").with("hang.cuMemRelease = 1");
    let fake = fake.with("fail.cuMemExportToShareableHandle = 304@triggered");
    let (driver, completions) = opened(&fake);
    let driver = driver.unwrap();
    driver.submit(create(1, ExtentKind::Movable));
    let Completion::Created { result: Ok(handle), .. } = next(&completions) else { panic!("it is made") };
    let holder = Holder::of([&handle, &handle]);
    drop(handle);
    driver.submit(Submission::Release { extent: ExtentId::from_raw(1) });
    assert!(matches!(next(&completions), Completion::Released { returned: false, .. }), "it is held");
    let survey = || driver.submit(Submission::Survey { device: FIRST, clients: Vec::new() });
    survey();
    assert!(matches!(next(&completions), Completion::Surveyed { .. }));

    fake.trigger(true);
    driver.submit(create(2, ExtentKind::Movable));
    // For longer than a return must last to be reported.
    for _ in 0..20 {
        survey();
        std::thread::sleep(CONFIRM_AFTER / 5);
    }
    let mut unanswered = 20;
    while unanswered > 0 {
        match next(&completions) {
            Completion::Surveyed { .. } => unanswered -= 1,
            Completion::Created { result: Err(_), .. } => {}
            other => panic!("nothing has come back: {other:?}"),
        }
    }
    fake.trigger(false);
    drop(holder);
    let returned = (0..100).any(|_| {
        survey();
        std::thread::sleep(Duration::from_millis(20));
        matches!(next(&completions), Completion::Returned { .. })
    });
    assert!(returned, "now it has");
}
