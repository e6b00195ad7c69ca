//! Pins at the level of the protocol: revoking parts, mapping them again, and clients that make mistakes.

use std::time::Duration;

use vramd_proto::v1::{
    AllocationState, EndSessionRequest, PartRef, PartRevocation, RevocationOutcome as Outcome,
    RevokeMappingsRequest, RevokeMappingsResponse, RevokeReason, SealRequest, SessionState, WordsMapped,
    client_frame::Frame, daemon_frame, revoke_mappings_request::Target,
};
use vramd_tests::{
    Config, Daemon, MIB, MIB_2, Pending, RawSession, Refused,
    channel::{Packet, RawChannel},
    content, digest,
    proc::fds_by_kind,
    session::{hello_with_pins, persistent, spec},
    wait::{PATIENCE, until},
};
use vramd_types::Reason;
use vramd_words::{Access, Unpinned};

pub(crate) const MAPPED: u64 = 1 << 25;
const REVOKE: u64 = 1 << 26;

fn revoke_request(allocation: u64, wait: bool) -> RevokeMappingsRequest {
    let target = Some(Target::AllocationId(allocation));
    RevokeMappingsRequest { target, wait, ..Default::default() }
}

/// Asks for a revocation once the daemon knows that every part it sent is mapped: a mapping in flight counts as pinned.
#[track_caller]
pub(crate) fn revoke(daemon: &Daemon, allocation: u64, wait: bool) -> Pending<RevokeMappingsResponse> {
    until("all maps are answered", || daemon.state().node.fds_in_flight == 0);
    daemon.admin.revoke_mappings(revoke_request(allocation, wait))
}

pub(crate) fn outcomes(parts: &[PartRevocation]) -> Vec<(u32, Outcome, Vec<u64>)> {
    parts.iter().map(|part| (part.part_index, part.outcome(), part.session_ids.clone())).collect()
}

pub(crate) fn part(allocation_id: u64, part_index: u32) -> PartRef {
    PartRef { allocation_id, part_index }
}

/// Revokes all of an allocation that this session alone maps. The session answers.
#[track_caller]
pub(crate) fn evict(daemon: &Daemon, session: &mut RawSession, allocation: u64) {
    let revoking = revoke(daemon, allocation, false);
    while session.parts(allocation).next().is_some() {
        let revoke = session.receive_revoke();
        assert_eq!(revoke.reason(), RevokeReason::Evicted);
        session.unmap_parts(revoke.parts);
    }
    let parts = revoking.ok().parts;
    assert!(parts.iter().all(|part| part.outcome() == Outcome::Revoked), "{parts:?}");
}

pub(crate) fn quarantined(daemon: &Daemon, session: &RawSession) -> Refused {
    let refused = loop {
        match session.channel.receive(PATIENCE) {
            Packet::Frame(daemon_frame::Frame::Refused(refused), _) => break Refused::from_frame(refused),
            Packet::Frame(..) => {}
            other => panic!("no refusal: {other:?}"),
        }
    };
    until("it is silent or gone", || {
        daemon
            .state()
            .sessions
            .iter()
            .all(|row| row.session_id != session.id() || row.state() == SessionState::Silent)
    });
    refused
}

#[test]
fn an_unpinned_part_is_revoked_and_mapped_again_by_the_next_pin() {
    let daemon = Daemon::new();
    let mut session = RawSession::open_with_pins(&daemon.sockets());
    let request = vramd_proto::v1::AllocationSpec { part_size_bytes: Some(MIB_2), ..spec(3 * MIB_2 - 7) };
    let id = session.allocate(request).allocation_id;
    let written = content(3 * MIB_2 - 7, 5);
    session.write(id, &written);
    let held = daemon.state().charged();
    for _ in 0..3 {
        evict(&daemon, &mut session, id);
        assert_eq!(session.word_table().read(session.slot(id, 1)) & (MAPPED | REVOKE), 0);
        let state = daemon.state();
        assert_eq!(state.charged(), held, "its bytes stay where they are, and charged");
        assert_eq!(state.sessions[0].mapped_bytes, 0);

        session.pins_on_map = 1;
        let call = session.pin((0..3).map(|index| part(id, index)).collect());
        session.pin_answer(call).unwrap();
        session.end_pin_call(call);
        assert_eq!(session.digest(id, 3 * MIB_2 - 7), digest(&written));
        for index in 0..3 {
            let slot = session.word_table().client(session.slot(id, index));
            assert_eq!(slot.unpin(), Ok(Unpinned::Done));
        }
    }
    session.free(id);
    daemon.drains();
}

