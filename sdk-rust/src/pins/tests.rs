//! Pins of a whole session against a daemon that a test plays, frame by frame.

use std::{
    sync::atomic::Ordering,
    thread,
    time::{Duration, Instant},
};

use vramd_proto::v1::{
    self, Access as MapAccess, Mapped, PartRef, PinAnswer, PinEnded, RevokeReason, UnmappedPart,
    client_frame::Frame as Said, daemon_frame::Frame,
};
use vramd_types::{AllocationId, Bytes, Reason};
use vramd_words::{Access, Fence, State};

use crate::{
    channel::fake::{PART, PATIENCE, Pinning, arrived, ended_by_an_operator, memory, part, part_ref, soon},
    cuda::Gpus,
    error::Error,
    handles::{
        allocation::{Allocation, Sealed},
        handle::Handle,
        info::{AllocationInfo, AllocationState, PartInfo, Tier},
    },
    mapping::{PinStart, PinTarget, Until},
    pins::{Pinnable, pin_set},
    session::{
        ReleaseKind,
        call_style::{CallStyle, run_ready},
    },
};

const ID: u64 = 7;
const OTHER: u64 = 8;

pub(super) fn start() -> Pinning {
    Pinning::start(Gpus::new(&[]), PATIENCE)
}

fn info(id: u64, parts: u32) -> AllocationInfo {
    let part = |index| PartInfo {
        index,
        offset: Bytes::new(u64::from(index) * PART),
        size: Bytes::new(PART),
        tier: Tier::Device,
        mappers: Vec::new(),
    };
    let wire =
        v1::Allocation { allocation_id: id, size_bytes: u64::from(parts) * PART, ..Default::default() };
    AllocationInfo { state: AllocationState::Open, parts: (0..parts).map(part).collect(), ..wire.into() }
}

/// An allocation whose parts have come, each full of `fill`.
pub(super) fn allocate(daemon: &Pinning, id: u64, parts: u32, fill: u8) -> Allocation {
    let expecting = daemon.session.table().expect_arrivals();
    bring(daemon, id, 0..parts, parts, fill);
    let said = Said::Mapped(Mapped { parts: (0..parts).map(|index| part_ref(id, index)).collect() });
    assert_eq!(daemon.next(), Some(said));
    let mut handle = Handle::claim(&daemon.session, info(id, parts), ReleaseKind::Free).unwrap();
    run_ready(handle.wait_arrived(CallStyle::Blocking, Instant::now() + PATIENCE)).unwrap();
    drop(expecting);
    Allocation::new(handle)
}

/// One of which nothing is sent before it is pinned.
fn unheld(daemon: &Pinning, id: u64, parts: u32) -> Allocation {
    let handle = Handle::claim(&daemon.session, info(id, parts), ReleaseKind::Free).unwrap();
    handle.begin_unpinned();
    Allocation::new(handle)
}

fn bring(daemon: &Pinning, id: u64, which: std::ops::Range<u32>, of: u32, fill: u8) {
    let fds: Vec<_> = which.clone().map(|_| memory("pinned", fill)).collect();
    let parts = which.map(|index| part(id, index, of.into(), MapAccess::ReadWrite)).collect();
    daemon.map(parts, &fds);
}

fn unmapped(part: PartRef, written: bool) -> Option<Said> {
    let reason = v1::UnmapReason::Done.into();
    let part = UnmappedPart { part: Some(part), reason, written, ..Default::default() };
    Some(Said::Unmapped(v1::Unmapped { parts: vec![part] }))
}

fn mapped(part: PartRef) -> Option<Said> {
    Some(Said::Mapped(Mapped { parts: vec![part] }))
}

fn ended(call_id: u64) -> Option<Said> {
    Some(Said::PinEnded(PinEnded { call_id }))
}

fn asked(call_id: u64, parts: &[PartRef], write: bool) -> Option<Said> {
    Some(Said::Pin(v1::Pin { call_id, parts: parts.to_vec(), write, trace: None, wait_ms: 0 }))
}

fn state(daemon: &Pinning, part: PartRef) -> State {
    daemon.word(part).state().unwrap()
}

