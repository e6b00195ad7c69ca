//! Guards: how long they keep memory, and the slices that they lend.

use std::{thread, time::Duration};

use super::*;

#[test]
fn last_guard_completes_an_eviction() {
    let daemon = start();
    let target = part_ref(ID, 0);
    let mut allocation = allocate(&daemon, ID, 1, 5);
    allocation.unpin().unwrap();
    let one = allocation.pin(Access::Read).unwrap();
    let two = allocation.pin(Access::Write).unwrap();
    assert_eq!(state(&daemon, target), State::Resident { pins: 2 });
    daemon.revoke(target, RevokeReason::Evicted);
    // While one guard lasts, more may join.
    let three = allocation.pin(Access::Read).unwrap();
    drop(one);
    drop(two);
    assert!(daemon.is_silent());
    assert_eq!(three.as_slice().unwrap().len() as u64, PART);
    drop(three);
    assert_eq!(daemon.next(), unmapped(target, true));

    thread::scope(|scope| {
        let pinner = scope.spawn(|| allocation.pin(Access::Read));
        assert_eq!(daemon.next(), pin_call(1, &[target], false));
        send_parts(&daemon, ID, 0..1, 1, 6);
        assert_eq!((daemon.next(), daemon.next()), (mapped(target), ended(1)));
        let pinned = pinner.join().unwrap().unwrap();
        assert_eq!((pinned.as_slice().unwrap()[0], pinned.as_device_ptr()), (6, allocation.as_device_ptr()));
        assert_eq!(state(&daemon, target), State::Resident { pins: 1 });
    });
    daemon.send(Frame::PinAnswer(PinAnswer { call_id: 1, refused: None }));
    daemon.revoke(target, RevokeReason::Evicted);
    assert_eq!(daemon.next(), unmapped(target, true), "a late answer changes nothing, and WRITTEN stays");
}

#[test]
fn free_by_an_operator_ends_handle_pin_and_waits_for_guards() {
    let daemon = start();
    let target = part_ref(ID, 0);
    let allocation = allocate(&daemon, ID, 1, 5);
    let pinned = allocation.pin(Access::Read).unwrap();
    daemon.revoke(target, RevokeReason::Evicted);
    // The frame with the new reason is answered by the same unmap.
    daemon.tell_revoke(target, RevokeReason::Freed);
    let deadline = Instant::now() + PATIENCE;
    while allocation.as_slice().is_ok() {
        assert!(Instant::now() < deadline, "the handle pin ends");
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(pinned.as_slice().unwrap()[0], 5);
    drop(pinned);
    assert_eq!(daemon.next(), unmapped(target, true));
    assert!(daemon.is_silent());
    assert!(matches!(allocation.as_slice(), Err(Error::NotMapped { .. })));
}

#[test]
fn guards_forbid_release_and_may_outlive_the_handle() {
    let daemon = start();
    let target = part_ref(ID, 0);
    let allocation = allocate(&daemon, ID, 1, 5);
    let (one, two) = (allocation.pin(Access::Read).unwrap(), allocation.pin(Access::Read).unwrap());
    let failed = allocation.seal().unwrap_err();
    assert_eq!(
        failed.error,
        Error::Pinned { allocation: "a-7".to_owned(), pins: 2, said: Sentence::default() }
    );
    let allocation = failed.allocation;
    assert_eq!(allocation.as_slice().unwrap()[0], 5, "nothing is lost");
    drop(one);
    let failed = allocation.free().unwrap_err();
    assert_eq!(
        failed.error,
        Error::Pinned { allocation: "a-7".to_owned(), pins: 1, said: Sentence::default() }
    );
    let failed = run_ready(failed.handle.free_async()).unwrap_err();
    assert_eq!(
        failed.to_string(),
        "releasing a-7: a-7 is in use: 1 pins of this process are left, which must end first"
    );
    assert_eq!(failed.handle.as_slice().unwrap()[0], 5, "nothing is lost here either");
    drop(failed);
    // The handle is gone; its guard still pins.
    assert!(daemon.session.releases().flush(Instant::now() + PATIENCE).unwrap());
    assert!(daemon.is_silent());
    assert_eq!((two.as_slice().unwrap()[0], two.len_bytes()), (5, PART));
    drop(two);
    assert_eq!(daemon.next(), unmapped(target, true));
}

#[test]
fn slice_to_write_excludes_other_slices() {
    let daemon = start();
    let mut allocation = allocate(&daemon, ID, 2, 5);
    allocation.as_mut_slice().unwrap()[0] = 1;
    let mut one = allocation.pin_parts(0..1, Access::Write).unwrap();
    let mut two = allocation.pin_parts(1..2, Access::Write).unwrap();
    assert!(matches!(one.as_mut_slice(), Err(Error::Pinned { .. })), "the handle may be read");
    allocation.unpin().unwrap();
    one.as_mut_slice().unwrap()[1] = 2;
    two.as_mut_slice().unwrap()[0] = 3;
    allocation.repin().unwrap();
    assert!(matches!(allocation.as_slice(), Err(Error::Pinned { .. })));
    assert!(matches!(allocation.copy_to_host(0, &mut [0]), Err(Error::Pinned { .. })));
    let mut whole = allocation.pin(Access::Read).unwrap();
    assert!(matches!(whole.as_slice(), Err(Error::Pinned { pins: 3, .. })));
    assert!(matches!(whole.as_mut_slice(), Err(Error::NotMapped { .. })), "a pin to read");
    drop((one, two));
    assert_eq!(whole.as_slice().unwrap()[..3], [1, 2, 5]);
    drop(whole);
    assert_eq!(allocation.as_slice().unwrap()[usize::try_from(PART).unwrap()], 3);
}

#[test]
fn invalid_pins_are_refused() {
    let daemon = start();
    let allocation = allocate(&daemon, ID, 2, 5);
    for parts in [2..3, 0..3, 1..1] {
        let error = allocation.pin_parts(parts, Access::Read).unwrap_err();
        assert_eq!(error.reason(), Some(Reason::RequestInvalid), "{error}");
    }
    let no_streams = allocation.pin(Access::Read).unwrap().unpin_after(&[0]).unwrap_err();
    assert_eq!(no_streams.error.reason(), Some(Reason::StreamsUnsupported));
    assert_eq!(state(&daemon, part_ref(ID, 0)), State::Resident { pins: 2 }, "the guard came back");

    let sealed = AllocationInfo { state: AllocationState::Sealed, ..info(OTHER, 1) };
    let handle = Handle::claim(&daemon.session, sealed, ReleaseKind::Detach).unwrap();
    let error = Sealed::new(handle).pin(Access::Write).unwrap_err();
    assert_eq!(error.reason(), Some(Reason::AlreadySealed));
}
