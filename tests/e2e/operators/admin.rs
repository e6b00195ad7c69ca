//! Views and orders of operators, mostly through `grpcurl` and reflection.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    time::Duration,
};

use serde_json::json;
use vramd_proto::v1::{
    DrainRequest, EndSessionRequest, FreeAllocationRequest, RevokeReason, SessionState,
    ShowAllocationRequest, daemon_frame::Frame, free_allocation_request, show_allocation_request,
};
use vramd_tests::{
    Config, Daemon, MIB, RawSession,
    channel::Packet,
    proc,
    rpc::is_serving,
    session::{hello, persistent, spec},
    wait::{PATIENCE, until},
};
use vramd_types::Reason;

#[test]
fn grpcurl_needs_no_proto_files() {
    let daemon = Daemon::new();
    for (socket, service, method) in [
        ("admin.sock", "vramd.v1.AdminService", "SetQuota"),
        ("vramd.sock", "vramd.v1.MemoryService", "AllocateBatch"),
    ] {
        let grpcurl = daemon.grpcurl(socket);
        let services = grpcurl.reflect(&["list"]);
        for expected in [service, "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection"] {
            assert!(services.lines().any(|line| line == expected), "{expected} on {socket}: {services}");
        }
        assert!(services.contains("grpc.reflection.v1alpha.ServerReflection"), "{services}");
        let described = grpcurl.reflect(&["describe", service]);
        assert!(described.contains(&format!("rpc {method}")), "{described}");
        let health = grpcurl.call("grpc.health.v1.Health/Check", &json!({ "service": service }));
        assert_eq!(health["status"], "SERVING");
        assert!(is_serving(&daemon.sockets().join(socket), ""));
    }
}

#[test]
fn sockets_have_their_configured_modes() {
    let daemon = Daemon::new();
    let mode = |name: &str| fs::metadata(daemon.sockets().join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode("."), 0o755);
    assert_eq!(mode("vramd.sock"), 0o666);
    assert_eq!(mode("channel.sock"), 0o666);
    assert_eq!(mode("admin.sock"), 0o600);
}

#[test]
fn a_group_may_reach_the_admin_socket() {
    let group = rustix::process::getegid().as_raw();
    let daemon = Daemon::start(&Config::default().daemon(&format!("admin_group = \"{group}\"")));
    let metadata = fs::metadata(daemon.sockets().join("admin.sock")).unwrap();
    assert_eq!((metadata.permissions().mode() & 0o777, metadata.gid()), (0o660, group));
}

#[test]
fn grpcurl_sets_and_shows_quotas() {
    let daemon = Daemon::new();
    let grpcurl = daemon.grpcurl("admin.sock");
    let set = json!({ "tenant": "team-a", "device": "0", "guarantee": "64MiB", "limit": "50%" });
    let set = grpcurl.call("vramd.v1.AdminService/SetQuota", &set)["quota"].clone();
    assert_eq!(set["guaranteeBytes"], (64 * MIB).to_string());
    assert_eq!(set["tier"], "TIER_DEVICE");
    let got = grpcurl.call("vramd.v1.AdminService/GetQuota", &json!({ "tenant": "team-a", "device": "0" }));
    assert_eq!(got["quota"], set);
    let listed = grpcurl.call("vramd.v1.AdminService/ListQuotas", &json!({ "tenant": "team-a" }));
    assert_eq!(listed["quotas"], json!([set]));
    grpcurl.call("vramd.v1.AdminService/DeleteQuota", &json!({ "tenant": "team-a", "device": "0" }));
    let refused =
        grpcurl.refused("vramd.v1.AdminService/DeleteQuota", &json!({ "tenant": "team-a", "device": "0" }));
    assert!(refused.contains("QUOTA_NOT_FOUND"), "{refused}");
}

#[test]
fn grpcurl_without_a_session_gets_no_memory() {
    let daemon = Daemon::new();
    let refused = daemon
        .grpcurl("vramd.sock")
        .refused("vramd.v1.MemoryService/AllocateBatch", &json!({ "items": [{ "size_bytes": 4096 }] }));
    assert!(refused.contains("SESSION_MISSING"), "{refused}");
    assert_eq!(daemon.state().charged(), 0);
}

