//! Sentences of refusals: true figures, the sessions in the way, and the setting or the name to use.

use std::time::Duration;

use vramd_client::{AllocationRequest, Bytes};
use vramd_proto::v1::{
    AllocateBatchRequest, AllocationSpec, ShowAllocationRequest, show_allocation_request::Target,
};
use vramd_tests::{
    Config, Daemon, GIB, MIB, RawSession,
    refusal::Refused,
    session::{persistent, spec},
    wait::until,
};
use vramd_types::Reason;

use crate::{
    has_other_users,
    moves::{pins::fetch::connect, vramctl},
};

#[track_caller]
fn says(refused: &Refused, reason: Reason, expected: &[&str]) {
    refused.is(reason);
    for text in expected {
        assert!(refused.message.contains(text), "`{text}` is not in: {}", refused.message);
    }
}

#[test]
fn a_full_device_names_its_figures_and_the_missing_tiers() {
    let daemon = Daemon::start(&Config::devices(&["64MiB"]));
    let session = daemon.open();
    daemon.set_quota("team-b", "60MiB", "");
    let refused = session.refused(spec(8 * MIB));
    says(&refused, Reason::DeviceFull, &["8 MiB requested, 4 MiB available of 64 MiB"]);
    says(&refused, Reason::DeviceFull, &["No tier below the device is configured", "memory.host_size"]);
    says(&refused, Reason::DeviceFull, &["(the rest is charged, or guaranteed to other tenants)"]);
    daemon.set_quota("team-b", "0", "");
    daemon.open().allocate(spec(60 * MIB));
    let refused = daemon.open().refused(spec(8 * MIB));
    assert!(!refused.message.contains("guarantee"), "no tenant has one: {}", refused.message);
}

/// There is room for both requests, and the larger one that came first has it.
#[test]
fn a_request_behind_another_is_told_so_with_true_figures() {
    let config = Config::devices(&["64MiB"]).memory("host_size = \"8MiB\"").limit("hold_after_ms = 0");
    let daemon = Daemon::start(&config);
    let mut holder = daemon.open();
    holder.allocate(spec(8 * MIB));
    let first = daemon.open();
    let request = AllocateBatchRequest { wait_ms: 60_000, ..first.request(vec![spec(60 * MIB)]) };
    let _waiting = first.memory.allocate_batch(request);
    let waits = || daemon.admin.list_waits(Default::default()).ok().waits;
    until("it waits", || waits().len() == 1);
    let wait = format!("wait {} of the same tenant", waits()[0].wait_id);

    let next = daemon.open();
    let refused = next.refused(spec(4 * MIB));
    let figures = "4 MiB requested, 56 MiB of 64 MiB available";
    says(&refused, Reason::DeviceFull, &["an earlier request waits for room", &wait, figures]);
    assert!(!refused.message.contains("guarantee"), "no tenant has one: {}", refused.message);
    assert_eq!(refused.number("free"), 56 * MIB);

    let request = AllocateBatchRequest { wait_ms: 1_000, ..next.request(vec![spec(4 * MIB)]) };
    let refused = next.memory.allocate_batch(request).refused();
    let behind = format!("where an earlier request goes first: {wait}");
    says(&refused, Reason::DeviceFull, &["it waits for 4 MiB on GPU-", &behind]);
}

#[test]
fn an_expired_request_says_how_long_it_waited_and_who_has_the_room() {
    let daemon = Daemon::start(&Config::devices(&["8MiB"]).memory("host_size = \"8MiB\""));
    let mut other = daemon.open();
    other.allocate(spec(6 * MIB));
    let session = daemon.open();
    daemon.set_quota(session.tenant(), "", "1GiB");
    let request = AllocateBatchRequest { wait_ms: 1_000, ..session.request(vec![spec(4 * MIB)]) };
    let refused = session.memory.allocate_batch(request).refused();
    let full = format!("which is full: 6 MiB of 8 MiB in use, by s-{}", other.id());
    says(
        &refused,
        Reason::DeviceFull,
        &["the request had no room within 1", "it waits for 4 MiB on GPU-", &full],
    );
    assert_eq!((refused.number("asked"), refused.number("free")), (4 * MIB, 2 * MIB));
    // Without a wait there is nothing to tell about one.
    let refused = session.refused(spec(4 * MIB));
    says(&refused, Reason::DeviceFull, &["is full: 4 MiB requested, 2 MiB available of 8 MiB"]);
}

/// Its own memory might leave, so the daemon looks for room first, which takes a moment.
#[test]
fn a_request_that_may_not_wait_is_told_of_no_wait() {
    let daemon = Daemon::start(&Config::devices(&["64MiB"]).memory("host_size = \"64MiB\""));
    let mut session = daemon.open();
    daemon.set_quota(session.tenant(), "", "10MiB");
    session.allocate(spec(10 * MIB));
    for _ in 0..8 {
        let refused = session.refused(spec(2 * MIB));
        says(&refused, Reason::QuotaLimit, &["2 MiB requested, 10 MiB of 10 MiB in use"]);
        assert!(!refused.message.contains("within"), "{}", refused.message);
    }
}

