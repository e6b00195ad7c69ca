//! Parts that an operator has written back while they stay mapped: they leave without a copy unless a client writes
//! them first.

use vramd_proto::v1::{
    MoveCause, MoveOutcome as Outcome, MoveState, PartMove, ShowAllocationRequest, Tier,
    WriteBackPartsRequest, WriteBackPartsResponse, move_event::Change, show_allocation_request,
    watch_response::Event, write_back_parts_request::Target,
};
use vramd_tests::{
    Config, Daemon, MIB_2, Pending, RawSession, Watching, config::Effect, content, digest, session::spec,
    wait::until,
};
use vramd_types::Reason;
use vramd_words::Access;

use crate::moves::{
    assert_nothing_left, end_holds_once_called_off, fetch_by_pin, first, free_during_hold, held,
    open_and_write, operators::list::listed, part, parts, pin_words, start_move, tiers, unmap_revoked,
    unpin_words, vramctl, vramctl_json,
};
use crate::protocol::pins::quarantined;

fn request(allocation: u64) -> WriteBackPartsRequest {
    WriteBackPartsRequest { target: Some(Target::AllocationId(allocation)), ..Default::default() }
}

/// Asks for a write-back once the daemon knows that every part it sent is mapped.
#[track_caller]
pub(crate) fn writing_back(daemon: &Daemon, allocation: u64) -> Pending<WriteBackPartsResponse> {
    until("all maps are answered", || daemon.state().node.fds_in_flight == 0);
    daemon.admin.write_back_parts(request(allocation))
}

/// The outcome of the only part.
fn only(answer: WriteBackPartsResponse) -> PartMove {
    let [part] = <[PartMove; 1]>::try_from(answer.parts).expect("it has one part");
    part
}

/// Evicts the part with one request. The session answers the revoke.
#[track_caller]
fn leaves(daemon: &Daemon, session: &mut RawSession, id: u64) -> Outcome {
    let evicting = start_move(daemon, id, Tier::Host);
    unmap_revoked(session, id);
    first(&evicting.ok()).0
}

/// Fetches the part by a pin. Its fetch is the first.
#[track_caller]
fn the_second_copy_fails(session: &mut RawSession, id: u64) {
    let call = session.pin(vec![part(id, 0)]);
    session.pin_answer(call).unwrap_err().is(Reason::DriverFailed);
}

fn no_second_copy() -> Config {
    tiers("8MiB", "8MiB").fault("copy", 2, Effect::Fail("it is copied again".into()))
}

/// The sessions that map the only part.
fn mappers(daemon: &Daemon, allocation: u64) -> Vec<u64> {
    let target = Some(show_allocation_request::Target::AllocationId(allocation));
    let shown = daemon.admin.show_allocation(ShowAllocationRequest { target }).ok().allocation.unwrap();
    shown.parts[0].mapper_session_ids.clone()
}

fn is_copied(daemon: &Daemon) -> bool {
    let moves = listed(daemon).moves;
    moves.iter().any(|it| (it.cause(), it.state()) == (MoveCause::WriteBack, MoveState::Copying))
}

/// Writes under a pin, so that the word says so.
fn write_pinned(session: &mut RawSession, id: u64, what: &[u8]) {
    pin_words(session, id, 1);
    session.write(id, what);
    unpin_words(session, id, 1);
}

#[test]
fn a_written_back_part_stays_mapped_and_leaves_without_a_copy() {
    let daemon = Daemon::start(&no_second_copy());
    let (mut session, id) = open_and_write(&daemon, 1);
    write_pinned(&mut session, id, &content(MIB_2, 5));
    let mut watching = Watching::all(&daemon.admin);
    let told = vramctl_json(&daemon, &["alloc", "write-back", &format!("a-{id}")]);
    assert_eq!(told["parts"][0]["outcome"], "written_back");
    assert!(session.parts(id).next().is_some(), "it is mapped still");
    assert_eq!(held(&daemon), (2, 2));
    watching.until(|event| matches!(event, Event::Move(it) if (it.change(), it.tier(), &*it.detail) == (Change::WrittenBack, Tier::Host, "")));
    let ended = listed(&daemon).ended.remove(0);
    assert_eq!(
        (ended.cause(), ended.outcome(), ended.tier()),
        (MoveCause::WriteBack, Change::WrittenBack, Tier::Host)
    );
    let text = String::from_utf8(vramctl(&daemon, &["move", "list"]).stdout).unwrap();
    assert!(text.contains("write_back") && text.contains("written_back"), "{text}");
    assert_eq!(leaves(&daemon, &mut session, id), Outcome::Moved);
    the_second_copy_fails(&mut session, id);
    fetch_by_pin(&mut session, id, 1);
    assert_eq!(session.digest(id, MIB_2), digest(&content(MIB_2, 5)));
    session.free(id);
    assert_nothing_left(&daemon);
}

