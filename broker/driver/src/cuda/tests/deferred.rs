//! Releases while bytes arrive: deferred, but not forever.

use std::{sync::mpsc::RecvTimeoutError, time::Instant};

use vramd_types::{CopyId, HostNode};

use super::*;
use crate::{CopyClass, RELEASE_WITHIN};

const ARRIVES: ExtentId = ExtentId::from_raw(1);
const FROM: ExtentId = ExtentId::from_raw(2);
const GOES: ExtentId = ExtentId::from_raw(3);

/// Bytes are on their way into one extent while the trigger is on; another extent is released.
fn ready(fake: &Fake) -> (CudaDriver, Receiver<Completion>) {
    let (driver, completions) = opened(fake);
    let driver = driver.unwrap();
    for extent in [ARRIVES, GOES] {
        let kind = ExtentKind::Movable;
        driver.submit(Submission::Create { extent, device: FIRST, size: GRANULARITY, kind });
        assert!(matches!(next(&completions), Completion::Created { result: Ok(_), .. }));
    }
    driver.submit(Submission::CreateHost {
        extent: FROM,
        node: HostNode(0),
        size: GRANULARITY,
        zeroed: true,
    });
    assert!(matches!(next(&completions), Completion::Created { result: Ok(_), .. }));
    fake.trigger(true);
    let copy = CopyId::from_raw(1);
    driver.submit(Submission::Copy {
        copy,
        from: FROM,
        to: ARRIVES,
        size: GRANULARITY,
        class: CopyClass::Demand,
    });
    driver.submit(Submission::Release { extent: GOES });
    (driver, completions)
}

fn fake() -> Fake {
    Fake::new().with("hang.cuEventQuery = 1")
}

fn is_released(completion: &Completion) -> bool {
    matches!(completion, Completion::Released { extent, returned: true } if *extent == GOES)
}

#[test]
fn a_deferred_release_ends_once_its_room_is_needed() {
    let fake = fake();
    let (driver, completions) = ready(&fake);
    let early = completions.recv_timeout(RELEASE_WITHIN / 10);
    assert!(matches!(early, Err(RecvTimeoutError::Timeout)), "{early:?}");
    driver.submit(Submission::ReleaseNow { device: FIRST });
    assert!(is_released(&next(&completions)));
    fake.trigger(false);
    assert!(matches!(next(&completions), Completion::Copied { result: Ok(()), .. }));
}

#[test]
fn a_deferred_release_ends_once_nothing_arrives() {
    let fake = fake();
    let (_driver, completions) = ready(&fake);
    fake.trigger(false);
    let both = [next(&completions), next(&completions)];
    assert!(matches!(both[0], Completion::Copied { result: Ok(()), .. }), "{both:?}");
    assert!(is_released(&both[1]), "{both:?}");
}

#[test]
fn a_deferred_release_ends_at_its_time_limit() {
    let fake = fake();
    let begun = Instant::now();
    let (_driver, completions) = ready(&fake);
    assert!(is_released(&next(&completions)));
    assert!(begun.elapsed() >= RELEASE_WITHIN);
    fake.trigger(false);
    assert!(matches!(next(&completions), Completion::Copied { result: Ok(()), .. }));
}

#[test]
fn deferred_releases_are_done_when_the_driver_ends() {
    let fake = fake();
    let (driver, completions) = ready(&fake);
    let ends = std::thread::spawn(move || drop(driver));
    assert!(is_released(&next(&completions)));
    fake.trigger(false);
    ends.join().unwrap();
}
