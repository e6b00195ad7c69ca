//! Memory that the driver cannot create, and copies that fail: the part stays where it was, and the next try succeeds.

use vramd_client::Access;
use vramd_proto::v1::{MoveOutcome as Outcome, PartRef, Tier};
use vramd_tests::{
    Daemon, MIB_2, RawSession,
    config::Effect,
    content, digest,
    wait::{eventually, until},
};
use vramd_types::Reason;

use super::{
    assert_nothing_left,
    clients::programs::{
        allocate_unpinned, assert_fetched_to_full_device, away, is_intact, lies, other_one_left, stayed,
    },
    evict, fetch_by_pin, first, free_during_hold, held, open_and_write, part, parts,
    pins::fetch::connect,
    start_move, tiers, unmap_revoked, until_charged,
};

#[test]
fn a_failed_host_allocation_is_reported() {
    let broken = Effect::Fail("a page fell out".to_owned());
    let config = tiers("8MiB", "8MiB").fault("create_host", 1, Effect::OutOfMemory);
    let daemon = Daemon::start(&config.fault("create_host", 2, broken));
    let (mut session, id) = open_and_write(&daemon, 1);
    for (reason, fact, is) in
        [(Reason::DeviceFull, "tier", "host"), (Reason::DriverFailed, "problem", "a page fell out")]
    {
        let answer = start_move(&daemon, id, Tier::Host).ok();
        let error = answer.parts[0].error.clone().expect("a refusal");
        assert_eq!((first(&answer).0, error.reason.as_str()), (Outcome::Refused, reason.name()));
        assert_eq!(error.metadata[fact], is);
        until_charged(&daemon, 2, 2);
        // Whether the client was told to unmap or not, the next pin finds the part where it was.
        if session.channel.waits(std::time::Duration::from_secs(1)) {
            unmap_revoked(&mut session, id);
            fetch_by_pin(&mut session, id, 1);
        }
        assert_eq!(session.digest(id, MIB_2), digest(&content(MIB_2, id)));
    }
    evict(&daemon, &mut session, id);
    until_charged(&daemon, 0, 2);
    session.free(id);
    assert_nothing_left(&daemon);
}

#[test]
fn a_copy_that_fails_leaves_the_part_where_it_was() {
    let broken = || Effect::Fail("a cable was pulled".to_owned());
    let config = tiers("8MiB", "8MiB").fault("copy", 1, broken()).fault("copy", 3, broken());
    let daemon = Daemon::start(&config);
    let (mut session, id) = open_and_write(&daemon, 1);
    let evicting = start_move(&daemon, id, Tier::Host);
    unmap_revoked(&mut session, id);
    let answer = evicting.ok();
    assert_eq!((first(&answer).0, answer.parts[0].problem.as_str()), (Outcome::Failed, "a cable was pulled"));
    until_charged(&daemon, 2, 2);
    fetch_by_pin(&mut session, id, 1);
    assert_eq!(session.digest(id, MIB_2), digest(&content(MIB_2, id)));

    evict(&daemon, &mut session, id);
    until_charged(&daemon, 0, 2);
    let call = session.pin(vec![part(id, 0)]);
    let refused = session.pin_answer(call).unwrap_err();
    assert_eq!(refused.is(Reason::DriverFailed).fact("problem"), "a cable was pulled");
    session.end_pin_call(call);
    until_charged(&daemon, 0, 2);
    fetch_by_pin(&mut session, id, 1);
    assert_eq!(session.digest(id, MIB_2), digest(&content(MIB_2, id)));
    session.free(id);
    assert_nothing_left(&daemon);
}

#[test]
fn a_pin_is_refused_if_the_device_is_out_of_memory_without_victims() {
    // The first create is the allocation's. The daemon tries four times for the pin, each time after a survey.
    let config = tiers("8MiB", "8MiB");
    let config = (2..6).fold(config, |config, nth| config.fault("create", nth, Effect::OutOfMemory));
    let daemon = Daemon::start(&config);
    let (mut session, id) = open_and_write(&daemon, 1);
    evict(&daemon, &mut session, id);
    // No part is on its way out that could make room.
    until_charged(&daemon, 0, 2);
    let call = session.pin(vec![part(id, 0)]);
    session.pin_answer(call).unwrap_err().is(Reason::DeviceFull);
    session.end_pin_call(call);
    until_charged(&daemon, 0, 2);
    fetch_by_pin(&mut session, id, 1);
    assert_eq!(session.digest(id, MIB_2), digest(&content(MIB_2, id)));
    session.free(id);
    assert_nothing_left(&daemon);
}

#[test]
fn a_device_that_was_briefly_out_of_memory_is_tried_again() {
    let daemon = Daemon::start(&tiers("8MiB", "8MiB").fault("create", 2, Effect::OutOfMemory));
    let (mut session, id) = open_and_write(&daemon, 1);
    evict(&daemon, &mut session, id);
    until_charged(&daemon, 0, 2);
    fetch_by_pin(&mut session, id, 1);
    assert_eq!(session.digest(id, MIB_2), digest(&content(MIB_2, id)));
    session.free(id);
    assert_nothing_left(&daemon);
}

