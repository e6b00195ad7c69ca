//! Handle pins: taken and given up, and memory requested as unpinned.

use std::thread;

use super::*;

#[test]
fn handle_pin_keeps_parts_mapped_until_unpin() {
    let daemon = start();
    let target = part_ref(ID, 0);
    let mut allocation = allocate(&daemon, ID, 1, 5);
    assert_eq!((state(&daemon, target), allocation.has_handle_pin()), (State::Resident { pins: 1 }, true));
    daemon.revoke(target, RevokeReason::Evicted);
    assert!(daemon.is_silent());
    assert_eq!(allocation.as_slice().unwrap()[0], 5);

    allocation.unpin().unwrap();
    assert_eq!(daemon.next(), unmapped(target, true));
    assert_eq!((state(&daemon, target), allocation.is_mapped()), (State::Absent, false));
    assert!(matches!(allocation.as_slice(), Err(Error::NotPinned { .. })));

    thread::scope(|scope| {
        let holder = scope.spawn(|| allocation.repin());
        assert_eq!(daemon.next(), pin_call(1, &[target], true));
        send_parts(&daemon, ID, 0..1, 1, 6);
        assert_eq!((daemon.next(), daemon.next()), (mapped(target), ended(1)));
        holder.join().unwrap().unwrap();
    });
    assert_eq!((state(&daemon, target), allocation.as_slice().unwrap()[0]), (State::Resident { pins: 1 }, 6));
}

#[test]
fn unpinned_parts_arrive_with_their_pin() {
    let daemon = start();
    let allocation = unpinned(&daemon, ID, 3);
    assert!(daemon.is_silent());
    assert_eq!(
        (allocation.has_handle_pin(), allocation.is_mapped(), allocation.as_device_ptr()),
        (false, false, 0)
    );
    assert!(matches!(allocation.as_slice(), Err(Error::NotPinned { .. })));
    let (first, last) = (part_ref(ID, 0), part_ref(ID, 2));
    let pinned = thread::scope(|scope| {
        let pinner = scope.spawn(|| allocation.pin_parts(2..3, Access::Write));
        assert_eq!(daemon.next(), pin_call(1, &[last], true));
        send_parts(&daemon, ID, 2..3, 3, 6);
        assert_eq!((daemon.next(), daemon.next()), (mapped(last), ended(1)));
        pinner.join().unwrap().unwrap()
    });
    assert_eq!(state(&daemon, last), State::Resident { pins: 1 });
    assert_eq!(pinned.as_device_ptr(), allocation.as_device_ptr() + 2 * PART);
    assert!(allocation.as_device_ptr() != 0 && !allocation.is_mapped());
    assert_eq!((pinned.as_slice().unwrap()[0], pinned.len_bytes()), (6, PART));
    drop(pinned);
    assert_eq!(state(&daemon, last), State::Resident { pins: 0 });
    drop(allocation.pin_parts(2..3, Access::Read).unwrap());
    assert!(daemon.is_silent(), "it is mapped, and its slot is known");
    // The daemon may evict an unpinned part.
    evict(&daemon, last);
    // A set of this part and of parts that never arrived.
    thread::scope(|scope| {
        let pinner = scope.spawn(|| allocation.pin(Access::Read));
        let all = [first, part_ref(ID, 1), last];
        assert_eq!(daemon.next(), pin_call(2, &all, false));
        send_parts(&daemon, ID, 0..3, 3, 7);
        assert_eq!(daemon.next(), Some(Sent::Mapped(Mapped { parts: all.to_vec() })));
        assert_eq!(daemon.next(), ended(2));
        let pinned = pinner.join().unwrap().unwrap();
        assert!(all.iter().all(|part| state(&daemon, *part) == State::Resident { pins: 1 }));
        assert_eq!(pinned.as_slice().unwrap().last(), Some(&7));
    });
    assert_eq!(state(&daemon, first), State::Resident { pins: 0 });
}

#[test]
fn unpinned_handle_has_pins_after_repin() {
    let daemon = start();
    let mut allocation = unpinned(&daemon, ID, 2);
    let all = [part_ref(ID, 0), part_ref(ID, 1)];
    thread::scope(|scope| {
        let holder = scope.spawn(|| allocation.repin());
        assert_eq!(daemon.next(), pin_call(1, &all, true));
        send_parts(&daemon, ID, 0..2, 2, 6);
        assert_eq!(daemon.next(), Some(Sent::Mapped(Mapped { parts: all.to_vec() })));
        assert_eq!(daemon.next(), ended(1));
        holder.join().unwrap().unwrap();
    });
    assert!(all.iter().all(|part| state(&daemon, *part) == State::Resident { pins: 1 }));
    assert!(daemon.word(all[0]).is_written().unwrap(), "a handle pin counts as writing");
    allocation.as_mut_slice().unwrap()[0] = 1;
    drop(allocation.pin_ref(0..2, Access::Write).unwrap());
    assert!(daemon.is_silent());
}

#[test]
fn part_that_arrives_unrequested_can_be_evicted() {
    let daemon = start();
    let mut allocation = unpinned(&daemon, ID, 1);
    let target = part_ref(ID, 0);
    send_parts(&daemon, ID, 0..1, 1, 5);
    assert_eq!(daemon.next(), mapped(target));
    assert_eq!(state(&daemon, target), State::Resident { pins: 0 });
    // The handle does not know the slot yet, and the daemon has nothing to send.
    thread::scope(|scope| {
        let pinner = scope.spawn(|| allocation.pin(Access::Read));
        assert_eq!(daemon.next(), pin_call(1, &[target], false));
        daemon.send(Frame::PinAnswer(PinAnswer { call_id: 1, refused: None }));
        assert_eq!(daemon.next(), ended(1));
        drop(pinner.join().unwrap().unwrap());
    });
    assert_eq!(state(&daemon, target), State::Resident { pins: 0 });
    allocation.copy_from_host(3, &[9]).unwrap();
    let mut read = [0; 2];
    allocation.copy_to_host(2, &mut read).unwrap();
    assert_eq!(read, [5, 9]);
    assert!(daemon.is_silent());
    evict(&daemon, target);
}

#[test]
fn copy_fetches_evicted_parts() {
    let daemon = start();
    let target = part_ref(ID, 0);
    let allocation = evicted(&daemon, ID);
    thread::scope(|scope| {
        let copier = scope.spawn(|| {
            let mut bytes = [0; 3];
            allocation.copy_to_host(1, &mut bytes).map(|()| bytes)
        });
        assert_eq!(daemon.next(), pin_call(1, &[target], false));
        send_parts(&daemon, ID, 0..1, 1, 9);
        assert_eq!((daemon.next(), daemon.next()), (mapped(target), ended(1)));
        assert_eq!(copier.join().unwrap(), Ok([9; 3]));
    });
    assert_eq!(state(&daemon, target), State::Resident { pins: 0 });
}
