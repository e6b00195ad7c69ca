//! Three tenants that need several times the device: unused parts make room for waiters, and every byte stays as
//! written, whichever process dies meanwhile.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use vramd_proto::v1::Tier;
use vramd_tests::{
    Config, Daemon, MIB, MIB_2, Probe,
    moves::{disk_io_bytes, has_returned},
    wait::until,
};

use crate::has_other_users;
use crate::moves::{assert_nothing_left, held, tiers, vramctl_json};

/// The device's memory, in MiB.
const DEVICE: u64 = 16;
/// How long the tenants may take for their moves, beside the time in which other processes die.
const LONGER: Duration = Duration::from_secs(120);

/// The size of a run.
struct Turns {
    name: &'static str,
    /// The device, in MiB.
    device: u64,
    parts_each: u64,
    /// How many parts must be copied, at least this many in each direction.
    moves: u64,
    /// How many other processes start, and are killed at any step.
    killed: u32,
}

impl Turns {
    /// MiB of all tenants together.
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
        probe.tell(&format!("sdk turn {} {MIB_2} {millis} {seed}", self.parts_each));
    }

    /// Collects how often each process has pinned. A process ends with an error or by a signal if a byte differs or is
    /// missing.
    fn collect_pins(probes: &mut [Probe], pins: &mut [u64]) {
        for (probe, pins) in probes.iter_mut().zip(pins) {
            *pins += probe.listen("sdk turn")["pins"].as_u64().expect("a count");
        }
    }

    /// Has all processes compare all their bytes at once.
    fn compare_all(&self, probes: &mut [Probe]) {
        probes.iter_mut().for_each(|probe| probe.tell("sdk turned-over"));
        for probe in probes {
            assert_eq!(probe.listen("sdk turned-over")["compared"], self.parts_each);
        }
    }

    /// Starts and kills other processes. Every second one is killed once a part of its has gone to the lowest tier and
    /// come back.
    fn kill_other_processes(&self, daemon: &Daemon, lowest: Tier) -> BTreeSet<&'static str> {
        let mut seen = BTreeSet::new();
        for round in 0..self.killed {
            let mut short = self.tenant(daemon, round % 3);
            self.begin(&mut short, 60_000, 100 + u64::from(round));
            // The youngest session is the last.
            let youngest = || daemon.state().sessions.get(3).cloned();
            until("it is in the middle of it", || youngest().is_some_and(|session| session.mapped_bytes > 0));
            assert!(held(daemon).0 <= self.device, "never more than there is");
            seen.extend(used(daemon));
            if round % 2 == 1 {
                let session = youngest().expect("it lives").session_id;
                until("some of it was there, and is back", || has_returned(daemon, session, lowest));
            }
            short.kill();
            until("it is gone", || daemon.state().sessions.len() == 3);
        }
        seen
    }

    fn run(&self, config: &Config) -> Ran {
        let lowest = if config.disk.is_some() { Tier::Disk } else { Tier::Host };
        let daemon = Daemon::start(&config.clone().telemetry("prometheus_listen = \"127.0.0.1:0\""));
        let [written, read] = disk_io_bytes(&daemon);
        let mut probes: Vec<_> = (0..3).map(|number| self.tenant(&daemon, number)).collect();
        for (seed, probe) in (7..).zip(&mut probes) {
            self.begin(probe, 12_000, seed);
        }
        let seen = self.kill_other_processes(&daemon, lowest);
        let mut pins = [0; 3];
        Self::collect_pins(&mut probes, &mut pins);
        // Comparing all bytes fetches all parts.
        let mut moved = moves(&daemon);
        self.compare_all(&mut probes);
        // A machine under load takes longer for as many moves.
        let end = Instant::now() + LONGER;
        let lack_pins = |pins: &[u64]| pins.iter().any(|pins| *pins <= 20);
        while (moved < self.moves || lack_pins(&pins)) && Instant::now() < end {
            for (seed, probe) in (200..).zip(&mut probes) {
                self.begin(probe, 6_000, seed);
            }
            let before = moves(&daemon);
            Self::collect_pins(&mut probes, &mut pins);
            moved += moves(&daemon) - before;
            self.compare_all(&mut probes);
        }
        assert!(moved >= self.moves && !lack_pins(&pins), "{moved} moves for {pins:?} pins");
        probes.into_iter().for_each(Probe::leave);
        assert_nothing_left(&daemon);
        let node = vramctl_json(&daemon, &["node", "show"]);
        assert_eq!(node["node"]["invariant_violations"], 0, "{node}");
        let disk = disk_io_bytes(&daemon);
        Ran {
            tiers: seen,
            disk: [disk[0] - written, disk[1] - read],
            for_pressure: ended(&daemon, "vramd_migration_cause=\"pressure\""),
        }
    }
}