#[test]
fn a_pinned_part_is_revoked_only_if_the_operator_waits() {
    let daemon = Daemon::new();
    let mut session = RawSession::open_with_pins(&daemon.sockets());
    session.pins_on_map = 1;
    let id = session.allocate(spec(MIB_2)).allocation_id;
    let slot = session.slot(id, 0);
    let refused = revoke(&daemon, id, false).ok();
    assert_eq!(outcomes(&refused.parts), [(0, Outcome::Pinned, vec![session.id()])]);
    assert_eq!(session.word_table().read(slot), MAPPED | 1, "taken back");

    let fence = revoke(&daemon, id, true);
    assert_eq!(session.receive_revoke().reason(), RevokeReason::Evicted);
    let word = session.word_table().client(slot);
    assert_eq!(
        session
            .word_table()
            .worker(slot)
            .begin_unmap_revoked()
            .err()
            .map(|why| format!("{why:?}"))
            .as_deref(),
        Some("Pinned")
    );
    assert_eq!(word.pin(Access::Read), Ok(()), "while there is a pin more may join");
    assert_eq!(word.unpin(), Ok(Unpinned::Done));
    assert!(!fence.is_answered());
    assert_eq!(word.unpin(), Ok(Unpinned::WakeWorker));
    session.unmap_parts(vec![part(id, 0)]);
    assert_eq!(outcomes(&fence.ok().parts), [(0, Outcome::Revoked, vec![])]);
}

#[test]
fn a_session_that_pins_past_the_deadline_is_named() {
    let daemon = Daemon::start(&Config::default().limit("revoke_answer_timeout_ms = 300"));
    let mut session = RawSession::open_with_pins(&daemon.sockets());
    session.pins_on_map = 1;
    let id = session.allocate(spec(MIB_2)).allocation_id;
    let answer = revoke(&daemon, id, true).ok();
    let [(0, outcome, by)] = &outcomes(&answer.parts)[..] else { panic!("{answer:?}") };
    assert!(matches!(outcome, Outcome::Pinned | Outcome::Silent), "{outcome:?}");
    assert_eq!(by, &[session.id()]);
    // The session can still answer, and is live again.
    let revoke = session.receive_revoke();
    assert_eq!(session.word_table().client(session.slot(id, 0)).unpin(), Ok(Unpinned::WakeWorker));
    session.unmap_parts(revoke.parts);
    until("it lives again", || daemon.state().sessions[0].state() == SessionState::Live);
    let call = session.pin(vec![part(id, 0)]);
    session.pin_answer(call).unwrap();
}

#[test]
fn sessions_without_pins_and_silent_ones_keep_their_mappings() {
    let daemon = Daemon::start(&Config::default().limit("revoke_answer_timeout_ms = 300"));
    let mut plain = RawSession::open(&daemon.sockets());
    let id = plain.allocate(spec(MIB_2)).allocation_id;
    let answer = revoke(&daemon, id, true).ok();
    assert_eq!(outcomes(&answer.parts), [(0, Outcome::Standing, vec![plain.id()])]);

    let mut silent = RawSession::open_with_pins(&daemon.sockets());
    let id = silent.allocate(spec(MIB_2)).allocation_id;
    // The session gets the revoke, and does not answer.
    let answer = revoke(&daemon, id, false).ok();
    assert_eq!(outcomes(&answer.parts), [(0, Outcome::Silent, vec![silent.id()])]);
    let word = silent.word_table().read(silent.slot(id, 0));
    let again = revoke(&daemon, id, false).ok();
    assert_eq!(outcomes(&again.parts), [(0, Outcome::Silent, vec![silent.id()])]);
    assert_eq!(silent.word_table().read(silent.slot(id, 0)), word, "its words are left alone");
}

