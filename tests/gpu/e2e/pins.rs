//! Memory that an operator revokes, and that the next pin maps again.

use std::{
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use vramd_proto::v1::{
    PartRevocation, RevocationOutcome as Outcome, RevokeMappingsRequest, revoke_mappings_request::Target,
};
use vramd_tests::{Config, Daemon, MIB, Pending, wait::until};
use vramd_types::Reason;

use super::{Actor, World};
use crate::content;

pub(super) const ROUNDS: u64 = 5;
/// Two parts and a remainder that is not a multiple of 2 MiB.
const SIZE: u64 = 300 * MIB + 8 * 13;
const KERNEL: Duration = Duration::from_secs(2);

/// Memory keeps its address and bytes in each round. Covers unsealed memory that is written between rounds, and sealed memory that two
/// processes map. Memory with a handle pin is left alone.
pub(super) fn evicted_and_pinned_again(_: &World) -> Value {
    let daemon = Daemon::start(&Config::cuda());
    let mut writer = Actor::ready(&daemon);
    let answer = writer.ask(&format!("allocate {SIZE} name=weights persistent"));
    let id = answer["allocation"].as_u64().expect("a number");
    let held = daemon.state().charged();
    writer.ask("fill 0");
    let parts = revoke(&daemon, id, false).ok().parts;
    assert!(parts.iter().all(|part| part.outcome() == Outcome::Pinned), "it is held: {parts:?}");
    assert_eq!(writer.number("sum", "sum"), content::sum(0, SIZE), "and is left alone");

    let address = pin(&mut writer, "write");
    writer.ask("unpin");
    writer.ask("unhold");
    for round in 0..ROUNDS {
        evict(&daemon, id);
        let state = daemon.state();
        assert_eq!((state.sessions[0].mapped_bytes, state.charged()), (0, held), "unmapped, and charged");
        assert_eq!(pin(&mut writer, "write"), address, "round {round}");
        let parts = revoke(&daemon, id, false).ok().parts;
        assert!(parts.iter().all(|part| part.outcome() == Outcome::Pinned), "it is pinned: {parts:?}");
        assert_eq!(writer.number("sum", "sum"), content::sum(round, SIZE), "round {round}");
        writer.ask(&format!("fill {}", round + 1));
        writer.ask("unpin");
    }
    let sum = content::sum(ROUNDS, SIZE);
    let (digest, actors) = sealed_while_away(&daemon, writer, sum, || evict(&daemon, id));
    assert_eq!(daemon.state().charged(), held, "charged once, to its owner");
    freed_by_the_first(&daemon, actors);
    json!({ "rounds": ROUNDS, "bytes": SIZE, "digest": digest })
}

/// A pin that waits for a kernel ends after the kernel. Neither an eviction nor a fence takes its memory.
pub(super) fn unpinned_after_a_stream(_: &World) -> Value {
    let daemon = Daemon::start(&Config::cuda());
    let mut client = Actor::ready(&daemon);
    let answer = client.ask(&format!("allocate {}", 64 * MIB));
    let id = answer["allocation"].as_u64().expect("a number");
    client.ask("fill 1");
    client.ask("unhold");
    pin(&mut client, "write");
    let begun = Instant::now();
    client.ask(&format!("spin {}", KERNEL.as_millis()));
    client.ask("unpin-after aside");
    let unpinned_call = begun.elapsed();
    assert!(unpinned_call < KERNEL / 2, "`unpin_after` does not wait: {unpinned_call:?}");
    let parts = revoke(&daemon, id, false).ok().parts;
    assert!(parts.iter().all(|part| part.outcome() == Outcome::Pinned), "the kernel pins it: {parts:?}");
    let fence = revoke(&daemon, id, true);
    thread::sleep(KERNEL / 4);
    assert!(!fence.is_answered(), "the kernel runs");
    assert_eq!(client.ask("has-ended")["ended"], false, "the kernel runs");
    let parts = fence.ok().parts;
    let answered = begun.elapsed();
    assert_eq!(client.ask("has-ended")["ended"], true, "the fence came before the end of the kernel");
    assert!(parts.iter().all(|part| part.outcome() == Outcome::Revoked), "{parts:?}");
    // The device's clock differs from the processor's.
    assert!(answered >= KERNEL * 9 / 10, "answered after {answered:?}");

    pin(&mut client, "write");
    client.ask("capture 2");
    let refused = client.refused("unpin-after captured");
    assert_eq!(refused.reason, Reason::StreamCapturing.name(), "{refused:?}");
    // The capture is open, so the pin stands.
    client.ask("replay");
    let sum = client.number("sum", "sum");
    assert_eq!(sum, content::sum(2, 64 * MIB), "the captured graph runs");
    client.ask("unpin");
    evict(&daemon, id);
    client.ask("free");
    client.leave();
    daemon.drains();
    json!({
        "kernel_ms": KERNEL.as_millis(), "unpin_after_returned_ms": unpinned_call.as_secs_f64() * 1e3,
        "fence_answered_ms": answered.as_secs_f64() * 1e3, "refused_on_a_capturing_stream": refused.reason,
    })
}

/// Finishes a case whose writer has unpinned `weights` with the given sum. The memory is sealed while it is revoked, and a reader attaches
/// it. In each round it is revoked and pinned again by both. Returns its digest, writer and reader.
#[track_caller]
pub(super) fn sealed_while_away(
    daemon: &Daemon,
    mut writer: Actor,
    sum: u64,
    take_away: impl Fn(),
) -> (String, [Actor; 2]) {
    // The daemon hashes the last kernel's output.
    take_away();
    let digest = writer.text("seal", "digest");

    let mut reader = Actor::ready(daemon);
    assert_eq!(reader.text("attach weights", "digest"), digest);
    let mut actors = [writer, reader];
    let addresses = actors.each_mut().map(|actor| {
        let address = pin(actor, "read");
        actor.ask("unpin");
        actor.ask("unhold");
        address
    });
    for round in 0..ROUNDS {
        take_away();
        for (actor, address) in actors.iter_mut().zip(addresses) {
            assert_eq!(pin(actor, "read"), address, "sealed, round {round}");
            assert_eq!(actor.number("sum", "sum"), sum, "sealed, round {round}");
            assert_eq!(actor.text("digest", "digest"), digest, "sealed, round {round}");
            actor.ask("unpin");
        }
    }
    (digest, actors)
}

#[track_caller]
pub(super) fn freed_by_the_first(daemon: &Daemon, [mut writer, reader]: [Actor; 2]) {
    writer.ask("free");
    [writer, reader].into_iter().for_each(Actor::leave);
    daemon.drains();
}

#[track_caller]
pub(super) fn pin(actor: &mut Actor, access: &str) -> u64 {
    actor.number(&format!("pin {access}"), "address")
}

/// Revokes until no session maps the memory, since a mapper may not have answered `Mapped` yet.
#[track_caller]
fn evict(daemon: &Daemon, id: u64) {
    let mut last: Vec<PartRevocation> = Vec::new();
    until("it is unmapped", || {
        last = revoke(daemon, id, false).ok().parts;
        last.iter().all(|part| part.outcome() == Outcome::Revoked)
    });
    assert!(!last.is_empty(), "it has parts");
}

#[track_caller]
fn revoke(daemon: &Daemon, id: u64, wait: bool) -> Pending<vramd_proto::v1::RevokeMappingsResponse> {
    let target = Some(Target::AllocationId(id));
    daemon.admin.revoke_mappings(RevokeMappingsRequest { target, wait, ..Default::default() })
}
