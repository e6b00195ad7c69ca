//! The daemon's life: how it starts, what it refuses to start with, how it stops, and what it leaves when it dies.

use std::{fs, os::unix::fs::PermissionsExt as _, process::Output};

use rustix::process::Signal;
use tonic::Code;
use vramd_tests::{
    Config, Daemon, MIB, RawSession,
    channel::Packet,
    content,
    daemon::{Home, quota},
    digest,
    session::{hello, persistent, spec},
    wait::{PATIENCE, until},
};
use vramd_types::Reason;

const CONFIGURATION_WRONG: i32 = 3;
const SOCKET_IN_USE: i32 = 4;
const DEVICE_NOT_THERE: i32 = 5;
const DRIVER_CANNOT_START: i32 = 6;

fn home(text: &str) -> Home {
    let home = Home::new();
    fs::write(home.path().join("vramd.toml"), text).unwrap();
    home
}

fn stderr_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn check_accepts_a_valid_configuration_without_starting() {
    let home = Home::new();
    Config::default().tenant(1000, "team-a").limit("sessions_max = 5").write(home.path());
    let output = home.command().arg("--check").output().unwrap();
    assert!(output.status.success(), "{}", stderr_of(&output));
    assert!(!home.sockets().exists(), "a check touches nothing");
}

#[test]
fn an_invalid_configuration_is_reported_with_line_and_field() {
    for (text, line, field) in [
        ("[daemon]\nlog_level = \"info\"\nsocket_directory = \"/tmp\"\n", 3, "socket_directory"),
        ("[memory]\n\npart_size = \"3MiB\"\n", 3, "part_size"),
        ("[limits]\nsessions_max = \"many\"\n", 2, "sessions_max"),
        ("[quota.default]\nlimit = \"24gib\"\n", 2, "limit"),
        ("[driver]\nkind = \"simulated\"\n", 2, "kind"),
        ("[[tenants]]\ntenant = \"a b\"\nuid = 1\n", 1, "tenant"),
        ("[sockets]\n", 1, "sockets"),
        ("[daemon\n", 1, ""),
    ] {
        let home = home(text);
        for check in [true, false] {
            let mut command = home.command();
            let output = if check { command.arg("--check").output() } else { command.output() }.unwrap();
            let said = stderr_of(&output);
            assert_eq!(output.status.code(), Some(CONFIGURATION_WRONG), "{text}: {said}");
            assert!(said.contains(&format!("vramd.toml:{line}")), "{text}: {said}");
            assert!(said.contains(field), "{text}: {said}");
        }
    }
}

#[test]
fn signals_ask_for_a_stop_or_are_ignored() {
    let daemon = Daemon::start(&Config::default());
    for signal in [Signal::HUP, Signal::USR1, Signal::USR2] {
        daemon.signal(signal);
    }
    until("each of them is told", || daemon.log().matches("ignored").count() == 3);
    for signal in [Signal::QUIT, Signal::ALARM, Signal::PROF, Signal::IO, Signal::POWER] {
        let mut daemon = Daemon::start(&Config::default());
        daemon.signal(signal);
        assert!(daemon.wait().success(), "{signal:?}");
        assert!(!daemon.sockets().join("admin.sock").exists(), "{signal:?} leaves no socket");
    }
    daemon.drains();
}

#[test]
fn a_missing_configuration_is_reported() {
    let home = Home::new();
    let output = home.command().output().unwrap();
    assert_eq!(output.status.code(), Some(CONFIGURATION_WRONG));
    assert!(stderr_of(&output).contains("vramd.toml"), "{}", stderr_of(&output));
}

#[test]
fn the_example_configuration_is_valid() {
    let example = vramd_tests::programs::repository().join("deploy/config/vramd.toml");
    let home = home(&fs::read_to_string(example).unwrap());
    let output = home.command().arg("--check").output().unwrap();
    assert!(output.status.success(), "{}", stderr_of(&output));
}

#[test]
fn a_daemon_does_not_take_sockets_of_a_live_daemon() {
    let daemon = Daemon::new();
    let output = daemon.home().command().output().unwrap();
    assert_eq!(output.status.code(), Some(SOCKET_IN_USE), "{}", stderr_of(&output));
    assert!(stderr_of(&output).contains(&daemon.sockets().display().to_string()), "{}", stderr_of(&output));
    // The live daemon has not noticed.
    let mut session = daemon.open();
    session.allocate(spec(MIB));
}

#[test]
fn a_daemon_takes_over_stale_sockets() {
    let daemon = Daemon::new();
    let home = daemon.kill();
    assert!(home.sockets().join("vramd.sock").exists(), "a killed daemon leaves its sockets");
    let daemon = Daemon::start_in(home);
    let mut session = daemon.open();
    session.allocate(spec(MIB));
}

#[test]
fn a_missing_device_is_reported() {
    for device in ["3", "GPU-12345678-0000-0000-0000-000000000000"] {
        let home = Home::new();
        Config::default().memory(&format!("devices = [\"{device}\"]")).write(home.path());
        let output = home.command().output().unwrap();
        assert_eq!(output.status.code(), Some(DEVICE_NOT_THERE), "{}", stderr_of(&output));
        assert!(stderr_of(&output).contains(device), "{}", stderr_of(&output));
    }
}

#[test]
fn a_driver_that_cannot_start_is_reported() {
    let home = Home::new();
    Config::default().write(home.path());
    let file = home.path().join("vramd.toml");
    let text = fs::read_to_string(&file).unwrap().replace("kind = \"sim\"", "kind = \"cuda\"");
    fs::write(&file, text).unwrap();
    let output = home.command().output().unwrap();
    assert_eq!(output.status.code(), Some(DRIVER_CANNOT_START), "{}", stderr_of(&output));
    assert!(stderr_of(&output).contains("cuda"), "{}", stderr_of(&output));
}