#[test]
fn one_reader_that_pins_keeps_the_part_for_all() {
    let daemon = Daemon::new();
    let mut owner = RawSession::open_with_pins(&daemon.sockets());
    let id = owner.allocate(persistent("shared", MIB_2)).allocation_id;
    owner.seal(id);
    let mut readers: Vec<_> = (0..2)
        .map(|_| {
            let mut reader = RawSession::open_with_pins(&daemon.sockets());
            reader.attach("shared");
            reader
        })
        .collect();
    let slot = readers[1].slot(id, 0);
    readers[1].word_table().client(slot).pin(Access::Read).unwrap();
    let answer = revoke(&daemon, id, false).ok();
    assert_eq!(outcomes(&answer.parts), [(0, Outcome::Pinned, vec![readers[1].id()])]);
    for session in [&owner, &readers[0]] {
        assert_eq!(session.word_table().read(session.slot(id, 0)), MAPPED, "taken back");
    }
    assert_eq!(readers[1].word_table().client(slot).unpin(), Ok(Unpinned::Done));
    let revoking = revoke(&daemon, id, false);
    for session in readers.iter_mut().chain([&mut owner]) {
        let revoke = session.receive_revoke();
        session.unmap_parts(revoke.parts);
    }
    assert_eq!(outcomes(&revoking.ok().parts), [(0, Outcome::Revoked, vec![])]);
    // One part comes back alone.
    let call = readers[0].pin(vec![part(id, 0)]);
    readers[0].pin_answer(call).unwrap();
    assert_eq!(daemon.state().allocations[0].mapper_count, 1);
}

#[test]
fn an_operator_revokes_by_command() {
    let daemon = Daemon::new();
    let mut session = RawSession::open_with_pins(&daemon.sockets());
    let request = vramd_proto::v1::AllocationSpec { part_size_bytes: Some(MIB_2), ..spec(2 * MIB_2) };
    let id = session.allocate(request).allocation_id;
    let target = format!("a-{id}");
    let run = |words: &[&str]| {
        let output =
            daemon.vramctl().args(["alloc", "revoke", &target, "--json"]).args(words).output().unwrap();
        (
            output.status.code(),
            serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap_or_default(),
        )
    };
    session.word_table().client(session.slot(id, 1)).pin(Access::Read).unwrap();
    let (status, said) = run(&["--part", "1"]);
    assert_eq!(status, Some(0));
    assert_eq!(said["parts"][0]["outcome"], "pinned");
    assert_eq!(said["parts"][0]["session_ids"][0], format!("s-{}", session.id()));
    assert_eq!(run(&["--part", "2"]).0, Some(1), "there is no such part");
    until("all maps are answered", || daemon.state().node.fds_in_flight == 0);
    let running = std::thread::scope(|scope| {
        let command = scope.spawn(|| run(&["--part", "0"]));
        let revoke = session.receive_revoke();
        session.unmap_parts(revoke.parts);
        command.join().unwrap()
    });
    assert_eq!(running.1["parts"][0]["outcome"], "revoked");
}

