//! Operators forbid what owners say about their parts, or say it in their stead.

use serde_json::{Value, json};
use vramd_client::{Advice, Allocation, Client, Reason};
use vramd_proto::v1::{
    self, AdvicePermission, AdvisePartsRequest, EventKind, PartSpan, SetTenantRequest, TenantClass,
    WatchRequest, advise_parts_request::Target, watch_response::Event,
};
use vramd_tests::{Daemon, Watching};

use crate::moves::{
    clients::programs::lies,
    pins::{
        advised_order::{full_device, node, press},
        fetch::connect,
    },
    vramctl_json,
};

/// The giver, the first part, and whether the advice has an effect.
fn shown(daemon: &Daemon, memory: &Allocation) -> Vec<(String, u64, bool)> {
    let answer = vramctl_json(daemon, &["alloc", "show", &memory.id().to_string()]);
    let rows = answer["allocation"]["advised_parts"].as_array().unwrap().clone();
    let text = |row: &Value| row["source"].as_str().unwrap().to_owned();
    let of = |row: &Value| (text(row), row["first_index"].as_u64().unwrap(), row["without_effect"] == false);
    rows.iter().map(of).collect()
}

fn tenant_of(client: &Client, memory: &Allocation) -> String {
    client.describe(memory.id()).unwrap().tenant
}

fn by(giver: &str, first: u64, has_effect: bool) -> (String, u64, bool) {
    (giver.to_owned(), first, has_effect)
}

#[test]
fn forbidden_advice_is_refused_and_has_no_effect_after_a_restart_too() {
    let daemon = Daemon::start(&node());
    let client = connect(&daemon);
    let memory = full_device(&daemon, &client);
    let tenant = tenant_of(&client, &memory);
    memory.advise_parts(2..3, Advice::DoNotNeed).unwrap();
    assert_eq!(shown(&daemon, &memory), [by("owner", 2, true)]);
    let set = |daemon: &Daemon, words: &[&str]| {
        let words: Vec<_> = ["tenant", "set", &tenant].iter().chain(words).copied().collect();
        vramctl_json(daemon, &words)["tenant"].clone()
    };
    let row = set(&daemon, &["--advice", "forbidden"]);
    assert_eq!(
        (&row["advice"], &row["class"], &row["source"]),
        (&json!("forbidden"), &json!("initiated"), &json!("operator"))
    );
    assert_eq!(shown(&daemon, &memory), [by("owner", 2, false)]);
    let refused = memory.advise(Advice::SetImportance(90)).unwrap_err();
    assert_eq!(refused.reason(), Some(Reason::AdviceForbidden), "{refused}");
    assert!(
        refused.to_string().contains(&format!("vramctl tenant set {tenant} --advice allowed")),
        "{refused}"
    );
    assert!(client.describe(memory.id()).unwrap().advised_parts[0].without_effect);
    // A withdrawal is no advice.
    memory.advise(Advice::UnsetImportance).unwrap();
    // The part that was used least recently leaves.
    let other = press(&daemon, 1);
    assert_eq!(lies(&daemon, &memory), ["host", "device", "device", "device"]);
    drop((memory, other, client));

    let daemon = Daemon::start_in(daemon.kill());
    assert_eq!(vramctl_json(&daemon, &["tenant", "list"])["tenants"][0]["advice"], "forbidden");
    let client = connect(&daemon);
    let memory = full_device(&daemon, &client);
    memory.advise(Advice::DoNotNeed).unwrap_err();
    assert_eq!(set(&daemon, &["--advice", "allowed"])["advice"], "allowed");
    memory.advise_parts(3..4, Advice::DoNotNeed).unwrap();
    let _other = press(&daemon, 1);
    assert_eq!(lies(&daemon, &memory), ["device", "device", "device", "host"]);
}

