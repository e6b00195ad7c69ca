//! Work whose end can't be seen: what it uses is given up all the same, or nobody could end the driver.

use std::sync::mpsc::RecvTimeoutError;

use super::*;

/// A digest of a fixed extent fails in the middle; then the extent is released and the driver ends.
fn ends(code: u32) -> Vec<Completion> {
    let fake = Fake::new().says(&format!("fail.cuEventRecord = {code}@told"));
    let (driver, completions) = opened(&fake);
    let driver = driver.unwrap();
    driver.submit(create(1, ExtentKind::Fixed));
    assert!(matches!(next(&completions), Completion::Created { result: Ok(_), .. }));
    fake.tell(true);
    let extent = ExtentId::from_raw(1);
    driver.submit(Submission::Digest { ticket: 1, spans: vec![(extent, GRANULARITY)] });
    let mut told = vec![next(&completions)];
    driver.submit(Submission::Release { extent });
    let (over, is_over) = channel();
    std::thread::spawn(move || {
        drop(driver);
        over.send(()).unwrap();
    });
    let ended = is_over.recv_timeout(Duration::from_secs(20));
    assert_ne!(ended, Err(RecvTimeoutError::Timeout), "the driver hangs");
    told.extend(completions);
    told
}

#[test]
fn a_driver_whose_context_is_poisoned_in_the_middle_of_a_digest_ends() {
    let told = ends(719);
    assert!(matches!(&*told, [Completion::Lost { problem }] if problem.contains("(719)")), "{told:?}");
}

#[test]
fn a_driver_that_could_not_mark_the_end_of_a_copy_ends() {
    let told = ends(54_321);
    assert!(
        matches!(
            &*told,
            [Completion::Digested { result: Err(_), .. }, Completion::Released { returned: true, .. }]
        ),
        "{told:?}"
    );
}
