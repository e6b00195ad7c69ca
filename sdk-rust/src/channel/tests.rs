//! Tests of frames over the channel, read by the worker or by a caller.

use std::{
    fs,
    os::fd::OwnedFd,
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use vramd_proto::v1::{
    Access, Device, HandleType, Mapped, Pressure, PressureLevel, RevokeReason, Tier, UnmapReason,
    UnmappedPart, client_frame, daemon_frame::Frame,
};
use vramd_types::{AllocationId, Reason};

use super::{
    ReadOutcome,
    fake::{self, Fake, PART, PATIENCE, arrived, ended_by_an_operator, memory, part, part_ref, soon},
    read_one,
    socket::{Received, Socket},
};
use crate::{
    cuda::Gpus,
    error::{Error, Sentence},
    mapping::{Ending, Label, Mode},
    session::pressure::{OnPressure, Pressures},
};

const ID: AllocationId = AllocationId::from_raw(7);

fn mapped(parts: &[u32]) -> client_frame::Frame {
    let parts = parts.iter().map(|index| part_ref(7, *index)).collect();
    client_frame::Frame::Mapped(Mapped { parts })
}

/// The first part of another allocation.
fn mapped_of(allocation: u64) -> client_frame::Frame {
    client_frame::Frame::Mapped(Mapped { parts: vec![part_ref(allocation, 0)] })
}

/// The parts of an `Unmapped` frame, of which all have the same reason.
fn unmapped(frame: Option<client_frame::Frame>, reason: UnmapReason) -> Vec<UnmappedPart> {
    let Some(client_frame::Frame::Unmapped(unmapped)) = frame else { panic!("{frame:?}") };
    assert!(unmapped.parts.iter().all(|part| part.reason() == reason), "{unmapped:?}");
    unmapped.parts
}

/// The line of /proc/self/maps for the given memory, if it is mapped.
fn maps_line(name: &str) -> Option<String> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().find(|line| line.contains(name)).map(str::to_owned)
}

fn descriptors_of(name: &str) -> usize {
    let links = fs::read_dir("/proc/self/fd").unwrap().flatten();
    links
        .filter(|link| fs::read_link(link.path()).is_ok_and(|to| to.to_string_lossy().contains(name)))
        .count()
}

#[test]
fn sealed_part_is_mapped_again_at_its_address() {
    let fake = Fake::start(Mode::Map);
    fake.table.claim(ID, Label::default()).unwrap();
    let fds = [memory("worker-seal-0", 1), memory("worker-seal-1", 2)];
    let parts = |access| vec![part(7, 0, 2, access), part(7, 1, 2, access)];

    fake.map(parts(Access::ReadWrite), &fds);
    assert_eq!(fake.next(), Some(mapped(&[0, 1])));
    fake.table.wait(arrived(ID, 2, Access::ReadWrite), soon()).unwrap();
    let base = fake.table.base(ID).unwrap();
    assert!(maps_line("worker-seal-1").unwrap().contains("rw-s"));
    assert_eq!(descriptors_of("worker-seal-0"), 1, "only the test's own descriptor is open");

    fake.revoke(part_ref(7, 1), RevokeReason::Sealing);
    fake.revoke(part_ref(7, 0), RevokeReason::Sealing);
    assert_eq!(unmapped(fake.next(), UnmapReason::Done)[0].part, Some(part_ref(7, 1)));
    assert_eq!(unmapped(fake.next(), UnmapReason::Done)[0].part, Some(part_ref(7, 0)));
    assert_eq!(maps_line("worker-seal-0"), None);
    assert_eq!(fake.table.mapped_count(ID, None), 0);

    fake.map(parts(Access::ReadOnly), &fds);
    assert_eq!(fake.next(), Some(mapped(&[0, 1])));
    fake.table.wait(arrived(ID, 2, Access::ReadOnly), soon()).unwrap();
    assert_eq!(fake.table.base(ID), Some(base));
    let line = maps_line("worker-seal-0").unwrap();
    assert!(line.starts_with(&format!("{:x}-", base.address)) && line.contains("r--s"), "{line}");
}

