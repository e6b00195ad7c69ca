//! Several tenants on one node: charges and readers. A client's claim does not count.

use vramd_tests::{Config, Daemon, MIB, Probe, wait::until};
use vramd_types::Reason;

use crate::has_other_users;

const TEAM_A: u32 = 20_001;
const TEAM_B: u32 = 20_002;
const TEAM_C: u32 = 20_003;

fn three_tenants() -> Daemon {
    Daemon::start(&Config::default().tenant(TEAM_A, "team-a").tenant(TEAM_B, "team-b"))
}

fn open(daemon: &Daemon, uid: u32, tenant: &str) -> Probe {
    let mut probe = daemon.probe_as(uid);
    assert_eq!(probe.ask("open")["tenant"], tenant);
    probe
}

#[test]
fn only_readers_of_another_tenant_attach() {
    if !has_other_users("only_readers_of_another_tenant_attach") {
        return;
    }
    let daemon = three_tenants();
    let mut owner = open(&daemon, TEAM_A, "team-a");
    let mut reader = open(&daemon, TEAM_B, "team-b");
    // No rule names this user.
    let mut stranger = open(&daemon, TEAM_C, "uid-20003");
    let id = owner.ask("allocate 5000000 name=weights persistent readers=team-b")["allocation"].clone();
    owner.ask(&format!("write {id} 3"));
    reader.refused("attach team-a/weights").is(Reason::NotSealed);
    let digest = owner.ask(&format!("seal {id}"))["digest"].clone();

    reader.refused(&format!("free {id}")).is(Reason::NotOwner);
    stranger.refused(&format!("free {id}")).is(Reason::AllocationNotFound);
    assert_eq!(reader.ask("attach team-a/weights")["found"], digest);
    // For other tenants the allocation does not exist, not even by its id.
    stranger.refused("attach team-a/weights").is(Reason::AllocationNotFound);
    reader.refused("attach weights").is(Reason::AllocationNotFound);
    let state = daemon.state();
    assert_eq!(state.charged_to("team-a"), 6 * MIB);
    assert_eq!(state.charged_to("team-b"), 0, "a reader is not charged");

    // Memory that a reader still maps stays charged to the owner's tenant.
    assert_eq!(owner.ask(&format!("free {id}"))["still_charged"], 6 * MIB);
    assert_eq!(daemon.state().charged_to("team-a"), 6 * MIB);
    reader.kill();
    until("the reader's mapping is gone", || daemon.state().charged_to("team-a") == 0);
}

#[test]
fn a_reader_of_star_admits_every_tenant() {
    if !has_other_users("a_reader_of_star_admits_every_tenant") {
        return;
    }
    let daemon = three_tenants();
    let mut owner = open(&daemon, TEAM_A, "team-a");
    let mut stranger = open(&daemon, TEAM_C, "uid-20003");
    let id = owner.ask("allocate 4096 name=weights persistent readers=*")["allocation"].clone();
    let digest = owner.ask(&format!("seal {id}"))["digest"].clone();
    assert_eq!(stranger.ask("attach team-a/weights")["found"], digest);
}

#[test]
fn each_tenant_has_its_own_limit() {
    if !has_other_users("each_tenant_has_its_own_limit") {
        return;
    }
    let daemon = three_tenants();
    daemon.set_quota("team-a", "", "8MiB");
    let mut a = open(&daemon, TEAM_A, "team-a");
    let mut b = open(&daemon, TEAM_B, "team-b");
    a.ask("allocate 8388608");
    let refused = a.refused("allocate 1");
    refused.is(Reason::QuotaLimit);
    assert_eq!(refused.fact("tenant"), "team-a");
    b.ask("allocate 67108864");
    let state = daemon.state();
    assert_eq!((state.charged_to("team-a"), state.charged_to("team-b")), (8 * MIB, 64 * MIB));
}

#[test]
fn a_session_belongs_to_its_process_and_user() {
    if !has_other_users("a_session_belongs_to_its_process_and_user") {
        return;
    }
    let daemon = three_tenants();
    let mut owner = open(&daemon, TEAM_A, "team-a");
    let session = owner.ask("open")["session"].clone();
    let id = owner.ask("allocate 4096")["allocation"].clone();
    let mut thief = open(&daemon, TEAM_B, "team-b");
    let state = daemon.state();
    let refused = thief.refused(&format!("describe {session} {id}"));
    refused.is(Reason::SessionLost);
    assert_eq!(daemon.state(), state);
}

#[test]
fn only_operators_administer() {
    if !has_other_users("only_operators_administer") {
        return;
    }
    use std::{fs, os::unix::fs::PermissionsExt as _};

    let daemon = three_tenants();
    let mut client = daemon.probe_as(TEAM_A);
    // The socket's mode keeps other users out …
    let refused = client.refused("node");
    assert_eq!(refused.reason, "", "no connection at all: {refused:?}");
    // … and where it does not, the daemon checks the caller again.
    let socket = daemon.sockets().join("admin.sock");
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o666)).unwrap();
    let refused = client.refused("node");
    assert_eq!(refused.is(Reason::NotOperator).fact("uid"), TEAM_A.to_string());
}

#[test]
fn other_tenants_do_not_get_guaranteed_room() {
    if !has_other_users("other_tenants_do_not_get_guaranteed_room") {
        return;
    }
    let daemon = three_tenants();
    let capacity = daemon.state().devices[0].capacity_bytes;
    daemon.set_quota("team-a", "900MiB", "");
    let mut b = open(&daemon, TEAM_B, "team-b");
    let refused = b.refused(&format!("allocate {}", 200 * MIB));
    refused.is(Reason::DeviceFull);
    assert_eq!(refused.number("asked"), 200 * MIB);
    assert_eq!(refused.number("free"), capacity - 900 * MIB);
    let mut a = open(&daemon, TEAM_A, "team-a");
    a.ask(&format!("allocate {}", 900 * MIB));
}