/// The observations of a run.
struct Ran {
    /// Tiers that had any part.
    tiers: BTreeSet<&'static str>,
    /// Bytes written to disk, and read.
    disk: [u64; 2],
    /// Parts that left because of pressure alone, with a copy or without.
    for_pressure: u64,
}

#[test]
fn three_tenants_share_a_quarter_of_what_they_need() {
    let config = node(DEVICE, 128);
    let name = "three_tenants_share_a_quarter_of_what_they_need";
    let ran = Turns { name, device: DEVICE, parts_each: 11, moves: 2_000, killed: 6 }.run(&config);
    assert_eq!((ran.tiers, ran.disk), (["device", "host"].into(), [0; 2]));
}

/// The host has room for less than half of the bytes beyond the device. The rest is on disk, and cold parts go there.
#[test]
fn three_tenants_share_a_tenth_of_what_they_need() {
    let config = node(DEVICE, 64).disk("512MiB");
    let name = "three_tenants_share_a_tenth_of_what_they_need";
    let turns = Turns { name, device: DEVICE, parts_each: 27, moves: 1_000, killed: 6 };
    assert!(turns.owned() >= 10 * DEVICE);
    let ran = turns.run(&config);
    assert_eq!(ran.tiers, ["device", "disk", "host"].into());
    assert!(ran.disk.iter().all(|bytes| *bytes > 0), "{:?}", ran.disk);
}

/// Parts are cold after a moment here, and the device is soon full. Parts leave because of pressure all the time,
/// beside the victims of waiters.
#[test]
fn three_tenants_share_a_tenth_while_cold_parts_leave() {
    let config = node(48, 192).disk("1GiB").pressure("cold_after_ms = 10");
    let levels =
        ["elevated_percent = 40", "high_percent = 50", "critical_percent = 60", "evict_to_percent = 40"];
    let config = levels.iter().fold(config, |config, line| config.pressure(line));
    let name = "three_tenants_share_a_tenth_while_cold_parts_leave";
    let turns = Turns { name, device: 48, parts_each: 80, moves: 1_000, killed: 3 };
    assert!(turns.owned() >= 10 * turns.device);
    let ran = turns.run(&config);
    assert_eq!(ran.tiers, ["device", "disk", "host"].into());
    assert!(ran.disk.iter().all(|bytes| *bytes > 0), "{:?}", ran.disk);
    assert!(ran.for_pressure >= 50, "{} parts left for it", ran.for_pressure);
}

/// A device and a host tier of these MiB, in small parts.
fn node(device: u64, host: u64) -> Config {
    let config = tiers(&format!("{device}MiB"), &format!("{host}MiB"));
    config.memory("part_size = \"2MiB\"\nharvest_ms = 10")
}

/// Parts that were copied, in either direction.
fn moves(daemon: &Daemon) -> u64 {
    ended(daemon, "\"moved\"")
}

/// Successful moves with this label.
fn ended(daemon: &Daemon, of: &str) -> u64 {
    let scrape = daemon.metrics();
    let ended_well = |line: &str| line.contains("\"moved\"") || line.contains("\"clean\"");
    let is_meant =
        |line: &&str| line.starts_with("vramd_migrations_total{") && ended_well(line) && line.contains(of);
    let counts =
        scrape.lines().filter(is_meant).filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok());
    counts.sum()
}

/// The tiers that have any part.
fn used(daemon: &Daemon) -> BTreeSet<&'static str> {
    let listed = vramctl_json(daemon, &["alloc", "list"]);
    let all = listed["allocations"].as_array().expect("a list").clone();
    let lies =
        |tier: &&str| all.iter().any(|it| it["tier_bytes"][*tier].as_u64().is_some_and(|bytes| bytes > 0));
    ["device", "host", "disk"].into_iter().filter(lies).collect()
}
