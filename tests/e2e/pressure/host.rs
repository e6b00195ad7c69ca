//! The host tier is full, or other programs take the host's memory: cold parts go to disk, and so does new backing.

use std::{os::fd::OwnedFd, time::Duration};

use serde_json::Value;
use vramd_client::{Client, PressureLevel};
use vramd_proto::v1::{EventKind, MoveCause, Tier, WatchRequest, move_event::Change, watch_response::Event};
use vramd_tests::{
    Config, Daemon, MIB, MIB_2, Watching,
    other_programs::take_host_memory,
    wait::{always, until},
};

use super::{DEVICE, Heard, MEASURED, content, left, levels, listening, metric, percent};
use crate::moves::{
    clients::programs::{send, tiers_of},
    operators::list::listed as moves,
};

/// A host tier of twenty parts, so that one part is five percent, and a disk for all.
fn three_tiers() -> Config {
    let config = Config::devices(&[DEVICE]).memory("host_size = \"40MiB\"").disk("400MiB");
    config.limit("survey_interval_ms = 20").telemetry(MEASURED)
}

/// The parts that are charged in the host and on disk.
fn below(daemon: &Daemon) -> (u64, u64) {
    let state = daemon.state();
    (state.charged_in_host() / MIB_2, state.charged_on_disk() / MIB_2)
}

fn host_capacity(daemon: &Daemon) -> u64 {
    daemon.state().devices[0].host_capacity_bytes
}

fn outsider(client: &Client, bytes: u64) -> OwnedFd {
    take_host_memory(&client.devices()[0].uuid, bytes)
}

/// Parts that are filled with their numbers and all lie in the host.
fn in_host(daemon: &Daemon, client: &Client, parts: u8) -> vramd_client::Allocation {
    let mut cold = client.allocate(percent(u64::from(parts))).unwrap();
    cold.copy_from_host(0, &content(parts)).unwrap();
    cold.unpin().unwrap();
    send(daemon, &cold, "host");
    cold
}

/// Waits until this many parts went from the host to disk because of pressure. No other part goes there.
#[track_caller]
fn went_for_pressure(daemon: &Daemon, cold: &vramd_client::Allocation, count: usize) {
    let ended = moves(daemon).ended;
    let went: Vec<_> = ended.iter().filter(|it| it.tier() == Tier::Disk).collect();
    assert_eq!(went.len(), count, "{ended:?}");
    assert!(went.iter().all(|it| it.cause() == MoveCause::Pressure), "{went:?}");
    assert!(went.iter().all(|it| it.outcome() == Change::Moved), "{went:?}");
    let lies = tiers_of(daemon, &cold.id().to_string());
    assert_eq!(lies.iter().filter(|tier| *tier == "disk").count(), count, "{lies:?}");
}

#[track_caller]
fn is_intact(cold: &mut vramd_client::Allocation, parts: u8) {
    let mut seen = vec![0; content(parts).len()];
    cold.copy_to_host(0, &mut seen).unwrap();
    assert!(seen == content(parts));
}

/// The client may have been told of `high` between the two levels.
fn was_critical_and_is_elevated(heard: &Heard) -> bool {
    let levels = levels(heard, Tier::Host);
    levels.contains(&PressureLevel::Critical) && levels.last() == Some(&PressureLevel::Elevated)
}

#[test]
fn cold_parts_go_from_a_full_host_to_disk_and_come_back_intact() {
    let daemon = Daemon::start(&three_tiers().pressure("cold_after_ms = 200"));
    let (client, heard) = listening(&daemon);
    let mut cold = in_host(&daemon, &client, 20);
    until("as much goes as has to", || below(&daemon) == (17, 3));
    until("the client is told", || was_critical_and_is_elevated(&heard));
    always("no more goes", Duration::from_millis(1500), || below(&daemon) == (17, 3));
    went_for_pressure(&daemon, &cold, 3);
    assert_eq!(left(&daemon, "moved"), 3, "the metric counts them too");
    is_intact(&mut cold, 20);
}

fn watching_host(daemon: &Daemon) -> Watching {
    let request = WatchRequest { kinds: vec![EventKind::Pressure.into()], ..Default::default() };
    Watching::start(&daemon.admin, request).unwrap()
}

/// The next change of the host's level: from, to, and the charged parts of the capacity.
#[track_caller]
fn told(watch: &mut Watching) -> (PressureLevel, PressureLevel, u64, u64) {
    match watch.read().event {
        Some(Event::Pressure(it)) if it.tier() == Tier::Host => {
            (it.from(), it.to(), it.held_bytes / MIB_2, it.capacity_bytes / MIB_2)
        }
        other => panic!("{other:?}"),
    }
}

/// Checks that every view of operators has this level.
#[track_caller]
fn is_seen(daemon: &Daemon, capacity: u64, level: &str) {
    until("the capacity is as expected", || host_capacity(daemon) == capacity);
    let labels = ["vramd_tier=\"host\""];
    assert_eq!(metric::<u64>(daemon, "vramd_memory_capacity_bytes", &labels), Some(capacity));
    let device: Value = super::listed(daemon);
    assert_eq!((&device["host_capacity_bytes"], &device["host_pressure"]), (&capacity.into(), &level.into()));
}

#[test]
fn backing_goes_to_disk_while_other_programs_take_host_memory() {
    use PressureLevel::{Critical, Elevated, Normal};
    let daemon = Daemon::start(&three_tiers());
    let (client, heard) = listening(&daemon);
    let mut watch = watching_host(&daemon);
    let _kept = client.allocate(percent(12)).unwrap();
    assert_eq!(below(&daemon), (12, 0), "it is set aside with it");
    is_seen(&daemon, 40 * MIB, "normal");

    let taken = outsider(&client, 10 * MIB);
    assert_eq!(told(&mut watch), (Normal, Elevated, 12, 15));
    until("the client is told", || levels(&heard, Tier::Host).last() == Some(&Elevated));
    is_seen(&daemon, 30 * MIB, "elevated");
    let _more = client.allocate(percent(8)).unwrap();
    assert_eq!(below(&daemon), (15, 5), "for three parts there was room");
    let steps = std::iter::from_fn(|| Some(told(&mut watch))).find(|it| it.1 == Critical);
    assert_eq!(steps.map(|it| it.3), Some(15));

    drop(taken);
    is_seen(&daemon, 40 * MIB, "normal");
    until("the client is told", || levels(&heard, Tier::Host).last() == Some(&Normal));
    let _last = client.allocate(percent(5)).unwrap();
    assert_eq!(below(&daemon), (20, 5), "it is to be had again");
}

#[test]
fn cold_parts_go_to_disk_when_other_programs_take_host_memory() {
    let daemon = Daemon::start(&three_tiers().pressure("cold_after_ms = 200"));
    let (client, heard) = listening(&daemon);
    let mut cold = in_host(&daemon, &client, 12);
    // The charge is no pressure for a tier of twenty parts. Of eleven it is more than the tier has: 85 percent allow
    // nine.
    always("nothing goes", Duration::from_millis(1500), || below(&daemon) == (12, 0));
    let taken = outsider(&client, 18 * MIB);
    until("as much goes as has to", || below(&daemon) == (9, 3));
    until("the client is told", || was_critical_and_is_elevated(&heard));
    is_seen(&daemon, 22 * MIB, "elevated");
    went_for_pressure(&daemon, &cold, 3);
    drop(taken);
    is_seen(&daemon, 40 * MIB, "normal");
    is_intact(&mut cold, 12);
}