#[test]
fn the_daemon_stops_cleanly_on_sigterm() {
    let daemon = Daemon::new();
    let mut session = daemon.open();
    let allocation = session.allocate(spec(MIB)).allocation_id;
    session.write(allocation, &content(MIB, 1));
    let (status, home) = daemon.stop();
    assert_eq!(status.code(), Some(0));
    for socket in ["vramd.sock", "channel.sock", "admin.sock"] {
        assert!(!home.sockets().join(socket).exists(), "{socket} is left");
    }
    assert!(matches!(session.channel.receive(PATIENCE), Packet::Ended));
    assert_eq!(session.digest(allocation, MIB), digest(&content(MIB, 1)), "mapped memory stays usable");
}

#[test]
fn the_log_names_driver_and_devices() {
    for (format, driver) in [("text", "driver"), ("json", "\"driver\"")] {
        let daemon = Daemon::start(&Config::default().daemon(&format!("log_format = \"{format}\"")));
        let log = daemon.log();
        assert!(log.contains("sim") && log.contains(driver), "{log}");
        if format == "json" {
            for line in log.lines() {
                serde_json::from_str::<serde_json::Value>(line)
                    .unwrap_or_else(|_| panic!("not JSON: {line}"));
            }
        }
    }
}

#[test]
fn clients_keep_their_mappings_when_the_daemon_is_killed() {
    let daemon = Daemon::start(&Config::default().limit("survey_interval_ms = 100"));
    let mut probe = daemon.probe();
    probe.ask("open");
    let id = probe.ask("allocate 8388608")["allocation"].clone();
    probe.ask(&format!("write {id} 4"));
    let mut session = daemon.open();
    let allocation = session.allocate(persistent("weights", 4 * MIB)).allocation_id;
    session.write(allocation, &content(4 * MIB, 2));
    let capacity = daemon.state().devices[0].capacity_bytes;

    let home = daemon.kill();
    assert_eq!(session.digest(allocation, 4 * MIB), digest(&content(4 * MIB, 2)));
    assert_eq!(probe.ask(&format!("digest {id} 8388608"))["digest"], digest(&content(8 * MIB, 4)));
    assert!(matches!(session.channel.receive(PATIENCE), Packet::Ended));
    // A call that waited for its deadline would say so.
    let status = session.memory.allocate_batch(session.request(vec![spec(1)])).wait().unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");

    // A new daemon sees the memory of the old one's clients, and does not hand it out again.
    let daemon = Daemon::start_in(home);
    until("it is shown as unbrokered", || daemon.state().unbrokered() == 12 * MIB);
    let state = daemon.state();
    assert_eq!(state.charged(), 0);
    assert_eq!(state.devices[0].capacity_bytes, capacity - 12 * MIB);
    let again = RawSession::open_with(&daemon.sockets(), hello()).unwrap();
    assert_ne!(again.id(), session.id());
    session.memory.allocate_batch(again.request(vec![spec(MIB)])).ok();
    drop(session);
    probe.kill();
    until("all is back", || daemon.state().unbrokered() == 0);
    assert_eq!(daemon.state().devices[0].capacity_bytes, capacity);
}

#[test]
fn a_new_daemon_counts_memory_of_its_predecessors_clients() {
    let daemon = Daemon::new();
    let mut session = daemon.open();
    session.allocate(spec(512 * MIB));
    let daemon = Daemon::start_in(daemon.kill());
    let refused = daemon.admin.set_quota(quota("team-a", "*", "600MiB", "")).refused();
    refused.is(Reason::GuaranteeUnbacked);
    assert_eq!(refused.number("capacity"), 512 * MIB);
    daemon.set_quota("team-a", "500MiB", "");
}

#[test]
fn a_state_directory_writable_by_others_is_refused() {
    let home = Home::new();
    Config::default().write(home.path());
    let state = home.path().join("state");
    fs::create_dir(&state).unwrap();
    fs::set_permissions(&state, fs::Permissions::from_mode(0o777)).unwrap();
    let output = home.command().output().unwrap();
    assert_eq!(output.status.code(), Some(CONFIGURATION_WRONG), "{}", stderr_of(&output));
    assert!(stderr_of(&output).contains(&state.display().to_string()), "{}", stderr_of(&output));
}

#[test]
fn a_capacity_below_the_committed_bytes_is_a_shortfall() {
    let daemon = Daemon::start(&Config::default().limit("survey_interval_ms = 100"));
    daemon.set_quota("team-a", "1000MiB", "");
    let mut session = daemon.probe();
    session.ask("open");
    session.ask("allocate 16777216");
    let daemon = Daemon::start_in(daemon.kill());
    until("the outsider is seen", || daemon.state().unbrokered() == 16 * MIB);
    // Stored quotas load unchanged.
    let device = daemon.state().devices[0].clone();
    assert_eq!(device.committed_bytes, 1000 * MIB);
    assert_eq!(device.shortfall_bytes, device.committed_bytes.saturating_sub(device.capacity_bytes));
}

#[test]
fn device_share_and_margin_bound_the_capacity() {
    let config = Config::default().memory("device_share = \"50%\"").memory("margin = \"12MiB\"");
    let daemon = Daemon::start(&config);
    let device = daemon.state().devices[0].clone();
    assert_eq!((device.total_bytes, device.capacity_bytes), (1 << 30, 500 * MIB));
    let mut session = daemon.open();
    session.allocate(spec(500 * MIB));
    assert!(["QUOTA_LIMIT", "DEVICE_FULL"].contains(&session.refused(spec(1)).reason.as_str()));
}
