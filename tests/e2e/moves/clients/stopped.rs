//! Clients that go on pinning while their parts move, or are stopped in the middle of a move.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use rustix::process::Signal;
use vramd_proto::v1::{MoveOutcome as Outcome, SessionState, Tier};
use vramd_tests::{
    Daemon, MIB_2, Probe,
    wait::{PATIENCE, until},
};

use crate::moves::{assert_nothing_left, first, held, outcomes, request, start_move, tiers, until_charged};

/// A client process that uses the SDK and has two unpinned parts.
pub(crate) fn client(daemon: &Daemon) -> (Probe, u64) {
    let mut probe = daemon.probe();
    probe.ask("sdk open");
    let id = probe.ask("sdk allocate 4194304 part=2097152")["allocation"].as_u64().unwrap();
    probe.ask("sdk unhold");
    (probe, id)
}

#[test]
fn two_processes_pin_repeatedly_while_an_operator_moves_their_parts() {
    let daemon = Daemon::start(&tiers("16MiB", "16MiB"));
    let (mut probes, ids): (Vec<_>, Vec<_>) = (0..2).map(|_| client(&daemon)).unzip();
    for probe in &mut probes {
        probe.tell("sdk pin-for 3000 10000");
    }
    let (begun, mut left) = (Instant::now(), 0);
    // As long as the processes pin, and on a busy machine until enough parts have left.
    while begun.elapsed() < Duration::from_millis(2500) || left < 10 {
        assert!(begun.elapsed() < 2 * PATIENCE, "only {left} parts left");
        for id in &ids {
            let evicted = daemon.admin.move_parts(request(*id, Tier::Host)).ok();
            left += outcomes(&evicted).into_iter().filter(|outcome| *outcome == Outcome::Moved).count();
            // Until the driver has returned the memory of a part that left, there is no room for a moment.
            until("all of it has come", || {
                let brought = outcomes(&daemon.admin.move_parts(request(*id, Tier::Device)).ok());
                let has_come = |outcome: &Outcome| *outcome == Outcome::Moved;
                assert!(brought.iter().all(|it| has_come(it) || *it == Outcome::Refused), "{brought:?}");
                brought.iter().all(has_come)
            });
        }
    }
    for mut probe in probes {
        // The process ends with an error or by a signal if a byte differs or is missing.
        let mut pins = probe.listen("sdk pin-for")["pins"].as_u64().unwrap();
        for _ in 0..10 {
            if pins <= 30 {
                pins += probe.ask("sdk pin-for 3000 10000")["pins"].as_u64().unwrap();
            }
        }
        assert!(pins > 30, "{pins}");
        probe.leave();
    }
    assert_nothing_left(&daemon);
}

/// Together they have more than the device. A pin waits until the operator evicts parts that the other does not use.
#[test]
fn two_processes_share_a_device_that_has_no_room_for_both() {
    let daemon = Daemon::start(&tiers("6MiB", "16MiB"));
    let (mut probes, mut ids) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        let (probe, id) = client(&daemon);
        assert_eq!(first(&start_move(&daemon, id, Tier::Host).ok()).0, Outcome::Moved);
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
        // The process ends with an error if a byte differs, and does not end if a pin is never served.
        let pins = probes.iter_mut().map(|probe| probe.listen("sdk pin-for")["pins"].as_u64());
        let pins = pins.collect();
        over.store(true, Ordering::Relaxed);
        pins
    });
    assert!(pins.iter().all(|pins| pins.is_some_and(|pins| pins > 1)), "{pins:?}");
    probes.into_iter().for_each(Probe::leave);
    assert_nothing_left(&daemon);
}

#[test]
fn a_stopped_client_keeps_its_part_and_is_reported() {
    let daemon = Daemon::start(&tiers("8MiB", "8MiB").limit("revoke_answer_timeout_ms = 300"));
    let mut probe = daemon.probe();
    probe.ask("sdk open");
    let id = probe.ask("sdk allocate 4194304 part=2097152")["allocation"].as_u64().unwrap();
    probe.ask("sdk write 7");
    probe.ask("sdk unhold");
    let session = daemon.state().sessions[0].session_id;
    until("all maps are answered", || daemon.state().node.fds_in_flight == 0);
    probe.freeze();
    let answer = start_move(&daemon, id, Tier::Host).ok();
    assert_eq!(first(&answer), (Outcome::Silent, &[session][..]));
    until_charged(&daemon, 4, 4);
    assert_eq!(daemon.state().sessions[0].state(), SessionState::Silent);
    // Again, and at once: the daemon knows it by now.
    assert_eq!(first(&start_move(&daemon, id, Tier::Host).ok()).0, Outcome::Silent);
    // No other session waits for it.
    let (other, theirs) = client(&daemon);
    assert_eq!(first(&start_move(&daemon, theirs, Tier::Host).ok()).0, Outcome::Moved);
    other.leave();
    until_charged(&daemon, 4, 4);
    probe.signal(Signal::CONT);
    until("it lives again", || daemon.state().sessions[0].state() == SessionState::Live);
    assert_eq!(first(&start_move(&daemon, id, Tier::Host).ok()).0, Outcome::Moved);
    until_charged(&daemon, 0, 4);
    let told = probe.ask("sdk pinned-digest");
    assert_eq!(told["digest"], vramd_tests::digest(&vramd_tests::content(2 * MIB_2, 7)));
    probe.leave();
    assert_nothing_left(&daemon);
}
