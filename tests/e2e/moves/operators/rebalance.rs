//! Parts that leave because their tenants get less: a limit is lowered, another tenant gets a guarantee, or other
//! programs take memory of the device.

use std::time::Duration;

use vramd_client::{Access, Allocation, Client};
use vramd_proto::v1::{EndedMove, MoveCause, Tier, move_event::Change};
use vramd_tests::{
    Config, Daemon, MIB, Refused,
    daemon::quota,
    other_programs::take_device_memory,
    wait::{always, until},
};
use vramd_types::Reason;

use crate::moves::{
    assert_nothing_left,
    clients::programs::{allocate_unpinned, is_intact, lies},
    held,
    operators::list::listed,
    pins::fetch::connect,
    tiers, until_charged, vramctl_json,
};

/// A full device. The daemon learns from a harvest of the words that a session pins, and that it has unpinned.
fn full(config: &Config) -> (Daemon, Client, Allocation) {
    let daemon = Daemon::start(&config.clone().memory("harvest_ms = 5"));
    let client = connect(&daemon);
    let memory = allocate_unpinned(&daemon, &client, 4);
    until_charged(&daemon, 8, 8);
    (daemon, client, memory)
}

/// Waits until this many parts have left. Every one left for this cause alone, and pinned parts stayed.
#[track_caller]
fn is_a_rebalance(daemon: &Daemon, left: usize) {
    let ended = listed(daemon).ended;
    assert!(
        ended.iter().all(|it| (it.cause(), it.tier()) == (MoveCause::Rebalance, Tier::Host)),
        "{ended:?}"
    );
    let moved = |it: &&EndedMove| it.outcome() == Change::Moved;
    assert_eq!(ended.iter().filter(moved).count(), left, "{ended:?}");
    assert!(ended.iter().all(|it| matches!(it.outcome(), Change::Moved | Change::Stopped)), "{ended:?}");
    let told = vramctl_json(daemon, &["move", "list"]);
    assert_eq!(told["ended"][0]["cause"], "rebalance", "{told}");
}

fn goes(daemon: &Daemon, client: &Client, memory: Allocation) {
    drop(memory);
    client.flush().unwrap();
    assert_nothing_left(daemon);
}

#[test]
fn unpinned_parts_above_a_lowered_limit_leave() {
    let (daemon, client, memory) = full(&tiers("8MiB", "8MiB"));
    let pinned = memory.pin_parts(0..2, Access::Read).unwrap();
    vramctl_json(&daemon, &["quota", "set", client.tenant(), "--device", "0", "--limit", "2MiB"]);
    until_charged(&daemon, 4, 8);
    assert_eq!(lies(&daemon, &memory), ["device", "device", "host", "host"]);
    is_a_rebalance(&daemon, 2);
    always("pinned parts stay", Duration::from_millis(200), || held(&daemon) == (4, 8));
    drop(pinned);
    until_charged(&daemon, 2, 8);
    is_a_rebalance(&daemon, 3);
    is_intact(&memory, 4);
    assert_eq!(held(&daemon).0, 2, "no more than its limit");
    goes(&daemon, &client, memory);
}

#[test]
fn unpinned_parts_leave_for_another_tenants_guarantee() {
    let (daemon, client, memory) = full(&tiers("8MiB", "8MiB"));
    let pinned = memory.pin(Access::Read).unwrap();
    let set = || daemon.admin.set_quota(quota("team-z", "0", "4MiB", ""));
    let refused = set().refused();
    assert_eq!(refused.is(Reason::GuaranteeUnbacked).number("committed"), 12 * MIB);
    assert_eq!(held(&daemon), (8, 8));
    assert_eq!(lies(&daemon, &memory), ["device"; 4]);
    drop(pinned);
    until("the daemon finds it unpinned", || match set().wait() {
        Ok(_) => true,
        Err(status) => {
            Refused::from_status(&status).is(Reason::GuaranteeUnbacked);
            false
        }
    });
    assert_eq!(held(&daemon), (4, 8), "it is there to be had when the answer comes");
    is_a_rebalance(&daemon, 2);
    is_intact(&memory, 4);
    assert_eq!(held(&daemon).0, 4, "the rest is another's");
    goes(&daemon, &client, memory);
}

#[test]
fn parts_leave_when_other_programs_take_device_memory() {
    let (daemon, client, memory) = full(&tiers("8MiB", "8MiB").limit("survey_interval_ms = 20"));
    let pinned = memory.pin_parts(3..4, Access::Read).unwrap();
    let device = || daemon.state().devices[0].clone();
    let taken = take_device_memory(&device().device.unwrap().uuid, 4 * MIB);
    until_charged(&daemon, 4, 8);
    assert_eq!((device().unbrokered_bytes, device().shortfall_bytes), (4 * MIB, 0));
    assert_eq!(lies(&daemon, &memory)[3], "device", "it is pinned");
    is_a_rebalance(&daemon, 2);
    drop(pinned);
    is_intact(&memory, 4);
    assert_eq!(held(&daemon).0, 4, "as much as is left");
    drop(taken);
    until("the outsider has gone", || device().unbrokered_bytes == 0);
    drop(memory.pin(Access::Read).unwrap());
    until_charged(&daemon, 8, 8);
    is_intact(&memory, 4);
    goes(&daemon, &client, memory);
}
