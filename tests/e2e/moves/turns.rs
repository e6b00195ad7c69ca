//! Three tenants that together have four times what the device has: what nobody uses makes room for who does, and every
//! byte is where it was written, whoever dies meanwhile.

use vramd_tests::{Daemon, MIB_2, Probe, wait::until};

use super::{held, nothing_is_left, said, tiers};
use crate::has_other_users;

/// Of 16 MiB that the device has.
const PARTS_EACH: u64 = 11;

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
    let mut pins = 0;
    for mut probe in probes {
        // It ends with an error, or by a signal, where a byte is not what it wrote, or is not there.
        let own = probe.listen("sdk turn-over")["pins"].as_u64().unwrap();
        assert!(own > 100, "{own}");
        pins += own;
        probe.leave();
    }
    nothing_is_left(&daemon);
    let node = said(&daemon, &["node", "show"]);
    assert_eq!(node["node"]["invariant_violations"], 0, "{node}");
    let scrape = daemon.metrics();
    let moved = |line: &&str| line.starts_with("vramd_migrations_total{") && line.contains("\"moved\"");
    let counts = scrape.lines().filter(moved).filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
    let moves: f64 = counts.sum();
    assert!(moves > 1_000.0, "{moves} moves for {pins} pins");
}
