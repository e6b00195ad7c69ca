//! A disk that is full or fails while a pin needs the room of a victim that is to go there, and batches that no tier
//! has room for.

use tonic::Code;
use vramd_proto::v1::{AllocationSpec, SetQuotaRequest, Tier};
use vramd_tests::{
    Config, Daemon, MIB_2, RawSession, config::Effect, content, daemon::quota, digest, wait::until,
};
use vramd_types::Reason;

use crate::moves::{
    assert_nothing_left,
    clients::programs::{
        allocate_unpinned, assert_fetched_to_full_device, is_intact, lies, other_one_left, stayed,
    },
    disk::tier::until_charged,
    evict_to, fetch_by_pin, open_and_write, part, parts,
    pins::fetch::connect,
    tiers,
};

/// Two daemons on which the second part that goes to disk fails, and those after it up to the count: the disk has no
/// room for its file, or cannot write it.
fn failing_disks(config: &Config, count: u64) -> [(Config, &'static str); 2] {
    let broken = || Effect::Fail("an error of the disk".to_owned());
    let nths = 2..2 + count;
    let full = nths.clone().fold(config.clone(), |it, nth| it.fault("create_disk", nth, Effect::OutOfMemory));
    let failing = nths.fold(config.clone(), |it, nth| it.fault("copy", nth, broken()));
    [(full, "tier disk of"), (failing, "Input/output error (os error 5)")]
}

#[test]
fn a_second_victim_leaves_if_the_first_cannot_go_to_disk() {
    for (config, why) in failing_disks(&tiers("4MiB", "0").disk("16MiB"), 1) {
        let daemon = Daemon::start(&config);
        assert_fetched_to_full_device(&daemon, "disk", 2, |there| {
            other_one_left(&daemon, there, &stayed(&daemon, Tier::Disk, why), "disk");
        });
    }
}

#[test]
fn a_pin_waits_while_no_victim_can_go_to_disk() {
    let config = tiers("2MiB", "0").disk("16MiB").limit("survey_interval_ms = 100");
    for (config, why) in failing_disks(&config, 3) {
        let daemon = Daemon::start(&config);
        assert_fetched_to_full_device(&daemon, "disk", 1, |there| {
            assert_eq!(
                stayed(&daemon, Tier::Disk, why),
                [part(there.id().get(), 0); 3],
                "it was tried again, and what was there stayed until it could leave"
            );
        });
    }
}

/// The pin and the batch have a deadline.
#[test]
fn a_pin_times_out_while_the_disk_is_full_and_succeeds_later() {
    let config = tiers("4MiB", "0").disk("16MiB").limit("survey_interval_ms = 100");
    for (config, why) in failing_disks(&config, 12) {
        let daemon = Daemon::start(&config);
        // Otherwise the batch would meet its tenant's limit.
        daemon.set_quota("team-z", "2MiB", "");
        let (mut session, id) = open_and_write(&daemon, 1);
        evict_to(&daemon, &mut [&mut session], id, Tier::Disk);
        until_charged(&daemon, [0, 0, 2]);
        let client = connect(&daemon);
        let there = allocate_unpinned(&daemon, &client, 1);
        // The daemon asks no session to unmap while it believes that the session pins. It learns later that the pin has
        // ended.
        until("the session is asked to unmap it", || {
            let call = session.pin_within(vec![part(id, 0)], 300);
            let late = session.pin_answer(call).unwrap_err();
            assert_eq!(late.is(Reason::Deadline).code, Code::DeadlineExceeded);
            session.end_pin_call(call);
            !stayed(&daemon, Tier::Disk, why).is_empty()
        });
        let full = session.refused(parts(1));
        assert_eq!(full.is(Reason::DeviceFull).fact("tier"), "device", "its room is what is asked for");
        assert_eq!(lies(&daemon, &there), ["device"]);
        is_intact(&there, 1);
        fetch_by_pin(&mut session, id, 1);
        assert_eq!(session.digest(id, MIB_2), digest(&content(MIB_2, id)));
        assert_eq!(lies(&daemon, &there), ["disk"]);
        session.free(id);
        is_intact(&there, 1);
        drop(there);
        client.flush().unwrap();
        assert_nothing_left(&daemon);
    }
}

/// Parts of 2 MiB that may lie in any tier.
fn unpinned_spec(count: u64) -> AllocationSpec {
    AllocationSpec { unheld: true, ..parts(count) }
}

/// The daemon asks the disk for the bytes that the host has no room for.
#[test]
fn a_batch_without_room_in_any_tier_is_refused_for_the_disk() {
    let tiers = tiers("4MiB", "2MiB").disk("4MiB");
    let others = SetQuotaRequest { tier: Tier::Disk.into(), ..quota("team-z", "0", "2MiB", "") };
    for (config, reason) in [
        (tiers.clone().default_quota("disk_limit = \"2MiB\""), Reason::QuotaLimit),
        (tiers, Reason::DeviceFull),
    ] {
        let daemon = Daemon::start(&config);
        if reason == Reason::DeviceFull {
            daemon.admin.set_quota(others.clone()).ok();
        }
        let session = RawSession::open_with_pins(&daemon.sockets());
        let is_refused = |count, asked, held| {
            let refused = session.refused(unpinned_spec(count));
            assert_eq!(refused.is(reason).code, Code::ResourceExhausted);
            assert_eq!((refused.fact("tier"), refused.number("asked")), ("disk", asked));
            let there = if reason == Reason::QuotaLimit { ("held", held) } else { ("free", MIB_2 - held) };
            assert_eq!(refused.number(there.0), there.1, "{refused:?}");
        };
        is_refused(3, 2 * MIB_2, 0);
        session.reserve(unpinned_spec(2));
        is_refused(1, MIB_2, MIB_2);
        drop(session);
        assert_nothing_left(&daemon);
    }
}