#[test]
fn operator_advice_counts_whatever_the_owner_says_until_it_is_cleared() {
    let daemon = Daemon::start(&node());
    let client = connect(&daemon);
    let memory = full_device(&daemon, &client);
    let id = memory.id().to_string();
    let kinds = vec![EventKind::Allocation.into()];
    let mut watching = Watching::start(&daemon.admin, WatchRequest { kinds, ..Default::default() }).unwrap();
    memory.advise_parts(1..3, Advice::SetImportance(90)).unwrap();
    let answer = vramctl_json(&daemon, &["alloc", "advise", &id, "--part", "2", "--importance", "10"]);
    assert_eq!(answer["allocation"]["allocation_id"], id.as_str());
    memory.advise_parts(2..3, Advice::SetImportance(100)).unwrap();
    let expected = [by("owner", 1, true), by("owner", 2, false), by("operator", 2, true)];
    assert_eq!(shown(&daemon, &memory), expected);
    let sheet = daemon.vramctl().args(["alloc", "show", &id]).output().unwrap();
    let sheet = String::from_utf8(sheet.stdout).unwrap();
    assert!(sheet.contains("part 2: importance 10% (by an operator)"), "{sheet}");
    assert!(sheet.contains(", without effect); part 2: importance 10%"), "{sheet}");
    assert!(client.describe(memory.id()).unwrap().advised_parts[2].by_operator);
    let first = press(&daemon, 1);
    assert_eq!(lies(&daemon, &memory), ["device", "device", "host", "device"]);
    // The neighbour keeps what its owner says.
    let second = press(&daemon, 1);
    assert_eq!(lies(&daemon, &memory), ["host", "device", "host", "device"]);
    vramctl_json(&daemon, &["alloc", "advise", &id, "--clear"]);
    assert_eq!(shown(&daemon, &memory), [by("owner", 1, true), by("owner", 2, true)]);
    let cleared = v1::allocation_event::Change::OperatorAdviceCleared;
    let seen = watching.until(|event| matches!(event, Event::Allocation(it) if it.change() == cleared));
    let told = seen.into_iter().filter_map(|message| match message.event {
        Some(Event::Allocation(it)) if it.allocation_id == memory.id().get() => {
            Some((it.change(), it.advice(), it.part_count))
        }
        _ => None,
    });
    let advised = v1::allocation_event::Change::OperatorAdvised;
    let told: Vec<_> = told.filter(|(change, ..)| [advised, cleared].contains(change)).collect();
    assert_eq!(told, [(advised, v1::Advice::SetImportance, 1), (cleared, v1::Advice::Unspecified, 4)]);
    drop((memory, first, second));
}

#[test]
fn operator_advice_without_a_meaning_is_refused_and_changes_nothing() {
    let daemon = Daemon::start(&node());
    let client = connect(&daemon);
    let memory = full_device(&daemon, &client);
    let id = memory.id().to_string();
    memory.advise(Advice::SetReadMostly).unwrap();
    let before = shown(&daemon, &memory);
    let of = |advice: v1::Advice| AdvisePartsRequest {
        target: Some(Target::AllocationId(memory.id().get())),
        advice: advice.into(),
        ..Default::default()
    };
    let span = Some(PartSpan { first_index: 3, count: 2 });
    let clear = AdvisePartsRequest { clear: true, ..of(v1::Advice::Unspecified) };
    for (request, reason) in [
        (AdvisePartsRequest { target: None, ..of(v1::Advice::Need) }, Reason::RequestInvalid),
        (
            AdvisePartsRequest { target: Some(Target::AllocationId(1)), ..clear.clone() },
            Reason::AllocationNotFound,
        ),
        (AdvisePartsRequest { parts: span, ..clear.clone() }, Reason::RequestInvalid),
        (AdvisePartsRequest { clear: true, ..of(v1::Advice::DoNotNeed) }, Reason::RequestInvalid),
        (of(v1::Advice::SetAccessedBy), Reason::RequestInvalid),
        (of(v1::Advice::Unspecified), Reason::RequestInvalid),
        (
            AdvisePartsRequest { location: v1::Tier::Disk.into(), ..of(v1::Advice::SetLocation) },
            Reason::TierUnsupported,
        ),
    ] {
        daemon.admin.advise_parts(request.clone()).refused().is(reason);
    }
    // A contradiction is one of the operator's own advice.
    vramctl_json(&daemon, &["alloc", "advise", &id, "--part", "0", "--read-mostly"]);
    let scratch =
        AdvisePartsRequest { memory_class: v1::MemoryClass::Scratch.into(), ..of(v1::Advice::SetClass) };
    daemon.admin.advise_parts(scratch).refused().is(Reason::AdviceContradicts);
    vramctl_json(&daemon, &["alloc", "advise", &id, "--clear"]);
    assert_eq!(shown(&daemon, &memory), before);
    for words in [&["--part", "0"][..], &["--read-mostly", "--clear"], &["--part", "1-0", "--clear"]] {
        let output = daemon.vramctl().args(["alloc", "advise", &id]).args(words).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{words:?}");
    }
    let unknown = SetTenantRequest { tenant: "team-a".to_owned(), advice: 3, ..Default::default() };
    assert_eq!(daemon.admin.set_tenant(unknown).refused().is(Reason::RequestInvalid).fact("field"), "advice");
    let forbids = SetTenantRequest {
        tenant: "team-a".to_owned(),
        advice: AdvicePermission::Forbidden.into(),
        ..Default::default()
    };
    let set = daemon.admin.set_tenant(forbids).ok().tenant.unwrap();
    assert_eq!(
        (set.advice(), set.class(), set.weight),
        (AdvicePermission::Forbidden, TenantClass::Initiated, 100)
    );
}
