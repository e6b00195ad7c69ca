//! Pin calls that fail, time out or are abandoned.

use std::{thread, time::Duration};

use super::*;

#[test]
fn late_part_has_no_pin_of_a_call_that_timed_out() {
    let daemon = Pinning::start(Gpus::new(&[]), Duration::from_millis(50));
    let allocation = unpinned(&daemon, ID, 1);
    let target = part_ref(ID, 0);
    assert!(matches!(allocation.pin(Access::Read), Err(Error::Deadline { .. })));
    assert_eq!((daemon.next(), daemon.next()), (pin_call(1, &[target], false), ended(1)));
    send_parts(&daemon, ID, 0..1, 1, 5);
    assert_eq!(daemon.next(), mapped(target));
    assert_eq!(state(&daemon, target), State::Resident { pins: 0 });
}

#[test]
fn pin_returns_wait_cancelled_after_an_operator_cancels() {
    let daemon = start();
    let allocation = unpinned(&daemon, ID, 1);
    let target = part_ref(ID, 0);
    let refused = v1::Refused {
        code: 10,
        reason: "WAIT_CANCELLED".to_owned(),
        metadata: [("wait".to_owned(), "9".to_owned())].into(),
        ..Default::default()
    };
    thread::scope(|scope| {
        let pinner = scope.spawn(|| allocation.pin(Access::Read));
        assert_eq!(daemon.next(), pin_call(1, &[target], false));
        daemon.send(Frame::PinAnswer(PinAnswer { call_id: 1, refused: Some(refused) }));
        assert!(matches!(pinner.join().unwrap(), Err(Error::WaitCancelled { wait: 9, .. })));
    });
}

#[test]
fn pin_returns_map_failure_and_the_next_pin_succeeds() {
    let daemon = start();
    let target = part_ref(ID, 0);
    let allocation = evicted(&daemon, ID);
    thread::scope(|scope| {
        let pinner = scope.spawn(|| allocation.pin(Access::Read));
        assert_eq!(daemon.next(), pin_call(1, &[target], false));
        daemon.map(vec![part(ID, 0, 1, MapAccess::ReadWrite)], &[]);
        let Some(Sent::Unmapped(failed)) = daemon.next() else { panic!("it was not mapped") };
        assert_eq!(failed.parts[0].reason(), v1::UnmapReason::MapFailed);
        let facts = [("allocation", "a-7"), ("problem", failed.parts[0].detail.as_str())];
        let metadata = facts.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let refused =
            v1::Refused { code: 9, reason: "MAP_FAILED".to_owned(), metadata, ..Default::default() };
        daemon.send(Frame::PinAnswer(PinAnswer { call_id: 1, refused: Some(refused) }));
        let problem = "0 descriptors arrived for 1 parts".to_owned();
        let expected = Error::MapFailed { allocation: "a-7".to_owned(), problem, said: Sentence::default() };
        assert_eq!(pinner.join().unwrap().unwrap_err(), expected);
    });
    let id = AllocationId::from_raw(ID);
    let has_arrived = daemon.session.table().check(arrived(id, 1, MapAccess::ReadWrite));
    assert_eq!(has_arrived, Ok(false), "the failure is reported once");

    thread::scope(|scope| {
        let pinner = scope.spawn(|| allocation.pin(Access::Read));
        assert_eq!(daemon.next(), pin_call(2, &[target], false));
        send_parts(&daemon, ID, 0..1, 1, 6);
        assert_eq!((daemon.next(), daemon.next()), (mapped(target), ended(2)));
        assert_eq!(pinner.join().unwrap().unwrap().as_slice().unwrap()[0], 6);
    });
}

#[test]
fn parts_of_an_abandoned_allocation_lose_their_handle_pin() {
    let daemon = start();
    let target = part_ref(ID, 0);
    let expected = daemon.session.table().expect_arrivals().unwrap();
    send_parts(&daemon, ID, 0..1, 1, 4);
    assert_eq!(daemon.next(), mapped(target));
    assert_eq!(state(&daemon, target), State::Resident { pins: 1 });
    drop(expected);
    assert_eq!(state(&daemon, target), State::Resident { pins: 0 });
    evict(&daemon, target);
    // Requested again, perhaps with the same request id.
    thread::scope(|scope| {
        let claimer = scope.spawn(|| {
            let mut handle = Handle::claim(&daemon.session, info(ID, 1), ReleaseKind::Free)?;
            run_ready(handle.wait_arrived(CallStyle::Blocking, Instant::now() + PATIENCE))
                .map(|()| Allocation::new(handle))
        });
        assert_eq!(daemon.next(), pin_call(1, &[target], true));
        send_parts(&daemon, ID, 0..1, 1, 4);
        assert_eq!((daemon.next(), daemon.next()), (mapped(target), ended(1)));
        assert_eq!(claimer.join().unwrap().unwrap().as_slice().unwrap()[0], 4);
    });
}
