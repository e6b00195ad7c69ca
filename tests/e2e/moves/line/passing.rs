//! A waiter that nothing helps lets others pass, so that free memory does not lie idle behind it, and still gets its
//! turn.

use vramd_tests::{Config, Daemon, MIB_2, wait::until};
use vramd_types::Reason;

use crate::moves::{
    line::batches::{LONG_MS, batch, served, until_wait},
    parts,
};

/// Parts that the device has.
const PARTS: u64 = 8;

fn daemon(hold_after_ms: u32) -> Daemon {
    // Above what the device has: these sessions are of one tenant, and its limit is not what they wait for.
    let config = Config::devices(&["16MiB"]).default_quota("limit = \"64MiB\"");
    Daemon::start(&config.limit(&format!("hold_after_ms = {hold_after_ms}")))
}

#[test]
fn free_memory_is_given_past_a_waiter_that_cannot_have_enough() {
    let daemon = daemon(3_600_000);
    let [mut holder, mut large, mut small] = [(); 3].map(|()| daemon.open());
    let held = holder.allocate(parts(1)).allocation_id;
    let waiting = batch(&large, PARTS, LONG_MS);
    until_wait(&daemon, 1);

    // It needs all the device, of which the holder keeps a part.
    let free: Vec<u64> = (1..PARTS).map(|_| small.allocate(parts(1)).allocation_id).collect();
    let full = small.refused(parts(1));
    full.is(Reason::DeviceFull);
    assert_eq!(daemon.state().charged(), PARTS * MIB_2);
    assert!(!waiting.is_answered());

    for id in free {
        small.free(id);
    }
    holder.free(held);
    let id = served(&mut large, waiting);
    large.free(id);
    until("all is free", || daemon.state().charged() == 0);
}

#[test]
fn a_waiter_that_holds_gets_what_is_released() {
    let daemon = daemon(0);
    let [mut holder, mut large, small] = [(); 3].map(|()| daemon.open());
    let held = holder.allocate(parts(1)).allocation_id;
    let waiting = batch(&large, PARTS, LONG_MS);
    until_wait(&daemon, 1);
    small.refused(parts(1)).is(Reason::DeviceFull);
    holder.free(held);
    let id = served(&mut large, waiting);
    large.free(id);
    until("all is free", || daemon.state().charged() == 0);
}

/// Small requests come and go without end, and each of them is short: a turn of holding outlasts them.
#[test]
fn a_stream_of_small_requests_does_not_starve_a_large_one() {
    let daemon = daemon(1);
    let [mut large, mut one, mut other] = [(); 3].map(|()| daemon.open());
    let mut held = one.allocate(parts(1)).allocation_id;
    let waiting = batch(&large, PARTS, LONG_MS);
    until_wait(&daemon, 1);
    // At each time one of the two has a part, if the line lets them.
    let mut is_refused = false;
    until("the large request is served", || {
        let next = other.memory.allocate_batch(other.request(vec![parts(1)])).wait();
        one.free(held);
        match next {
            Ok(made) => {
                held = made.allocations[0].allocation_id;
                other.map_all(held);
                std::mem::swap(&mut one, &mut other);
            }
            Err(_) => is_refused = true,
        }
        is_refused
    });
    let id = served(&mut large, waiting);
    large.free(id);
    until("all is free", || daemon.state().charged() == 0);
}
