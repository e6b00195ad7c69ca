//! The word table that a session and the daemon share: what a client cannot do to it, and what happens to a client that
//! writes nonsense.

#![allow(unsafe_code, reason = "punching holes into a mapping is an unsafe call, and what is tested here")]

use std::os::fd::OwnedFd;

use rustix::{
    fs::{FallocateFlags, SealFlags, fallocate, fcntl_get_seals, ftruncate},
    io::Errno,
    mm::{Advice, madvise},
};
use vramd_proto::v1::{RevocationOutcome as Outcome, WordsMapped, client_frame, daemon_frame::Frame};
use vramd_tests::{
    Config, Daemon, MIB_2, RawChannel, RawSession,
    channel::Packet,
    session::{hello_with_pins, spec},
    wait::{PATIENCE, until},
    words::WordTable,
};
use vramd_types::Reason;
use vramd_words::{Access, State, Unpinned, bytes_for};

use crate::protocol::pins::{MAPPED, evict, quarantined, revoke};

const UNMAPPING: u64 = 1 << 27;

/// A session that keeps the descriptor of its table.
fn with_table(daemon: &Daemon) -> (RawSession, OwnedFd) {
    let channel = RawChannel::connect(&daemon.sockets()).unwrap();
    channel.send(client_frame::Frame::Hello(hello_with_pins())).unwrap();
    let Packet::Frame(Frame::Welcome(welcome), mut fds) = channel.receive(PATIENCE) else {
        panic!("no welcome")
    };
    let table = fds.pop().expect("the table");
    let slots = welcome.slot_count;
    let mut session = RawSession::from_welcome(&daemon.sockets(), channel, welcome);
    session.words = Some(WordTable::map(&table, slots));
    (session, table)
}

#[test]
fn a_client_cannot_shrink_or_punch_the_word_table() {
    let daemon = Daemon::new();
    let (mut session, table) = with_table(&daemon);
    let length = bytes_for(session.welcome.slot_count);
    session.send(client_frame::Frame::WordsMapped(WordsMapped {}));
    let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
    until("it is sealed", || fcntl_get_seals(&table).is_ok_and(|seals| seals.contains(all)));

    let id = session.allocate(spec(MIB_2)).allocation_id;
    let slot = session.slot(id, 0);
    session.word_table().client(slot).pin(Access::Write).unwrap();
    let word = session.word_table().read(slot);
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    assert_eq!(fallocate(&table, hole, 0, length), Err(Errno::PERM));
    assert_eq!(ftruncate(&table, 0), Err(Errno::PERM));
    assert_eq!(ftruncate(&table, length * 2), Err(Errno::PERM));
    let words = session.word_table().words();
    // SAFETY: needed to try to take the pages from under the mapping. The kernel refuses it. If it did not, the words
    // would be zeros, which atomics may become at any time.
    let removed =
        unsafe { madvise(words.as_ptr().cast_mut().cast(), size_of_val(words), Advice::LinuxRemove) };
    assert_eq!(removed, Err(Errno::PERM));
    assert_eq!(session.word_table().read(slot), word, "all words are as they were");

    let answer = revoke(&daemon, id, false).ok();
    assert_eq!(answer.parts[0].outcome(), Outcome::Pinned, "and the daemon reads them");
    assert_eq!(session.word_table().client(slot).unpin(), Ok(Unpinned::Done));
    evict(&daemon, &mut session, id);
}

#[test]
fn an_impossible_word_ends_its_session_alone() {
    let daemon = Daemon::new();
    let mut witness = RawSession::open_with_pins(&daemon.sockets());
    let kept = witness.allocate(spec(MIB_2)).allocation_id;
    // Unknown bits, pins of a part that is not mapped or is being unmapped, two states at once, and one unpin too many,
    // as a subtraction would cause.
    for word in [MAPPED | 1 << 40, 5, UNMAPPING | 3, MAPPED | UNMAPPING, MAPPED - 1] {
        let mut session = RawSession::open_with_pins(&daemon.sockets());
        let id = session.allocate(spec(MIB_2)).allocation_id;
        session.word_table().write(session.slot(id, 0), word);
        let answer = revoke(&daemon, id, false).ok();
        assert_ne!(answer.parts[0].outcome(), Outcome::Revoked, "{word:#x}");
        let refused = quarantined(&daemon, &session);
        refused.is(Reason::ProtocolBroken);
        assert!(refused.message.contains("word"), "{refused:?}");
    }
    assert_eq!(daemon.state().node.invariant_violations, 0);
    evict(&daemon, &mut witness, kept);
}

#[test]
fn a_table_has_the_configured_number_of_slots() {
    let daemon = Daemon::start(&Config::default().limit("words_per_session_max = 2"));
    let mut session = RawSession::open_with(&daemon.sockets(), hello_with_pins()).unwrap();
    assert_eq!(session.welcome.slot_count, 2);
    let first = session.allocate(spec(MIB_2)).allocation_id;
    session.allocate(spec(MIB_2));
    session.refused(spec(MIB_2));
    session.free(first);
    // The slot serves another part, whose word starts anew.
    until("a slot is free", || {
        let answer = session.memory.allocate_batch(session.request(vec![spec(MIB_2)])).wait();
        answer.is_ok_and(|answer| {
            let id = answer.allocations[0].allocation_id;
            session.map_all(id);
            let slot = session.slot(id, 0);
            let state = vramd_words::Word::from_raw(session.word_table().read(slot)).state();
            assert_eq!(state, Some(State::Resident { pins: 0 }));
            true
        })
    });
}
