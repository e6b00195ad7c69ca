//! Memory that cannot be had, and copies that fail: the part is where it was, and the next try goes well.

use vramd_proto::v1::{MoveOutcome as Outcome, Tier};
use vramd_tests::{Daemon, MIB_2, config::Effect, content, digest};
use vramd_types::Reason;

use super::{
    bring_in_by_pin, evict, first, moving, nothing_is_left, part, tiers, unmap_as_told, until_held, written,
};

#[test]
fn memory_of_the_host_that_cannot_be_had_is_told() {
    let broken = Effect::Fail("a page fell out".to_owned());
    let config = tiers("8MiB", "8MiB").fault("create_host", 1, Effect::OutOfMemory);
    let daemon = Daemon::start(&config.fault("create_host", 2, broken));
    let (mut session, id) = written(&daemon, 1);
    for (reason, fact, is) in
        [(Reason::DeviceFull, "tier", "host"), (Reason::DriverFailed, "problem", "a page fell out")]
    {
        let answer = moving(&daemon, id, Tier::Host).ok();
        let error = answer.parts[0].error.clone().expect("a refusal");
        assert_eq!((first(&answer).0, error.reason.as_str()), (Outcome::Refused, reason.name()));
        assert_eq!(error.metadata[fact], is);
        until_held(&daemon, 2, 2);
        // It was told to unmap, or was not: the next pin finds it where it was.
        if session.channel.waits(std::time::Duration::from_secs(1)) {
            unmap_as_told(&mut session, id);
            bring_in_by_pin(&mut session, id, 1);
        }
        assert_eq!(session.digest(id, MIB_2), digest(&content(MIB_2, id)));
    }
    evict(&daemon, &mut session, id);
    until_held(&daemon, 0, 2);
    session.free(id);
    nothing_is_left(&daemon);
}

#[test]
fn a_copy_that_fails_leaves_the_part_where_it_was() {
    let broken = || Effect::Fail("a cable was pulled".to_owned());
    let config = tiers("8MiB", "8MiB").fault("copy", 1, broken()).fault("copy", 3, broken());
    let daemon = Daemon::start(&config);
    let (mut session, id) = written(&daemon, 1);
    let evicting = moving(&daemon, id, Tier::Host);
    unmap_as_told(&mut session, id);
    let answer = evicting.ok();
    assert_eq!((first(&answer).0, answer.parts[0].problem.as_str()), (Outcome::Failed, "a cable was pulled"));
    until_held(&daemon, 2, 2);
    bring_in_by_pin(&mut session, id, 1);
    assert_eq!(session.digest(id, MIB_2), digest(&content(MIB_2, id)));

    evict(&daemon, &mut session, id);
    until_held(&daemon, 0, 2);
    let call = session.pin(vec![part(id, 0)]);
    let refused = session.pin_answer(call).unwrap_err();
    assert_eq!(refused.is(Reason::DriverFailed).fact("problem"), "a cable was pulled");
    session.pin_ended(call);
    until_held(&daemon, 0, 2);
    bring_in_by_pin(&mut session, id, 1);
    assert_eq!(session.digest(id, MIB_2), digest(&content(MIB_2, id)));
    session.free(id);
    nothing_is_left(&daemon);
}

#[test]
fn a_device_without_memory_refuses_the_pin_and_the_part_stays_in_the_host() {
    // The first is the allocation's.
    let daemon = Daemon::start(&tiers("8MiB", "8MiB").fault("create", 2, Effect::OutOfMemory));
    let (mut session, id) = written(&daemon, 1);
    evict(&daemon, &mut session, id);
    let call = session.pin(vec![part(id, 0)]);
    session.pin_answer(call).unwrap_err().is(Reason::DeviceFull);
    session.pin_ended(call);
    until_held(&daemon, 0, 2);
    bring_in_by_pin(&mut session, id, 1);
    assert_eq!(session.digest(id, MIB_2), digest(&content(MIB_2, id)));
    session.free(id);
    nothing_is_left(&daemon);
}

#[test]
fn what_is_freed_in_the_middle_of_a_move_leaves_nothing() {
    for (on, nth) in [("create_host", 1), ("copy", 1), ("release", 1)] {
        let daemon = Daemon::start(&tiers("8MiB", "8MiB").fault(on, nth, Effect::DelayMs(500)));
        let (mut session, id) = written(&daemon, 1);
        let evicting = moving(&daemon, id, Tier::Host);
        unmap_as_told(&mut session, id);
        let freed = session.free(id);
        assert_eq!(freed.error, None, "{on}");
        let outcome = first(&evicting.ok()).0;
        // What has been copied is there when its source is slow to go.
        let fits = outcome == Outcome::Freed || (on == "release" && outcome == Outcome::Moved);
        assert!(fits, "{on}: {outcome:?}");
        nothing_is_left(&daemon);
    }
}
