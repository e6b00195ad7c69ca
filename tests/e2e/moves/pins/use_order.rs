//! The least recently used part leaves first, as the daemon learns from its harvests.

use std::{thread, time::Duration};

use vramd_client::{Access, Allocation, AllocationRequest, Bytes, Client};
use vramd_tests::{Config, Daemon, MIB_2, wait::until};

use crate::moves::{
    assert_nothing_left,
    clients::programs::{allocate_unpinned, is_intact, lies},
    line::waits::all_waits,
    pins::fetch::connect,
};

/// Waits until the daemon has harvested every use so far.
///
/// The beacon is alone on a device with a waiter, which gets its room once a harvest finds the beacon unpinned. The
/// beacon's slot is the lowest of the first session, so the same harvest, or an earlier one, has read every other word.
#[track_caller]
pub(super) fn a_look(daemon: &Daemon, client: &Client, beacon: &Allocation) {
    let pinned = beacon.pin(Access::Read).unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| client.allocate(on(1, 1).wait(Duration::from_secs(25))));
        until("a pin waits for the beacon's room", || all_waits(daemon).len() == 1);
        drop(pinned);
        drop(waiting.join().unwrap().unwrap());
    });
    client.flush().unwrap();
}

pub(super) fn on(device: u32, parts: u64) -> AllocationRequest {
    let request = AllocationRequest::new(Bytes::new(parts * MIB_2)).part_size(Bytes::new(MIB_2));
    request.device(device.to_string())
}

#[test]
fn the_least_recently_used_part_leaves_first() {
    for used in [0, 1] {
        let config = Config::devices(&["8MiB", "2MiB"]).memory("host_size = \"16MiB\"\nharvest_ms = 10");
        let daemon = Daemon::start(&config);
        let client = connect(&daemon);
        let mut beacon = client.allocate(on(1, 1)).unwrap();
        beacon.unpin().unwrap();
        let both = [(); 2].map(|()| allocate_unpinned(&daemon, &client, 2));
        a_look(&daemon, &client, &beacon);
        drop(both[used].pin(Access::Read).unwrap());
        a_look(&daemon, &client, &beacon);

        let other = connect(&daemon);
        let third = allocate_unpinned(&daemon, &other, 2);
        assert_eq!(lies(&daemon, &both[used]), ["device"; 2], "it was used last");
        assert_eq!(lies(&daemon, &both[1 - used]), ["host"; 2]);
        both.iter().chain([&third]).for_each(|memory| is_intact(memory, 2));
        drop((both, beacon, third));
        client.flush().unwrap();
        other.flush().unwrap();
        assert_nothing_left(&daemon);
    }
}