/// Let go of by its handle, and evicted.
fn evicted(daemon: &Pinning, id: u64) -> Allocation {
    let mut allocation = allocate(daemon, id, 1, 1);
    allocation.unpin().unwrap();
    evict(daemon, part_ref(id, 0));
    allocation
}

fn evict(daemon: &Pinning, part: PartRef) {
    daemon.revoke(part, RevokeReason::Evicted);
    assert_eq!(daemon.next(), unmapped(part, true));
}

#[test]
fn a_handle_holds_what_it_allocates_until_it_lets_go() {
    let daemon = start();
    let the = part_ref(ID, 0);
    let mut allocation = allocate(&daemon, ID, 1, 5);
    assert_eq!((state(&daemon, the), allocation.has_handle_pin()), (State::Resident { pins: 1 }, true));
    daemon.revoke(the, RevokeReason::Evicted);
    assert!(daemon.is_silent());
    assert_eq!(allocation.as_slice().unwrap()[0], 5);

    allocation.unpin().unwrap();
    assert_eq!(daemon.next(), unmapped(the, true));
    assert_eq!((state(&daemon, the), allocation.is_mapped()), (State::Absent, false));
    assert!(matches!(allocation.as_slice(), Err(Error::NotPinned { .. })));

    thread::scope(|scope| {
        let holder = scope.spawn(|| allocation.repin());
        assert_eq!(daemon.next(), asked(1, &[the], true));
        bring(&daemon, ID, 0..1, 1, 6);
        assert_eq!((daemon.next(), daemon.next()), (mapped(the), ended(1)));
        holder.join().unwrap().unwrap();
    });
    assert_eq!((state(&daemon, the), allocation.as_slice().unwrap()[0]), (State::Resident { pins: 1 }, 6));
}