#[test]
fn packet_without_all_its_descriptors_fails_whole() {
    let fake = Fake::start(Mode::Map);
    fake.table.claim(ID, Label::default()).unwrap();
    let parts = vec![part(7, 0, 2, Access::ReadWrite), part(7, 1, 2, Access::ReadWrite)];
    fake.map(parts, &[memory("worker-short", 1)]);
    assert_eq!(unmapped(fake.next(), UnmapReason::MapFailed).len(), 2);
    let error = fake.table.wait(arrived(ID, 2, Access::ReadWrite), soon()).unwrap_err();
    assert_eq!(error.reason(), Some(Reason::MapFailed), "{error}");
    assert_eq!(descriptors_of("worker-short"), 0, "the descriptors that arrived are closed");
}

#[test]
fn later_claim_gets_an_earlier_map_failure() {
    let fake = Fake::start(Mode::Map);
    let parts = vec![part(7, 0, 2, Access::ReadWrite), part(7, 1, 2, Access::ReadWrite)];
    fake.map(parts, &[memory("worker-early", 1)]);
    assert_eq!(unmapped(fake.next(), UnmapReason::MapFailed).len(), 2);
    fake.table.claim(ID, Label::default()).unwrap();
    let error = fake.table.check(arrived(ID, 2, Access::ReadWrite)).unwrap_err();
    assert_eq!(error.reason(), Some(Reason::MapFailed), "{error}");
}

#[test]
fn unclaimed_map_failure_is_forgotten_before_a_new_wait() {
    let fake = Fake::start(Mode::Map);
    fake.table.claim(ID, Label::default()).unwrap();
    fake.map(vec![part(7, 0, 1, Access::ReadWrite)], &[]);
    assert_eq!(unmapped(fake.next(), UnmapReason::MapFailed).len(), 1);
    // As a seal does before it waits again.
    fake.table.request_handle_pins(ID);
    assert_eq!(fake.table.check(arrived(ID, 1, Access::ReadOnly)), Ok(false));
}

#[test]
fn unmappable_parts_are_reported_and_the_others_mapped() {
    let fake = Fake::start(Mode::Map);
    let mut cuda = part(7, 0, 5, Access::ReadWrite);
    cuda.handle_type = HandleType::VmmFd.into();
    let mut too_long = part(7, 1, 5, Access::ReadWrite);
    too_long.size_bytes = 2 * PART;
    let mut outside = part(7, 2, 5, Access::ReadWrite);
    outside.offset_bytes = 5 * PART;
    let mut unaligned = part(7, 3, 5, Access::ReadWrite);
    unaligned.offset_bytes += 1;
    let good = part(7, 4, 5, Access::ReadWrite);
    let fds: Vec<OwnedFd> = (0..5).map(|fill| memory("worker-bad", fill)).collect();
    fake.map(vec![cuda, too_long, outside, unaligned, good], &fds);
    assert_eq!(fake.next(), Some(mapped(&[4])));
    let failed = unmapped(fake.next(), UnmapReason::MapFailed);
    let told: Vec<_> = failed.iter().map(|part| part.part.as_ref().unwrap().part_index).collect();
    assert_eq!(told, [0, 1, 2, 3]);
    assert_eq!(failed[0].detail, "device 0 of the daemon is not visible to this session");
}

#[test]
fn revoke_of_an_unmapped_part_is_not_answered() {
    let fake = Fake::start(Mode::Map);
    fake.revoke(part_ref(7, 0), RevokeReason::Freed);
    fake.map(vec![part(7, 0, 1, Access::ReadWrite)], &[memory("worker-late", 1)]);
    assert_eq!(fake.next(), Some(mapped(&[0])), "the revoke came first, and only the map is answered");
}

#[test]
fn unmap_of_many_parts_is_reported_in_several_frames() {
    let fake = Fake::start(Mode::Map);
    let fd = memory("worker-many", 1);
    for first in (0..1100).step_by(100) {
        let parts: Vec<_> = (first..first + 100).map(|at| part(7, at, 1100, Access::ReadWrite)).collect();
        let fds: Vec<_> = parts.iter().map(|_| fd.try_clone().unwrap()).collect();
        fake.map(parts, &fds);
        fake.next().unwrap();
    }
    let channel = fake.link.lock_channel();
    channel.report(fake.table.unmap(ID, true).unwrap()).unwrap();
    drop(channel);
    assert_eq!(unmapped(fake.next(), UnmapReason::Done).len(), 1024);
    assert_eq!(unmapped(fake.next(), UnmapReason::Done).len(), 76);
    assert_eq!((maps_line("worker-many"), fake.table.base(ID)), (None, None));
}