#[test]
fn a_part_written_after_its_write_back_is_copied_when_it_leaves() {
    let daemon = Daemon::start(&no_second_copy());
    let (mut session, id) = open_and_write(&daemon, 1);
    assert_eq!(only(writing_back(&daemon, id).ok()).outcome(), Outcome::Moved);
    write_pinned(&mut session, id, &content(MIB_2, 5));
    assert_eq!(leaves(&daemon, &mut session, id), Outcome::Failed, "it is copied");
    fetch_by_pin(&mut session, id, 1);
    assert_eq!(leaves(&daemon, &mut session, id), Outcome::Moved);
    fetch_by_pin(&mut session, id, 1);
    assert_eq!(session.digest(id, MIB_2), digest(&content(MIB_2, 5)));
    session.free(id);
    assert_nothing_left(&daemon);
}

#[test]
fn a_part_written_during_its_write_back_is_copied_again() {
    let daemon = Daemon::start(&tiers("8MiB", "8MiB").fault("copy", 1, Effect::Hold));
    let (mut session, id) = open_and_write(&daemon, 1);
    let mut watching = Watching::all(&daemon.admin);
    let writing = writing_back(&daemon, id);
    until("it is copied", || is_copied(&daemon));
    write_pinned(&mut session, id, &content(MIB_2, 5));
    let evicting = start_move(&daemon, id, Tier::Host);
    unmap_revoked(&mut session, id);
    // The daemon learns of the write before the copy has ended, and the eviction waits for that end.
    until("no session maps it", || mappers(&daemon, id).is_empty());
    daemon.end_holds();
    assert_eq!(first(&evicting.ok()).0, Outcome::Moved);
    assert_eq!(only(writing.ok()).outcome(), Outcome::Moved);
    watching.until(|event| matches!(event, Event::Move(it) if it.change() == Change::WrittenBack && !it.detail.is_empty()));
    fetch_by_pin(&mut session, id, 1);
    assert_eq!(session.digest(id, MIB_2), digest(&content(MIB_2, 5)));
    session.free(id);
    assert_nothing_left(&daemon);
}

#[test]
fn a_part_evicted_during_its_write_back_is_copied_once() {
    let daemon = Daemon::start(&no_second_copy().fault("copy", 1, Effect::Hold));
    let (mut session, id) = open_and_write(&daemon, 1);
    let writing = writing_back(&daemon, id);
    until("it is copied", || is_copied(&daemon));
    let evicting = start_move(&daemon, id, Tier::Host);
    unmap_revoked(&mut session, id);
    daemon.end_holds();
    assert_eq!(first(&evicting.ok()).0, Outcome::Moved);
    assert_eq!(only(writing.ok()).outcome(), Outcome::Moved);
    the_second_copy_fails(&mut session, id);
    fetch_by_pin(&mut session, id, 1);
    assert_eq!(session.digest(id, MIB_2), digest(&content(MIB_2, id)));
    session.free(id);
    assert_nothing_left(&daemon);
}

#[test]
fn a_session_that_pins_a_part_is_named_and_keeps_writing() {
    let daemon = Daemon::start(&tiers("8MiB", "8MiB"));
    let (mut session, id) = open_and_write(&daemon, 1);
    let slot = session.slot(id, 0);
    session.word_table().client(slot).pin(Access::Read).unwrap();
    let told = only(writing_back(&daemon, id).ok());
    assert_eq!((told.outcome(), &told.session_ids[..]), (Outcome::Pinned, &[session.id()][..]));
    let text =
        String::from_utf8(vramctl(&daemon, &["alloc", "write-back", &format!("a-{id}")]).stdout).unwrap();
    assert!(text.contains("pinned") && text.contains(&format!("s-{}", session.id())), "{text}");
    unpin_words(&session, id, 1);
    let mut plain = daemon.open();
    let standing = plain.allocate(parts(1)).allocation_id;
    assert_eq!(only(writing_back(&daemon, standing).ok()).outcome(), Outcome::Standing);
    assert_eq!(only(writing_back(&daemon, id).ok()).outcome(), Outcome::Moved);
    session.free(id);
    plain.free(standing);
    assert_nothing_left(&daemon);
}

