//! Owners say which of their parts leave first.

use std::time::Duration;

use vramd_client::{Access, AccessPattern, Advice, Allocation, Client, MemoryClass, Preset, Reason, Tier};
use vramd_proto::v1::{self, AdviseRequest, AllocationSpec, PartSpan};
use vramd_tests::{Config, Daemon, MIB_2, RawSession, session::spec, wait::until};

use crate::moves::{
    assert_nothing_left,
    clients::programs::{allocate_unpinned, is_intact, lies},
    pins::{
        fetch::connect,
        use_order::{a_look, on},
    },
    vramctl_json,
};

/// A device of four parts beside the one of the beacon.
pub(super) fn node() -> Config {
    Config::devices(&["8MiB", "2MiB"]).memory("host_size = \"16MiB\"\nharvest_ms = 10")
}

/// An allocation of four parts fills the device, and the daemon has seen that none is pinned.
pub(super) fn full_device(daemon: &Daemon, client: &Client) -> Allocation {
    let mut beacon = client.allocate(on(1, 1)).unwrap();
    beacon.unpin().unwrap();
    let memory = allocate_unpinned(daemon, client, 4);
    a_look(daemon, client, &beacon);
    memory
}

/// Another program of this tenant needs that many parts.
pub(super) fn press(daemon: &Daemon, count: u64) -> Allocation {
    allocate_unpinned(daemon, &connect(daemon), count)
}

/// The advice for single parts, and where the parts lie once one of them has left.
type Case = (&'static [(u32, Advice)], [&'static str; 4]);

#[test]
fn parts_leave_by_need_importance_and_class() {
    const SOON: Duration = Duration::from_secs(3600);
    let cases: [Case; 9] = [
        (&[(2, Advice::DoNotNeed)], ["device", "device", "host", "device"]),
        (&[(3, Advice::SetImportance(49))], ["device", "device", "device", "host"]),
        (
            &[(1, Advice::SetClass(MemoryClass::Scratch)), (2, Advice::SetClass(MemoryClass::Cache))],
            ["device", "host", "device", "device"],
        ),
        (
            &[(0, Advice::SetImportance(0)), (3, Advice::DoNotNeed), (3, Advice::SetImportance(100))],
            ["device", "device", "device", "host"],
        ),
        (&[(0, Advice::WillNeed(SOON))], ["device", "host", "device", "device"]),
        (&[(2, Advice::SetLocation(Tier::Host))], ["device", "device", "host", "device"]),
        (&[(0, Advice::SetLocation(Tier::Device))], ["device", "host", "device", "device"]),
        (&[(3, Advice::SetReadMostly)], ["device", "device", "device", "host"]),
        (
            &[(0, Advice::Preset(Preset::KvCache)), (1, Advice::Preset(Preset::Activations))],
            ["device", "device", "host", "device"],
        ),
    ];
    for (advice, expected) in cases {
        let daemon = Daemon::start(&node());
        let client = connect(&daemon);
        let memory = full_device(&daemon, &client);
        for (part, advice) in advice {
            memory.advise_parts(*part..part + 1, *advice).unwrap();
        }
        let other = press(&daemon, 1);
        assert_eq!(lies(&daemon, &memory), expected, "{advice:?}");
        is_intact(&memory, 4);
        drop((memory, other));
        client.flush().unwrap();
        assert_nothing_left(&daemon);
    }
}

#[test]
fn part_of_a_loop_that_was_used_last_leaves_first() {
    let daemon = Daemon::start(&node());
    let client = connect(&daemon);
    let memory = full_device(&daemon, &client);
    memory.advise(Advice::SetPattern(AccessPattern::Loop)).unwrap();
    for part in 0..3 {
        drop(memory.pin_parts(part..part + 1, Access::Read).unwrap());
        std::thread::sleep(Duration::from_millis(50));
    }
    let other = press(&daemon, 1);
    assert_eq!(lies(&daemon, &memory), ["device", "device", "host", "device"]);
    drop((memory, other));
    client.flush().unwrap();
    assert_nothing_left(&daemon);
}

