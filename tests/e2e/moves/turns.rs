//! Three tenants that together have several times what the device has: what nobody uses makes room for who does, and every
//! byte is where it was written, whoever dies meanwhile.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use vramd_tests::{Config, Daemon, MIB, MIB_2, Probe, wait::until};

use super::{held, nothing_is_left, said, tiers};
use crate::has_other_users;

/// What the device has, in MiB.
const DEVICE: u64 = 16;
/// How long they may go on for their moves, beside the time in which others die.
const LONGER: Duration = Duration::from_secs(24);

/// How much the tenants do.
struct Turns {
    name: &'static str,
    /// MiB.
    device: u64,
    parts_each: u64,
    /// So many parts are to be copied at least, each in one of both directions.
    moves: u64,
    /// How many others come, and are killed wherever they are.
    killed: u32,
}

impl Turns {
    /// MiB of all of them.
    const fn owned(&self) -> u64 {
        3 * self.parts_each * MIB_2 / MIB
    }

    fn tenant(&self, daemon: &Daemon, number: u32) -> Probe {
        let mut probe = match has_other_users(self.name) {
            true => daemon.probe_as(20_001 + number),
            false => daemon.probe(),
        };
        probe.ask("sdk open");
        probe
    }

    fn begin(&self, probe: &mut Probe, millis: u64, seed: u64) {
        probe.tell(&format!("sdk turn-over {} {MIB_2} {millis} {seed}", self.parts_each));
    }

    /// It has ended with an error, or by a signal, where a byte was not what it wrote, or was not there. How often it pinned.
    fn turned_over(&self, probe: &mut Probe) -> u64 {
        let told = probe.listen("sdk turn-over");
        assert_eq!(told["compared"], self.parts_each, "in the end it looked at all that it has");
        let pins = told["pins"].as_u64().unwrap();
        assert!(pins > 20, "{pins}");
        pins
    }

    fn run(&self, config: &Config) -> Ran {
        let daemon = Daemon::start(&config.clone().telemetry("prometheus_listen = \"127.0.0.1:0\""));
        let mut probes: Vec<_> = (0..3).map(|number| self.tenant(&daemon, number)).collect();
        for (seed, probe) in (7..).zip(&mut probes) {
            self.begin(probe, 12_000, seed);
        }
        let mut seen = BTreeSet::new();
        for round in 0..self.killed {
            let mut short = self.tenant(&daemon, round % 3);
            self.begin(&mut short, 60_000, 100 + u64::from(round));
            until("it is in the middle of it", || {
                // The youngest is the last.
                daemon.books().sessions.get(3).is_some_and(|session| session.mapped_bytes > 0)
            });
            assert!(held(&daemon).0 <= self.device, "never more than there is");
            seen.extend(used(&daemon));
            short.kill();
            until("it is gone", || daemon.books().sessions.len() == 3);
        }
        let mut pins: u64 = probes.iter_mut().map(|probe| self.turned_over(probe)).sum();
        // A machine under load takes longer for as many.
        let end = Instant::now() + LONGER;
        while moves(&daemon) < self.moves && Instant::now() < end {
            for (seed, probe) in (200..).zip(&mut probes) {
                self.begin(probe, 6_000, seed);
            }
            pins += probes.iter_mut().map(|probe| self.turned_over(probe)).sum::<u64>();
        }
        probes.into_iter().for_each(Probe::leave);
        nothing_is_left(&daemon);
        let node = said(&daemon, &["node", "show"]);
        assert_eq!(node["node"]["invariant_violations"], 0, "{node}");
        let moves = moves(&daemon);
        assert!(moves >= self.moves, "{moves} moves for {pins} pins");
        Ran { tiers: seen, for_pressure: ended(&daemon, "vramd_migration_cause=\"pressure\"") }
    }
}

/// What was seen of it.
struct Ran {
    /// In which something lay.
    tiers: BTreeSet<&'static str>,
    /// Parts that left because of pressure alone, with a copy or without.
    for_pressure: u64,
}

#[test]
fn three_tenants_four_times_the_device() {
    let config = node(DEVICE, 128);
    let name = "three_tenants_four_times_the_device";
    Turns { name, device: DEVICE, parts_each: 11, moves: 2_000, killed: 6 }.run(&config);
}

/// The host's memory has not half of what does not fit on the device: the rest is on disk, and what is cold goes there.
#[test]
fn three_tenants_ten_times_the_device() {
    let config = node(DEVICE, 64).disk("512MiB");
    let name = "three_tenants_ten_times_the_device";
    let turns = Turns { name, device: DEVICE, parts_each: 27, moves: 1_000, killed: 6 };
    assert!(turns.owned() >= 10 * DEVICE);
    let ran = turns.run(&config);
    assert_eq!(ran.tiers, ["device", "disk", "host"].into());
}

/// What nobody has used for a moment is cold here, and the device is soon full: parts leave for that alone all the time, beside those that
/// leave for who needs the room.
#[test]
fn three_tenants_ten_times_the_device_of_which_what_is_cold_leaves() {
    let config = node(48, 192).disk("1GiB").pressure("cold_after_ms = 10");
    let levels =
        ["elevated_percent = 40", "high_percent = 50", "critical_percent = 60", "evict_to_percent = 40"];
    let config = levels.iter().fold(config, |config, line| config.pressure(line));
    let name = "three_tenants_ten_times_the_device_of_which_what_is_cold_leaves";
    let turns = Turns { name, device: 48, parts_each: 80, moves: 1_000, killed: 3 };
    assert!(turns.owned() >= 10 * turns.device);
    let ran = turns.run(&config);
    assert_eq!(ran.tiers, ["device", "disk", "host"].into());
    assert!(ran.for_pressure >= 50, "{} parts left for it", ran.for_pressure);
}

/// So many MiB of a device, and of the host beside it, in small parts.
fn node(device: u64, host: u64) -> Config {
    let config = tiers(&format!("{device}MiB"), &format!("{host}MiB"));
    config.memory("part_size = \"2MiB\"\nharvest_ms = 10")
}

/// Parts that have been copied, in either direction.
fn moves(daemon: &Daemon) -> u64 {
    ended(daemon, "\"moved\"")
}

/// Moves that ended well, of which that is said.
fn ended(daemon: &Daemon, of: &str) -> u64 {
    let scrape = daemon.metrics();
    let ended_well = |line: &str| line.contains("\"moved\"") || line.contains("\"clean\"");
    let is_meant =
        |line: &&str| line.starts_with("vramd_migrations_total{") && ended_well(line) && line.contains(of);
    let counts =
        scrape.lines().filter(is_meant).filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok());
    counts.sum()
}

/// The tiers in which something lies.
fn used(daemon: &Daemon) -> BTreeSet<&'static str> {
    let listed = said(daemon, &["alloc", "list"]);
    let all = listed["allocations"].as_array().expect("a list").clone();
    let lies =
        |tier: &&str| all.iter().any(|it| it["tier_bytes"][*tier].as_u64().is_some_and(|bytes| bytes > 0));
    ["device", "host", "disk"].into_iter().filter(lies).collect()
}