#[test]
fn a_forged_pin_word_is_found() {
    let daemon = Daemon::start(&tiers("8MiB", "8MiB"));
    let (session, id) = open_and_write(&daemon, 1);
    session.word_table().write(session.slot(id, 0), 1 << 40);
    let told = only(writing_back(&daemon, id).ok());
    assert!(matches!(told.outcome(), Outcome::Pinned | Outcome::Silent), "{told:?}");
    let refused = quarantined(&daemon, &session);
    assert!(refused.message.contains("word"), "{refused:?}");
}

#[test]
fn a_failed_write_back_is_reported_and_the_part_stays_usable() {
    let daemon = Daemon::start(&tiers("8MiB", "8MiB").fault("copy", 1, Effect::Fail("a cable".into())));
    let (mut session, id) = open_and_write(&daemon, 1);
    let told = only(writing_back(&daemon, id).ok());
    assert_eq!((told.outcome(), &*told.problem), (Outcome::Failed, "a cable"));
    let ended = listed(&daemon).ended.remove(0);
    assert_eq!(
        (ended.cause(), ended.outcome(), &*ended.detail),
        (MoveCause::WriteBack, Change::Failed, "a cable")
    );
    assert_eq!(session.digest(id, MIB_2), digest(&content(MIB_2, id)));
    assert_eq!(leaves(&daemon, &mut session, id), Outcome::Moved);
    fetch_by_pin(&mut session, id, 1);
    assert_eq!(session.digest(id, MIB_2), digest(&content(MIB_2, id)));
    session.free(id);
    assert_nothing_left(&daemon);
}

#[test]
fn a_fetch_or_a_free_ends_a_write_back() {
    for frees in [false, true] {
        let daemon = Daemon::start(&tiers("8MiB", "8MiB").fault("copy", 1, Effect::Hold));
        let (mut session, id) = open_and_write(&daemon, 1);
        let writing = writing_back(&daemon, id);
        until("it is copied", || is_copied(&daemon));
        if frees {
            free_during_hold(&daemon, &mut session, id);
        } else {
            let fetching = start_move(&daemon, id, Tier::Device);
            end_holds_once_called_off(&daemon);
            assert_eq!(first(&fetching.ok()).0, Outcome::Moved);
        }
        let told = only(writing.ok()).outcome();
        assert_eq!(told, if frees { Outcome::Freed } else { Outcome::Wanted });
        if !frees {
            assert_eq!(session.digest(id, MIB_2), digest(&content(MIB_2, id)));
            session.free(id);
        }
        assert_nothing_left(&daemon);
    }
}

#[test]
fn a_write_back_without_backing_is_refused() {
    let daemon = Daemon::start(&tiers("8MiB", "8MiB"));
    let (mut session, id) = open_and_write(&daemon, 1);
    let discardable = vramd_proto::v1::AllocationSpec { discardable: true, ..spec(MIB_2) };
    let discardable = session.allocate(discardable).allocation_id;
    let state = daemon.settled_state();
    let ask = |request: WriteBackPartsRequest| daemon.admin.write_back_parts(request).refused();
    ask(request(discardable)).is(Reason::KindUnsupported);
    ask(request(id + 100)).is(Reason::AllocationNotFound);
    ask(WriteBackPartsRequest { target: None, ..request(id) }).is(Reason::RequestInvalid);
    for part_indexes in [vec![1], vec![0, 0]] {
        ask(WriteBackPartsRequest { part_indexes, ..request(id) }).is(Reason::RequestInvalid);
    }
    assert_eq!(daemon.state(), state);
    session.free(discardable);
    session.free(id);
    assert_nothing_left(&daemon);
    let daemon = Daemon::new();
    let (_session, id) = open_and_write(&daemon, 1);
    let refused = daemon.admin.write_back_parts(request(id)).refused();
    assert_eq!(refused.is(Reason::TierUnsupported).fact("tier"), "host");
}
