//! Memory that leaves the device for pinned host memory or for the disk, and comes back with the next pin.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use vramd_proto::v1::{MoveOutcome, MovePartsRequest, PartMove, Tier, move_parts_request::Target};
use vramd_tests::{Config, Daemon, GIB, MIB, MIB_2, wait::until};

use super::{
    Actor, World,
    pins::{ROUNDS, freed_by_the_first, pin, sealed_while_away},
};
use crate::content;

/// Four parts and a remainder that is not a multiple of 2 MiB.
pub(super) const SIZE: u64 = GIB + 8 * 13;

pub(super) fn to_the_host_and_back(world: &World) -> Value {
    there_and_back(world, &Config::cuda().memory("host_size = \"4GiB\""), Tier::Host)
}

pub(super) fn to_disk_and_back(world: &World) -> Value {
    there_and_back(world, &Config::cuda().disk("4GiB"), Tier::Disk)
}

/// Memory keeps its address and bytes in each round, and the device has the room meanwhile. Covers unsealed memory that is written
/// between rounds, memory that is sealed while it is away, and sealed memory that two processes map.
fn there_and_back(world: &World, config: &Config, tier: Tier) -> Value {
    let daemon = Daemon::start(config);
    let mut writer = Actor::ready(&daemon);
    let id = writer.ask(&format!("allocate {SIZE} name=weights persistent"))["allocation"].as_u64();
    let id = id.expect("a number");
    let charged = SIZE.next_multiple_of(MIB_2);
    writer.ask("fill 0");
    let address = pin(&mut writer, "write");
    writer.ask("unpin");
    writer.ask("unhold");
    let full = world.used();
    let (mut out, mut back) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        out.push(move_all(&daemon, id, tier).as_secs_f64() * 1e3);
        until("the device has it back", || daemon.state().charged() == 0);
        let state = daemon.state();
        let there = if tier == Tier::Disk { state.charged_on_disk() } else { state.charged_in_host() };
        assert_eq!(there, charged, "it is charged there");
        world.wait_until_down_to(full - charged + 64 * MIB);
        let begun = Instant::now();
        assert_eq!(pin(&mut writer, "write"), address, "round {round}");
        back.push(begun.elapsed().as_secs_f64() * 1e3);
        assert_eq!(writer.number("sum", "sum"), content::sum(round, SIZE), "round {round}");
        writer.ask(&format!("fill {}", round + 1));
        writer.ask("unpin");
    }
    // The daemon hashes the memory where it lies.
    let sum = content::sum(ROUNDS, SIZE);
    let (digest, actors) = sealed_while_away(&daemon, writer, sum, || {
        move_all(&daemon, id, tier);
    });
    freed_by_the_first(&daemon, actors);
    json!({ "rounds": ROUNDS, "bytes": SIZE, "digest": digest, "evicted_in_ms": out, "pinned_in_ms": back })
}

/// Repeats the move until all of it is there, since a mapper may not have answered `Mapped` yet. Returns how long the last call took.
#[track_caller]
pub(super) fn move_all(daemon: &Daemon, id: u64, tier: Tier) -> Duration {
    let mut last: Vec<PartMove> = Vec::new();
    let mut took = Duration::ZERO;
    until("it is there", || {
        let begun = Instant::now();
        let target = Some(Target::AllocationId(id));
        let request = MovePartsRequest { target, tier: tier.into(), ..Default::default() };
        last = daemon.admin.move_parts(request).ok().parts;
        took = begun.elapsed();
        last.iter().all(|part| part.outcome() == MoveOutcome::Moved)
    });
    assert!(!last.is_empty(), "it has parts");
    took
}
