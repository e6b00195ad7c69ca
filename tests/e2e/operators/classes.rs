//! Classes and weights of tenants: how operators set and see them, whose memory pressure demotes, and whose prefetches
//! it pauses.

use std::time::Duration;

use serde_json::{Value, json};
use vramd_client::{
    Allocation, AllocationId, AllocationRequest, Bytes, Client, PrefetchDeferral, PrefetchRequest,
    PrefetchState,
};
use vramd_proto::v1::{
    EventKind, ListTenantsRequest, ResetTenantRequest, SetTenantRequest, TenantClass, WatchRequest,
};
use vramd_tests::{
    Config, Daemon, MIB_2, Probe, Watching,
    session::spec,
    wait::{PATIENCE, always, until},
};
use vramd_types::Reason;

use super::watch::short;
use crate::{has_other_users, moves::clients::programs::send_by_id};

const NIGHT: u32 = 20_001;

/// One hundred parts of 2 MiB: one part is one percent.
fn config() -> Config {
    let config = Config::devices(&["200MiB"]).memory("host_size = \"400MiB\"").memory("harvest_ms = 5");
    config.tenant(NIGHT, "night")
}

fn connect(daemon: &Daemon) -> Client {
    Client::builder().socket_dir(daemon.sockets()).request_timeout(PATIENCE).connect().unwrap()
}

/// Unpinned memory of this many parts.
fn unpinned(client: &Client, parts: u64) -> Allocation {
    let request = AllocationRequest::new(Bytes::new(parts * MIB_2)).part_size(Bytes::mib(2));
    let mut memory = client.allocate(request).unwrap();
    memory.unpin().unwrap();
    memory
}

/// The same of another tenant, in a process of its own.
fn of_night(daemon: &Daemon, parts: u64) -> Probe {
    let mut probe = daemon.probe_as(NIGHT);
    assert_eq!(probe.ask("sdk open")["tenant"], "night");
    probe.ask(&format!("sdk allocate {} part={MIB_2}", parts * MIB_2));
    probe.ask("sdk unhold");
    probe
}

#[track_caller]
fn vramctl(daemon: &Daemon, words: &[&str]) -> Value {
    let output = daemon.vramctl().args(words).arg("--json").output().unwrap();
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The parts that a tenant has on the device, as `tenant list` shows its bytes.
fn parts_on_device(daemon: &Daemon, tenant: &str) -> u64 {
    let told = vramctl(daemon, &["tenant", "list", tenant]);
    told["tenants"][0]["device_bytes"].as_u64().unwrap_or_default() / MIB_2
}

#[test]
fn class_decides_whose_memory_pressure_demotes() {
    if !has_other_users("class_decides_whose_memory_pressure_demotes") {
        return;
    }
    // No part is cold until all of it is there.
    let daemon = Daemon::start(&config().pressure("cold_after_ms = 600000"));
    let client = connect(&daemon);
    vramctl(&daemon, &["tenant", "set", "night", "--class", "background"]);
    let older = unpinned(&client, 46);
    let newer = of_night(&daemon, 46);
    let own = client.tenant().to_owned();
    until("all of it is there", || daemon.state().charged() == 92 * MIB_2);
    vramctl(&daemon, &["settings", "change", "--cold-after-ms", "1"]);
    // Level high evicts down to 85 percent.
    until("the lower class gives way", || parts_on_device(&daemon, "night") == 39);
    assert_eq!(parts_on_device(&daemon, &own), 46);
    // A weight decides nothing between classes.
    vramctl(&daemon, &["tenant", "set", "night", "--weight", "10000"]);
    let more = unpinned(&client, 8);
    until("it gives way again", || parts_on_device(&daemon, "night") <= 31);
    assert_eq!(parts_on_device(&daemon, &own), 54);
    newer.leave();
    drop((older, more));
    client.flush().unwrap();
    daemon.drains();
}

#[test]
fn prefetch_of_a_background_tenant_is_paused_under_pressure() {
    if !has_other_users("prefetch_of_a_background_tenant_is_paused_under_pressure") {
        return;
    }
    let daemon = Daemon::start(&config());
    let client = connect(&daemon);
    let own = client.tenant().to_owned();
    let wanted = unpinned(&client, 2);
    let id = wanted.id().to_string();
    until("it leaves", || {
        let told = vramctl(&daemon, &["alloc", "evict", &id]);
        told["parts"].as_array().unwrap().iter().all(|part| part["outcome"] == "moved")
    });
    vramctl(&daemon, &["tenant", "set", &own, "--class", "background"]);
    let other = of_night(&daemon, 82);
    until("the device is that full", || {
        vramctl(&daemon, &["device", "list"])["devices"][0]["pressure"] == "elevated"
    });
    let prefetch = client.prefetch(PrefetchRequest::new().all(&wanted)).unwrap();
    let paused = PrefetchState::Deferred(PrefetchDeferral::Pressure);
    assert_eq!(prefetch.state().unwrap(), paused);
    always("it stays paused", Duration::from_millis(200), || prefetch.state().unwrap() == paused);
    let listed = vramctl(&daemon, &["prefetch", "list"]);
    assert_eq!(
        (&listed["prefetches"][0]["phase"], &listed["prefetches"][0]["deferred"]),
        (&json!("queued"), &json!("pressure"))
    );
    let output = daemon.vramctl().args(["prefetch", "list"]).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("queued: paused until the pressure falls"));
    other.leave();
    assert_eq!(prefetch.wait().unwrap(), PrefetchState::Ready { parts_left_out: 0, is_late: false });
    drop((prefetch, wanted));
    client.flush().unwrap();
    daemon.drains();
}

