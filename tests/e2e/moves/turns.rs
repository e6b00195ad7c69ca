//! Three tenants that together have four times what the device has: what nobody uses makes room for who does, and every
//! byte is where it was written, whoever dies meanwhile.

use std::time::{Duration, Instant};

use vramd_tests::{Daemon, MIB_2, Probe, wait::until};

use super::{held, nothing_is_left, said, tiers};
use crate::has_other_users;

/// Of 16 MiB that the device has.
const PARTS_EACH: u64 = 11;
/// So many parts are to be copied at least, each in one of both directions.
const MOVES: u64 = 2_000;
/// How long they may go on for that, beside the time in which others die.
const LONGER: Duration = Duration::from_secs(24);

fn tenant(daemon: &Daemon, number: u32) -> Probe {
    let mut probe = match has_other_users("three_tenants_four_times_the_device") {
        true => daemon.probe_as(20_001 + number),
        false => daemon.probe(),
    };
    probe.ask("sdk open");
    probe
}

fn begin(probe: &mut Probe, millis: u64, seed: u64) {
    probe.tell(&format!("sdk turn-over {PARTS_EACH} {MIB_2} {millis} {seed}"));
}

#[test]
fn three_tenants_four_times_the_device() {
    let config = tiers("16MiB", "128MiB").memory("part_size = \"2MiB\"\nharvest_ms = 10");
    let daemon = Daemon::start(&config.telemetry("prometheus_listen = \"127.0.0.1:0\""));
    let mut probes: Vec<_> = (0..3).map(|number| tenant(&daemon, number)).collect();
    for (seed, probe) in (7..).zip(&mut probes) {
        begin(probe, 12_000, seed);
    }
    // Others come, use as much, and are killed wherever they are.
    for round in 0..6 {
        let mut short = tenant(&daemon, round % 3);
        begin(&mut short, 60_000, 100 + u64::from(round));
        until("it is in the middle of it", || {
            // The youngest is the last.
            daemon.books().sessions.get(3).is_some_and(|session| session.mapped_bytes > 0)
        });
        assert!(held(&daemon).0 <= 16, "never more than there is");
        short.kill();
        until("it is gone", || daemon.books().sessions.len() == 3);
    }
    let mut pins: u64 = probes.iter_mut().map(turned_over).sum();
    // A machine under load takes longer for as many.
    let end = Instant::now() + LONGER;
    while moves(&daemon) < MOVES && Instant::now() < end {
        for (seed, probe) in (200..).zip(&mut probes) {
            begin(probe, 6_000, seed);
        }
        pins += probes.iter_mut().map(turned_over).sum::<u64>();
    }
    probes.into_iter().for_each(Probe::leave);
    nothing_is_left(&daemon);
    let node = said(&daemon, &["node", "show"]);
    assert_eq!(node["node"]["invariant_violations"], 0, "{node}");
    let moves = moves(&daemon);
    assert!(moves >= MOVES, "{moves} moves for {pins} pins");
}

/// It has ended with an error, or by a signal, where a byte was not what it wrote, or was not there. How often it pinned.
fn turned_over(probe: &mut Probe) -> u64 {
    let told = probe.listen("sdk turn-over");
    assert_eq!(told["compared"], PARTS_EACH, "in the end it looked at all that it has");
    let pins = told["pins"].as_u64().unwrap();
    assert!(pins > 20, "{pins}");
    pins
}

/// Parts that have been copied, in either direction.
fn moves(daemon: &Daemon) -> u64 {
    let scrape = daemon.metrics();
    let moved = |line: &&str| line.starts_with("vramd_migrations_total{") && line.contains("\"moved\"");
    let counts = scrape.lines().filter(moved).filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok());
    counts.sum()
}