#[test]
fn mappings_outlive_the_channel_and_waiters_are_woken() {
    let fake = Fake::start(Mode::Map);
    fake.table.claim(ID, Label::default()).unwrap();
    fake.map(vec![part(7, 0, 2, Access::ReadWrite)], &[memory("worker-gone", 5)]);
    fake.next().unwrap();
    let table = Arc::clone(&fake.table);
    let waiter = thread::spawn(move || table.wait(arrived(ID, 2, Access::ReadWrite), soon()));
    let table = fake.hang_up();
    assert_eq!(waiter.join().unwrap().unwrap_err().reason(), Some(Reason::BrokerGone));
    assert!(maps_line("worker-gone").is_some());
    assert!(!table.is_unmapped(), "it still maps something");
    table.unmap(ID, true).unwrap();
    assert!(table.is_unmapped());
}

#[test]
fn pressure_callback_runs_on_its_own_thread_and_may_panic() {
    let device = Device { uuid: "GPU-5".to_owned(), index: 5, name: String::new(), simulated: false };
    let (sender, heard) = mpsc::channel();
    let on_pressure = OnPressure::new(move |told| {
        sender.send((thread::current().name().map(str::to_owned), told)).unwrap();
        panic!("a panic of a test, which is meant");
    });
    let pressures = Pressures::start(&[device], Some(on_pressure)).unwrap();
    let fake = Fake::start_with_pressure(Mode::Map, Gpus::new(&[]), pressures);
    for level in [PressureLevel::High, PressureLevel::Critical] {
        let (tier, batch_factor) = (Tier::Device.into(), 0.868);
        let told = Pressure { device: 5, tier, level: level.into(), batch_factor, full_in_ms: None };
        fake.send(Frame::Pressure(told), &[]);
        let (thread, heard) = heard.recv_timeout(PATIENCE).unwrap();
        assert_eq!((thread.as_deref(), heard.level), (Some("vramd-pressure"), level));
        assert_eq!((heard.device.as_str(), heard.batch_factor), ("GPU-5", 0.868));
    }
    assert_eq!(fake.table.pressures.device(None).unwrap().level, PressureLevel::Critical);
    // The worker reads on.
    fake.table.claim(ID, Label::default()).unwrap();
    fake.map(vec![part(7, 0, 1, Access::ReadWrite)], &[memory("worker-pressed", 1)]);
    assert_eq!(fake.next(), Some(mapped(&[0])));
    drop(fake.hang_up());
    assert!(heard.recv_timeout(PATIENCE).is_err(), "the thread ends with the session");
}

#[test]
fn refusal_ends_the_session_with_its_reason() {
    let fake = Fake::start(Mode::Map);
    fake.send(ended_by_an_operator(), &[]);
    assert_eq!(fake.next(), None, "the client hangs up");
    let ending = fake.hang_up().ending();
    assert_eq!(
        ending,
        Some(Ending::Refused(Error::SessionLost { session: "s-3".to_owned(), said: Sentence::default() }))
    );
}

#[test]
fn garbage_ends_the_session() {
    let fake = Fake::start(Mode::Map);
    fake.send_bytes(b"\xff\xff\xff\xff", &[]);
    assert_eq!(fake.next(), None);
    let Some(Ending::Refused(error)) = fake.hang_up().ending() else { panic!("it ended otherwise") };
    assert_eq!(error.reason(), Some(Reason::ProtocolBroken));
}

#[test]
fn raw_parts_belong_to_the_program_until_it_releases_them() {
    let fake = Fake::start(Mode::HandOver);
    fake.table.claim(ID, Label::default()).unwrap();
    fake.map(
        vec![part(7, 0, 2, Access::ReadOnly), part(7, 1, 2, Access::ReadOnly)],
        &[memory("worker-raw", 1), memory("worker-raw", 2)],
    );
    assert_eq!(fake.next(), Some(mapped(&[0, 1])));
    assert_eq!(maps_line("worker-raw"), None);
    let parts = fake.table.hand_over(ID);
    let told: Vec<_> =
        parts.iter().map(|part| (part.offset.get(), part.writable, part.fd.is_some())).collect();
    assert_eq!(told, [(0, false, true), (PART, false, true)]);

    fake.revoke(part_ref(7, 0), RevokeReason::Freed);
    // A later answer shows that the revoke was seen and not answered.
    fake.map(vec![part(8, 0, 1, Access::ReadOnly)], &[memory("worker-raw", 3)]);
    let Some(client_frame::Frame::Mapped(_)) = fake.next() else { panic!("the revoke was answered") };
    assert!(fake.table.is_revoked(ID));

    let channel = fake.link.lock_channel();
    channel.report(fake.table.unmap(ID, true).unwrap()).unwrap();
    assert_eq!(unmapped(fake.next(), UnmapReason::Done).len(), 2);
}