#[test]
fn an_away_part_is_sealed_freed_and_attached() {
    let daemon = Daemon::new();
    let mut owner = RawSession::open_with_pins(&daemon.sockets());
    let id = owner.allocate(persistent("model", 2 * MIB)).allocation_id;
    owner.write(id, &content(2 * MIB, 8));
    evict(&daemon, &mut owner, id);
    let seal = SealRequest { session_id: owner.id(), allocation_id: id, ..Default::default() };
    let sealed = owner.memory.seal(seal).ok().allocation.unwrap();
    assert_eq!(sealed.digest, digest(&content(2 * MIB, 8)));
    owner.map_all(id);
    evict(&daemon, &mut owner, id);

    let mut reader = RawSession::open_with_pins(&daemon.sockets());
    reader.attach("model");
    assert_eq!(reader.digest(id, 2 * MIB), digest(&content(2 * MIB, 8)));
    evict(&daemon, &mut reader, id);
    reader.detach(id);
    assert_eq!(owner.free(id).mapper_count, 0);
    until("it is gone", || daemon.state().allocations.is_empty());
    daemon.drains();
}

#[test]
fn a_set_is_resident_as_a_whole_and_protected_until_its_call_ends() {
    let daemon = Daemon::new();
    let mut session = RawSession::open_with_pins(&daemon.sockets());
    let a = session.allocate(spec(MIB_2)).allocation_id;
    let b = session.allocate(spec(MIB_2)).allocation_id;
    evict(&daemon, &mut session, a);
    let call = session.pin(vec![part(a, 0), part(b, 0)]);
    session.pin_answer(call).unwrap();
    // No word has a pin, and yet neither part leaves.
    for id in [a, b] {
        let answer = revoke(&daemon, id, false).ok();
        assert_eq!(outcomes(&answer.parts), [(0, Outcome::Pinned, vec![session.id()])]);
    }
    session.end_pin_call(call);
    until("the call has ended", || {
        let answer = revoke(&daemon, a, false);
        let gone = session.channel.waits(Duration::from_millis(50));
        if gone {
            let revoke = session.receive_revoke();
            session.unmap_parts(revoke.parts);
        }
        answer.ok().parts[0].outcome() == Outcome::Revoked
    });
}

/// No time is a value, and not the same as no bound.
#[test]
fn a_pin_without_time_gets_only_what_is_mapped() {
    let daemon = Daemon::new();
    let mut session = RawSession::open_with_pins(&daemon.sockets());
    let id = session.allocate(spec(MIB_2)).allocation_id;
    let call = session.pin_within(vec![part(id, 0)], 0);
    session.pin_answer(call).unwrap();
    session.end_pin_call(call);
    evict(&daemon, &mut session, id);
    let call = session.pin_within(vec![part(id, 0)], 0);
    session.pin_answer(call).unwrap_err().is(Reason::Deadline);
    let call = session.pin(vec![part(id, 0)]);
    session.pin_answer(call).unwrap();
}

#[test]
fn an_invalid_pin_is_refused_and_the_session_lives() {
    let daemon = Daemon::new();
    let mut session = RawSession::open_with_pins(&daemon.sockets());
    let ids: Vec<_> = (0..2).map(|_| session.allocate(spec(MIB_2)).allocation_id).collect();
    let other = RawSession::open_with_pins(&daemon.sockets());
    let theirs = other.reserve(spec(MIB_2)).allocation_id;
    for unknown in [part(ids[0], 9), part(theirs, 0), part(u64::MAX, u32::MAX)] {
        let call = session.pin(vec![part(ids[1], 0), unknown]);
        let refused = session.pin_answer(call).unwrap_err();
        assert_eq!(refused.code, tonic::Code::NotFound, "{refused:?}");
    }
    // Together they exceed the lowered limit.
    daemon.set_quota(session.tenant(), "", "2MiB");
    let call = session.pin(ids.iter().map(|id| part(*id, 0)).collect());
    session.pin_answer(call).unwrap_err().is(Reason::QuotaLimit);
    let call = session.pin(vec![part(ids[0], 0)]);
    session.pin_answer(call).unwrap();
}

