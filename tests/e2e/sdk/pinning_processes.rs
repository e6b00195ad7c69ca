//! Processes that pin through the SDK and are stopped, forked, killed, or wait for each other.

use std::thread;

use rustix::process::Signal;
use vramd_client::{Access, AllocationRequest, Bytes, Client, Pinnable};
use vramd_proto::v1::{
    RevocationOutcome as Outcome, RevokeMappingsRequest, RevokeMappingsResponse, SessionState,
    revoke_mappings_request::Target,
};
use vramd_tests::{
    Config, Daemon, MIB, Pending, Probe, content, digest, other_programs::take_device_memory, wait::until,
};
use vramd_types::Reason;

const SIZE: u64 = 4 * MIB;

fn connect(daemon: &Daemon) -> Client {
    Client::builder().socket_dir(daemon.sockets()).name("test").connect().unwrap()
}

/// Asks for a revocation once the daemon knows that every part it sent is mapped: a mapping in flight counts as pinned.
fn revoke(daemon: &Daemon, allocation: u64, wait: bool) -> Pending<RevokeMappingsResponse> {
    until("all maps are answered", || daemon.state().node.fds_in_flight == 0);
    let target = Some(Target::AllocationId(allocation));
    daemon.admin.revoke_mappings(RevokeMappingsRequest { target, wait, ..Default::default() })
}

/// The outcome of an allocation of one part, and the sessions that caused it.
fn outcome(pending: Pending<RevokeMappingsResponse>) -> (Outcome, Vec<u64>) {
    let parts = pending.ok().parts;
    let [part] = &parts[..] else { panic!("one part: {parts:?}") };
    (part.outcome(), part.session_ids.clone())
}

/// A process with memory that it pins when it uses it: its session, and the memory.
fn pinning(daemon: &Daemon) -> (Probe, u64, u64) {
    let mut probe = daemon.probe();
    let session = probe.ask("sdk open")["session"].as_u64().unwrap();
    let id = probe.ask(&format!("sdk allocate {SIZE}"))["allocation"].as_u64().unwrap();
    probe.ask("sdk write 3");
    probe.ask("sdk unhold");
    (probe, session, id)
}

/// Seals memory that stays mapped.
fn seal(daemon: &Daemon, names: &[&str]) -> (Client, Vec<u64>) {
    let owner = connect(daemon);
    let seal = |name: &&str| {
        let request = AllocationRequest::new(Bytes::new(SIZE)).name(*name).persistent();
        let sealed = owner.allocate(request).unwrap().seal().unwrap();
        let id = sealed.id().get();
        sealed.detach().unwrap();
        id
    };
    let ids = names.iter().map(seal).collect();
    (owner, ids)
}

/// A process that attached all of them, and pins none.
fn attached(daemon: &Daemon, names: &[&str]) -> (Probe, u64) {
    let mut probe = daemon.probe();
    let session = probe.ask("sdk open")["session"].as_u64().unwrap();
    for name in names {
        probe.ask(&format!("sdk attach {name}"));
        probe.ask("sdk keep");
    }
    (probe, session)
}

#[test]
fn a_process_stopped_during_a_revocation_is_reported_and_continues() {
    let daemon = Daemon::start(&Config::default().limit("revoke_answer_timeout_ms = 300"));
    let (mut evicted, session, id) = pinning(&daemon);
    let (mut fenced, other_session, other_id) = pinning(&daemon);
    until("all maps are answered", || daemon.state().node.fds_in_flight == 0);
    evicted.freeze();
    fenced.freeze();
    let (evict, fence) = (revoke(&daemon, id, false), revoke(&daemon, other_id, true));

    // No other session waits for them.
    let client = connect(&daemon);
    let mut own = client.allocate(AllocationRequest::new(Bytes::new(SIZE))).unwrap();
    own.unpin().unwrap();
    assert_eq!(outcome(revoke(&daemon, own.id().get(), true)).0, Outcome::Revoked);
    own.pin(Access::Write).unwrap().as_mut_slice().unwrap().fill(7);

    assert_eq!(outcome(evict), (Outcome::Silent, vec![session]), "given up at its deadline");
    let (end, by) = outcome(fence);
    assert!(
        matches!(end, Outcome::Silent | Outcome::Pinned),
        "it may pin, for all the daemon knows: {end:?}"
    );
    assert_eq!(by, [other_session], "and is named at the deadline");
    let state = |id| daemon.state().session(id).unwrap().state();
    assert_eq!(state(session), SessionState::Silent);
    assert_eq!(outcome(revoke(&daemon, id, true)), (Outcome::Silent, vec![session]), "no call waits again");
    assert_eq!(daemon.state().charged(), 3 * SIZE, "all stays charged");

    for (probe, id) in [(&mut evicted, session), (&mut fenced, other_session)] {
        probe.signal(Signal::CONT);
        until("it lives, and has let go", || {
            let row = daemon.state().session(id).unwrap().clone();
            (row.state(), row.mapped_bytes) == (SessionState::Live, 0)
        });
        assert_eq!(probe.ask("sdk pinned-digest")["digest"], digest(&content(SIZE, 3)), "the same bytes");
    }
    evicted.leave();
    fenced.leave();
    drop((own, client));
    daemon.drains();
}