/// Memory of that many parts in the host, in a process of another tenant that wants each part ahead.
fn asking(daemon: &Daemon, uid: u32, parts: u64) -> Probe {
    let mut probe = daemon.probe_as(uid);
    probe.ask("sdk open");
    let id = probe.ask(&format!("sdk allocate {} part={MIB_2}", parts * MIB_2))["allocation"].as_u64();
    probe.ask("sdk write 1");
    probe.ask("sdk unhold");
    send_by_id(daemon, &AllocationId::from_raw(id.unwrap()).to_string(), "host");
    probe
}

/// The device is full, and makes room for one request at a time.
#[test]
fn class_and_then_weight_decide_whose_prefetch_goes_first() {
    const DAY: u32 = 20_002;
    const EVENING: u32 = 20_003;
    if !has_other_users("class_and_then_weight_decide_whose_prefetch_goes_first") {
        return;
    }
    let config = Config::devices(&["18MiB"]).memory("host_size = \"64MiB\"").memory("harvest_ms = 5");
    let config = config.tenant(NIGHT, "night").tenant(DAY, "day").tenant(EVENING, "evening");
    let daemon = Daemon::start(&config);
    vramctl(&daemon, &["tenant", "set", "night", "--weight", "250"]);
    vramctl(&daemon, &["tenant", "set", "evening", "--class", "interactive"]);
    // The last to ask is of the higher class, and the first has more weight.
    let mut programs = [(NIGHT, 5), (DAY, 3), (EVENING, 1)].map(|(uid, parts)| {
        let probe = asking(&daemon, uid, parts);
        (probe, parts)
    });
    let client = connect(&daemon);
    let hold = || client.allocate(AllocationRequest::new(Bytes::mib(2))).unwrap();
    let held: Vec<_> = (0..9).map(|_| hold()).collect();
    for (probe, parts) in &mut programs {
        for part in 0..*parts {
            probe.ask(&format!("sdk prefetch {part} {}", part + 1));
        }
    }
    let kinds = vec![EventKind::Prefetch.into()];
    let mut watch = Watching::start(&daemon.admin, WatchRequest { kinds, ..Default::default() }).unwrap();
    let order = held.into_iter().map(|held| {
        held.free().unwrap();
        let ready = watch.read();
        assert_eq!(short(&ready), "prefetch Ready");
        ready.tenant
    });
    // Bytes by weight: 0.8 for a part of `night`, and 2 for one of `day`.
    let expected = ["evening", "night", "day", "night", "night", "day", "night", "night", "day"];
    assert_eq!(order.collect::<Vec<_>>(), expected);
    programs.into_iter().for_each(|(probe, _)| probe.leave());
    drop(client);
    daemon.drains();
}