#[test]
fn advice_is_shown_withdrawn_and_ends_when_the_part_has_left() {
    let daemon = Daemon::start(&node());
    let client = connect(&daemon);
    let memory = full_device(&daemon, &client);
    let id = memory.id().to_string();
    memory.advise_parts(0..2, Advice::DoNotNeed).unwrap();
    memory.advise_parts(1..4, Advice::SetImportance(90)).unwrap();
    memory.advise(Advice::SetClass(MemoryClass::Weights)).unwrap();
    let shown = || vramctl_json(&daemon, &["alloc", "show", &id])["allocation"]["advised_parts"].clone();
    let row = |first: u32, count: u32, not_needed: bool, importance: Option<u8>| {
        serde_json::json!({
            "first_index": first,
            "count": count,
            "not_needed": not_needed,
            "importance_percent": importance,
            "memory_class": "weights",
            "needed_within_ms": null,
            "location": null,
            "read_mostly": false,
            "pattern": null,
            "source": "owner",
            "without_effect": false,
        })
    };
    assert_eq!(
        shown(),
        serde_json::json!([row(0, 1, true, None), row(1, 1, true, Some(90)), row(2, 2, false, Some(90))])
    );
    let info = client.describe(memory.id()).unwrap().advised_parts;
    assert_eq!(info.iter().map(|it| it.parts.clone()).collect::<Vec<_>>(), [0..1, 1..2, 2..4]);

    let other = press(&daemon, 1);
    until("a part has left", || lies(&daemon, &memory).contains(&"host".to_owned()));
    let unneeded = shown().as_array().unwrap().iter().filter(|row| row["not_needed"] == true).count();
    assert_eq!(unneeded, 1, "the part that left counts as needed again: {}", shown());
    memory.advise(Advice::Need).unwrap();
    memory.advise(Advice::UnsetImportance).unwrap();
    memory.advise(Advice::UnsetClass).unwrap();
    assert_eq!(shown(), serde_json::json!([]));

    memory.advise_parts(1..2, Advice::Preset(Preset::Weights)).unwrap();
    assert_eq!((&shown()[0]["memory_class"], &shown()[0]["read_mostly"]), (&"weights".into(), &true.into()));
    memory.advise_parts(1..2, Advice::Preset(Preset::Staging)).unwrap();
    memory.advise_parts(1..2, Advice::WillNeed(Duration::from_secs(3600))).unwrap();
    let row = &shown()[0];
    let of_preset = (&row["memory_class"], &row["location"], &row["pattern"], &row["read_mostly"]);
    assert_eq!(of_preset, (&"scratch".into(), &"host".into(), &"sequential".into(), &false.into()));
    assert!(row["needed_within_ms"].as_u64().is_some_and(|ms| ms <= 3_600_000), "{row}");
    let refused = memory.advise(Advice::SetReadMostly).unwrap_err();
    assert_eq!(refused.reason(), Some(Reason::AdviceContradicts), "{refused}");
    let refused = memory.advise(Advice::SetLocation(Tier::Disk)).unwrap_err();
    assert_eq!(refused.reason(), Some(Reason::TierUnsupported), "{refused}");
    assert_eq!(shown().as_array().map(Vec::len), Some(1), "refused advice changes nothing");
    drop((memory, other));
    client.flush().unwrap();
}

#[test]
fn invalid_advice_is_refused_and_changes_nothing() {
    let daemon = Daemon::start(&node());
    let mut session = RawSession::open_with_pins(&daemon.sockets());
    let id =
        session.allocate(AllocationSpec { part_size_bytes: Some(MIB_2), ..spec(2 * MIB_2) }).allocation_id;
    let request = |advice: v1::Advice| AdviseRequest {
        session_id: session.id(),
        allocation_id: id,
        advice: advice.into(),
        ..Default::default()
    };
    let span = |first_index, count| Some(PartSpan { first_index, count });
    let need = || request(v1::Advice::DoNotNeed);
    let invalid = [
        ("parts", AdviseRequest { parts: span(1, 2), ..need() }),
        ("parts", AdviseRequest { parts: span(0, 0), ..need() }),
        ("parts", AdviseRequest { parts: span(u32::MAX, u32::MAX), ..need() }),
        ("parts", AdviseRequest { parts: span(0, 1), ..request(v1::Advice::SetAccessedBy) }),
        ("importance_percent", request(v1::Advice::SetImportance)),
        ("importance_percent", AdviseRequest { importance_percent: Some(1), ..need() }),
        (
            "importance_percent",
            AdviseRequest { importance_percent: Some(101), ..request(v1::Advice::SetImportance) },
        ),
        ("needed_within_ms", AdviseRequest { needed_within_ms: Some(0), ..request(v1::Advice::WillNeed) }),
        (
            "needed_within_ms",
            AdviseRequest { needed_within_ms: Some(u64::MAX), ..request(v1::Advice::WillNeed) },
        ),
        ("needed_within_ms", AdviseRequest { needed_within_ms: Some(5), ..need() }),
        ("location", AdviseRequest { location: 4, ..request(v1::Advice::SetLocation) }),
        ("pattern", AdviseRequest { pattern: 7, ..request(v1::Advice::SetPattern) }),
        ("preset", AdviseRequest { preset: 5, ..request(v1::Advice::Preset) }),
        ("memory_class", request(v1::Advice::SetClass)),
        ("memory_class", AdviseRequest { memory_class: 9, ..request(v1::Advice::SetClass) }),
    ];
    let state = daemon.settled_state();
    for (field, request) in invalid {
        let refused = session.memory.advise(request.clone()).refused();
        assert_eq!(refused.is(Reason::RequestInvalid).fact("field"), field, "{request:?}");
    }
    until("nothing has changed", || daemon.state() == state);
    let whole = session.memory.advise(AdviseRequest { parts: span(1, 1), ..need() }).ok().allocation.unwrap();
    assert_eq!(whole.advised_parts.len(), 1);
    session.free(id);
    assert_nothing_left(&daemon);
}
