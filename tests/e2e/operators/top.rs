//! `vramctl top`: one frame for scripts, and the live view in a real terminal.

use std::{os::unix::process::ExitStatusExt as _, process::Stdio};

use rustix::process::Signal;
use serde_json::Value;
use vramd_client::{AllocationRequest, Bytes, Client};
use vramd_proto::v1::Tier;
use vramd_tests::{Config, Daemon, MIB, RawSession, Terminal, config::Effect, session::spec, wait::until};

use crate::moves::{
    line::waits::with_three_waiters, open_and_write, operators::list::listed, request as move_request, tiers,
    vramctl, vramctl_json,
};

const ESCAPE: &str = "\u{1b}";

/// Starts the live view in a terminal of this size, with a frame every 200 ms.
#[track_caller]
fn live(daemon: &Daemon, columns: u16, rows: u16) -> Terminal {
    let mut command = daemon.vramctl();
    command.args(["top", "--interval", "0.2"]);
    let terminal = Terminal::start(&command, columns, rows);
    terminal.shows("? help");
    assert!(terminal.is_taken());
    terminal
}

/// Quits, and checks that the terminal is as before.
#[track_caller]
fn quit(mut terminal: Terminal) {
    terminal.type_keys("q");
    let status = terminal.wait();
    assert!(status.success(), "{status}: {}", terminal.text());
    terminal.assert_restored();
}

/// A client that keeps its memory unpinned, and answers the daemon by itself.
fn unpinned(daemon: &Daemon, name: &str, parts: u32) -> (Client, vramd_client::Allocation) {
    let client = Client::builder().socket_dir(daemon.sockets()).name(name).connect().unwrap();
    let request = AllocationRequest::new(Bytes::mib(2 * parts)).part_size(Bytes::mib(2));
    let allocation = client.allocate(request.unpinned()).unwrap();
    (client, allocation)
}

