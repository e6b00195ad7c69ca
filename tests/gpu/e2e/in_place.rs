//! Memory that its device accesses where it lies in the host, as its owner has advised.

use std::time::Instant;

use serde_json::{Value, json};
use vramd_proto::v1::Tier;
use vramd_tests::{Config, Daemon, GIB, MIB, MIB_2, wait::until};

use super::{
    Actor, World,
    moves::move_all,
    pins::{ROUNDS, pin},
};
use crate::content;

/// Four parts and a remainder that is no whole 2 MiB.
const SIZE: u64 = GIB + 8 * 13;
/// Of what the graph writes.
const GRAPH: u64 = 1 << 32;

/// In each round it goes to the host, is pinned there, and comes back by an operator's command. Kernels, and a graph that was
/// captured before all that, read and write it at the same address in both places, and what was written in one is found in the
/// other. The device has its room for as long as it lies in the host.
pub(super) fn accessed_and_moved(world: &World) -> Value {
    let daemon = Daemon::start(&Config::cuda().memory("host_size = \"4GiB\""));
    let mut client = Actor::ready(&daemon);
    let id = client.number(&format!("allocate {SIZE}"), "allocation");
    let charged = SIZE.next_multiple_of(MIB_2);
    if client.ask("advise")["advised"] == false {
        client.ask("free");
        client.leave();
        return json!({ "absent": "clients cannot map the host's memory" });
    }
    // Kernels are loaded by their first use, which is no matter of the capture.
    client.ask("fill 0");
    client.ask(&format!("graph {GRAPH}"));
    let address = pin(&mut client, "write");
    client.ask("unpin");
    client.ask("unhold");
    let full = world.used();
    let (mut in_place, mut came) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        move_all(&daemon, id, Tier::Host);
        until("the device has it back", || daemon.books().held() == 0);
        let begun = Instant::now();
        assert_eq!(pin(&mut client, "write"), address, "in place, round {round}");
        in_place.push(begun.elapsed().as_secs_f64() * 1e3);
        used(&mut client, 2 * round, "in place");
        let books = daemon.books();
        assert_eq!((books.held(), books.held_in_host()), (0, charged), "it has not come, round {round}");
        world.comes_down_to(full - charged + 64 * MIB);
        client.ask("unpin");

        came.push(move_all(&daemon, id, Tier::Device).as_secs_f64() * 1e3);
        assert_eq!(daemon.books().held(), charged, "it has come, round {round}");
        assert_eq!(pin(&mut client, "write"), address, "on its device, round {round}");
        used(&mut client, 2 * round + 1, "on its device");
        assert!(world.used() + 64 * MIB > full, "the device holds it, round {round}");
        client.ask("unpin");
    }
    client.ask("free");
    client.leave();
    daemon.drains();
    json!({ "rounds": ROUNDS, "bytes": SIZE, "pinned_in_place_ms": in_place, "came_in_ms": came })
}

/// It has the content of that seed; then that of the graph, then that of the next seed.
#[track_caller]
fn used(client: &mut Actor, seed: u64, place: &str) {
    assert_eq!(client.number("sum", "sum"), content::sum(seed, SIZE), "{place}: what was left there");
    client.ask("run-graph");
    assert_eq!(client.number("sum", "sum"), content::sum(GRAPH, SIZE), "{place}: what the graph wrote");
    client.ask(&format!("fill {}", seed + 1));
    assert_eq!(client.number("sum", "sum"), content::sum(seed + 1, SIZE), "{place}: what a kernel wrote");
}
