//! The driver fails now and then: the ledger stays right, and the next request is served.

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use vramd_proto::v1::{AllocationSpec, AllocationState, SealRequest};
use vramd_tests::{
    Config, Daemon, MIB, RawChannel, Refused,
    config::{Effect, Fault},
    content, digest, proc,
    session::{persistent, spec},
    wait::until,
};
use vramd_types::Reason;

#[test]
fn out_of_memory_refuses_and_leaves_nothing() {
    let daemon = Daemon::start(&Config::default().fault("create", 2, Effect::OutOfMemory));
    let mut session = daemon.open();
    session.allocate(spec(4 * MIB));
    let state = daemon.settled_state();
    let refused = session.refused(spec(8 * MIB));
    refused.is(Reason::DeviceFull);
    assert_eq!(refused.number("asked"), 8 * MIB);
    until("nothing of it is left", || daemon.state() == state);
    session.allocate(spec(8 * MIB));
}

#[test]
fn a_failure_in_the_middle_undoes_the_whole_batch() {
    let failing = Effect::Fail("a bus fell off".to_owned());
    let mut daemon = Daemon::start(&Config::default().fault("create", 3, failing));
    daemon.expect_errors();
    let mut session = daemon.open();
    let request = session.request(vec![spec(2 * MIB), spec(2 * MIB), spec(2 * MIB), spec(2 * MIB)]);
    let refused = session.memory.allocate_batch(request).refused();
    assert!(refused.is(Reason::DriverFailed).fact("problem").contains("a bus fell off"), "{refused:?}");
    daemon.drains();
    session.allocate(spec(8 * MIB));
}

#[test]
fn a_failed_digest_leaves_the_allocation_open() {
    let failing = Effect::Fail("a bus fell off".to_owned());
    let mut daemon = Daemon::start(&Config::default().fault("digest", 1, failing));
    daemon.expect_errors();
    let mut session = daemon.open();
    let allocation_id = session.allocate(persistent("weights", MIB)).allocation_id;
    session.write(allocation_id, &content(MIB, 1));
    let request = SealRequest { session_id: session.id(), allocation_id, ..Default::default() };
    let pending = session.memory.seal(request);
    let revoke = session.receive_revoke();
    session.unmap_parts(revoke.parts);
    pending.refused().is(Reason::DriverFailed);
    assert_eq!(daemon.state().allocation(allocation_id).unwrap().state(), AllocationState::Open);
    // The allocation comes back writable, and can be sealed again.
    session.map_all(allocation_id);
    assert!(session.parts(allocation_id).all(|part| part.writable));
    assert_eq!(session.seal(allocation_id).digest, digest(&content(MIB, 1)));
}

#[test]
fn a_slow_driver_delays_nobody_else() {
    let daemon = Daemon::start(&Config::default().fault("create", 1, Effect::Hold));
    let slow = daemon.open();
    let waiting = slow.memory.allocate_batch(slow.request(vec![spec(2 * MIB)]));
    until("it waits for the driver", || daemon.state().charged() == 2 * MIB);
    let mut other = daemon.open();
    let allocation = other.allocate(spec(2 * MIB)).allocation_id;
    assert_eq!(other.free(allocation).error, None);
    assert!(!waiting.is_answered(), "its memory is not there yet");
    daemon.end_holds();
    waiting.ok();
}

#[test]
fn a_client_killed_while_the_driver_works_leaves_nothing() {
    let daemon = Daemon::start(&Config::default().fault("create", 1, Effect::Hold));
    let mut probe = daemon.probe();
    probe.ask("open");
    probe.tell("reserve 8388608");
    until("it waits for the driver", || daemon.state().charged() == 8 * MIB);
    probe.kill();
    daemon.end_holds();
    daemon.drains();
    until("its session is gone", || daemon.state().sessions.is_empty());
}

#[test]
fn a_slow_release_stays_charged_until_it_is_done() {
    let daemon = Daemon::start(&Config::default().fault("release", 1, Effect::Hold));
    let mut session = daemon.open();
    let allocation = session.allocate(spec(4 * MIB)).allocation_id;
    let freeing = session.begin_free(allocation);
    until("it is being freed", || {
        daemon.state().allocation(allocation).is_some_and(|it| it.state() == AllocationState::Freeing)
    });
    assert_eq!(daemon.state().charged(), 4 * MIB);
    daemon.end_holds();
    assert_eq!(freeing.ok().results[0].error, None);
    daemon.drains();
}

#[test]
fn a_daemon_without_descriptors_refuses_and_recovers() {
    let mut daemon = Daemon::new();
    daemon.expect_errors();
    let mut session = daemon.open();
    let state = daemon.state();
    let pid = Some(Pid::from_raw(i32::try_from(daemon.pid()).unwrap()).unwrap());
    let room = proc::fd_count(daemon.pid()) as u64 + 16;
    // The daemon inherits the limit, and without root no process could raise it again.
    let maximum = getrlimit(Resource::Nofile).maximum;
    let before = prlimit(pid, Resource::Nofile, Rlimit { current: Some(room), maximum }).unwrap();
    // Each part costs the daemon one descriptor.
    let many = AllocationSpec { part_size_bytes: Some(2 * MIB), ..spec(64 * MIB) };
    session.refused(many.clone()).is(Reason::DriverFailed);
    until("nothing of it is left", || daemon.state() == state);
    // Clients beyond the daemon's descriptors wait or are turned away. Existing sessions are answered.
    let waiting: Vec<_> = (0..32).map(|_| RawChannel::connect(&daemon.sockets())).collect();
    assert_eq!(daemon.state(), state);
    drop(waiting);
    prlimit(pid, Resource::Nofile, before).unwrap();
    let whole = session.allocate(many).allocation_id;
    assert_eq!(session.free(whole).error, None);
    daemon.open();
}

#[test]
fn a_stretch_of_failures_ends() {
    let fault = Fault { on: "create", nth: 1, count: 5, effect: Effect::OutOfMemory };
    let daemon = Daemon::start(&Config { faults: vec![fault], ..Config::default() });
    let session = daemon.open();
    // Until a survey finds the holders of the bytes that the driver lacked, the ledger treats them as missing, too.
    let mut refused = 0;
    let made = loop {
        match session.memory.allocate_batch(session.request(vec![spec(2 * MIB)])).wait() {
            Ok(made) => break made,
            Err(status) => _ = Refused::from_status(&status).is(Reason::DeviceFull),
        }
        refused += 1;
        assert!(refused < 1000, "it ends");
    };
    assert_eq!((made.allocations.len(), refused > 0), (1, true));
}