#[test]
fn what_is_unheld_comes_with_its_pin() {
    let daemon = start();
    let allocation = unheld(&daemon, ID, 3);
    assert!(daemon.is_silent());
    assert_eq!(
        (allocation.has_handle_pin(), allocation.is_mapped(), allocation.as_device_ptr()),
        (false, false, 0)
    );
    assert!(matches!(allocation.as_slice(), Err(Error::NotPinned { .. })));
    let (first, last) = (part_ref(ID, 0), part_ref(ID, 2));
    let pinned = thread::scope(|scope| {
        let pinner = scope.spawn(|| allocation.pin_parts(2..3, Access::Write));
        assert_eq!(daemon.next(), asked(1, &[last], true));
        bring(&daemon, ID, 2..3, 3, 6);
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
    assert!(daemon.is_silent(), "it is here, and it is known where its words are");
    // The daemon may evict it, as anything that nobody pins.
    evict(&daemon, last);
    // A set of it and of what never came.
    thread::scope(|scope| {
        let pinner = scope.spawn(|| allocation.pin(Access::Read));
        let all = [first, part_ref(ID, 1), last];
        assert_eq!(daemon.next(), asked(2, &all, false));
        bring(&daemon, ID, 0..3, 3, 7);
        assert_eq!(daemon.next(), Some(Said::Mapped(Mapped { parts: all.to_vec() })));
        assert_eq!(daemon.next(), ended(2));
        let pinned = pinner.join().unwrap().unwrap();
        assert!(all.iter().all(|part| state(&daemon, *part) == State::Resident { pins: 1 }));
        assert_eq!(pinned.as_slice().unwrap().last(), Some(&7));
    });
    assert_eq!(state(&daemon, first), State::Resident { pins: 0 });
}

#[test]
fn what_is_unheld_is_held_once_it_is_told_so() {
    let daemon = start();
    let mut allocation = unheld(&daemon, ID, 2);
    let all = [part_ref(ID, 0), part_ref(ID, 1)];
    thread::scope(|scope| {
        let holder = scope.spawn(|| allocation.repin());
        assert_eq!(daemon.next(), asked(1, &all, true));
        bring(&daemon, ID, 0..2, 2, 6);
        assert_eq!(daemon.next(), Some(Said::Mapped(Mapped { parts: all.to_vec() })));
        assert_eq!(daemon.next(), ended(1));
        holder.join().unwrap().unwrap();
    });
    assert!(all.iter().all(|part| state(&daemon, *part) == State::Resident { pins: 1 }));
    assert!(daemon.word(all[0]).is_written().unwrap(), "who holds it may write at any time");
    allocation.as_mut_slice().unwrap()[0] = 1;
    drop(allocation.pin_ref(0..2, Access::Write).unwrap());
    assert!(daemon.is_silent());
}

#[test]
fn what_comes_unasked_to_an_unheld_handle_may_go_again() {
    let daemon = start();
    let mut allocation = unheld(&daemon, ID, 1);
    let the = part_ref(ID, 0);
    bring(&daemon, ID, 0..1, 1, 5);
    assert_eq!(daemon.next(), mapped(the));
    assert_eq!(state(&daemon, the), State::Resident { pins: 0 });
    // The handle has not heard where its words are, and the daemon has nothing to send.
    thread::scope(|scope| {
        let pinner = scope.spawn(|| allocation.pin(Access::Read));
        assert_eq!(daemon.next(), asked(1, &[the], false));
        daemon.send(Frame::PinAnswer(PinAnswer { call_id: 1, refused: None }));
        assert_eq!(daemon.next(), ended(1));
        drop(pinner.join().unwrap().unwrap());
    });
    assert_eq!(state(&daemon, the), State::Resident { pins: 0 });
    allocation.copy_from_host(3, &[9]).unwrap();
    let mut read = [0; 2];
    allocation.copy_to_host(2, &mut read).unwrap();
    assert_eq!(read, [5, 9]);
    assert!(daemon.is_silent());
    evict(&daemon, the);
}

#[test]
fn who_gave_up_on_what_never_came_has_no_pin_of_it() {
    let daemon = Pinning::start(Gpus::new(&[]), Duration::from_millis(50));
    let allocation = unheld(&daemon, ID, 1);
    let the = part_ref(ID, 0);
    assert!(matches!(allocation.pin(Access::Read), Err(Error::Deadline)));
    assert_eq!((daemon.next(), daemon.next()), (asked(1, &[the], false), ended(1)));
    bring(&daemon, ID, 0..1, 1, 5);
    assert_eq!(daemon.next(), mapped(the));
    assert_eq!(state(&daemon, the), State::Resident { pins: 0 });
}

#[test]
fn a_wait_that_an_operator_ended_is_told_as_such() {
    let daemon = start();
    let allocation = unheld(&daemon, ID, 1);
    let the = part_ref(ID, 0);
    let refused = v1::Refused {
        code: 10,
        reason: "WAIT_CANCELLED".to_owned(),
        metadata: [("wait".to_owned(), "9".to_owned())].into(),
        ..Default::default()
    };
    thread::scope(|scope| {
        let pinner = scope.spawn(|| allocation.pin(Access::Read));
        assert_eq!(daemon.next(), asked(1, &[the], false));
        daemon.send(Frame::PinAnswer(PinAnswer { call_id: 1, refused: Some(refused) }));
        assert!(matches!(pinner.join().unwrap(), Err(Error::WaitCancelled { wait: 9 })));
    });
}

#[test]
fn what_could_not_be_mapped_is_told_by_the_daemon_and_comes_with_the_next_pin() {
    let daemon = start();
    let the = part_ref(ID, 0);
    let allocation = evicted(&daemon, ID);
    thread::scope(|scope| {
        let pinner = scope.spawn(|| allocation.pin(Access::Read));
        assert_eq!(daemon.next(), asked(1, &[the], false));
        daemon.map(vec![part(ID, 0, 1, MapAccess::ReadWrite)], &[]);
        let Some(Said::Unmapped(failed)) = daemon.next() else { panic!("it was not mapped") };
        assert_eq!(failed.parts[0].reason(), v1::UnmapReason::MapFailed);
        let facts = [("allocation", "a-7"), ("problem", failed.parts[0].detail.as_str())];
        let metadata = facts.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let refused =
            v1::Refused { code: 9, reason: "MAP_FAILED".to_owned(), metadata, ..Default::default() };
        daemon.send(Frame::PinAnswer(PinAnswer { call_id: 1, refused: Some(refused) }));
        let problem = "0 descriptors came for 1 parts".to_owned();
        let told = Error::MapFailed { allocation: "a-7".to_owned(), problem };
        assert_eq!(pinner.join().unwrap().unwrap_err(), told);
    });
    let id = AllocationId::from_raw(ID);
    let held = daemon.session.table().check(arrived(id, 1, MapAccess::ReadWrite));
    assert_eq!(held, Ok(false), "nobody else is told so again");

    thread::scope(|scope| {
        let pinner = scope.spawn(|| allocation.pin(Access::Read));
        assert_eq!(daemon.next(), asked(2, &[the], false));
        bring(&daemon, ID, 0..1, 1, 6);
        assert_eq!((daemon.next(), daemon.next()), (mapped(the), ended(2)));
        assert_eq!(pinner.join().unwrap().unwrap().as_slice().unwrap()[0], 6);
    });
}

#[test]
fn a_guard_keeps_it_and_its_end_lets_it_go() {
    let daemon = start();
    let the = part_ref(ID, 0);
    let mut allocation = allocate(&daemon, ID, 1, 5);
    allocation.unpin().unwrap();
    let one = allocation.pin(Access::Read).unwrap();
    let two = allocation.pin(Access::Write).unwrap();
    assert_eq!(state(&daemon, the), State::Resident { pins: 2 });
    daemon.revoke(the, RevokeReason::Evicted);
    // While one of them lasts more may join.
    let three = allocation.pin(Access::Read).unwrap();
    drop(one);
    drop(two);
    assert!(daemon.is_silent());
    assert_eq!(three.as_slice().unwrap().len() as u64, PART);
    drop(three);
    assert_eq!(daemon.next(), unmapped(the, true));

    thread::scope(|scope| {
        let pinner = scope.spawn(|| allocation.pin(Access::Read));
        assert_eq!(daemon.next(), asked(1, &[the], false));
        bring(&daemon, ID, 0..1, 1, 6);
        assert_eq!((daemon.next(), daemon.next()), (mapped(the), ended(1)));
        let pinned = pinner.join().unwrap().unwrap();
        assert_eq!((pinned.as_slice().unwrap()[0], pinned.as_device_ptr()), (6, allocation.as_device_ptr()));
        assert_eq!(state(&daemon, the), State::Resident { pins: 1 });
    });
    daemon.send(Frame::PinAnswer(PinAnswer { call_id: 1, refused: None }));
    daemon.revoke(the, RevokeReason::Evicted);
    assert_eq!(
        daemon.next(),
        unmapped(the, true),
        "an answer that comes late harms nobody, and WRITTEN stays"
    );
}

#[test]
fn what_is_freed_drops_the_hold_and_waits_for_guards() {
    let daemon = start();
    let the = part_ref(ID, 0);
    let allocation = allocate(&daemon, ID, 1, 5);
    let pinned = allocation.pin(Access::Read).unwrap();
    daemon.revoke(the, RevokeReason::Evicted);
    // The frame with the new reason is answered by the same unmap.
    daemon.tell_revoke(the, RevokeReason::Freed);
    let deadline = Instant::now() + PATIENCE;
    while allocation.as_slice().is_ok() {
        assert!(Instant::now() < deadline, "the handle's own pin goes");
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(pinned.as_slice().unwrap()[0], 5);
    drop(pinned);
    assert_eq!(daemon.next(), unmapped(the, true));
    assert!(daemon.is_silent());
    assert!(matches!(allocation.as_slice(), Err(Error::NotMapped { .. })));
}

#[test]
fn a_revoke_of_what_is_not_mapped_is_dropped_and_one_without_its_bit_is_a_breach() {
    let daemon = start();
    let the = part_ref(ID, 0);
    let allocation = evicted(&daemon, ID);
    daemon.tell_revoke(the, RevokeReason::Evicted);
    assert!(daemon.is_silent());
    bring(&daemon, ID, 0..1, 1, 6);
    assert_eq!(daemon.next(), mapped(the));
    daemon.tell_revoke(the, RevokeReason::Evicted);
    assert_eq!(daemon.next(), None, "the client hangs up");
    assert!(allocation.pin(Access::Read).is_ok(), "what is mapped stays usable");
}

#[test]
fn a_set_is_pinned_whole_or_not_at_all() {
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
        assert_eq!(daemon.next(), asked(1, &wanted, true));
        assert_eq!(state(&daemon, all[1]), State::Resident { pins: 1 }, "the handle's own");
        bring(&daemon, ID, 0..1, 1, 6);
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
    assert_eq!(pin().unwrap().guards().len(), 2, "now all of it is here, and nobody is asked");

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
fn a_refusal_is_its_reason_and_leaves_no_pin() {
    let daemon = start();
    let mut allocation = allocate(&daemon, ID, 2, 1);
    allocation.unpin().unwrap();
    evict(&daemon, part_ref(ID, 0));
    evict(&daemon, part_ref(ID, 1));
    let refused = v1::Refused {
        code: Reason::Raced.code() as i32,
        reason: Reason::Raced.name().to_owned(),
        message: "somebody is in the way".to_owned(),
        metadata: [("allocation".to_owned(), "a-7".to_owned())].into(),
    };
    thread::scope(|scope| {
        let pinner = scope.spawn(|| allocation.pin(Access::Read));
        assert_eq!(daemon.next(), asked(1, &[part_ref(ID, 0), part_ref(ID, 1)], false));
        bring(&daemon, ID, 0..1, 2, 6);
        assert_eq!(daemon.next(), mapped(part_ref(ID, 0)));
        assert_eq!(state(&daemon, part_ref(ID, 0)), State::Resident { pins: 1 });
        daemon.send(Frame::PinAnswer(PinAnswer { call_id: 1, refused: Some(refused) }));
        assert_eq!(pinner.join().unwrap().unwrap_err().reason(), Some(Reason::Raced));
    });
    assert!(daemon.is_silent(), "who refuses a call knows that it has ended");
    assert_eq!(state(&daemon, part_ref(ID, 0)), State::Resident { pins: 0 });
    daemon.send(Frame::PinAnswer(PinAnswer { call_id: 2, refused: None }));
    assert_eq!(daemon.next(), None, "an answer to a call that was never made");
}

#[test]
fn who_gives_up_is_pinned_nothing() {
    let daemon = Pinning::start(Gpus::new(&[]), Duration::from_secs(2));
    let mut allocation = allocate(&daemon, ID, 2, 1);
    allocation.unpin().unwrap();
    evict(&daemon, part_ref(ID, 0));
    evict(&daemon, part_ref(ID, 1));
    thread::scope(|scope| {
        let pinner = scope.spawn(|| allocation.pin(Access::Read));
        assert_eq!(daemon.next(), asked(1, &[part_ref(ID, 0), part_ref(ID, 1)], false));
        bring(&daemon, ID, 0..1, 2, 6);
        assert_eq!(daemon.next(), mapped(part_ref(ID, 0)));
        assert_eq!(pinner.join().unwrap().unwrap_err(), Error::Deadline);
    });
    assert_eq!(daemon.next(), ended(1));
    assert_eq!(state(&daemon, part_ref(ID, 0)), State::Resident { pins: 0 });
    bring(&daemon, ID, 1..2, 2, 6);
    assert_eq!(daemon.next(), mapped(part_ref(ID, 1)));
    assert_eq!(state(&daemon, part_ref(ID, 1)), State::Resident { pins: 0 }, "nobody waits any more");
}

#[test]
fn the_end_of_the_channel_leaves_what_is_mapped() {
    let daemon = start();
    let the = part_ref(ID, 0);
    let mut allocation = allocate(&daemon, ID, 1, 5);
    let away = evicted(&daemon, OTHER);
    allocation.unpin().unwrap();
    let pinned = allocation.pin(Access::Read).unwrap();
    daemon.revoke(the, RevokeReason::Evicted);
    assert!(daemon.is_silent());
    thread::scope(|scope| {
        let pinner = scope.spawn(|| away.pin(Access::Read));
        assert_eq!(daemon.next(), asked(1, &[part_ref(OTHER, 0)], false));
        let session = daemon.hang_up();
        assert_eq!(pinner.join().unwrap().unwrap_err().reason(), Some(Reason::BrokerGone));
        assert!(session.table().ending().is_some());
    });
    drop(pinned);
    assert_eq!(allocation.pin(Access::Write).unwrap().as_slice().unwrap()[0], 5);
    allocation.repin().unwrap();
    assert_eq!(allocation.as_slice().unwrap()[0], 5);
}

/// Nobody has read yet why the session has ended, and the daemon hears no more.
#[test]
fn who_asks_of_a_channel_that_has_ended_is_told_why_it_has() {
    let daemon = start();
    let away = evicted(&daemon, ID);
    let session = daemon.session.clone();
    // Nobody reads meanwhile.
    let channel = session.link().lock_channel();
    daemon.send(ended_by_an_operator());
    drop(daemon.hang_up());
    // What a pin does once it has its turn.
    let id = AllocationId::from_raw(ID);
    let wanted = PinTarget { id, index: 0, slot: None, access: Access::Read };
    let PinStart::Call { call, frame } = session.table().begin_pin(&[wanted], soon()).unwrap() else {
        panic!("it is not here")
    };
    channel.send_pin(frame).unwrap();
    drop(channel);
    let ended = Error::SessionLost { session: "s-3".to_owned() };
    assert_eq!(session.wait(Until::Pinned { call }, soon()).unwrap_err(), ended);
    assert_eq!(away.pin(Access::Read).map(drop).unwrap_err(), ended);
}

#[test]
fn guards_forbid_the_handle_to_part_and_may_outlive_it() {
    let daemon = start();
    let the = part_ref(ID, 0);
    let allocation = allocate(&daemon, ID, 1, 5);
    let (one, two) = (allocation.pin(Access::Read).unwrap(), allocation.pin(Access::Read).unwrap());
    let failed = allocation.seal().unwrap_err();
    assert_eq!(failed.error, Error::Pinned { allocation: "a-7".to_owned(), pins: 2 });
    let allocation = failed.allocation;
    assert_eq!(allocation.as_slice().unwrap()[0], 5, "nothing is lost");
    drop(one);
    let failed = allocation.free().unwrap_err();
    assert_eq!(failed.error, Error::Pinned { allocation: "a-7".to_owned(), pins: 1 });
    let failed = run_ready(failed.handle.free_async()).unwrap_err();
    assert_eq!(failed.to_string(), "releasing a-7: a-7 is in use: 1 pins of this process are left");
    assert_eq!(failed.handle.as_slice().unwrap()[0], 5, "nothing is lost here either");
    drop(failed);
    // The handle is gone. Others wait for their own alone.
    assert!(daemon.session.releases().flush(Instant::now() + PATIENCE));
    assert!(daemon.is_silent());
    assert_eq!((two.as_slice().unwrap()[0], two.len_bytes()), (5, PART));
    drop(two);
    assert_eq!(daemon.next(), unmapped(the, true));
}

#[test]
fn bytes_that_one_writes_nobody_else_sees() {
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
fn what_cannot_be_pinned_is_refused() {
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

#[test]
fn copies_bring_back_what_the_handle_does_not_hold() {
    let daemon = start();
    let the = part_ref(ID, 0);
    let allocation = evicted(&daemon, ID);
    thread::scope(|scope| {
        let copier = scope.spawn(|| {
            let mut bytes = [0; 3];
            allocation.copy_to_host(1, &mut bytes).map(|()| bytes)
        });
        assert_eq!(daemon.next(), asked(1, &[the], false));
        bring(&daemon, ID, 0..1, 1, 9);
        assert_eq!((daemon.next(), daemon.next()), (mapped(the), ended(1)));
        assert_eq!(copier.join().unwrap(), Ok([9; 3]));
    });
    assert_eq!(state(&daemon, the), State::Resident { pins: 0 });
}

#[test]
fn what_came_for_a_call_that_gave_up_is_held_by_nobody() {
    let daemon = start();
    let the = part_ref(ID, 0);
    let expecting = daemon.session.table().expect_arrivals();
    bring(&daemon, ID, 0..1, 1, 4);
    assert_eq!(daemon.next(), mapped(the));
    assert_eq!(state(&daemon, the), State::Resident { pins: 1 });
    drop(expecting);
    assert_eq!(state(&daemon, the), State::Resident { pins: 0 });
    evict(&daemon, the);
    // PinStart for again with the same request id, say.
    thread::scope(|scope| {
        let claimer = scope.spawn(|| {
            let mut handle = Handle::claim(&daemon.session, info(ID, 1), ReleaseKind::Free)?;
            run_ready(handle.wait_arrived(CallStyle::Blocking, Instant::now() + PATIENCE))
                .map(|()| Allocation::new(handle))
        });
        assert_eq!(daemon.next(), asked(1, &[the], true));
        bring(&daemon, ID, 0..1, 1, 4);
        assert_eq!((daemon.next(), daemon.next()), (mapped(the), ended(1)));
        assert_eq!(claimer.join().unwrap().unwrap().as_slice().unwrap()[0], 4);
    });
}

#[test]
fn words_that_the_daemon_gives_twice_or_not_at_all_end_the_session() {
    let daemon = start();
    let _held = allocate(&daemon, ID, 1, 5);
    let mut elsewhere = part(OTHER, 0, 1, MapAccess::ReadWrite);
    elsewhere.slot = 1 << 20;
    let fd = memory("pinned", 1);
    daemon.send_map(elsewhere.clone(), &fd);
    let Some(Said::Unmapped(failed)) = daemon.next() else { panic!("it can't be mapped") };
    assert_eq!(failed.parts[0].detail, "slot 1048576 is none of 2048");
    // The first part of allocation 7 has that slot.
    elsewhere.slot = 7 * 8;
    daemon.send_map(elsewhere, &fd);
    assert_eq!(daemon.next(), None, "the client hangs up");
}

#[test]
fn who_has_pins_learns_that_any_slot_is_anothers_also_after_all_of_them_moved() {
    let daemon = start();
    let parts = [part_ref(ID, 0), part_ref(ID, 1)];
    let mut allocation = allocate(&daemon, ID, 2, 1);
    allocation.unpin().unwrap();
    parts.iter().for_each(|part| evict(&daemon, *part));
    let at = |id, index, of: u64, slot| v1::MapPart { slot, ..part(id, index, of, MapAccess::ReadWrite) };
    let come = |part: v1::MapPart| {
        let the = part.part.unwrap();
        daemon.send_map(part, &memory("pinned", 1));
        assert_eq!(daemon.next(), mapped(the));
    };
    come(at(ID, 0, 2, 100));
    come(at(ID, 1, 2, 101));
    let lost = daemon.session.table().slots_lost(AllocationId::from_raw(ID));
    assert!(!lost.load(Ordering::Acquire), "it is as whoever asks now hears");
    let gone = |slot| {
        assert!(matches!(daemon.words.slot(slot).unwrap().revoke_to_fence(), Ok(Fence::Revoked { .. })));
    };
    gone(100);
    daemon.tell_revoke(parts[0], RevokeReason::Evicted);
    assert_eq!(daemon.next(), unmapped(parts[0], false));
    come(at(OTHER, 0, 1, 100));
    assert!(lost.load(Ordering::Acquire), "its first part's slot is another's");
    gone(100);
    daemon.tell_revoke(part_ref(OTHER, 0), RevokeReason::Evicted);
    assert_eq!(daemon.next(), unmapped(part_ref(OTHER, 0), false));
    // Back to where it was: a slot that was another's meanwhile counts as a new one.
    come(at(ID, 0, 2, 100));
    let lost = daemon.session.table().slots_lost(AllocationId::from_raw(ID));
    assert!(!lost.load(Ordering::Acquire));
}

#[test]
fn a_handle_that_could_not_be_freed_pins_nothing_of_who_came_after_it() {
    let daemon = start();
    let the = part_ref(ID, 0);
    let allocation = allocate(&daemon, ID, 1, 5);
    // Nobody answers calls here.
    let failed = allocation.free().unwrap_err();
    assert_eq!(daemon.next(), unmapped(the, true));
    let other = v1::MapPart { slot: 7 * 8, ..part(OTHER, 0, 1, MapAccess::ReadWrite) };
    daemon.send_map(other, &memory("pinned", 9));
    assert_eq!(daemon.next(), mapped(part_ref(OTHER, 0)));
    let error = failed.handle.pin_ref(0..1, Access::Read).unwrap_err();
    assert_eq!(error, Error::NotMapped { allocation: "a-7".to_owned() });
    assert_eq!(daemon.words.slot(7 * 8).unwrap().state(), Ok(State::Resident { pins: 0 }));
    // It is parted from all the same once the handle goes.
    drop(failed);
    assert!(daemon.session.releases().flush(Instant::now() + PATIENCE));
}