#[test]
fn a_limit_names_the_command_that_raises_it_and_a_whole_device_does_not() {
    let daemon = Daemon::start(&Config::devices(&["64MiB"]));
    let session = daemon.open();
    let refused = session.refused(spec(GIB));
    let figures = "is too small: 1 GiB requested, 64 MiB in all";
    says(&refused, Reason::DeviceFull, &[figures, "use another device", "memory.device_share"]);
    assert!(!refused.message.contains("limit"), "no operator can raise it: {}", refused.message);
    daemon.set_quota(session.tenant(), "", "8MiB");
    let command = format!("vramctl quota set {} --tier device --limit", session.tenant());
    says(&session.refused(spec(16 * MIB)), Reason::QuotaLimit, &["0 B of 8 MiB in use", &command]);
}

/// The SDK copies the file, and the daemon loads it: both say what is wrong in the same words.
#[test]
fn a_load_says_which_size_or_offset_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let [empty, small] = ["empty", "small"].map(|name| folder.path().join(name));
    std::fs::write(&empty, "").unwrap();
    std::fs::write(&small, "abc").unwrap();
    for config in [Config::default(), Config::default().immutable(folder.path())] {
        let daemon = Daemon::start(&config);
        let client = connect(&daemon);
        let bytes = |size| AllocationRequest::new(Bytes::new(size));
        let whole = AllocationRequest::whole_file;
        for (path, offset, request, expected) in [
            (&small, 0, bytes(0), "size_bytes: 0 bytes is not a valid size"),
            (&empty, 0, whole(), "the file is empty"),
            (&small, 4, whole(), "the offset 4 is not within the file, which has 3 bytes"),
            (&small, 1, bytes(5), "5 bytes from offset 1 were requested, but the file has 3 bytes"),
        ] {
            let refused = client.load(path, offset, request).unwrap_err().to_string();
            assert!(refused.contains(expected), "`{expected}` is not in: {refused}");
        }
    }
}

#[test]
fn put_asks_for_a_name_and_says_which_setting_would_load_in_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model");
    std::fs::write(&path, "abc").unwrap();
    let path = path.to_str().unwrap();
    let daemon = Daemon::start(&Config::default().memory("host_size = \"8MiB\""));
    let unnamed = vramctl(&daemon, &["put", path, ""]);
    let text = String::from_utf8(unnamed.stderr).unwrap();
    assert!(text.contains("a value is required for '<NAME>'"), "{text}");

    let put = vramctl(&daemon, &["put", path, "model", "--in-place"]);
    let text = String::from_utf8(put.stdout).unwrap();
    let setting = "neither files.immutable_paths nor files.verity is set";
    assert!(text.contains("copied, not in place") && text.contains(setting), "{text}");

    let request = AllocationRequest::new(Bytes::mib(2)).name("").persistent();
    let refused = connect(&daemon).allocate(request).unwrap_err().to_string();
    assert!(refused.contains("Give a name: a persistent allocation needs one"), "{refused}");
}

#[test]
fn a_tier_below_that_is_too_small_is_no_quota() {
    let daemon = Daemon::start(&Config::devices(&["8MiB"]).memory("host_size = \"4MiB\""));
    let session = RawSession::open_with_pins(&daemon.sockets());
    let refused = session.refused(AllocationSpec { unheld: true, ..spec(64 * MIB) });
    says(&refused, Reason::DeviceFull, &["tier host", "is too small", "4 MiB in all", "memory.host_size"]);
    assert_eq!(refused.fact("tier"), "host");
}

#[test]
fn a_deadline_says_what_the_call_waited_for_and_who_has_it() {
    let daemon = Daemon::start(&Config::devices(&["8MiB"]).memory("host_size = \"8MiB\""));
    let mut other = daemon.open();
    other.allocate(spec(6 * MIB));
    let session = RawSession::open_with_pins(&daemon.sockets());
    let request = AllocateBatchRequest { wait_ms: 60_000, ..session.request(vec![spec(4 * MIB)]) };
    let waiting = session.memory.with_deadline(Duration::from_millis(1_500)).allocate_batch(request);
    let refused = waiting.refused();
    let by = format!("which is full: 6 MiB of 8 MiB in use, by s-{}", other.id());
    says(
        &refused,
        Reason::Deadline,
        &["AllocateBatch had no answer within 1.5s", "it waits for 4 MiB on GPU-", &by],
    );
    until("it waits on, since a mutation may still complete", || {
        daemon.admin.list_waits(Default::default()).ok().waits.len() == 1
    });
}

#[test]
fn a_name_without_its_tenant_is_offered_with_it() {
    let daemon = Daemon::new();
    let mut session = daemon.open();
    let id = session.allocate(AllocationSpec { readers: vec!["*".to_owned()], ..persistent("llama", MIB) });
    session.seal(id.allocation_id);
    let full = format!("{}/llama", session.tenant());
    let show = |name: &str| {
        let target = Some(Target::Name(name.to_owned()));
        daemon.admin.show_allocation(ShowAllocationRequest { target }).refused()
    };
    says(&show("llama"), Reason::NameInvalid, &["`llama` lacks its tenant", &full]);
    says(&show("mistral"), Reason::NameInvalid, &["`tenant/mistral`"]);
    let refused = session.refused(persistent("meta/llama-3", MIB));
    says(
        &refused,
        Reason::NameInvalid,
        &["A `/` stands only between a tenant and a name", "`meta--llama-3`"],
    );

    let output = daemon.vramctl().args(["alloc", "show", "llama"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("tenant/llama"), "{said}");

    if has_other_users("a_name_without_its_tenant_is_offered_with_it") {
        let mut reader = daemon.probe_as(20_001);
        reader.ask("open");
        let refused = reader.refused("attach llama");
        says(&refused, Reason::AllocationNotFound, &["Another tenant shares one", &full]);
    }
}