#[test]
fn operators_set_list_and_reset_classes() {
    let daemon = Daemon::new();
    let request = WatchRequest { kinds: vec![EventKind::Tenant.into()], ..Default::default() };
    let mut watch = Watching::start(&daemon.admin, request).unwrap();
    assert_eq!(vramctl(&daemon, &["tenant", "list"])["tenants"], json!([]));
    let set = vramctl(&daemon, &["tenant", "set", "team-a", "--class", "interactive"]);
    let row = |class: &str, weight: u64, source: &str, bytes: u64, sessions: u64| {
        json!({
            "tenant": "team-a", "class": class, "weight": weight, "advice": "allowed", "source": source,
            "device_bytes": bytes, "host_bytes": 0, "disk_bytes": 0, "session_count": sessions,
        })
    };
    assert_eq!(set["tenant"], row("interactive", 100, "operator", 0, 0));
    // A value that is left out stays.
    let set = vramctl(&daemon, &["tenant", "set", "team-a", "--weight", "250"]);
    assert_eq!(set["tenant"], row("interactive", 250, "operator", 0, 0));
    let mut session = daemon.open();
    session.allocate(spec(MIB_2));
    let own = session.tenant().to_owned();
    let output = daemon.vramctl().args(["tenant", "list"]).output().unwrap();
    let table = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Vec<_>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(
        lines[0],
        ["TENANT", "CLASS", "WEIGHT", "ADVICE", "SET", "BY", "DEVICE", "SESSIONS"],
        "{table}"
    );
    assert_eq!(lines[1], ["team-a", "interactive", "250", "allowed", "operator", "-", "0"], "{table}");
    assert_eq!(
        lines[2],
        [own.as_str(), "initiated", "100", "allowed", "default", "2", "MiB", "1"],
        "{table}"
    );
    let reset = vramctl(&daemon, &["tenant", "reset", "team-a"]);
    assert_eq!(reset["tenant"], row("initiated", 100, "default", 0, 0));
    let seen = [watch.read(), watch.read(), watch.read()];
    assert_eq!(
        seen.each_ref().map(short),
        [
            "tenant Interactive 100 Operator",
            "tenant Interactive 250 Operator",
            "tenant Initiated 100 Default"
        ]
    );
    assert!(seen.iter().all(|event| event.tenant == "team-a"));
    assert!(daemon.log().contains("standing of a tenant changed"));
}

#[test]
fn classes_outlive_the_daemon_and_come_before_the_configuration() {
    let config = Config::default().class("team-a", "utility", 7).class("team-b", "background", 10);
    let daemon = Daemon::start(&config);
    vramctl(&daemon, &["tenant", "set", "team-a", "--class", "interactive"]);
    let told = |daemon: &Daemon| {
        let tenants = daemon.admin.list_tenants(ListTenantsRequest::default()).ok().tenants;
        tenants.iter().map(|it| (it.name.clone(), it.class(), it.weight)).collect::<Vec<_>>()
    };
    let expected =
        |class| vec![("team-a".to_owned(), class, 7), ("team-b".to_owned(), TenantClass::Background, 10)];
    assert_eq!(told(&daemon), expected(TenantClass::Interactive));
    let daemon = Daemon::start_in(daemon.kill());
    assert_eq!(told(&daemon), expected(TenantClass::Interactive));
    vramctl(&daemon, &["tenant", "reset", "team-a"]);
    let daemon = Daemon::start_in(daemon.kill());
    assert_eq!(told(&daemon), expected(TenantClass::Utility));
}

#[test]
fn invalid_classes_and_weights_are_refused_and_change_nothing() {
    let daemon = Daemon::new();
    let set = |tenant: &str, class: i32, weight: Option<u32>| SetTenantRequest {
        tenant: tenant.to_owned(),
        class,
        weight,
        ..Default::default()
    };
    let utility = TenantClass::Utility.into();
    for (request, reason, field) in [
        (set("team-a", 0, None), Reason::RequestInvalid, "class"),
        (set("team-a", 99, None), Reason::RequestInvalid, "class"),
        (set("team-a", utility, Some(0)), Reason::RequestInvalid, "weight"),
        (set("team-a", 0, Some(10_001)), Reason::RequestInvalid, "weight"),
        (set("team a", utility, None), Reason::NameInvalid, "tenant"),
        (set("", utility, None), Reason::NameInvalid, "tenant"),
    ] {
        let refused = daemon.admin.set_tenant(request.clone()).refused();
        assert_eq!(refused.is(reason).fact("field"), field, "{request:?}");
    }
    daemon.admin.reset_tenant(ResetTenantRequest::default()).refused().is(Reason::NameInvalid);
    let empty = ListTenantsRequest { tenant: Some(String::new()), ..Default::default() };
    daemon.admin.list_tenants(empty).refused().is(Reason::NameInvalid);
    assert_eq!(vramctl(&daemon, &["tenant", "list"])["tenants"], json!([]));
    for (words, status, text) in [
        (&["tenant", "set", "team-a", "--class", "urgent"][..], 2, "interactive"),
        (&["tenant", "set", "team-a"], 2, "--class"),
        (&["tenant", "set", "team-a", "--weight", "0"], 1, "a weight is between 1 and 10000"),
    ] {
        let output = daemon.vramctl().args(words).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{words:?}: {said}");
        assert!(said.contains(text), "{words:?}: {said}");
    }
    // A repeated request is recognised after a restart.
    let request = SetTenantRequest { request_id: vec![5; 16], ..set("team-a", utility, Some(9)) };
    daemon.admin.set_tenant(request.clone()).ok();
    let daemon = Daemon::start_in(daemon.kill());
    daemon.admin.set_tenant(request.clone()).ok();
    let other = SetTenantRequest { weight: Some(8), ..request };
    daemon.admin.set_tenant(other).refused().is(Reason::RequestIdReused);
}
