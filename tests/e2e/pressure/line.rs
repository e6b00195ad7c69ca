//! Requests at critical pressure: none is refused for the pressure, and waiters below their guarantee come first.

use serde_json::{Value, json};
use vramd_proto::v1::{
    EventKind, ListWaitsRequest, WatchRequest, device_event::Change, watch_response::Event,
};
use vramd_tests::{
    Config, Daemon, MIB, MIB_2, Probe, Watching, other_programs::take_device_memory, wait::until,
};
use vramd_types::Reason;

use super::{DEVICE, listed};
use crate::has_other_users;

const TEAM_A: u32 = 20_001;
const TEAM_B: u32 = 20_002;

/// More tries than a batch makes between two surveys of its device.
const TRIES: usize = 12;

/// The command to allocate this many percent of the device, which the session goes on using, with or without a wait for
/// room.
fn asks(percent: u64, waits: bool) -> String {
    let wait = if waits { "wait=200000" } else { "" };
    format!("sdk allocate {} part={MIB_2} {wait}", percent * MIB_2)
}

fn client(daemon: &Daemon, uid: u32) -> Probe {
    let mut client = daemon.probe_as(uid);
    client.ask("sdk open");
    client
}

/// Starts a waiter, and returns once it is the last of this many.
#[track_caller]
fn waiting(daemon: &Daemon, uid: u32, percent: u64, count: usize) -> Probe {
    let mut waits = client(daemon, uid);
    waits.tell(&asks(percent, true));
    until_wait(daemon, count);
    waits
}

#[track_caller]
fn until_wait(daemon: &Daemon, count: usize) {
    until("this many wait", || {
        daemon.admin.list_waits(ListWaitsRequest::default()).ok().waits.len() == count
    });
}

fn watching_devices(daemon: &Daemon) -> Watching {
    let request = WatchRequest { kinds: vec![EventKind::Device.into()], ..Default::default() };
    Watching::start(&daemon.admin, request).unwrap()
}

#[track_caller]
fn is_served(answer: &Value) {
    assert!(answer["allocation"].is_u64(), "{answer}");
}

/// Requests one percent without a wait: reserved bytes of other waiters are not free to it.
#[track_caller]
fn is_refused(client: &mut Probe, uuid: &str) {
    let refused = client.refused(&asks(1, false));
    let refused = refused.is(Reason::DeviceFull);
    assert_eq!((refused.fact("device"), refused.fact("tier")), (uuid, "device"));
    assert_eq!((refused.number("asked"), refused.number("free")), (MIB_2, 0));
}

#[test]
fn critical_pressure_serves_waiters_below_their_guarantee_first() {
    let name = "critical_pressure_serves_waiters_below_their_guarantee_first";
    if !has_other_users(name) {
        return;
    }
    let config = Config::devices(&[DEVICE]).memory("host_size = \"400MiB\"").memory("harvest_ms = 5");
    let config = config.limit("survey_interval_ms = 20").tenant(TEAM_A, "team-a").tenant(TEAM_B, "team-b");
    let daemon = Daemon::start(&config);
    daemon.set_quota("team-b", "6MiB", "");
    let is_critical = || listed(&daemon)["pressure"] == json!("critical");
    let [mut most, mut last, mut more] = [(); 3].map(|()| client(&daemon, TEAM_A));
    is_served(&most.ask(&asks(95, false)));
    assert!(is_critical());
    is_served(&last.ask(&asks(1, false)));
    last.ask("sdk write 7");
    let written = last.ask("sdk digest")["digest"].clone();

    // Two of the three percent of team-b's guarantee are free now, and the rest of the device is in use.
    let uuid = daemon.state().devices[0].device.clone().unwrap().uuid;
    let taken = take_device_memory(&uuid, 4 * MIB);
    let unbrokered = || daemon.state().devices[0].unbrokered_bytes;
    until("it is seen", || unbrokered() == 4 * MIB);
    let mut tried = watching_devices(&daemon);
    let mut first = waiting(&daemon, TEAM_B, 3, 1);
    is_refused(&mut more, &uuid);
    let mut behind = waiting(&daemon, TEAM_A, 1, 2);
    // Each try asks the driver for memory that it lacks. An allocation waits until its deadline, however many tries
    // fail.
    for _ in 0..TRIES {
        tried.until(|event| matches!(event, Event::Device(it) if it.change() == Change::CreateFailed));
    }
    until_wait(&daemon, 2);
    last.ask("sdk unhold");
    is_served(&first.listen("a waiter below its guarantee"));
    until_wait(&daemon, 1);
    let state = daemon.state();
    assert_eq!(state.charged(), 98 * MIB_2, "95 and the three: what made room for these has left");
    is_refused(&mut more, &uuid);
    assert!(is_critical());

    drop(taken);
    is_served(&behind.listen("a waiter behind it"));
    until("it is to be had again", || unbrokered() == 0);
    until_wait(&daemon, 0);
    is_served(&more.ask(&asks(1, false)));
    assert!(is_critical());
    assert_eq!(daemon.state().charged(), 100 * MIB_2);
    most.ask("sdk drop");
    assert_eq!(last.ask("sdk pinned-digest")["digest"], written, "the victim has lost nothing");
}