#[test]
fn a_forged_frame_ends_its_session_alone() {
    let daemon = Daemon::new();
    let mut witness = RawSession::open_with_pins(&daemon.sockets());
    let kept = witness.allocate(spec(MIB_2)).allocation_id;
    type Lie = fn(&mut RawSession, u64);
    let lies: [(&str, Lie); 7] = [
        ("the table mapped twice", |session, _| session.send(Frame::WordsMapped(WordsMapped {}))),
        ("a call's number again", |session, id| {
            let call = session.pin(vec![part(id, 0)]);
            session.pin_answer(call).unwrap();
            session.send(Frame::Pin(vramd_proto::v1::Pin {
                call_id: call,
                parts: vec![part(id, 0)],
                write: false,
                trace: None,
                wait_ms: None,
            }));
        }),
        ("a part twice", |session, id| {
            session.pin(vec![part(id, 0), part(id, 0)]);
        }),
        ("no part", |session, _| {
            session.pin(vec![]);
        }),
        ("mapped without a map", |session, id| session.acknowledge(vec![part(id, 0)])),
        ("unmapped for what it does not map", |session, _| session.report_unmapped(&[part(7, 0)])),
        ("unmapped twice", |session, id| {
            session.unmap(id);
            session.report_unmapped(&[part(id, 0)]);
        }),
    ];
    for (what, lie) in lies {
        let mut session = RawSession::open_with_pins(&daemon.sockets());
        let id = session.allocate(spec(MIB_2)).allocation_id;
        lie(&mut session, id);
        let refused = quarantined(&daemon, &session);
        assert_eq!(refused.reason, Reason::ProtocolBroken.name(), "{what}");
    }
    evict(&daemon, &mut witness, kept);
    let call = witness.pin(vec![part(kept, 0)]);
    witness.pin_answer(call).unwrap();
}

#[test]
fn pins_left_at_exit_end_with_the_process() {
    let daemon = Daemon::new();
    let mut owner = RawSession::open_with_pins(&daemon.sockets());
    let id = owner.allocate(persistent("shared", MIB_2)).allocation_id;
    owner.seal(id);
    let mut probe = daemon.probe();
    probe.ask("open pins");
    probe.ask(&format!("attach {}/shared", owner.tenant()));
    probe.ask(&format!("pin {id}"));
    let answer = revoke(&daemon, id, false).ok();
    assert_eq!(answer.parts[0].outcome(), Outcome::Pinned);
    probe.kill();
    until("its session is gone", || daemon.state().sessions.len() == 1);
    evict(&daemon, &mut owner, id);
    assert_eq!(daemon.state().allocations[0].state(), AllocationState::Sealed);
}

#[test]
fn stalled_pins_are_aborted_youngest_first() {
    let daemon = Daemon::start(&Config::default().limit("pin_stall_ms = 200"));
    let mut owner = RawSession::open_with_pins(&daemon.sockets());
    let ids: Vec<_> = ["p", "q"]
        .map(|name| {
            let id = owner.allocate(persistent(name, MIB_2)).allocation_id;
            owner.seal(id);
            owner.detach(id);
            id
        })
        .into();
    let mut sessions: Vec<_> = (0..2)
        .map(|_| {
            let mut session = RawSession::open_with_pins(&daemon.sockets());
            session.attach("p");
            session.attach("q");
            session
        })
        .collect();
    // Each session pins one of the two parts, and both parts are fenced.
    for (session, id) in sessions.iter().zip(&ids) {
        session.word_table().client(session.slot(*id, 0)).pin(Access::Read).unwrap();
    }
    let fences: Vec<_> = ids.iter().map(|id| revoke(&daemon, *id, true)).collect();
    for (session, id) in sessions.iter_mut().zip(ids.iter().rev()) {
        for _ in 0..2 {
            let revoke = session.receive_revoke();
            let free: Vec<_> = revoke.parts.into_iter().filter(|part| part.allocation_id == *id).collect();
            if !free.is_empty() {
                session.unmap_parts(free);
            }
        }
    }
    // Now each wants the other part, too, while it keeps its own.
    let first = sessions[0].pin(vec![part(ids[1], 0)]);
    std::thread::sleep(Duration::from_millis(20));
    let second = sessions[1].pin(vec![part(ids[0], 0)]);
    sessions[1].pin_answer(second).unwrap_err().is(Reason::PinStalled);
    // The older call succeeds once the younger one is aborted.
    let slot = sessions[1].slot(ids[1], 0);
    assert_eq!(sessions[1].word_table().client(slot).unpin(), Ok(Unpinned::WakeWorker));
    sessions[1].unmap_parts(vec![part(ids[1], 0)]);
    sessions[0].pin_answer(first).unwrap();
    for fence in fences {
        fence.cancel();
    }
}

