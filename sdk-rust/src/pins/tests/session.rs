//! Pins at the end of a session, and breaches of the protocol.

use std::thread;

use super::*;

#[test]
fn revoke_without_its_mark_is_a_breach() {
    let daemon = start();
    let target = part_ref(ID, 0);
    let allocation = evicted(&daemon, ID);
    daemon.tell_revoke(target, RevokeReason::Evicted);
    assert!(daemon.is_silent());
    send_parts(&daemon, ID, 0..1, 1, 6);
    assert_eq!(daemon.next(), mapped(target));
    daemon.tell_revoke(target, RevokeReason::Evicted);
    assert_eq!(daemon.next(), None, "the client hangs up");
    assert!(allocation.pin(Access::Read).is_ok(), "mapped memory stays usable");
}

#[test]
fn mapped_memory_stays_usable_after_the_channel_ends() {
    let daemon = start();
    let target = part_ref(ID, 0);
    let mut allocation = allocate(&daemon, ID, 1, 5);
    let away = evicted(&daemon, OTHER);
    allocation.unpin().unwrap();
    let pinned = allocation.pin(Access::Read).unwrap();
    daemon.revoke(target, RevokeReason::Evicted);
    assert!(daemon.is_silent());
    thread::scope(|scope| {
        let pinner = scope.spawn(|| away.pin(Access::Read));
        assert_eq!(daemon.next(), pin_call(1, &[part_ref(OTHER, 0)], false));
        let session = daemon.hang_up();
        assert_eq!(pinner.join().unwrap().unwrap_err().reason(), Some(Reason::BrokerGone));
        assert!(session.table().ending().is_some());
    });
    drop(pinned);
    assert_eq!(allocation.pin(Access::Write).unwrap().as_slice().unwrap()[0], 5);
    allocation.repin().unwrap();
    assert_eq!(allocation.as_slice().unwrap()[0], 5);
}

/// The reason is not read yet, and the daemon has closed the channel.
#[test]
fn pin_on_an_ended_channel_returns_the_reason_of_its_end() {
    let daemon = start();
    let away = evicted(&daemon, ID);
    let session = daemon.session.clone();
    // The worker cannot read meanwhile.
    let channel = session.link().lock_channel();
    daemon.send(ended_by_an_operator());
    drop(daemon.hang_up());
    // As a pin does once it has the lock.
    let id = AllocationId::from_raw(ID);
    let wanted = PinTarget { id, index: 0, slot: None, access: Access::Read };
    let PinStart::Call { call, frame } =
        session.table().begin_pin(&[wanted], soon(), Caller::Program).unwrap()
    else {
        panic!("it is not here")
    };
    channel.send_pin(frame).unwrap();
    drop(channel);
    let ended = Error::SessionLost { session: "s-3".to_owned(), said: Sentence::default() };
    assert_eq!(session.wait(Until::Pinned { call }, soon()).unwrap_err(), ended);
    assert_eq!(away.pin(Access::Read).map(drop).unwrap_err(), ended);
}
