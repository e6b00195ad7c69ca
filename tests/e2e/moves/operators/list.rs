//! The list of migrations: progress, and those that ended lately.

use vramd_proto::v1::{
    AllocationSpec, EndedMove, ListMovesRequest, ListMovesResponse, Move, MoveCause, MoveOutcome as Outcome,
    MoveState, Tier, move_event::Change,
};
use vramd_tests::{Daemon, MIB, MIB_2, RawSession, config::Effect, session::spec, wait::until};
use vramd_types::Reason;

use crate::moves::{
    assert_nothing_left, end_holds_once_called_off, evict, fetch_by_pin, first, open_and_write, part,
    start_move, tiers, unmap_revoked, until_charged, vramctl, vramctl_json,
};

pub(crate) fn listed(daemon: &Daemon) -> ListMovesResponse {
    daemon.admin.list_moves(ListMovesRequest::default()).ok()
}

/// The part that moves.
fn moving_part(daemon: &Daemon) -> Option<Move> {
    let mut moves = listed(daemon).moves;
    assert!(moves.len() <= 1, "{moves:?}");
    moves.pop()
}

#[test]
fn a_migration_is_listed_with_its_progress() {
    const SIZE: u64 = 64 * MIB;
    let daemon = Daemon::start(&tiers("128MiB", "128MiB").link("96MiB"));
    let mut session = RawSession::open_with_pins(&daemon.sockets());
    let id = session.allocate(AllocationSpec { part_size_bytes: Some(SIZE), ..spec(SIZE) }).allocation_id;
    let uuid = daemon.state().devices[0].device.clone().unwrap().uuid;

    let evicting = start_move(&daemon, id, Tier::Host);
    until("it is shown before it is unmapped", || {
        moving_part(&daemon).is_some_and(|it| it.state() == MoveState::Preparing && it.copied_bytes.is_none())
    });
    unmap_revoked(&mut session, id);
    let copied = || moving_part(&daemon).and_then(|it| it.copied_bytes);
    until("some of it has arrived", || copied().is_some_and(|bytes| (1..SIZE).contains(&bytes)));
    let shown = moving_part(&daemon).expect("there is more to come");
    let arrived = shown.copied_bytes.expect("it is being copied");
    assert_eq!(
        (shown.part, shown.tenant.as_str(), &shown.device),
        (Some(part(id, 0)), session.tenant(), &uuid)
    );
    assert_eq!((shown.from_tier(), shown.tier(), shown.bytes), (Tier::Device, Tier::Host, SIZE));
    assert_eq!((shown.cause(), shown.state()), (MoveCause::Operator, MoveState::Copying));
    assert!(shown.began_at.is_some());
    until("more of it arrives", || copied().is_none_or(|bytes| bytes > arrived));
    assert_eq!(first(&evicting.ok()).0, Outcome::Moved);
    until("nothing moves", || moving_part(&daemon).is_none());

    let call = session.pin(vec![part(id, 0)]);
    until("it comes back on demand", || {
        moving_part(&daemon).is_some_and(|it| it.cause() == MoveCause::Demand && it.tier() == Tier::Device)
    });
    let told = vramctl_json(&daemon, &["move", "list"]);
    assert_eq!((&told["moves"][0]["cause"], &told["moves"][0]["tier"]), (&"demand".into(), &"device".into()));
    assert_eq!(told["moves"][0]["from_tier"], "host");
    assert_eq!(
        (&told["ended"][0]["outcome"], &told["ended"][0]["cause"]),
        (&"moved".into(), &"operator".into())
    );
    session.pin_answer(call).unwrap();
    session.end_pin_call(call);

    let ended = listed(&daemon).ended;
    let [back, out] = &ended[..] else { panic!("{ended:?}") };
    assert_eq!((back.tier(), back.cause(), back.outcome()), (Tier::Device, MoveCause::Demand, Change::Moved));
    assert_eq!((out.tier(), out.cause(), out.outcome()), (Tier::Host, MoveCause::Operator, Change::Moved));
    assert_eq!((back.from_tier(), out.from_tier()), (Tier::Host, Tier::Device));
    // 64 MiB at 96 MiB a second.
    for EndedMove { duration_us, device, bytes, .. } in &ended {
        assert!((600_000..60_000_000).contains(duration_us), "{ended:?}");
        assert_eq!((device, *bytes), (&uuid, SIZE));
    }
    session.free(id);
    assert_nothing_left(&daemon);
}

#[test]
fn failed_and_stopped_migrations_are_listed() {
    let config = tiers("8MiB", "8MiB").fault("copy", 1, Effect::Fail("a cable".into()));
    let daemon = Daemon::start(&config.fault("copy", 2, Effect::Hold));
    let (mut session, id) = open_and_write(&daemon, 1);
    let failing = start_move(&daemon, id, Tier::Host);
    unmap_revoked(&mut session, id);
    assert_eq!(first(&failing.ok()).0, Outcome::Failed);
    fetch_by_pin(&mut session, id, 1);
    let leaving = start_move(&daemon, id, Tier::Host);
    unmap_revoked(&mut session, id);
    until("it is being copied", || moving_part(&daemon).is_some_and(|it| it.state() == MoveState::Copying));
    let call = session.pin(vec![part(id, 0)]);
    end_holds_once_called_off(&daemon);
    session.pin_answer(call).unwrap();
    session.end_pin_call(call);
    assert_eq!(first(&leaving.ok()).0, Outcome::Wanted);
    until_charged(&daemon, 2, 2);

    let request = |tenant: &str| ListMovesRequest { tenant: Some(tenant.to_owned()), ..Default::default() };
    let ended = daemon.admin.list_moves(request(session.tenant())).ok().ended;
    let told: Vec<_> = ended.iter().map(|it| (it.outcome(), it.detail.as_str(), it.cause())).collect();
    let by = MoveCause::Operator;
    assert_eq!(told, [(Change::Stopped, "", by), (Change::Failed, "a cable", by)]);
    assert_eq!(daemon.admin.list_moves(request("nobody")).ok(), ListMovesResponse::default());
    let page = ListMovesRequest { page_token: "2".to_owned(), ..Default::default() };
    assert_eq!(daemon.admin.list_moves(page).ok(), ListMovesResponse::default(), "it is on the first page");
    let bad = ListMovesRequest { page_token: "x".to_owned(), ..Default::default() };
    daemon.admin.list_moves(bad).refused().is(Reason::RequestInvalid);
    let text = String::from_utf8(vramctl(&daemon, &["move", "list"]).stdout).unwrap();
    assert!(text.contains("(none)") && text.contains("a cable") && text.contains("stopped"), "{text}");

    evict(&daemon, &mut session, id);
    let bytes: u64 = listed(&daemon).ended.iter().map(|it| it.bytes).sum();
    assert!(bytes >= 3 * MIB_2, "every end is told, the one that had to be asked again too");
    session.free(id);
    assert_nothing_left(&daemon);
}