#[test]
fn the_node_reports_driver_and_version() {
    let daemon = Daemon::start(&Config::devices(&["1GiB", "2GiB"]));
    let node = daemon.state().node;
    assert_eq!(node.driver, "sim");
    assert!(!node.driver_reason.is_empty());
    assert!(!node.version.is_empty());
    let devices = daemon.state().devices;
    let uuids: Vec<&str> = devices.iter().map(|row| row.device.as_ref().unwrap().uuid.as_str()).collect();
    assert!(uuids.iter().all(|uuid| uuid.starts_with("GPU-")), "{uuids:?}");
    assert_ne!(uuids[0], uuids[1]);
    assert_eq!(devices[1].total_bytes, 2 << 30);
}

#[test]
fn sessions_are_listed_with_what_they_map() {
    let daemon = Daemon::new();
    let mut probe = daemon.probe();
    let id = probe.ask("open")["session"].as_u64().unwrap();
    probe.ask("allocate 3000000");
    let state = daemon.state();
    let session = state.session(id).unwrap();
    assert_eq!(session.pid, probe.pid());
    assert_eq!(session.uid, rustix::process::geteuid().as_raw());
    assert_eq!(session.client_name, "probe");
    assert_eq!(session.state(), SessionState::Live);
    assert_eq!((session.allocation_count, session.mapped_bytes, session.fds_in_flight), (1, 4 * MIB, 0));
    assert!(session.opened_at.is_some());
}

#[test]
fn a_session_is_ended_in_good_order() {
    let daemon = Daemon::new();
    let mut session = daemon.open();
    let allocation = session.allocate(spec(4 * MIB)).allocation_id;
    let request = EndSessionRequest { session_id: session.id(), ..Default::default() };
    let pending = daemon.admin.end_session(request);
    let revoke = session.receive_revoke();
    assert_eq!(revoke.reason(), RevokeReason::SessionEnded);
    assert!(revoke.parts.iter().all(|part| part.allocation_id == allocation));
    session.unmap_parts(revoke.parts);
    let ended = pending.ok();
    assert_eq!((ended.state(), ended.still_mapped_bytes), (SessionState::Gone, 0));
    daemon.drains();
    assert!(!daemon.state().sessions.iter().any(|row| row.session_id == session.id()));
    // A reconnect opens a new session. Handles of the old one are lost.
    let again = daemon.open();
    assert_ne!(again.id(), session.id());
}

#[test]
fn a_session_that_does_not_answer_falls_silent() {
    let daemon = Daemon::start(&Config::default().limit("revoke_answer_timeout_ms = 200"));
    let mut probe = daemon.probe();
    let id = probe.ask("open")["session"].as_u64().unwrap();
    probe.ask("allocate 4194304");
    probe.freeze();
    let ended = daemon.admin.end_session(EndSessionRequest { session_id: id, ..Default::default() }).ok();
    assert_eq!((ended.state(), ended.still_mapped_bytes), (SessionState::Silent, 4 * MIB));
    let state = daemon.state();
    assert!(!state.session(id).unwrap().silent_reason.is_empty());
    assert_eq!(state.charged(), 4 * MIB, "its mappings stand and stay charged");
    probe.kill();
    daemon.drains();
}

#[test]
fn a_session_that_does_not_answer_is_killed_on_demand() {
    let daemon = Daemon::start(&Config::default().limit("revoke_answer_timeout_ms = 200"));
    let mut probe = daemon.probe();
    let id = probe.ask("open")["session"].as_u64().unwrap();
    probe.ask("allocate 4194304");
    probe.freeze();
    let request = EndSessionRequest { session_id: id, kill: true, ..Default::default() };
    let ended = daemon.admin.end_session(request).ok();
    assert_eq!((ended.state(), ended.still_mapped_bytes), (SessionState::Gone, 0));
    until("the process is gone", || !proc::is_alive(probe.pid()));
    daemon.drains();
}