#[test]
fn a_pin_that_stalls_itself_is_aborted_and_may_be_repeated() {
    let daemon = Daemon::start(&Config::default().limit("pin_stall_ms = 200"));
    let mut session = RawSession::open_with_pins(&daemon.sockets());
    let ids = [0, 1].map(|_| session.allocate(spec(MIB_2)).allocation_id);
    evict(&daemon, &mut session, ids[1]);
    let slot = session.slot(ids[0], 0);
    session.word_table().client(slot).pin(Access::Read).unwrap();
    let fence = revoke(&daemon, ids[0], true);
    assert_eq!(session.receive_revoke().reason(), RevokeReason::Evicted);
    let set = || ids.map(|id| part(id, 0)).to_vec();
    // A call for both parts while the session pins one that is revoked: it would never end.
    let call = session.pin(set());
    let refused = session.pin_answer(call).unwrap_err();
    refused.is(Reason::PinStalled);
    assert_eq!(session.word_table().client(slot).unpin(), Ok(Unpinned::WakeWorker));
    session.unmap_parts(vec![part(ids[0], 0)]);
    assert_eq!(fence.ok().parts[0].outcome(), Outcome::Revoked);
    let call = session.pin(set());
    session.pin_answer(call).unwrap();
    session.end_pin_call(call);
}

#[test]
fn a_client_that_never_maps_its_word_table_is_refused() {
    let daemon = Daemon::start(&Config::default().limit("map_answer_timeout_ms = 2000"));
    let mut witness = RawSession::open_with_pins(&daemon.sockets());
    let tables = || {
        let kinds = fds_by_kind(daemon.pid()).into_iter();
        kinds.filter(|(kind, _)| kind.contains("vramd-words")).map(|(_, count)| count).sum::<usize>()
    };
    until("the witness has mapped its own", || tables() == 0);
    let stubborn: Vec<_> = (0..5)
        .map(|_| {
            let channel = RawChannel::connect(&daemon.sockets()).unwrap();
            channel.send(Frame::Hello(hello_with_pins())).unwrap();
            let Packet::Frame(daemon_frame::Frame::Welcome(welcome), fds) = channel.receive(PATIENCE) else {
                panic!("no welcome")
            };
            assert_eq!((fds.len(), welcome.slot_count > 0), (1, true));
            channel
        })
        .collect();
    assert_eq!(tables(), stubborn.len());
    for channel in &stubborn {
        let Packet::Frame(daemon_frame::Frame::Refused(refused), _) = channel.receive(PATIENCE) else {
            panic!("no refusal")
        };
        assert_eq!(refused.reason, Reason::ProtocolBroken.name());
        assert!(refused.message.contains("the word table was not mapped within 2000 ms"), "{refused:?}");
        assert!(matches!(channel.receive(PATIENCE), Packet::Ended));
    }
    until("they are gone", || daemon.state().sessions.len() == 1);
    until("their tables are closed", || tables() == 0);
    let id = witness.allocate(spec(MIB_2)).allocation_id;
    witness.free(id);
    daemon.drains();
}

#[test]
fn an_ended_session_releases_its_away_parts() {
    let daemon = Daemon::new();
    let mut session = RawSession::open_with_pins(&daemon.sockets());
    let id = session.allocate(spec(MIB_2)).allocation_id;
    evict(&daemon, &mut session, id);
    let request = EndSessionRequest { session_id: session.id(), ..Default::default() };
    assert_eq!(daemon.admin.end_session(request).ok().state(), SessionState::Gone);
    daemon.drains();
}