/// Waits as a session does for its first part.
fn wait_at_the_channel(fake: &Fake, id: AllocationId, deadline: Instant) -> ReadOutcome {
    while !fake.table.check(arrived(id, 1, Access::ReadWrite)).unwrap() {
        match read_one(&fake.link, &fake.table, deadline) {
            ReadOutcome::Packet => {}
            other => return other,
        }
    }
    ReadOutcome::Packet
}

#[test]
fn seated_caller_reads_the_packet_it_waits_for() {
    let fake = Fake::start(Mode::Map);
    fake.table.claim(ID, Label::default()).unwrap();
    assert_eq!(read_one(&fake.link, &fake.table, soon()), ReadOutcome::NotReader);
    let _seat = fake.link.take_seat().unwrap();
    assert!(fake.link.take_seat().is_none(), "there is one seat");
    assert_eq!(read_one(&fake.link, &fake.table, Instant::now()), ReadOutcome::TimedOut);
    thread::scope(|scope| {
        let daemon = scope.spawn(|| {
            fake.map(vec![part(7, 0, 1, Access::ReadWrite)], &[memory("seat", 1)]);
            fake.next()
        });
        // On a machine that has much else to do the worker may have been faster.
        assert_ne!(wait_at_the_channel(&fake, ID, soon()), ReadOutcome::TimedOut);
        assert_eq!(daemon.join().unwrap(), Some(mapped(&[0])));
    });
}

/// The worker, which waits a millisecond for the caller, often wins here.
#[test]
fn caller_wakes_when_the_worker_reads_first() {
    let fake = Fake::start(Mode::Map);
    let memory = memory("faster", 1);
    let (go, ask) = std::sync::mpsc::channel();
    thread::scope(|scope| {
        let (fake, memory) = (&fake, &memory);
        scope.spawn(move || {
            for raw in ask {
                fake.map(vec![part(raw, 0, 1, Access::ReadWrite)], &[memory.try_clone().unwrap()]);
                fake.next().unwrap();
            }
        });
        for raw in 100..600 {
            let id = AllocationId::from_raw(raw);
            fake.table.claim(id, Label::default()).unwrap();
            let seat = fake.link.take_seat();
            go.send(raw).unwrap();
            // About as long as the worker waits: the caller must see the packet whichever thread reads it first.
            thread::sleep(Duration::from_micros(raw % 7 * 300));
            assert_ne!(wait_at_the_channel(fake, id, soon()), ReadOutcome::TimedOut);
            fake.table.wait(arrived(id, 1, Access::ReadWrite), soon()).unwrap();
            drop(seat);
            let channel = fake.link.lock_channel();
            fake.table.unmap(id, true).unwrap();
            drop(channel);
        }
        drop(go);
    });
}

#[test]
fn caller_waits_for_the_lock_only_until_its_deadline() {
    let fake = Fake::start(Mode::Map);
    fake.table.claim(ID, Label::default()).unwrap();
    let channel = fake.link.lock_channel();
    let _seat = fake.link.take_seat().unwrap();
    fake.map(vec![part(7, 0, 1, Access::ReadWrite)], &[memory("turn", 1)]);
    let deadline = Instant::now() + Duration::from_millis(50);
    assert_eq!(wait_at_the_channel(&fake, ID, deadline), ReadOutcome::NotReader);
    drop(channel);
    fake.table.wait(arrived(ID, 1, Access::ReadWrite), soon()).unwrap();
}

#[test]
fn refusal_is_kept_whichever_thread_reads_it() {
    for _ in 0..50 {
        let fake = Fake::start(Mode::Map);
        let link = Arc::clone(&fake.link);
        let table = Arc::clone(&fake.table);
        let seat = link.take_seat().unwrap();
        let daemon = thread::spawn(move || {
            fake.send(ended_by_an_operator(), &[]);
            fake.hang_up()
        });
        while table.ending().is_none() && read_one(&link, &table, soon()) == ReadOutcome::Packet {}
        drop(seat);
        let ending = daemon.join().unwrap().ending();
        assert_eq!(
            ending,
            Some(Ending::Refused(Error::SessionLost {
                session: "s-3".to_owned(),
                said: Sentence::default()
            }))
        );
    }
}

