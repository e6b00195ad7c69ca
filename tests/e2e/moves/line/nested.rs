//! Clients that keep pins and ask for more can wait for each other.

use vramd_proto::v1::wait::What;
use vramd_tests::{Daemon, MIB_2, Probe, content, digest, wait::until};
use vramd_types::Reason;

use crate::moves::{assert_nothing_left, line::waits::all_waits, tiers};

/// A process whose memory fills the device.
fn fill_device(daemon: &Daemon, seed: u64) -> (Probe, u64) {
    let mut probe = daemon.probe();
    let session = probe.ask("sdk open")["session"].as_u64().unwrap();
    // Until the daemon knows that no session pins these parts.
    probe.ask(&format!("sdk allocate {} part={MIB_2} wait=60000", 4 * MIB_2));
    probe.ask(&format!("sdk write {seed}"));
    probe.ask("sdk unhold");
    (probe, session)
}

fn half(seed: u64, which: usize) -> String {
    let written = content(4 * MIB_2, seed);
    let (first, second) = written.split_at(written.len() / 2);
    digest([first, second][which])
}

#[track_caller]
fn pins_half(probe: &mut Probe, seed: u64, which: usize) {
    let command = format!("sdk pin-parts {} {}", 2 * which, 2 * which + 2);
    assert_eq!(probe.ask(&command)["digest"], half(seed, which));
}

#[track_caller]
fn until_waits(daemon: &Daemon, session: u64) {
    until("both of its parts wait for room", || {
        let waits = all_waits(daemon);
        let of = |what: &What| matches!(what, What::Part(part) if part.session_ids == std::slice::from_ref(&session));
        waits.iter().filter(|wait| wait.what.as_ref().is_some_and(of)).count() == 2
    });
}

#[test]
fn the_youngest_of_two_stalled_pins_is_aborted() {
    let config = tiers("8MiB", "32MiB").limit("pin_stall_ms = 300").memory("harvest_ms = 5");
    let daemon = Daemon::start(&config);
    let (mut first, first_session) = fill_device(&daemon, 1);
    let (mut second, second_session) = fill_device(&daemon, 2);
    pins_half(&mut first, 1, 0);
    pins_half(&mut second, 2, 0);
    first.tell("sdk pin-parts 2 4");
    until_waits(&daemon, first_session);
    second.tell("sdk pin-parts 2 4");
    let answer = second.listen("sdk pin-parts 2 4");
    assert_eq!(answer["refused"]["reason"], Reason::PinStalled.name(), "{answer}");
    assert_eq!(answer["refused"]["facts"]["session"], format!("s-{second_session}"));
    until_waits(&daemon, first_session);

    second.ask("sdk unpin");
    let served = first.listen("sdk pin-parts 2 4");
    assert_eq!(served["digest"], half(1, 1), "{served}");
    assert_eq!(all_waits(&daemon), []);
    first.ask("sdk unpin");
    first.ask("sdk unpin");
    pins_half(&mut second, 2, 0);
    pins_half(&mut second, 2, 1);
    [first, second].into_iter().for_each(Probe::leave);
    assert_nothing_left(&daemon);
}