#[test]
fn allocations_are_shown_with_their_mappers_and_freed() {
    let daemon = Daemon::new();
    let mut owner = daemon.open();
    let name = format!("{}/weights", owner.tenant());
    let allocation = owner.allocate(persistent("weights", 4 * MIB)).allocation_id;
    owner.seal(allocation);
    let mut reader = daemon.open();
    reader.attach("weights");

    let target = Some(show_allocation_request::Target::Name(name.clone()));
    let shown = daemon.admin.show_allocation(ShowAllocationRequest { target }).ok().allocation.unwrap();
    assert_eq!(shown.name, name);
    let mut mappers = shown.parts[0].mapper_session_ids.clone();
    mappers.sort_unstable();
    let mut sessions = [owner.id(), reader.id()];
    sessions.sort_unstable();
    assert_eq!(mappers, sessions);

    let target = Some(free_allocation_request::Target::Name(name.clone()));
    let freeing = daemon.admin.free_allocation(FreeAllocationRequest { target, ..Default::default() });
    let revoke = owner.receive_revoke();
    assert_eq!(revoke.reason(), RevokeReason::Freed);
    assert!(!freeing.is_answered(), "it waits for its owner");
    owner.unmap_parts(revoke.parts);
    let freed = freeing.ok();
    assert_eq!((freed.allocation_id, freed.still_charged_bytes), (allocation, 4 * MIB));
    assert_eq!(freed.mapper_session_ids, [reader.id()], "a reader keeps its mapping");
    reader.attach_refused("weights").is(Reason::AllocationNotFound);
    reader.unmap(allocation);
    daemon.drains();
    let target = Some(show_allocation_request::Target::AllocationId(allocation));
    daemon.admin.show_allocation(ShowAllocationRequest { target }).refused().is(Reason::AllocationNotFound);
}

#[test]
fn a_draining_node_admits_nothing_new() {
    let daemon = Daemon::new();
    let mut session = daemon.open();
    let allocation = session.allocate(persistent("weights", 4 * MIB)).allocation_id;
    session.seal(allocation);
    let other = daemon.open();

    let drained = daemon.admin.drain(DrainRequest::default()).ok();
    assert!(drained.draining);
    assert_eq!((drained.session_count, drained.held_bytes), (2, 4 * MIB));
    for told in [&session, &other] {
        match told.channel.receive(PATIENCE) {
            Packet::Frame(Frame::Drain(drain), _) => assert!(drain.draining),
            other => panic!("not a drain frame: {other:?}"),
        }
    }
    let state = daemon.state();
    session.refused(spec(1)).is(Reason::Draining);
    other.attach_refused("weights").is(Reason::Draining);
    RawSession::open_with(&daemon.sockets(), hello()).unwrap_err().is(Reason::Draining);
    assert_eq!(daemon.state(), state);
    // Existing memory can leave.
    assert_eq!(session.free(allocation).still_charged_bytes, 0);
    daemon.drains();

    assert!(!daemon.admin.drain(DrainRequest { cancel: true, ..Default::default() }).ok().draining);
    match other.channel.receive(PATIENCE) {
        Packet::Frame(Frame::Drain(drain), _) => assert!(!drain.draining),
        other => panic!("not a drain frame: {other:?}"),
    }
    daemon.open();
}

#[test]
fn a_peer_that_is_no_operator_is_refused() {
    // The test's own user is no operator once the configuration names another user.
    let daemon = Daemon::start(&Config::default().daemon("operators = [4242]"));
    let refused = daemon.admin.get_node(vramd_proto::v1::GetNodeRequest {}).refused();
    let uid = rustix::process::geteuid().as_raw();
    assert_eq!(refused.is(Reason::NotOperator).fact("uid"), uid.to_string());
    daemon.admin.drain(DrainRequest::default()).refused().is(Reason::NotOperator);
    // The user may be a client.
    let mut session = daemon.open();
    session.allocate(spec(MIB));
}

#[test]
fn ending_an_unknown_session_is_refused() {
    let daemon = Daemon::new();
    let state = daemon.state();
    let request = EndSessionRequest { session_id: 77, kill: true, ..Default::default() };
    let refused = daemon.admin.with_deadline(Duration::from_secs(10)).end_session(request).refused();
    assert_eq!(refused.is(Reason::SessionNotFound).fact("session"), "s-77");
    assert_eq!(daemon.state(), state);
}
