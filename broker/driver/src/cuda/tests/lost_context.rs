//! Work whose end is unknown. Its resources stay allocated as long as the device may use them, perhaps forever.
//! No thread waits for them, or the driver could not end.

use std::sync::mpsc::RecvTimeoutError;

use vramd_types::{CopyId, HostNode};

use super::*;
use crate::{CopyClass, CopyError};

/// A digest of a fixed extent fails in the middle; then the extent is released and the driver ends.
fn ends(code: u32) -> Vec<Completion> {
    let fake = Fake::new().with(&format!("fail.cuEventRecord = {code}@triggered"));
    let (driver, completions) = opened(&fake);
    let driver = driver.unwrap();
    driver.submit(create(1, ExtentKind::Fixed));
    assert!(matches!(next(&completions), Completion::Created { result: Ok(_), .. }));
    fake.trigger(true);
    let extent = ExtentId::from_raw(1);
    driver.submit(Submission::Digest { ticket: 1, spans: vec![(extent, GRANULARITY)] });
    let mut reported = vec![next(&completions)];
    driver.submit(Submission::Release { extent });
    reported.extend(ended(driver, completions));
    reported
}

/// The completions until the driver has ended, which takes no time.
fn ended(driver: CudaDriver, completions: Receiver<Completion>) -> Vec<Completion> {
    let (over, is_over) = channel();
    std::thread::spawn(move || {
        drop(driver);
        over.send(()).unwrap();
    });
    let ended = is_over.recv_timeout(Duration::from_secs(20));
    assert_ne!(ended, Err(RecvTimeoutError::Timeout), "the driver hangs");
    completions.iter().collect()
}

#[test]
fn a_driver_ends_after_its_context_is_lost_in_a_digest() {
    let reported = ends(719);
    assert!(
        matches!(&*reported, [Completion::Lost { problem }] if problem.contains("(719)")),
        "{reported:?}"
    );
}

#[test]
fn a_driver_ends_though_an_event_could_not_be_recorded() {
    let reported = ends(54_321);
    assert!(
        matches!(
            &*reported,
            [Completion::Digested { result: Err(_), .. }, Completion::Released { returned: true, .. }]
        ),
        "{reported:?}"
    );
}

/// Neither device memory nor host memory is unmapped, reused or freed: the copy may still be in flight.
#[test]
fn memory_of_a_copy_with_unknown_end_is_never_reused() {
    for kind in [ExtentKind::Movable, ExtentKind::Fixed] {
        let fake = Fake::new().with("fail.cuEventQuery = 54321@triggered").with("note = 1");
        let (driver, completions) = opened(&fake);
        let driver = driver.unwrap();
        let [device, host] = [1, 2].map(ExtentId::from_raw);
        driver.submit(create(1, kind));
        assert!(matches!(next(&completions), Completion::Created { result: Ok(_), .. }));
        let made =
            Submission::CreateHost { extent: host, node: HostNode(0), size: GRANULARITY, zeroed: true };
        driver.submit(made);
        assert!(matches!(next(&completions), Completion::Created { result: Ok(_), .. }));
        fake.trigger(true);
        let (copy, class) = (CopyId::from_raw(1), CopyClass::Demand);
        driver.submit(Submission::Copy { copy, from: device, to: host, size: GRANULARITY, class });
        let reported = next(&completions);
        let Completion::Copied { result: Err(CopyError::Driver(_)), .. } = reported else {
            panic!("{reported:?}")
        };
        let given_up = || ["cuMemUnmap", "cuMemFree_v2"].map(|call| fake.threads_calling(call).len());
        let before = given_up();
        for extent in [device, host] {
            driver.submit(Submission::Release { extent });
            let reported = next(&completions);
            let Completion::Released { extent: of, returned: false } = reported else {
                panic!("{reported:?}")
            };
            assert_eq!(of, extent);
        }
        let reported = ended(driver, completions);
        assert!(reported.is_empty() && given_up() == before, "{kind:?}: {reported:?}, {:?}", given_up());
    }
}

/// A caller that waits for the work of that thread would wait forever.
#[test]
fn a_panicking_thread_is_reported() {
    let probed = probe(config(&Fake::new())).unwrap();
    let uuids: Vec<String> = probed.found().iter().map(|found| found.info.uuid.clone()).collect();
    let (sink, completions) = channel();
    let sink = move |completion| {
        assert!(!matches!(completion, Completion::Created { .. }), "this panic is part of the test");
        drop(sink.send(completion));
    };
    let driver = open(probed, &uuids, Arc::new(sink)).unwrap();
    driver.submit(create(1, ExtentKind::Movable));
    let mut reported = std::iter::from_fn(|| completions.recv_timeout(Duration::from_secs(20)).ok());
    let lost = reported.find(|it| matches!(it, Completion::Lost { .. }));
    let Some(Completion::Lost { problem }) = lost else { panic!("no problem is reported") };
    assert_eq!(problem, "the driver's thread cuda-maker has panicked");
    ended(driver, completions);
}
