//! The Rust SDK against a real daemon.

use std::time::Duration;

use vramd_client::{AllocationRequest, Bytes, Client, Error, Reason, Sentence};
use vramd_proto::v1::{EndSessionRequest, SessionState};
use vramd_tests::{Config, Daemon, MIB, config::Effect, content, daemon::quota, digest, proc, wait::until};

fn connect(daemon: &Daemon) -> Client {
    Client::builder().socket_dir(daemon.sockets()).name("test").connect().unwrap()
}

fn request(size: u64) -> AllocationRequest {
    AllocationRequest::new(Bytes::new(size))
}

#[test]
fn an_allocation_keeps_its_address_when_sealed_and_attached() {
    let daemon = Daemon::new();
    let client = connect(&daemon);
    let size = 5 * MIB + 77;
    let named = request(size).name("weights").persistent().part_size(Bytes::mib(2));
    let mut weights = client.allocate(named).unwrap();
    assert_eq!(weights.as_slice().unwrap().len() as u64, size);
    weights.as_mut_slice().unwrap().copy_from_slice(&content(size, 3));
    let address = weights.as_slice().unwrap().as_ptr();
    let sealed = weights.seal().unwrap();
    assert_eq!(sealed.digest(), digest(&content(size, 3)));
    assert_eq!(sealed.as_slice().unwrap().as_ptr(), address);

    let other = connect(&daemon);
    let attached = other.attach("weights").unwrap();
    assert_eq!(digest(attached.as_slice().unwrap()), sealed.digest());
    attached.detach().unwrap();
    let released = sealed.free().unwrap();
    assert_eq!((released.still_charged, released.mapper_count), (Bytes::ZERO, 0));
    daemon.drains();
}

#[test]
fn a_dropped_handle_frees_its_memory() {
    let daemon = Daemon::new();
    let client = connect(&daemon);
    for _ in 0..20 {
        drop(client.allocate(request(64 * MIB)).unwrap());
    }
    client.flush().unwrap();
    daemon.drains();
    drop(client);
    until("no session is live", || {
        daemon.state().sessions.iter().all(|row| row.state() != SessionState::Live)
    });
}

#[test]
fn a_dropped_handle_makes_room_on_a_full_device() {
    let daemon = Daemon::start(&Config::devices(&["64MiB"]));
    let client = connect(&daemon);
    for _ in 0..5 {
        let whole = client.allocate(request(64 * MIB)).unwrap();
        assert!(matches!(
            client.allocate(request(MIB)),
            Err(Error::QuotaLimit { .. } | Error::DeviceFull { .. })
        ));
        drop(whole);
    }
}

