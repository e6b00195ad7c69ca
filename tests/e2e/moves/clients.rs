//! Clients that die or stop in the middle of a move.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use rustix::process::Signal;
use vramd_proto::v1::{ListMovesRequest, MoveOutcome as Outcome, MoveState, SessionState, Tier};
use vramd_tests::{
    Daemon, MIB_2, Probe,
    config::Effect,
    wait::{PATIENCE, until},
};

use super::{first, held, moving, nothing_is_left, outcomes, request, tiers, until_held};

/// A client process by way of the SDK, which unmaps what it is told to: two parts that it does not hold.
fn client(daemon: &Daemon) -> (Probe, u64) {
    let mut probe = daemon.probe();
    probe.ask("sdk open");
    let id = probe.ask("sdk allocate 4194304 part=2097152")["allocation"].as_u64().unwrap();
    probe.ask("sdk unhold");
    (probe, id)
}

/// Where the daemon is when the client dies.
type Reached = fn(&Daemon) -> bool;

/// Whether a copy towards that tier is under way.
fn copies(daemon: &Daemon, tier: Tier) -> bool {
    let moves = daemon.admin.list_moves(ListMovesRequest::default()).ok().moves;
    moves.iter().any(|it| it.tier() == tier && it.state() == MoveState::Copying)
}

#[test]
fn a_client_killed_on_the_way_out_leaves_nothing() {
    // What takes its time there.
    let steps: [(&str, (&'static str, u64), Reached); 3] = [
        ("its backing is made", ("create_host", 1), |daemon| daemon.books().devices[0].moving_out_bytes > 0),
        ("it is copied", ("copy", 1), |daemon| copies(daemon, Tier::Host)),
        ("it has left, and the device has not", ("release", 1), |daemon| {
            daemon.books().devices[0].moving_out_bytes == 0 && held(daemon) == (2, 4)
        }),
    ];
    for (step, (on, nth), reached) in steps {
        let daemon = Daemon::start(&tiers("8MiB", "8MiB").fault(on, nth, Effect::DelayMs(400)));
        let (probe, id) = client(&daemon);
        let evicting = moving(&daemon, id, Tier::Host);
        until(step, || reached(&daemon));
        probe.kill();
        // However it ends, it does.
        evicting.ok();
        nothing_is_left(&daemon);
    }
}

#[test]
fn a_client_killed_on_the_way_in_leaves_nothing() {
    // The first two of each are the allocation's, or the way out.
    let steps: [(&str, (&'static str, u64), Reached); 3] = [
        ("memory is made for it", ("create", 3), |daemon| daemon.books().devices[0].moving_in_bytes > 0),
        ("it is copied", ("copy", 3), |daemon| copies(daemon, Tier::Device)),
        ("one part is mapped and the other on its way", ("copy", 4), |daemon| {
            let books = daemon.books();
            books.sessions[0].mapped_bytes > 0 && books.devices[0].moving_in_bytes > 0
        }),
    ];
    for (step, (on, nth), reached) in steps {
        let daemon = Daemon::start(&tiers("8MiB", "8MiB").fault(on, nth, Effect::DelayMs(400)));
        let (mut probe, id) = client(&daemon);
        assert_eq!(first(&moving(&daemon, id, Tier::Host).ok()).0, Outcome::Moved);
        until_held(&daemon, 0, 4);
        probe.tell("sdk pin-for 60000");
        until(step, || reached(&daemon));
        probe.kill();
        nothing_is_left(&daemon);
    }
}

#[test]
fn a_client_that_dies_before_it_has_unmapped_leaves_nothing() {
    let daemon = Daemon::start(&tiers("8MiB", "8MiB"));
    let mut probe = daemon.probe();
    probe.ask("open pins");
    let id = probe.ask("allocate 2097152")["allocation"].as_u64().unwrap();
    // It does not read what it is sent.
    let evicting = moving(&daemon, id, Tier::Host);
    until("it was told to unmap", || daemon.log().contains("revoke sent"));
    assert!(!evicting.is_answered());
    probe.kill();
    let outcome = first(&evicting.ok()).0;
    assert!(matches!(outcome, Outcome::Freed | Outcome::Silent), "{outcome:?}");
    nothing_is_left(&daemon);
}

#[test]
fn two_processes_pin_again_and_again_while_an_operator_moves_what_they_pin() {
    let daemon = Daemon::start(&tiers("16MiB", "16MiB"));
    let (mut probes, ids): (Vec<_>, Vec<_>) = (0..2).map(|_| client(&daemon)).unzip();
    for probe in &mut probes {
        probe.tell("sdk pin-for 3000 10000");
    }
    let (begun, mut left, mut came) = (Instant::now(), 0, 0);
    while begun.elapsed() < Duration::from_millis(2500) {
        for id in &ids {
            let evicted = daemon.admin.move_parts(request(*id, Tier::Host)).ok();
            left += outcomes(&evicted).into_iter().filter(|outcome| *outcome == Outcome::Moved).count();
            let brought = daemon.admin.move_parts(request(*id, Tier::Device)).ok();
            came += outcomes(&brought).into_iter().filter(|outcome| *outcome == Outcome::Moved).count();
        }
    }
    for mut probe in probes {
        // It ends with an error, or by a signal, where a byte is not what it wrote, or is not there.
        let pins = probe.listen("sdk pin-for")["pins"].as_u64().unwrap();
        assert!(pins > 30, "{pins}");
        probe.leave();
    }
    assert!(left >= 10 && came >= left, "{left} parts left, {came} came");
    nothing_is_left(&daemon);
}

/// Together they have more than the device. Whoever pins waits until the operator takes what the other does not use.
#[test]
fn two_processes_share_a_device_that_has_no_room_for_both() {
    let daemon = Daemon::start(&tiers("6MiB", "16MiB"));
    let (mut probes, mut ids) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        let (probe, id) = client(&daemon);
        assert_eq!(first(&moving(&daemon, id, Tier::Host).ok()).0, Outcome::Moved);
        until("the device has room again", || held(&daemon).0 == 0);
        probes.push(probe);
        ids.push(id);
    }
    for probe in &mut probes {
        probe.tell("sdk pin-for 2000 10000");
    }
    let (over, begun) = (AtomicBool::new(false), Instant::now());
    let pins: Vec<_> = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) && begun.elapsed() < PATIENCE {
                for id in &ids {
                    daemon.admin.move_parts(request(*id, Tier::Host)).ok();
                }
            }
        });
        // It ends with an error where a byte is not what it wrote, and not at all where a pin is never served.
        let pins = probes.iter_mut().map(|probe| probe.listen("sdk pin-for")["pins"].as_u64());
        let pins = pins.collect();
        over.store(true, Ordering::Relaxed);
        pins
    });
    assert!(pins.iter().all(|pins| pins.is_some_and(|pins| pins > 1)), "{pins:?}");
    probes.into_iter().for_each(Probe::leave);
    nothing_is_left(&daemon);
}

