//! Interruptions of a fetch: the part is freed, its session ends, or an operator evicts it again.

use vramd_proto::v1::{EndSessionRequest, MoveState, SessionState, Tier};
use vramd_tests::{Daemon, MIB_2, Pending, RawSession, config::Effect, content, digest, wait::until};
use vramd_types::Reason;

use crate::moves::{
    MovePartsResponse, Outcome, assert_nothing_left, evict, first, free_during_hold, open_and_write,
    operators::list::listed, part, start_move, tiers, until_charged,
};

/// The driver creates the memory, or copies into it. Earlier operations belong to the allocation or the way out.
const STEPS: [(&str, u64, MoveState); 2] =
    [("create", 2, MoveState::Preparing), ("copy", 2, MoveState::Copying)];

/// A part that is fetched by an operator or by a pin of its session.
struct Coming {
    daemon: Daemon,
    session: RawSession,
    id: u64,
    call: Call,
}

enum Call {
    Operator(Pending<MovePartsResponse>),
    Pin(u64),
}

fn each(mut play: impl FnMut(Coming)) {
    for (on, nth, state) in STEPS {
        for pins in [false, true] {
            let daemon = Daemon::start(&tiers("8MiB", "8MiB").fault(on, nth, Effect::Hold));
            let (mut session, id) = open_and_write(&daemon, 1);
            evict(&daemon, &mut session, id);
            until_charged(&daemon, 0, 2);
            let call = match pins {
                true => Call::Pin(session.pin(vec![part(id, 0)])),
                false => Call::Operator(start_move(&daemon, id, Tier::Device)),
            };
            until("it is on its way", || {
                let moves = listed(&daemon).moves;
                moves.first().is_some_and(|it| (it.tier(), it.state()) == (Tier::Device, state))
            });
            play(Coming { daemon, session, id, call });
        }
    }
}

#[test]
fn a_part_freed_during_its_fetch_leaves_nothing() {
    each(|Coming { daemon, mut session, id, call }| {
        assert_eq!(free_during_hold(&daemon, &mut session, id).error, None);
        match call {
            Call::Operator(pending) => assert_eq!(first(&pending.ok()).0, Outcome::Freed),
            Call::Pin(call) => _ = session.pin_answer(call).unwrap_err().is(Reason::AllocationNotFound),
        }
        assert_nothing_left(&daemon);
    });
}

#[test]
fn a_session_that_ends_during_a_fetch_leaves_nothing() {
    each(|Coming { daemon, session, call, .. }| {
        let request = EndSessionRequest { session_id: session.id(), ..Default::default() };
        assert_eq!(daemon.admin.end_session(request).ok().state(), SessionState::Gone);
        daemon.end_holds();
        if let Call::Operator(pending) = call {
            assert_eq!(first(&pending.ok()).0, Outcome::Freed);
        }
        assert_nothing_left(&daemon);
    });
}

#[test]
fn a_part_is_not_evicted_during_its_fetch() {
    each(|Coming { daemon, mut session, id, call }| {
        let answer = start_move(&daemon, id, Tier::Host).ok();
        assert_eq!(first(&answer), (Outcome::Wanted, &[][..]));
        daemon.end_holds();
        let call = match call {
            Call::Operator(pending) => {
                assert_eq!(first(&pending.ok()).0, Outcome::Moved);
                session.pin(vec![part(id, 0)])
            }
            Call::Pin(call) => call,
        };
        session.pin_answer(call).unwrap();
        session.end_pin_call(call);
        until_charged(&daemon, 2, 2);
        assert_eq!(session.digest(id, MIB_2), digest(&content(MIB_2, id)));
        evict(&daemon, &mut session, id);
        until_charged(&daemon, 0, 2);
        session.free(id);
        assert_nothing_left(&daemon);
    });
}