#[test]
fn refusals_have_their_facts() {
    let daemon = Daemon::new();
    let client = connect(&daemon);
    daemon.admin.set_quota(quota(client.tenant(), "*", "", "10MiB")).ok();
    let _held = client.allocate(request(8 * MIB)).unwrap();
    match client.allocate(request(4 * MIB)).unwrap_err() {
        Error::QuotaLimit { tenant, tier, limit, held, asked, .. } => {
            assert_eq!((tenant.as_str(), tier.as_str()), (client.tenant(), "device"));
            assert_eq!((limit, held, asked), (Bytes::mib(10), Bytes::mib(8), Bytes::mib(4)));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(client.attach("nothing").unwrap_err().reason(), Some(Reason::AllocationNotFound));
    assert_eq!(client.allocate(request(0)).unwrap_err().reason(), Some(Reason::SizeInvalid));
}

/// An error displays the daemon's whole sentence: what stood in the way, the figures, and the setting to change.
#[test]
fn errors_display_what_the_daemon_said() {
    let daemon = Daemon::start(&Config::devices(&["64MiB"]));
    let (client, raw) = (connect(&daemon), daemon.open());
    let _held = client.allocate(request(48 * MIB)).unwrap();
    let full = client.allocate(request(32 * MIB)).unwrap_err();
    let same = raw.refused(vramd_tests::session::spec(32 * MIB));
    assert_eq!((full.reason().unwrap().name(), full.to_string()), (&*same.reason, same.message));

    daemon.admin.set_quota(quota(client.tenant(), "*", "", "50MiB")).ok();
    let limited = client.allocate(request(8 * MIB)).unwrap_err();
    let same = raw.refused(vramd_tests::session::spec(8 * MIB));
    let Error::QuotaLimit { said, .. } = &limited else { panic!("{limited:?}") };
    assert_eq!(said.sentence(), Some(&*same.message));
    assert_eq!(limited.to_string(), same.message);

    let unknown = client.attach("nothing").unwrap_err().to_string();
    assert!(unknown.contains("An allocation of another tenant is named `tenant/nothing`"), "{unknown}");
    // The client's own errors have its own words.
    assert_eq!(
        Error::Deadline { said: Sentence::default() }.to_string(),
        "the deadline passed first; work that completes later stays done"
    );
}

/// A deadline says what the call waited for.
#[test]
fn deadline_displays_what_the_call_waited_for() {
    let daemon = Daemon::start(&Config::default().fault("create", 1, Effect::Hold));
    let timeout = Duration::from_millis(1000);
    let client = Client::builder().socket_dir(daemon.sockets()).request_timeout(timeout).connect().unwrap();
    let Err(late @ Error::Deadline { .. }) = client.allocate(request(4 * MIB)) else {
        panic!("it is served")
    };
    let Error::Deadline { said } = &late else { unreachable!() };
    let sentence = said.sentence().expect("the daemon answered");
    assert!(sentence.starts_with("AllocateBatch"), "{sentence}");
    assert_eq!(late.to_string(), sentence);
    daemon.end_holds();
}

#[test]
fn a_batch_is_allocated_whole_or_not_at_all() {
    let daemon = Daemon::start(&Config::devices(&["64MiB"]));
    let client = connect(&daemon);
    client.allocate_batch(vec![request(32 * MIB), request(64 * MIB)]).unwrap_err();
    daemon.drains();
    let both = client.allocate_batch(vec![request(32 * MIB), request(16 * MIB)]).unwrap();
    assert_eq!(
        both.iter().map(|one| one.as_slice().unwrap().len() as u64 / MIB).collect::<Vec<_>>(),
        [32, 16]
    );
}

#[test]
fn a_late_answer_after_a_deadline_leaks_nothing() {
    let daemon = Daemon::start(&Config::default().fault("create", 1, Effect::Hold));
    let timeout = Duration::from_millis(1000);
    let client = Client::builder().socket_dir(daemon.sockets()).request_timeout(timeout).connect().unwrap();
    let error = client.allocate(request(4 * MIB)).unwrap_err();
    assert_eq!(error.reason(), Some(Reason::Deadline), "{error:?}");
    daemon.end_holds();
    drop(client);
}

#[test]
fn a_killed_daemon_costs_the_session_and_no_bytes() {
    let daemon = Daemon::new();
    let client = connect(&daemon);
    let mut weights = client.allocate(request(4 * MIB)).unwrap();
    weights.as_mut_slice().unwrap().copy_from_slice(&content(4 * MIB, 6));
    let home = daemon.kill();
    // A call that waited for its deadline would say so.
    assert!(matches!(client.allocate(request(1)), Err(Error::BrokerGone { .. })));
    assert_eq!(digest(weights.as_slice().unwrap()), digest(&content(4 * MIB, 6)));
    until("the end is noticed", || !client.is_connected());

    let daemon = Daemon::start_in(home);
    let again = connect(&daemon);
    assert_ne!(again.session_id(), client.session_id());
    assert_eq!(client.allocate(request(1)).unwrap_err().reason(), Some(Reason::SessionLost));
    drop(again.allocate(request(MIB)).unwrap());
    assert_eq!(digest(weights.as_slice().unwrap()), digest(&content(4 * MIB, 6)));
}

/// A new session beside the lost one. Mappings of old handles stand until the handles are dropped, and the handles fail
/// otherwise.
#[test]
fn old_handles_fail_after_a_reconnect_and_new_ones_work() {
    let daemon = Daemon::new();
    let builder = Client::builder().socket_dir(daemon.sockets()).name("steady");
    let client = builder.request_timeout(Duration::from_secs(20)).connect().unwrap();
    let size = 4 * MIB;
    let mut open = client.allocate(request(size)).unwrap();
    open.as_mut_slice().unwrap().copy_from_slice(&content(size, 8));
    let sealed = client.allocate(request(MIB).name("weights").persistent()).unwrap().seal().unwrap();
    let home = daemon.kill();
    assert!(matches!(client.reconnect(), Err(Error::BrokerGone { .. })), "no daemon is there");

    let daemon = Daemon::start_in(home);
    let again = client.reconnect().unwrap();
    assert!(again.is_connected() && !client.is_connected());
    assert_ne!(again.session_id(), client.session_id());
    let named = |session: &vramd_proto::v1::Session| session.client_name == "steady";
    assert!(daemon.state().sessions.iter().any(named), "it is as the first one was");
    let lost = Some(Reason::SessionLost);
    assert_eq!(client.list("").unwrap_err().reason(), lost);
    assert_eq!(client.describe(open.id()).unwrap_err().reason(), lost);
    assert_eq!(sealed.detach().unwrap_err().error.reason(), lost);
    let failed = open.seal().unwrap_err();
    assert_eq!(failed.error.reason(), lost);
    assert_eq!(digest(failed.allocation.as_slice().unwrap()), digest(&content(size, 8)));

    // The new session can save the bytes of an old handle.
    let mut saved = again.allocate(request(size)).unwrap();
    saved.copy_from_host(0, failed.allocation.as_slice().unwrap()).unwrap();
    drop(failed);
    drop(client);
    assert_eq!(saved.seal().unwrap().digest(), digest(&content(size, 8)));
    again.flush().unwrap();
    daemon.drains();

    // A sealed allocation has a second handle.
    let third = again.reconnect().unwrap();
    assert!(again.is_connected() && third.is_connected());
}

#[test]
fn a_session_that_an_operator_ends_unmaps() {
    let daemon = Daemon::new();
    let client = connect(&daemon);
    let weights = client.allocate(request(4 * MIB)).unwrap();
    let end = EndSessionRequest { session_id: client.session_id().get(), ..Default::default() };
    assert_eq!(daemon.admin.end_session(end).ok().state(), SessionState::Gone);
    assert!(!weights.is_mapped());
    daemon.drains();
    until("it knows", || !client.is_connected());
    assert_eq!(client.allocate(request(1)).unwrap_err().reason(), Some(Reason::SessionLost));
}

#[test]
fn a_client_that_dies_leaves_nothing() {
    let daemon = Daemon::new();
    let mut probe = daemon.probe();
    probe.ask("sdk open");
    probe.ask("sdk allocate 300000000 part=2097152");
    assert_eq!(
        proc::memory_mapping_count(probe.pid()),
        144,
        "each part is mapped, and its descriptor closed"
    );
    assert_eq!(proc::memory_fd_count(probe.pid()), 0);
    probe.kill();
    daemon.drains();
}

#[test]
fn a_forked_child_has_no_handles() {
    let daemon = Daemon::new();
    let mut probe = daemon.probe();
    probe.ask("sdk open");
    probe.ask("sdk allocate 8388608 name=weights persistent");
    probe.ask("sdk write 9");
    assert_eq!(probe.ask("sdk fork")["status"], 0, "the child's calls are refused with SESSION_FOREIGN");
    // The parent has lost nothing by the child's actions and drops.
    assert_eq!(probe.ask("sdk digest")["digest"], digest(&content(8 * MIB, 9)));
    assert_eq!(probe.ask("sdk seal")["digest"], digest(&content(8 * MIB, 9)));

    // A child that lives on has none of the memory.
    let child = probe.ask("fork")["pid"].as_i64().unwrap();
    assert_eq!(proc::memory_mapping_count(u32::try_from(child).unwrap()), 0);
    probe.ask("sdk drop");
    probe.ask("sdk flush");
    probe.kill();
    until("the session is gone", || daemon.state().sessions.is_empty());
    assert_eq!(daemon.state().unreturned(), 0);
    let child = rustix::process::Pid::from_raw(i32::try_from(child).unwrap()).unwrap();
    rustix::process::kill_process(child, rustix::process::Signal::KILL).unwrap();
}

#[test]
fn more_descriptors_than_the_process_may_hold_fail_cleanly() {
    let daemon = Daemon::new();
    let mut probe = daemon.probe();
    probe.ask("sdk open");
    probe.ask("sdk allocate 2097152");
    probe.ask("sdk drop");
    probe.ask("sdk limit-fds 40");
    let refused = probe.refused("sdk allocate 268435456 part=2097152");
    assert_eq!(refused.reason, Reason::MapFailed.name(), "{refused:?}");
    daemon.drains();
    // A request that fits is served: the session still works.
    probe.ask("sdk allocate 8388608 part=2097152");
    assert_eq!(daemon.state().charged(), 8 * MIB);
    assert_eq!(daemon.state().node.fds_in_flight, 0);
}

/// A process that can open no descriptor for a moment loses nothing that it owns or reads: neither by a pin of some
/// parts, nor by one of a set.
#[test]
fn pin_succeeds_after_fd_exhaustion_ends() {
    let config = Config::devices(&["32MiB"]).memory("host_size = \"32MiB\"").memory("harvest_ms = 5");
    let daemon = Daemon::start(&config);
    let (mut owner, mut reader) = (daemon.probe(), daemon.probe());
    owner.ask("sdk open");
    reader.ask("sdk open");
    owner.ask("sdk allocate 4194304 name=weights persistent part=2097152 reader=*");
    owner.ask("sdk write 3");
    owner.ask("sdk seal");
    owner.ask("sdk keep");
    reader.ask("sdk attach weights");
    reader.ask("sdk keep");
    let own = owner.ask("sdk allocate 8388608 part=2097152")["allocation"].as_u64().unwrap();
    owner.ask("sdk write 5");
    owner.ask("sdk unhold");
    let held = daemon.state().charged();

    for id in daemon.state().allocations.iter().map(|row| format!("a-{}", row.allocation_id)) {
        until("it leaves", || {
            let evicting = daemon.vramctl().args(["alloc", "evict", &id, "--json"]).output().unwrap();
            let told: serde_json::Value = serde_json::from_slice(&evicting.stdout).unwrap();
            let parts = told["parts"].as_array().unwrap();
            parts.iter().all(|part| part["outcome"] == "moved")
        });
    }
    owner.ask("sdk limit-fds 3");
    reader.ask("sdk limit-fds 3");
    let weights = owner.refused("sdk pin 0");
    assert!(weights.is(Reason::MapFailed).facts["problem"].contains("RLIMIT_NOFILE"), "{weights:?}");
    for _ in 0..2 {
        let refused = owner.refused("sdk pin-parts 0 4");
        assert_eq!(refused.is(Reason::MapFailed).facts["allocation"], format!("a-{own}"));
        reader.refused("sdk pin 0").is(Reason::MapFailed);
    }
    let state = daemon.state();
    assert_eq!((state.node.fds_in_flight, state.sessions.len()), (0, 2));
    assert!(state.allocations.iter().all(|row| row.mapper_count == 0), "{:?}", state.allocations);

    owner.ask("sdk limit-fds 256");
    reader.ask("sdk limit-fds 256");
    assert_eq!(owner.ask("sdk pin-parts 0 4")["digest"], digest(&content(8 * MIB, 5)));
    for probe in [&mut owner, &mut reader] {
        probe.ask("sdk pin 0");
        assert_eq!(probe.ask("sdk pinned-digest 0")["digest"], digest(&content(4 * MIB, 3)));
    }
    assert_eq!(daemon.state().charged(), held);
    // The memory is freed like any other.
    owner.ask("sdk unpin");
    owner.ask("sdk unpin");
    owner.ask("sdk free");
    owner.ask("sdk drop");
    reader.leave();
    daemon.drains();
}

#[test]
fn a_seal_whose_answer_is_lost_is_sealed() {
    let daemon = Daemon::start(&Config::default().fault("digest", 1, Effect::Hold));
    let hasty = Client::builder().socket_dir(daemon.sockets()).request_timeout(Duration::from_millis(500));
    let client = hasty.connect().unwrap();
    let mut weights = client.allocate(request(MIB).name("weights").persistent()).unwrap();
    weights.as_mut_slice().unwrap().copy_from_slice(&content(MIB, 4));
    let failed = weights.seal().unwrap_err();
    assert_eq!(failed.error.reason(), Some(Reason::Deadline), "{:?}", failed.error);
    daemon.end_holds();
    until("the daemon has sealed it", || daemon.state().allocations.iter().all(|row| !row.digest.is_empty()));
    let sealed = failed.allocation.seal().unwrap();
    assert_eq!(sealed.digest(), digest(&content(MIB, 4)));
    assert_eq!(digest(sealed.as_slice().unwrap()), sealed.digest());
    // The allocation is persistent: a drop leaves it.
    drop(sealed);
    client.flush().unwrap();
    assert_eq!(daemon.state().allocations.len(), 1);
}