#[test]
fn one_of_two_stalled_processes_is_aborted_and_the_other_continues() {
    let daemon = Daemon::start(&Config::default().limit("pin_stall_ms = 200"));
    let names = ["p", "q"];
    let (_owner, ids) = seal(&daemon, &names);
    let mut probes = [0, 1].map(|_| attached(&daemon, &names).0);
    for (own, probe) in probes.iter_mut().enumerate() {
        probe.ask(&format!("sdk pin {own}"));
    }
    let fences: Vec<_> = ids.iter().map(|id| revoke(&daemon, *id, true)).collect();
    let mappers = || daemon.state().allocations.iter().map(|row| row.mapper_count).collect::<Vec<_>>();
    until("each part is mapped by the session that pins it alone", || mappers() == [1, 1]);

    // Now each wants the other part, too, while it keeps its own.
    let outcomes = thread::scope(|scope| {
        let nested = probes.iter_mut().enumerate().map(|(own, probe)| {
            scope.spawn(move || {
                let wanted = format!("sdk pin {}", 1 - own);
                let answer = probe.answer(&wanted);
                let reason = answer["refused"]["reason"].as_str().map(str::to_owned);
                if reason.is_some() {
                    probe.ask("sdk unpin");
                }
                reason
            })
        });
        let nested: Vec<_> = nested.collect();
        nested.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    let aborted = outcomes.iter().position(Option::is_some).expect("one gives way");
    assert_eq!(outcomes[aborted].as_deref(), Some(Reason::PinStalled.name()));
    assert_eq!(outcomes[1 - aborted], None, "the other one has both");

    let other = &mut probes[1 - aborted];
    other.ask("sdk unpin");
    other.ask("sdk unpin");
    for fence in fences {
        assert_eq!(outcome(fence).0, Outcome::Revoked);
    }
    probes[aborted].ask("sdk pin 0 1");
    probes.into_iter().for_each(Probe::leave);
}

#[test]
fn forked_children_pin_nothing_and_pins_end_with_their_process() {
    let daemon = Daemon::new();
    let (_owner, ids) = seal(&daemon, &["p"]);
    let (mut probe, session) = attached(&daemon, &["p"]);
    probe.ask("sdk pin 0");
    let statuses = &probe.ask("sdk fork-pins")["statuses"];
    assert_eq!(*statuses, serde_json::json!([0, 0]), "by `fork` and by a raw `clone`");
    assert_eq!(
        outcome(revoke(&daemon, ids[0], false)),
        (Outcome::Pinned, vec![session]),
        "its own pin stands"
    );
    probe.ask("sdk unpin");
    assert_eq!(outcome(revoke(&daemon, ids[0], false)).0, Outcome::Revoked, "and was the only one");
    probe.ask("sdk pin 0");
    probe.kill();
    until("its session is gone", || daemon.state().session(session).is_none());
    assert_eq!(outcome(revoke(&daemon, ids[0], false)).0, Outcome::Revoked);
    assert_eq!(daemon.state().allocations[0].mapper_count, 0);
}

#[test]
fn a_pin_set_that_never_fits_is_refused_at_once() {
    let daemon = Daemon::start(&Config::devices(&["64MiB"]).limit("survey_interval_ms = 50"));
    let client = connect(&daemon);
    let mut both = [1, 2].map(|_| client.allocate(AllocationRequest::new(Bytes::mib(24))).unwrap());
    both.iter_mut().for_each(|one| one.unpin().unwrap());
    for one in &both {
        assert_eq!(outcome(revoke(&daemon, one.id().get(), true)).0, Outcome::Revoked);
    }
    let device = daemon.state().devices[0].device.clone().unwrap();
    let taken = take_device_memory(&device.uuid, 32 * MIB);
    until("the outsider is seen", || daemon.state().unbrokered() == 32 * MIB);

    let set: Vec<_> = both.iter().map(|one| (one as &dyn Pinnable, Access::Write)).collect();
    let refused = client.pin_set(&set).unwrap_err();
    assert_eq!(refused.reason(), Some(Reason::DeviceFull), "{refused}");
    let facts = refused.facts();
    assert_eq!((facts["asked"].as_str(), facts["free"].as_str()), ("50331648", "33554432"), "{facts:?}");
    drop(both[0].pin(Access::Write).expect("one of them fits"));

    drop(taken);
    until("the outsider has gone", || daemon.state().unbrokered() == 0);
    drop(client.pin_set(&set).expect("now both do"));
    daemon.set_quota(client.tenant(), "", "32MiB");
    let refused = client.pin_set(&[(&both[0] as &dyn Pinnable, Access::Read), (&both[1], Access::Read)]);
    // A mapped part is pinned by its word, without a call.
    drop(refused.expect("both are mapped"));
    for one in &both {
        assert_eq!(outcome(revoke(&daemon, one.id().get(), true)).0, Outcome::Revoked);
    }
    let refused = client.pin_set(&set).unwrap_err();
    assert_eq!(refused.reason(), Some(Reason::QuotaLimit), "{refused}");
}
