//! Demand copies go before bulk moves of operators, for which no client waits.

use vramd_proto::v1::{Tier, WriteBackPartsRequest, write_back_parts_request};
use vramd_tests::{Daemon, MIB, MIB_2, RawSession, config::Config, content, digest, wait::until};

use crate::moves::{
    Outcome, assert_nothing_left, evict, open_and_write, operators::list::listed, part, start_move, tiers,
    unmap_revoked, until_charged,
};

const MANY: u64 = 24;

/// A link that is slow enough for many parts to take three seconds.
fn slow(device: &str) -> Config {
    tiers(device, "256MiB").link("16MiB")
}

fn has_begun(daemon: &Daemon) {
    until("the first of them are under way", || {
        listed(daemon).moves.iter().any(|it| it.copied_bytes.is_some())
    });
}

/// Checks the part's content, and ends its pin call.
#[track_caller]
fn answered(session: &mut RawSession, call: u64) {
    session.pin_answer(call).unwrap();
    session.end_pin_call(call);
}

#[test]
fn a_pin_does_not_wait_for_an_operators_fetches() {
    let daemon = Daemon::start(&slow("256MiB"));
    let [(mut a, many), (mut b, one)] = [MANY, 1].map(|parts| open_and_write(&daemon, parts));
    evict(&daemon, &mut a, many);
    evict(&daemon, &mut b, one);
    until_charged(&daemon, 0, 2 * MANY + 2);
    let bulk = start_move(&daemon, many, Tier::Device);
    has_begun(&daemon);
    let call = b.pin(vec![part(one, 0)]);
    answered(&mut b, call);
    assert!(!bulk.is_answered(), "it came in beside them");
    // Nor does the pin wait for parts of the bulk that arrive before it.
    let last = u32::try_from(MANY).unwrap() - 1;
    let call = a.pin(vec![part(many, last)]);
    answered(&mut a, call);
    assert!(!bulk.is_answered(), "it was hastened");
    assert!(bulk.ok().parts.iter().all(|it| it.outcome() == Outcome::Moved));
    assert_eq!(b.digest(one, MIB_2), digest(&content(MIB_2, one)));
    let all: Vec<_> = (0..=last).map(|index| part(many, index)).collect();
    let call = a.pin(all);
    answered(&mut a, call);
    assert_eq!(a.digest(many, MANY * MIB_2), digest(&content(MANY * MIB_2, many)));
    a.free(many);
    b.free(one);
    assert_nothing_left(&daemon);
}

#[test]
fn a_waiter_does_not_wait_for_write_backs() {
    let daemon = Daemon::start(&slow("52MiB"));
    let (mut b, wanted) = open_and_write(&daemon, 1);
    evict(&daemon, &mut b, wanted);
    until_charged(&daemon, 0, 2);
    let (mut victim, idle) = open_and_write(&daemon, 2);
    let (mut a, many) = open_and_write(&daemon, MANY);
    assert_eq!(daemon.state().charged(), 52 * MIB, "the device is full");
    until("all maps are answered", || daemon.state().node.fds_in_flight == 0);
    let target = Some(write_back_parts_request::Target::AllocationId(many));
    let bulk = daemon.admin.write_back_parts(WriteBackPartsRequest { target, ..Default::default() });
    has_begun(&daemon);
    let call = b.pin(vec![part(wanted, 0)]);
    // The least recently used part leaves.
    let revoke = victim.receive_revoke();
    victim.unmap_parts(revoke.parts);
    answered(&mut b, call);
    assert!(!bulk.is_answered(), "it had its room before that");
    assert!(bulk.ok().parts.iter().all(|it| it.outcome() == Outcome::Moved));
    assert_eq!(b.digest(wanted, MIB_2), digest(&content(MIB_2, wanted)));
    let evicting = start_move(&daemon, many, Tier::Host);
    unmap_revoked(&mut a, many);
    assert!(evicting.ok().parts.iter().all(|it| it.outcome() == Outcome::Moved));
    for (mut session, id) in [(a, many), (b, wanted), (victim, idle)] {
        session.free(id);
    }
    assert_nothing_left(&daemon);
}