#[test]
fn idle_parts_leave_a_device_that_is_out_of_memory() {
    // The first two creates are those of the allocations.
    let daemon = Daemon::start(&tiers("8MiB", "8MiB").fault("create", 3, Effect::OutOfMemory));
    let (wants, has) = (connect(&daemon), connect(&daemon));
    let wanted = away(&daemon, &wants, "host");
    let idle = allocate_unpinned(&daemon, &has, 1);
    // A mapping in flight to a client counts as used.
    until("all maps are answered", || daemon.state().node.fds_in_flight == 0);
    until_charged(&daemon, 2, 4);
    drop(wanted.pin(Access::Read).expect("room is made for it"));
    is_intact(&wanted, 1);
    // If the victim turns out to be in use at that moment, the daemon tries the driver again all the same.
    assert!([["host"], ["device"]].iter().any(|tiers| lies(&daemon, &idle) == *tiers));
    is_intact(&idle, 1);
    drop((wanted, idle));
    wants.flush().unwrap();
    has.flush().unwrap();
    assert_nothing_left(&daemon);
}

#[test]
fn an_allocation_freed_during_a_move_leaves_nothing() {
    for (on, nth) in [("create_host", 1), ("copy", 1), ("release", 1)] {
        let daemon = Daemon::start(&tiers("8MiB", "8MiB").fault(on, nth, Effect::Hold));
        let (mut session, id) = open_and_write(&daemon, 1);
        let evicting = start_move(&daemon, id, Tier::Host);
        unmap_revoked(&mut session, id);
        let freed = free_during_hold(&daemon, &mut session, id);
        assert_eq!(freed.error, None, "{on}");
        let outcome = first(&evicting.ok()).0;
        // The copied part is usable although its source is slow to be released.
        let fits = outcome == Outcome::Freed || (on == "release" && outcome == Outcome::Moved);
        assert!(fits, "{on}: {outcome:?}");
        assert_nothing_left(&daemon);
    }
}

/// Victims that found no memory in the host.
fn failed_victims(daemon: &Daemon) -> Vec<PartRef> {
    stayed(daemon, Tier::Host, "")
}

#[test]
fn a_second_victim_leaves_if_the_first_finds_no_host_memory() {
    // The first create is the one for the part to be pinned.
    let daemon = Daemon::start(&tiers("4MiB", "16MiB").fault("create_host", 2, Effect::OutOfMemory));
    assert_fetched_to_full_device(&daemon, "host", 2, |there| {
        other_one_left(&daemon, there, &failed_victims(&daemon), "host");
    });
}

#[test]
fn a_pin_without_victims_waits_for_the_next_survey() {
    let config = tiers("2MiB", "16MiB").limit("survey_interval_ms = 100");
    let config = (2..5).fold(config, |config, nth| config.fault("create_host", nth, Effect::OutOfMemory));
    let daemon = Daemon::start(&config);
    assert_fetched_to_full_device(&daemon, "host", 1, |there| {
        assert_eq!(
            failed_victims(&daemon),
            [part(there.id().get(), 0); 3],
            "it was tried again, and what was there stayed until it could leave"
        );
    });
}

#[test]
fn a_batch_without_a_wait_is_refused_if_no_part_can_leave() {
    let daemon = Daemon::start(&tiers("4MiB", "16MiB").fault("create_host", 1, Effect::OutOfMemory));
    // Otherwise it would meet its tenant's limit.
    daemon.set_quota("team-z", "2MiB", "");
    let client = connect(&daemon);
    let there = allocate_unpinned(&daemon, &client, 1);
    let mut session = daemon.open();
    // The daemon asks no session to unmap while it believes that the session pins. It learns later that the pin has
    // ended.
    until("the session is asked to unmap it", || {
        session.refused(parts(1)).is(Reason::DeviceFull);
        !failed_victims(&daemon).is_empty()
    });
    assert_eq!(failed_victims(&daemon), [part(there.id().get(), 0)]);
    assert_eq!(held(&daemon), (2, 2));
    is_intact(&there, 1);
    let id = until_allocated(&mut session);
    assert_eq!(lies(&daemon, &there), ["host"]);
    session.free(id);
    is_intact(&there, 1);
    drop(there);
    client.flush().unwrap();
    assert_nothing_left(&daemon);
}

/// Waits until the daemon has surveyed the devices again.
#[track_caller]
fn until_allocated(session: &mut RawSession) -> u64 {
    let allocate = || session.memory.allocate_batch(session.request(vec![parts(1)])).wait().ok();
    let answer = eventually("there is memory of the host", allocate);
    let id = answer.allocations[0].allocation_id;
    session.map_all(id);
    id
}