#[test]
fn one_frame_shows_tenants_moves_and_why_waiters_wait() {
    // Four copies out and one back, then the one that stays under way.
    let config = Config::devices(&["8MiB", "64MiB"]).memory("host_size = \"64MiB\"");
    let daemon = Daemon::start(&config.fault("copy", 6, Effect::Hold));
    let (mut session, id, call, mut other, theirs) = with_three_waiters(&daemon);
    let mut mover = RawSession::open_with_pins(&daemon.sockets());
    let moved =
        mover.allocate(vramd_proto::v1::AllocationSpec { device: Some("1".to_owned()), ..spec(2 * MIB) });
    // The part that has come back for the first waiter is sent, and its client has not answered yet.
    until("all other maps are answered", || daemon.state().node.fds_in_flight <= 1);
    let moving = daemon.admin.move_parts(move_request(moved.allocation_id, Tier::Host));
    let revoke = mover.receive_revoke();
    mover.unmap_parts(revoke.parts);
    until("it is being copied", || listed(&daemon).moves.iter().any(|it| it.copied_bytes.is_some()));

    let frame = |words: &[&str]| {
        let output = vramctl(&daemon, &[&["top", "--once"], words].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let wide = frame(&[]);
    let why = format!("device full: 8 MiB of 8 MiB, in use by s-{}", session.id());
    for expected in [
        "in service",
        "driver sim",
        session.tenant(),
        &format!("a-{}", moved.allocation_id),
        "operator",
        "copying",
        &format!("parts 1-3 of a-{id}"),
        "device full: 8 MiB of 8 MiB, in use by",
        "critical",
        "PREFETCHES: none",
    ] {
        assert!(wide.contains(expected), "{expected} ({why}):\n{wide}");
    }
    for (text, columns) in [(wide, 120), (frame(&["--width", "80"]), 80), (frame(&["--width", "40"]), 40)] {
        assert!(text.lines().all(|line| line.chars().count() <= columns), "{columns}:\n{text}");
        assert!(text.chars().all(|letter| letter == '\n' || (' '..='~').contains(&letter)), "{text:?}");
        assert!(text.contains("CHARGED") && text.contains("LINE"), "{text}");
    }

    let told: Value = vramctl_json(&daemon, &["top", "--once"]);
    assert_eq!(told["waits"][0]["reason"]["cause"], "in_use");
    assert_eq!(
        (&told["moves"][0]["cause"], &told["moves"][0]["state"]),
        (&"operator".into(), &"copying".into())
    );
    assert_eq!(
        (&told["devices"][0]["pressure"], &told["node"]["driver"]),
        (&"critical".into(), &"sim".into())
    );
    assert_eq!(told["sessions"].as_array().map(Vec::len), Some(3));
    assert_eq!(
        (&told["quotas"][0]["tenant"], &told["tenants"][0]["tenant"]),
        (&session.tenant().into(), &session.tenant().into())
    );

    daemon.end_holds();
    moving.ok();
    mover.free(moved.allocation_id);
    other.free(theirs);
    session.pin_answer(call).unwrap();
    session.end_pin_call(call);
    session.free(id);
    daemon.drains();
}

#[test]
fn the_live_view_answers_keys_and_fits_each_width() {
    let daemon = Daemon::start(&tiers("64MiB", "64MiB"));
    let (mut session, id) = open_and_write(&daemon, 3);
    let tenant = session.tenant().to_owned();
    daemon.set_quota(&tenant, "8MiB", "64MiB");
    let mut terminal = live(&daemon, 120, 30);
    let text = terminal.shows(&tenant);
    assert!(text.contains("GUARANTEE") && text.contains("6 MiB") && text.contains('█'), "{text}");

    terminal.type_keys("?");
    terminal.shows("turn the order round");
    terminal.type_keys("?");
    terminal.until("the help is gone", |screen| !screen.contains("turn the order round"));
    terminal.type_keys("S");
    terminal.shows("CHARGED▲");
    terminal.type_keys("3");
    terminal.shows(&format!("a-{id}"));
    terminal.type_keys("/nothing has this\r");
    terminal.shows("none contains `nothing has this`");
    terminal.type_keys(ESCAPE);
    terminal.shows(&format!("a-{id}"));
    for (key, expected) in [("4", "none"), ("5", "none"), ("6", "none"), ("7", "CLIENT"), ("8", "to-device")]
    {
        // Only the overview has the tables of all others.
        terminal.type_keys("1");
        terminal.shows("PREFETCHES: none");
        terminal.type_keys(key);
        terminal.until(key, |screen| screen.contains(expected) && !screen.contains("PREFETCHES: none"));
    }
    terminal.type_keys("1p");
    terminal.shows("PAUSED");
    // A key that comes together with a new size is not lost.
    terminal.type_keys("p");

    for (columns, rows) in [(80, 24), (40, 20), (20, 8), (7, 3), (1, 1), (200, 60), (40, 24)] {
        terminal.resize(columns, rows);
        let widest = |screen: &str| screen.lines().map(|line| line.chars().count()).max().unwrap_or(0);
        terminal.until("it is drawn and fits", |screen| {
            !screen.trim().is_empty() && widest(screen) <= usize::from(columns)
        });
    }
    let text = terminal.until("forty columns show the tenant", |screen| {
        screen.lines().any(|line| line.starts_with(&tenant)) && !screen.contains("GUARANTEE")
    });
    assert!(text.contains("CHARGED") && text.contains("LIMIT"), "{text}");
    // Its own frames show what came after it.
    session.free(id);
    terminal.until("the charge is gone", |screen| !screen.contains("6 MiB"));
    quit(terminal);
    daemon.drains();
}

#[test]
fn the_live_view_evicts_and_holds_after_a_yes() {
    let daemon = Daemon::start(&tiers("64MiB", "64MiB"));
    let (client, allocation) = unpinned(&daemon, "trainer", 2);
    let id = allocation.id().to_string();
    let mut terminal = live(&daemon, 100, 24);
    terminal.type_keys("3");
    terminal.shows(&id);
    terminal.type_keys("e");
    terminal.shows(&format!("Evict all parts of {id} to host?"));
    terminal.type_keys("n");
    terminal.shows("nothing was done");
    assert_eq!(daemon.state().allocations[0].resident_bytes, 4 * MIB);
    terminal.type_keys("ey");
    terminal.shows(&format!("{id}: 2 moved"));
    assert_eq!(daemon.state().allocations[0].resident_bytes, 0);
    terminal.type_keys("hy");
    terminal.shows(&format!("{id}: 2 parts held"));
    let shown = vramctl_json(&daemon, &["alloc", "show", &id]);
    assert_eq!(shown["allocation"]["parts"][1]["held"], true);
    terminal.type_keys("uy");
    terminal.shows(&format!("{id}: 2 parts let go"));
    // A refusal is shown with its reason: this node has no disk tier.
    terminal.type_keys("Ey");
    terminal.until("the refusal is shown", |screen| screen.contains(&id) && screen.contains("disk"));
    quit(terminal);
    drop(allocation);
    client.flush().unwrap();
    daemon.drains();
}

#[test]
fn the_live_view_waits_for_a_daemon_that_comes_back() {
    let daemon = Daemon::new();
    let terminal = live(&daemon, 120, 24);
    let home = daemon.kill();
    terminal.shows("NO DAEMON");
    let text = terminal.shows("BROKER_GONE");
    assert!(text.contains("TIER") && text.contains("trying again"), "the last figures stay: {text}");
    let daemon = Daemon::start_in(home);
    terminal.shows("a new daemon answers");
    terminal.until("the warning is gone", |screen| !screen.contains("NO DAEMON"));
    let mut terminal = terminal;
    terminal.type_keys("r");
    terminal.shows("boot epoch 2");

    // A daemon that does not answer delays no key.
    daemon.freeze();
    terminal.shows("NO ANSWER");
    terminal.type_keys("?");
    terminal.shows("turn the order round");
    daemon.signal(Signal::CONT);
    terminal.until("it answers again", |screen| !screen.contains("NO ANSWER"));
    terminal.type_keys("x");
    quit(terminal);
}

#[test]
fn every_end_gives_the_terminal_back() {
    let daemon = Daemon::new();
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut terminal = live(&daemon, 80, 24);
        terminal.signal(signal);
        let status = terminal.wait();
        assert_eq!(status.signal(), Some(signal.as_raw()), "{status}");
        terminal.assert_restored();
    }
    let mut terminal = live(&daemon, 80, 24);
    terminal.type_keys("\u{3}");
    assert!(terminal.wait().success(), "Ctrl-C quits");
    terminal.assert_restored();

    // Stopped as by Ctrl-Z, the shell has its terminal; continued, the view goes on.
    let terminal = live(&daemon, 80, 24);
    terminal.signal(Signal::TSTP);
    until("it has stopped", || vramd_tests::proc::is_stopped(terminal.pid()));
    terminal.assert_restored();
    terminal.signal(Signal::CONT);
    terminal.until("it draws again", |screen| screen.contains("? help"));
    until("the terminal is its own again", || terminal.is_taken());
    quit(terminal);
}

#[test]
fn a_live_view_without_a_terminal_is_refused() {
    let daemon = Daemon::new();
    let output = vramctl(&daemon, &["top"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("TERMINAL_UNUSABLE") && said.contains("vramctl top --once"), "{said}");
    assert!(output.stdout.is_empty(), "nothing is drawn");
    let output = vramctl(&daemon, &["top", "--json"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("needs `--once`"));

    // Without a daemon it fails as other commands do, and leaves the terminal alone.
    let sockets = daemon.home().path().join("nothing");
    let mut command = daemon.vramctl();
    command.args(["--socket-dir", sockets.to_str().unwrap(), "top"]);
    let mut terminal = Terminal::start(&command, 80, 24);
    assert_eq!(terminal.wait().code(), Some(3));
    terminal.shows("BROKER_GONE");
    terminal.assert_restored();

    // A reader that has gone is no failure.
    let mut child = daemon.vramctl().args(["top", "--once"]).stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert!(child.wait().unwrap().success());
}