/// A map frame that the daemon no longer reads an answer to precedes the reason.
#[test]
fn end_reason_is_read_after_an_unanswerable_frame() {
    let fake = Fake::start(Mode::Map);
    let link = Arc::clone(&fake.link);
    // The worker cannot read meanwhile.
    let channel = link.lock_channel();
    fake.map(vec![part(7, 0, 1, Access::ReadWrite)], &[memory("unanswered", 1)]);
    fake.send(ended_by_an_operator(), &[]);
    let seen = fake.close();
    drop(channel);
    assert_eq!(
        seen().ending(),
        Some(Ending::Refused(Error::SessionLost { session: "s-3".to_owned(), said: Sentence::default() }))
    );
}

/// The kernel reports the connection reset before it delivers the frames.
#[test]
fn frames_before_a_connection_reset_are_read() {
    let (daemon, client) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let socket = Socket::from_fd(client).unwrap();
    socket.send(mapped(&[0])).unwrap();
    fake::send(&daemon, ended_by_an_operator(), &[]);
    drop(daemon);
    let mut received = Vec::new();
    while !matches!(received.last(), Some(Received::Ended)) {
        assert!(socket.wait_readable(Some(soon())).unwrap());
        received.extend(socket.receive().unwrap());
    }
    let [Received::Packet(packet), Received::Ended] = &received[..] else { panic!("{received:?}") };
    assert_eq!(packet.frame, ended_by_an_operator());
}

#[test]
fn absent_caller_loses_its_seat() {
    let fake = Fake::start(Mode::Map);
    fake.table.claim(ID, Label::default()).unwrap();
    let seat = fake.link.take_seat().unwrap();
    fake.map(vec![part(7, 0, 1, Access::ReadWrite)], &[memory("no-show", 1)]);
    fake.table.wait(arrived(ID, 1, Access::ReadWrite), soon()).unwrap();
    assert_eq!(read_one(&fake.link, &fake.table, soon()), ReadOutcome::NotReader);
    drop(seat);
    drop(fake.link.take_seat().unwrap());
    fake.map(vec![part(8, 0, 1, Access::ReadWrite)], &[memory("no-show", 1)]);
    fake.next().unwrap();
    assert_eq!(fake.next(), Some(mapped_of(8)), "the worker reads on");
}

#[test]
fn end_read_by_a_caller_ends_the_session() {
    let fake = Fake::start(Mode::Map);
    fake.table.claim(ID, Label::default()).unwrap();
    let link = Arc::clone(&fake.link);
    let seat = link.take_seat().unwrap();
    thread::scope(|scope| {
        let table = Arc::clone(&fake.table);
        scope.spawn(|| fake.hang_up());
        while !matches!(table.check(arrived(ID, 1, Access::ReadWrite)), Err(Error::BrokerGone { .. })) {
            if read_one(&link, &table, soon()) == ReadOutcome::NotReader {
                table.wait(arrived(ID, 1, Access::ReadWrite), soon()).unwrap_err();
            }
        }
    });
    drop(seat);
}

/// The report may precede the answer to the attach.
#[test]
fn wait_for_a_lost_part_fails_at_once() {
    for claimed_first in [true, false] {
        let fake = Fake::start(Mode::Map);
        let _expected = fake.table.expect_arrivals().unwrap();
        if claimed_first {
            fake.table.claim(ID, Label::default()).unwrap();
        }
        fake.map(vec![part(7, 0, 2, Access::ReadOnly)], &[memory("whole", 1)]);
        fake.next().unwrap();
        fake.revoke(part_ref(7, 1), RevokeReason::Lost);
        fake.map(vec![part(8, 0, 1, Access::ReadOnly)], &[memory("another", 1)]);
        assert_eq!(fake.next(), Some(mapped_of(8)), "a part that did not arrive is not reported");
        if !claimed_first {
            fake.table.claim(ID, Label::default()).unwrap();
        }
        let lost = fake.table.wait(arrived(ID, 2, Access::ReadOnly), soon()).unwrap_err();
        assert_eq!(
            lost,
            Error::ContentLost { allocation: ID.to_string(), part_index: 1, said: Sentence::default() }
        );
    }
}