#[test]
fn a_stopped_client_keeps_its_part_and_is_named() {
    let daemon = Daemon::start(&tiers("8MiB", "8MiB").limit("revoke_answer_timeout_ms = 300"));
    let mut probe = daemon.probe();
    probe.ask("sdk open");
    let id = probe.ask("sdk allocate 4194304 part=2097152")["allocation"].as_u64().unwrap();
    probe.ask("sdk write 7");
    probe.ask("sdk unhold");
    let session = daemon.books().sessions[0].session_id;
    until("all maps are answered", || daemon.books().node.fds_in_flight == 0);
    probe.freeze();
    let answer = moving(&daemon, id, Tier::Host).ok();
    assert_eq!(first(&answer), (Outcome::Silent, &[session][..]));
    until_held(&daemon, 4, 4);
    assert_eq!(daemon.books().sessions[0].state(), SessionState::Silent);
    // Again, and at once: it is known by now.
    assert_eq!(first(&moving(&daemon, id, Tier::Host).ok()).0, Outcome::Silent);
    // Nobody else waits for it.
    let (other, theirs) = client(&daemon);
    assert_eq!(first(&moving(&daemon, theirs, Tier::Host).ok()).0, Outcome::Moved);
    other.leave();
    until_held(&daemon, 4, 4);
    probe.signal(Signal::CONT);
    until("it lives again", || daemon.books().sessions[0].state() == SessionState::Live);
    assert_eq!(first(&moving(&daemon, id, Tier::Host).ok()).0, Outcome::Moved);
    until_held(&daemon, 0, 4);
    let told = probe.ask("sdk pinned-digest");
    assert_eq!(told["digest"], vramd_tests::digest(&vramd_tests::content(2 * MIB_2, 7)));
    probe.leave();
    nothing_is_left(&daemon);
}
