//! Memory that its device accesses in place in the host, as its owner advised.

use std::time::Instant;

use serde_json::{Value, json};
use vramd_proto::v1::{MoveOutcome, MovePartsRequest, Tier, move_parts_request::Target};
use vramd_tests::{Config, Daemon, MIB, MIB_2, wait::until};

use super::{
    Actor, World,
    moves::{SIZE, move_all},
    pins::{ROUNDS, freed_by_the_first, pin, sealed_while_away},
};
use crate::content;

/// The seed of the content at sealing.
const LAST: u64 = (1 << 32) + 1;
/// The seed of the content that the graph writes.
const GRAPH: u64 = 1 << 32;

/// In each round the memory goes to the host, is pinned there, and comes back by an operator's command. Kernels, and a graph captured
/// before, read and write it at the same address in both places, and each finds what was written in the other. So do the SDK's own copies
/// while the first part lies on the device and the others in the host. Two processes read it there once it is sealed. The device has its
/// room while the memory lies in the host.
pub(super) fn accessed_and_moved(world: &World) -> Value {
    let daemon = Daemon::start(&Config::cuda().memory("host_size = \"4GiB\""));
    let mut client = Actor::ready(&daemon);
    let id = client.number(&format!("allocate {SIZE} name=weights persistent"), "allocation");
    let charged = SIZE.next_multiple_of(MIB_2);
    if client.ask("advise")["advised"] == false {
        client.ask("free");
        client.leave();
        return json!({ "absent": "clients cannot map the host's memory" });
    }
    // The first use loads the kernels. That must not happen inside the capture.
    client.ask("fill 0");
    client.ask(&format!("graph {GRAPH}"));
    let address = pin(&mut client, "write");
    client.ask("unpin");
    client.ask("unhold");
    let full = world.used();
    let (mut in_place, mut moved_in) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        move_all(&daemon, id, Tier::Host);
        until("the device has it back", || daemon.state().charged() == 0);
        let begun = Instant::now();
        assert_eq!(pin(&mut client, "write"), address, "in place, round {round}");
        in_place.push(begun.elapsed().as_secs_f64() * 1e3);
        used(&mut client, 2 * round, "in place");
        let state = daemon.state();
        assert_eq!(
            (state.charged(), state.charged_in_host()),
            (0, charged),
            "it has not come, round {round}"
        );
        world.wait_until_down_to(full - charged + 64 * MIB);
        client.ask("unpin");

        moved_in.push(move_all(&daemon, id, Tier::Device).as_secs_f64() * 1e3);
        assert_eq!(daemon.state().charged(), charged, "it has come, round {round}");
        assert_eq!(pin(&mut client, "write"), address, "on its device, round {round}");
        used(&mut client, 2 * round + 1, "on its device");
        assert!(world.used() + 64 * MIB > full, "the device holds it, round {round}");
        client.ask("unpin");
    }
    in_both(&daemon, &mut client, id, address);
    let sum = content::sum(LAST, SIZE);
    let (digest, actors) = sealed_while_away(&daemon, client, sum, || {
        move_all(&daemon, id, Tier::Host);
    });
    assert_eq!(daemon.state().charged(), 0, "it has not come for any of them");
    freed_by_the_first(&daemon, actors);
    json!({
        "rounds": ROUNDS, "bytes": SIZE, "digest": digest, "pinned_in_place_ms": in_place, "came_in_ms": moved_in,
    })
}

/// Checks copies while the first part is on the device and the others are in the host.
#[track_caller]
fn in_both(daemon: &Daemon, client: &mut Actor, id: u64, address: u64) {
    move_all(daemon, id, Tier::Host);
    until("the device has it back", || daemon.state().charged() == 0);
    let target = Some(Target::AllocationId(id));
    let first =
        MovePartsRequest { target, tier: Tier::Device.into(), part_indexes: vec![0], ..Default::default() };
    let parts = daemon.admin.move_parts(first).ok().parts;
    assert!(parts.iter().all(|part| part.outcome() == MoveOutcome::Moved), "{parts:?}");
    let on_device = daemon.state().charged();
    assert!(on_device > 0 && on_device < SIZE, "one part: {on_device}");
    assert_eq!(pin(client, "write"), address, "in both");
    used(client, 2 * ROUNDS, "in both");
    assert_eq!(client.ask("copies 3")["same"], true, "the SDK's copies, over the end of the first part");
    client.ask(&format!("fill {LAST}"));
    assert_eq!(daemon.state().charged(), on_device, "the others have not come");
    client.ask("unpin");
}

/// Checks that the memory has the content of the seed, then that of the graph, then that of the next seed.
#[track_caller]
fn used(client: &mut Actor, seed: u64, place: &str) {
    assert_eq!(client.number("sum", "sum"), content::sum(seed, SIZE), "{place}: what was left there");
    client.ask("run-graph");
    assert_eq!(client.number("sum", "sum"), content::sum(GRAPH, SIZE), "{place}: what the graph wrote");
    client.ask(&format!("fill {}", seed + 1));
    assert_eq!(client.number("sum", "sum"), content::sum(seed + 1, SIZE), "{place}: what a kernel wrote");
}
