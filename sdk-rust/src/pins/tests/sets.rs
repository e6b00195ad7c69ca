//! Pin sets: all parts or none.

use std::{thread, time::Duration};

use super::*;

#[test]
fn set_is_pinned_whole_or_not_at_all() {
    let daemon = start();
    let here = allocate(&daemon, OTHER, 2, 1);
    let away = evicted(&daemon, ID);
    let deadline = || Instant::now() + PATIENCE;
    let pin = || {
        let set: [(&dyn Pinnable, Access); 2] = [(&here, Access::Read), (&away, Access::Write)];
        pin_set(&set, |_| true, deadline)
    };
    let all = [part_ref(ID, 0), part_ref(OTHER, 0), part_ref(OTHER, 1)];
    let wanted = [all[1], all[2], all[0]];
    thread::scope(|scope| {
        let pinner = scope.spawn(pin);
        assert_eq!(daemon.next(), pin_call(1, &wanted, true));
        assert_eq!(state(&daemon, all[1]), State::Resident { pins: 1 }, "the handle pin");
        send_parts(&daemon, ID, 0..1, 1, 6);
        assert_eq!(daemon.next(), mapped(all[0]));
        assert_eq!(state(&daemon, all[0]), State::Resident { pins: 1 });
        assert!(daemon.is_silent(), "it waits for the answer");
        daemon.send(Frame::PinAnswer(PinAnswer { call_id: 1, refused: None }));
        assert_eq!(daemon.next(), ended(1));
        let pinned = pinner.join().unwrap().unwrap();
        assert_eq!(all.map(|part| state(&daemon, part)), [1, 2, 2].map(|pins| State::Resident { pins }));
        let names = pinned.guards().iter().map(|guard| guard.id().get()).collect::<Vec<_>>();
        assert_eq!(names, [OTHER, ID]);
    });
    assert_eq!(all.map(|part| state(&daemon, part)), [0, 1, 1].map(|pins| State::Resident { pins }));
    assert_eq!(pin().unwrap().guards().len(), 2, "all parts are mapped, and no call is made");

    let twice: [(&dyn Pinnable, Access); 2] = [(&here, Access::Read), (&here, Access::Read)];
    let error = pin_set(&twice, |_| true, deadline).unwrap_err();
    assert_eq!(
        (error.reason(), &*error.facts()["problem"]),
        (Some(Reason::RequestInvalid), "a-8 is named twice")
    );
    assert_eq!(pin_set(&twice, |_| false, deadline).unwrap_err().reason(), Some(Reason::RequestInvalid));
    assert_eq!(pin_set(&[], |_| true, deadline).unwrap().guards().len(), 0);
}

#[test]
fn refusal_returns_its_reason_and_leaves_no_pin() {
    let daemon = start();
    let mut allocation = allocate(&daemon, ID, 2, 1);
    allocation.unpin().unwrap();
    evict(&daemon, part_ref(ID, 0));
    evict(&daemon, part_ref(ID, 1));
    let refused = v1::Refused {
        code: Reason::Raced.code() as i32,
        reason: Reason::Raced.name().to_owned(),
        message: "changed meanwhile".to_owned(),
        metadata: [("allocation".to_owned(), "a-7".to_owned())].into(),
    };
    thread::scope(|scope| {
        let pinner = scope.spawn(|| allocation.pin(Access::Read));
        assert_eq!(daemon.next(), pin_call(1, &[part_ref(ID, 0), part_ref(ID, 1)], false));
        send_parts(&daemon, ID, 0..1, 2, 6);
        assert_eq!(daemon.next(), mapped(part_ref(ID, 0)));
        assert_eq!(state(&daemon, part_ref(ID, 0)), State::Resident { pins: 1 });
        daemon.send(Frame::PinAnswer(PinAnswer { call_id: 1, refused: Some(refused) }));
        assert_eq!(pinner.join().unwrap().unwrap_err().reason(), Some(Reason::Raced));
    });
    assert!(daemon.is_silent(), "the daemon knows that a refused call has ended");
    assert_eq!(state(&daemon, part_ref(ID, 0)), State::Resident { pins: 0 });
    daemon.send(Frame::PinAnswer(PinAnswer { call_id: 2, refused: None }));
    assert_eq!(daemon.next(), None, "an answer to a call that was never made");
}

#[test]
fn timed_out_call_leaves_no_pin() {
    let daemon = Pinning::start(Gpus::new(&[]), Duration::from_secs(2));
    let mut allocation = allocate(&daemon, ID, 2, 1);
    allocation.unpin().unwrap();
    evict(&daemon, part_ref(ID, 0));
    evict(&daemon, part_ref(ID, 1));
    thread::scope(|scope| {
        let pinner = scope.spawn(|| allocation.pin(Access::Read));
        assert_eq!(daemon.next(), pin_call(1, &[part_ref(ID, 0), part_ref(ID, 1)], false));
        send_parts(&daemon, ID, 0..1, 2, 6);
        assert_eq!(daemon.next(), mapped(part_ref(ID, 0)));
        assert_eq!(pinner.join().unwrap().unwrap_err(), Error::deadline());
    });
    assert_eq!(daemon.next(), ended(1));
    assert_eq!(state(&daemon, part_ref(ID, 0)), State::Resident { pins: 0 });
    send_parts(&daemon, ID, 1..2, 2, 6);
    assert_eq!(daemon.next(), mapped(part_ref(ID, 1)));
    assert_eq!(state(&daemon, part_ref(ID, 1)), State::Resident { pins: 0 }, "no call waits any more");
}
