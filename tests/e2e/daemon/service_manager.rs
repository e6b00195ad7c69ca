//! The daemon reports to the service manager that started it: a real socket takes systemd's place.

use std::{
    fs, io,
    os::unix::net::UnixDatagram,
    path::Path,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use vramd_tests::{
    Config, Daemon, Home,
    rpc::is_serving,
    wait::{PATIENCE, always, until},
};

/// The service manager restarts a daemon that gives no sign of life for so long.
const INTERVAL: Duration = Duration::from_millis(600);

/// A directory whose daemon reports to this socket.
fn supervised() -> (Home, UnixDatagram) {
    let home = Home::new();
    let path = home.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let home = home
        .with_variable("NOTIFY_SOCKET", path.to_str().unwrap())
        .with_variable("WATCHDOG_USEC", &INTERVAL.as_micros().to_string());
    (home, manager)
}

/// The next message, or `None` if none comes in time.
fn message(manager: &UnixDatagram) -> Option<String> {
    let mut bytes = [0; 512];
    match manager.recv(&mut bytes) {
        Ok(size) => Some(String::from_utf8(bytes[..size].to_vec()).unwrap()),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
        Err(error) => panic!("{error}"),
    }
}

/// Reads all messages until none comes for two intervals.
fn messages_until_silence(manager: &UnixDatagram) -> Vec<String> {
    manager.set_read_timeout(Some(INTERVAL * 2)).unwrap();
    let messages = std::iter::from_fn(|| message(manager)).collect();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    messages
}

fn serves(sockets: &Path) -> bool {
    is_serving(&sockets.join("admin.sock"), "")
}

#[test]
fn the_daemon_reports_ready_once_clients_can_connect() {
    let (home, manager) = supervised();
    Config::devices(&["64MiB", "64MiB"]).write(home.path());
    let child = home.spawn();
    let first = message(&manager).expect("the daemon reports");
    // A unit that starts after this one may rely on it.
    assert!(serves(&home.sockets()), "a client can connect at that moment");
    assert_eq!(first, "READY=1\nSTATUS=serves 2 devices by the driver sim\n");
    let daemon = Daemon::started(home, child);
    let began = Instant::now();
    for _ in 0..6 {
        assert_eq!(message(&manager).as_deref(), Some("WATCHDOG=1\n"));
    }
    assert!(began.elapsed() > INTERVAL, "the signs of life are spread over the interval");
    daemon.signal(Signal::TERM);
    until("the stop is reported", || {
        message(&manager).is_some_and(|said| said == "STOPPING=1\nSTATUS=stopping\n")
    });
    let (status, _home) = daemon.stop();
    assert!(status.success());
}

#[test]
fn a_daemon_that_hangs_gives_no_sign_of_life() {
    let (home, manager) = supervised();
    Config::default().write(home.path());
    let daemon = Daemon::start_in(home);
    assert!(message(&manager).is_some_and(|said| said.starts_with("READY=1")));
    daemon.freeze();
    assert!(messages_until_silence(&manager).iter().all(|said| said == "WATCHDOG=1\n"));
    daemon.signal(Signal::CONT);
    assert_eq!(message(&manager).as_deref(), Some("WATCHDOG=1\n"), "it lives again");
}

/// The kernel lets a sender wait while the receiver has not read its messages.
#[test]
fn a_service_manager_that_does_not_read_holds_up_nothing() {
    let (home, manager) = supervised();
    Config::default().write(home.path());
    let daemon = Daemon::start_in(home);
    assert!(message(&manager).is_some_and(|said| said.starts_with("READY=1")));
    let other = UnixDatagram::unbound().unwrap();
    other.connect(daemon.home().path().join("notify")).unwrap();
    other.set_nonblocking(true).unwrap();
    while other.send(b"X=1\n").is_ok() {}
    // A thread of the daemon waits meanwhile.
    always("the daemon works", INTERVAL * 2, || {
        daemon.set_quota("team-a", "", "1MiB");
        true
    });
    until("it gives signs of life again", || message(&manager).is_some_and(|said| said == "WATCHDOG=1\n"));
}

#[test]
fn a_start_that_fails_reports_nothing() {
    let (home, manager) = supervised();
    fs::write(home.path().join("vramd.toml"), "[driver]\nkind = \"none\"\n").unwrap();
    assert!(!home.command().output().unwrap().status.success());
    assert_eq!(messages_until_silence(&manager), [""; 0]);
}
