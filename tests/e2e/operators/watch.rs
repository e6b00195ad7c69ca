//! Watches of operators: events as they happen, in order, for each reader at its own speed. A slow reader slows no
//! session.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    process::{Child, ChildStdout, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use vramd_client::{
    Access, AllocationRequest, Bytes, Client, PrefetchRequest, PrefetchState, SequenceRequest,
};
use vramd_proto::v1::{
    DrainRequest, EndSessionRequest, EventKind, FreeBatchRequest, RevocationOutcome, RevokeMappingsRequest,
    RevokeReason, WatchRequest, WatchResponse, allocation_event::Change as AllocationChange,
    node_event::Change as NodeChange, quota_event::Change as QuotaChange, revoke_mappings_request,
    session_event::Change as SessionChange, watch_response::Event,
};
use vramd_tests::{
    Config, Daemon, MIB, Watching,
    daemon::quota,
    proc,
    session::{persistent, spec},
    wait::{PATIENCE, until},
};
use vramd_types::Reason;

use crate::{
    moves::clients::programs::{allocate_unpinned, send},
    pressure::metric,
};

const UNREACHABLE: i32 = 3;

/// The event in a few words.
pub(super) fn short(event: &WatchResponse) -> String {
    match event.event.as_ref().expect("an event") {
        Event::Begun(_) => "begun".to_owned(),
        Event::Missed(missed) => format!("missed {}", missed.count),
        Event::Session(session) => format!("session {:?}", session.change()),
        Event::Quota(quota) => format!("quota {:?} {} {}", quota.change(), quota.guarantee, quota.limit),
        Event::Refusal(refusal) => format!("refused {} {}", refusal.request, refusal.reason),
        Event::Revoke(revoke) => format!("revoke {:?} {}", revoke.change(), revoke.part_count),
        Event::Allocation(allocation) => format!("allocation {:?}", allocation.change()),
        Event::Device(device) => format!("device {:?} {}", device.change(), device.bytes),
        Event::Node(node) => format!("node {:?}", node.change()),
        Event::Move(moved) => format!("move {:?}", moved.change()),
        Event::Pressure(pressure) => format!("pressure {:?} {:?}", pressure.from(), pressure.to()),
        Event::Prefetch(ended) => format!("prefetch {:?}", ended.end()),
        Event::Turn(turn) => format!("turn {:?} {}", turn.change(), turn.set_name),
        Event::TenantChange(tenant) => {
            format!("tenant {:?} {} {:?}", tenant.class(), tenant.weight, tenant.source())
        }
        Event::Settings(changed) => format!("settings by {}", changed.operator_uid),
    }
}

fn is_gone(event: &Event) -> bool {
    matches!(event, Event::Session(session) if session.change() == SessionChange::Gone)
}

/// A `vramctl watch` whose output the test reads.
struct Program {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Program {
    /// Starts it, and returns once it watches.
    fn start(daemon: &Daemon, words: &[&str]) -> Self {
        let mut command = daemon.vramctl();
        command.args(["watch", "--json"]).args(words).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut program = Self { child, output };
        assert_eq!(program.next().unwrap()["change"], "begun");
        program
    }

    fn next(&mut self) -> Option<Value> {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        (!line.is_empty()).then(|| serde_json::from_str(&line).unwrap())
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Its status, and its text on standard error.
    fn end(self) -> (Option<i32>, String) {
        drop(self.output);
        let output = self.child.wait_with_output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    }
}

#[test]
fn events_arrive_in_order() {
    let daemon = Daemon::new();
    let mut watch = Watching::all(&daemon.admin);
    let mut session = daemon.open();
    let allocation = session.allocate(persistent("weights", 6 * MIB)).allocation_id;
    session.seal(allocation);
    session.refused(persistent("weights", MIB)).is(Reason::NameTaken);
    daemon.set_quota(session.tenant(), "16MiB", "50%");
    let free =
        FreeBatchRequest { session_id: session.id(), allocation_ids: vec![allocation], ..Default::default() };
    let free = session.memory.free_batch(free);
    let revoke = session.receive_revoke();
    session.unmap_parts(revoke.parts);
    assert_eq!(free.ok().results[0].still_charged_bytes, 0);
    daemon.admin.drain(DrainRequest::default()).ok();
    let id = session.id();
    daemon.admin.end_session(EndSessionRequest { session_id: id, ..Default::default() }).ok();

    let seen = watch.until(is_gone);
    let told: Vec<_> = seen.iter().map(short).collect();
    let expected = [
        "session Opened",
        "allocation Made",
        "revoke Sent 1",
        "revoke Answered 1",
        "allocation Sealed",
        "refused AllocateBatch NAME_TAKEN",
        "quota Set 16MiB 50%",
        "allocation Freed",
        "revoke Sent 1",
        "revoke Answered 1",
        "allocation Gone",
        "node Draining",
        "session Gone",
    ];
    assert_eq!(told, expected);

    let sequences: Vec<_> = seen.iter().map(|event| event.sequence).collect();
    let first = watch.begun.sequence + 1;
    assert_eq!(sequences, (first..first + seen.len() as u64).collect::<Vec<_>>(), "nothing is left out");
    let times: Vec<_> = seen.iter().map(|event| event.happened_at.unwrap()).collect();
    assert!(times.is_sorted_by_key(|time| (time.seconds, time.nanos)), "{times:?}");
    for event in &seen {
        let of_node = matches!(event.event, Some(Event::Node(_)));
        assert_eq!(event.tenant, if of_node { "" } else { session.tenant() }, "{event:?}");
    }
    let Some(Event::Allocation(made)) = &seen[1].event else { panic!("{seen:?}") };
    assert_eq!((made.allocation_id, made.session_id, made.charged_bytes), (allocation, id, 6 * MIB));
    let Some(Event::Revoke(revoke)) = &seen[2].event else { panic!("{seen:?}") };
    assert_eq!((revoke.session_id, revoke.reason()), (id, RevokeReason::Sealing));
    let Some(Event::Refusal(refusal)) = &seen[5].event else { panic!("{seen:?}") };
    assert_eq!((refusal.session_id, refusal.operator_uid), (id, None));
    assert!(refusal.metadata["name"].ends_with("weights"), "{refusal:?}");
}

#[test]
fn a_silent_session_is_reported() {
    let daemon = Daemon::start(&Config::default().limit("revoke_answer_timeout_ms = 200"));
    let mut watch = Watching::start(
        &daemon.admin,
        WatchRequest {
            kinds: vec![EventKind::Session.into(), EventKind::Revoke.into()],
            ..Default::default()
        },
    )
    .unwrap();
    let mut probe = daemon.probe();
    let id = probe.ask("open")["session"].as_u64().unwrap();
    probe.ask("allocate 4194304");
    probe.freeze();
    daemon.admin.end_session(EndSessionRequest { session_id: id, ..Default::default() }).ok();
    let seen =
        watch.until(|event| matches!(event, Event::Session(it) if it.change() == SessionChange::Silent));
    let told: Vec<_> = seen.iter().map(short).collect();
    assert_eq!(told, ["session Opened", "revoke Sent 1", "revoke Overdue 1", "session Silent"]);
    let Some(Event::Session(silent)) = &seen[3].event else { panic!("{seen:?}") };
    assert!(!silent.detail.is_empty());
    probe.kill();
    watch.until(is_gone);
}

#[test]
fn a_session_that_is_silent_for_too_long_is_killed_if_configured() {
    let config = Config::default().limit("unmap_answer_timeout_ms = 200").limit("end_silent_after_ms = 300");
    let daemon = Daemon::start(&config);
    let kinds = vec![EventKind::Session.into()];
    let mut watch = Watching::start(&daemon.admin, WatchRequest { kinds, ..Default::default() }).unwrap();
    let mut probe = daemon.probe();
    probe.ask("sdk open");
    let id = probe.ask("sdk allocate 4194304 part=2097152")["allocation"].as_u64().unwrap();
    probe.ask("sdk unhold");
    until("all maps are answered", || daemon.state().node.fds_in_flight == 0);
    probe.freeze();
    let target = Some(revoke_mappings_request::Target::AllocationId(id));
    let revoked = daemon.admin.revoke_mappings(RevokeMappingsRequest { target, ..Default::default() }).ok();
    assert!(revoked.parts.iter().all(|part| part.outcome() == RevocationOutcome::Silent), "{revoked:?}");
    let mut told: Vec<_> = watch.until(is_gone).iter().map(short).collect();
    // The daemon may notice the end of the channel before that of the process.
    if told.len() == 5 {
        assert_eq!(told.remove(3), "session Silent");
    }
    assert_eq!(told, ["session Opened", "session Silent", "session Killed", "session Gone"]);
    daemon.drains();
}

#[test]
fn a_filter_leaves_out_other_tenants_and_kinds() {
    let daemon = Daemon::new();
    let request = WatchRequest { tenant: Some("team-a".to_owned()), kinds: vec![EventKind::Quota.into()] };
    let mut watch = Watching::start(&daemon.admin, request).unwrap();
    let mut session = daemon.open();
    session.allocate(spec(MIB));
    daemon.set_quota("team-b", "", "1GiB");
    daemon.set_quota("team-a", "", "90%");
    let delete = vramd_proto::v1::DeleteQuotaRequest { tenant: "team-a".to_owned(), ..Default::default() };
    daemon.admin.delete_quota(delete).ok();
    let seen = [watch.read(), watch.read()];
    assert_eq!(seen.each_ref().map(short), ["quota Set 0 90%", "quota Deleted  "]);
    assert!(seen.iter().all(|event| event.tenant == "team-a"));
    let Some(Event::Quota(deleted)) = &seen[1].event else { panic!("{seen:?}") };
    assert_eq!((deleted.change(), deleted.device.as_str()), (QuotaChange::Deleted, "*"));
}

#[test]
fn an_invalid_filter_is_refused() {
    let daemon = Daemon::new();
    let watch = |tenant: Option<&str>, kinds: Vec<i32>| {
        let tenant = tenant.map(str::to_owned);
        Watching::start(&daemon.admin, WatchRequest { tenant, kinds }).unwrap_err()
    };
    for tenant in ["a/b", ""] {
        watch(Some(tenant), vec![]).is(Reason::NameInvalid);
    }
    watch(None, vec![0]).is(Reason::RequestInvalid);
    watch(None, vec![1, 99]).is(Reason::RequestInvalid);
}

/// Causes this many refusals, each an event with a long text.
fn flood(daemon: &Daemon, count: usize) {
    let session = daemon.open();
    let refused = || session.memory.allocate_batch(session.request(vec![persistent(&"x".repeat(500), MIB)]));
    for _ in 0..count / 100 {
        let calls: Vec<_> = (0..100).map(|_| refused()).collect();
        for call in calls {
            call.refused().is(Reason::NameInvalid);
        }
    }
}

/// One reader reads nothing and one is stopped. The first learns in the end how many events it missed.
#[test]
fn an_unread_watch_is_bounded_and_slows_no_session() {
    const EVENTS: usize = 20_000;
    let daemon = Daemon::start(&Config::default().limit("watch_events_max = 100"));
    flood(&daemon, 500);
    let mut unread = Watching::all(&daemon.admin);
    let stopped = Program::start(&daemon, &[]);
    proc::stop(stopped.child.id());
    let before = proc::anonymous_bytes(daemon.pid());
    flood(&daemon, EVENTS);
    let grown = proc::anonymous_bytes(daemon.pid()).saturating_sub(before);
    assert!(grown < 6 * MIB, "{grown} bytes for {EVENTS} events");

    // The reader learns how many events it missed, and then gets new ones.
    daemon.set_quota("team-a", "", "1GiB");
    let mut seen = unread.until(|event| matches!(event, Event::Missed(_)));
    let missed = seen.pop().unwrap();
    let Some(Event::Missed(count)) = &missed.event else { panic!("{missed:?}") };
    assert!(count.count > EVENTS as u64 / 2, "{missed:?}");
    let told = seen.len() as u64;
    assert_eq!(told + count.count, missed.sequence - unread.begun.sequence, "nothing is lost without a word");
    daemon.set_quota("team-a", "", "2GiB");
    let after = unread.until(|event| matches!(event, Event::Quota(quota) if quota.limit == "2GiB"));
    assert!(after.iter().all(|event| event.sequence > missed.sequence), "{after:?}");

    stopped.signal(Signal::KILL);
    stopped.end();
}

/// A stop waits for no reader, least of all for one that does not read.
#[test]
fn the_daemons_end_is_reported_and_waits_for_no_reader() {
    let daemon = Daemon::new();
    let mut reads = Watching::start(
        &daemon.admin,
        WatchRequest { tenant: Some("team-z".to_owned()), kinds: vec![EventKind::Quota.into()] },
    )
    .unwrap();
    let _unread = Watching::all(&daemon.admin);
    let mut program = Program::start(&daemon, &[]);
    let stopped = Program::start(&daemon, &[]);
    proc::stop(stopped.child.id());
    // A stop that waited for the stopped reader would not end.
    let (status, _home) = daemon.stop();
    assert_eq!(status.code(), Some(0));

    let Some(Event::Node(node)) = reads.read().event else {
        panic!("the end is told whatever was asked for")
    };
    assert_eq!(node.change(), NodeChange::Ending);
    assert_eq!(reads.message().unwrap(), None, "and the stream ends well");
    assert_eq!(program.next().unwrap()["change"], "ending");
    assert!(program.next().is_none());
    let (status, said) = program.end();
    assert_eq!(status, Some(UNREACHABLE), "{said}");
    let error: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(error["error"]["reason"], "BROKER_GONE");
    assert!(error["error"]["message"].as_str().unwrap().contains("asked to stop"), "{said}");
    stopped.signal(Signal::KILL);
    stopped.end();
}

#[test]
fn a_watch_ends_when_the_daemon_is_killed() {
    let daemon = Daemon::new();
    let mut watch = Watching::all(&daemon.admin);
    let program = Program::start(&daemon, &["--kind", "node"]);
    let home = daemon.kill();
    assert!(watch.message().is_err());
    let (status, said) = program.end();
    assert_eq!(status, Some(UNREACHABLE), "{said}");
    assert!(said.contains("BROKER_GONE"), "{said}");
    // The next daemon counts anew, under another epoch.
    let Some(Event::Begun(before)) = watch.begun.event else { panic!("a watch begins") };
    let daemon = Daemon::start_in(home);
    let Some(Event::Begun(after)) = Watching::all(&daemon.admin).begun.event else {
        panic!("a watch begins")
    };
    assert_eq!(after.boot_epoch, before.boot_epoch + 1);
}

#[test]
fn watches_are_bounded_and_a_killed_reader_makes_room() {
    let daemon = Daemon::start(&Config::default().limit("watches_max = 2"));
    let _first = Watching::all(&daemon.admin);
    let second = Program::start(&daemon, &[]);
    let refused = Watching::start(&daemon.admin, WatchRequest::default()).unwrap_err();
    assert_eq!(refused.is(Reason::WatchesTooMany).number("limit_count"), 2);
    let output = daemon.vramctl().arg("watch").output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    second.signal(Signal::KILL);
    second.end();
    until("its place is free", || Watching::start(&daemon.admin, WatchRequest::default()).is_ok());
}

#[test]
fn vramctl_watch_prints_lines_and_json() {
    let daemon = Daemon::new();
    let mut program = Program::start(&daemon, &["--kind", "quota", "--kind", "refusal", "--count", "2"]);
    daemon.set_quota("team-a", "", "24GiB");
    let refused = daemon.admin.set_quota(quota("team-a", "*", "2GiB", "")).refused();
    refused.is(Reason::GuaranteeUnbacked);
    let [set, unbacked] = [program.next().unwrap(), program.next().unwrap()];
    assert_eq!((&set["version"], &set["kind"], &set["change"]), (&1.into(), &"quota".into(), &"set".into()));
    assert_eq!((&set["tenant"], &set["limit"]), (&"team-a".into(), &"24GiB".into()));
    assert_eq!(unbacked["reason"], "GUARANTEE_UNBACKED");
    assert_eq!(unbacked["facts"]["guarantee"], (2u64 << 30).to_string());
    assert!(program.next().is_none(), "two were asked for");
    assert_eq!(program.end(), (Some(0), String::new()));

    // Lines for people, into a pipe that closes after the first.
    let shell = format!(
        "'{}' watch --kind quota | head -n 2 > lines; echo ${{PIPESTATUS[0]}} > status",
        daemon.vramctl().get_program().display()
    );
    let mut command = std::process::Command::new("bash");
    command.args(["-c", &shell]).env("VRAMD_SOCKET_DIR", daemon.sockets()).current_dir(daemon.home().path());
    let mut child = command.spawn().unwrap();
    let mut limit = 1;
    until("the pipe is closed", || {
        limit += 1;
        daemon.set_quota("team-a", "", &format!("{limit}MiB"));
        child.try_wait().unwrap().is_some()
    });
    let read = |name: &str| fs::read_to_string(daemon.home().path().join(name)).unwrap();
    let lines = read("lines");
    assert!(lines.lines().next().unwrap().contains("watch begun after event"), "{lines}");
    assert!(
        lines.lines().nth(1).unwrap().contains("team-a  quota set on tier device of device *"),
        "{lines}"
    );
    assert_eq!(read("status").trim(), "0", "a reader that has seen enough is no failure");
}

/// Requests for memory in the host that end in each way, in this order. One step of a sequence is passed unused.
const ENDS: [&str; 9] =
    ["late", "ready", "dropped", "cancelled", "ready", "ready", "ready", "wasted", "failed"];

/// Makes the requests of [`ENDS`], of which the first four are the client's own. Returns the number of the first.
fn end_prefetches_in_each_way(daemon: &Daemon, client: &Client) -> u64 {
    let memory = allocate_unpinned(daemon, client, 3);
    let ask = |request: PrefetchRequest<'_>| client.prefetch(request).unwrap();
    let all = || PrefetchRequest::new().all(&memory);
    let fill = || {
        let request = AllocationRequest::new(Bytes::mib(8)).part_size(Bytes::mib(2));
        client.allocate(request.wait(PATIENCE)).unwrap()
    };
    send(daemon, &memory, "host");
    let held = fill();
    let began = Instant::now();
    let late = ask(all().within(Duration::from_millis(1)));
    until("its deadline is over", || began.elapsed() > Duration::from_millis(2));
    held.free().unwrap();
    assert_eq!(late.wait().unwrap(), PrefetchState::Ready { parts_left_out: 0, is_late: true });
    drop(memory.pin(Access::Read).unwrap());
    send(daemon, &memory, "host");

    let ready = ask(all());
    assert_eq!(ready.wait().unwrap(), PrefetchState::Ready { parts_left_out: 0, is_late: false });
    let held = fill();
    let dropped = PrefetchState::Dropped { cause: "demand", by_own_tenant: true };
    until("its parts have left unused", || ready.state().unwrap() == dropped);

    let queued = ask(all());
    queued.cancel().unwrap();
    assert_eq!(queued.wait().unwrap(), PrefetchState::Cancelled { by_operator: false });

    held.free().unwrap();
    let steps = SequenceRequest::new().parts(&memory, 0..1).step().parts(&memory, 1..2).step();
    let order = client.declare_sequence(steps.parts(&memory, 2..3).passes(1)).unwrap();
    let arrived = |steps: &[u64]| {
        let output = daemon.vramctl().args(["prefetch", "list", "--json"]).output().unwrap();
        let listed: Value = serde_json::from_slice(&output.stdout).unwrap();
        let entries = listed["prefetches"].as_array().unwrap().iter();
        let arrived = entries.filter(|it| it["phase"] == "arrived").map(|it| it["sequence_step"].as_u64());
        arrived.eq(steps.iter().copied().map(Some))
    };
    until("two steps are there", || arrived(&[0, 1]));
    order.begin(0).unwrap();
    until("the third is there", || arrived(&[1, 2]));
    order.begin(2).unwrap();
    until("the second is passed", || arrived(&[]));
    order.end();

    send(daemon, &memory, "host");
    let held = fill();
    let failed = ask(all());
    memory.free().unwrap();
    let PrefetchState::Refused(error) = failed.wait().unwrap() else { panic!("its memory is gone") };
    assert_eq!(error.reason(), Some(Reason::AllocationNotFound));
    held.free().unwrap();
    late.number()
}

#[test]
fn ends_of_prefetch_requests_are_reported_and_counted() {
    let config = Config::devices(&["8MiB"]).memory("host_size = \"64MiB\"").memory("harvest_ms = 5");
    let daemon = Daemon::start(&config.telemetry("prometheus_listen = \"127.0.0.1:0\""));
    let client = Client::builder().socket_dir(daemon.sockets()).request_timeout(PATIENCE).connect().unwrap();
    let kinds = vec![EventKind::Prefetch.into()];
    let mut watch = Watching::start(&daemon.admin, WatchRequest { kinds, ..Default::default() }).unwrap();
    let count = ENDS.len().to_string();
    let mut program = Program::start(&daemon, &["--kind", "prefetch", "--count", &count]);
    let first = end_prefetches_in_each_way(&daemon, &client);
    for (at, end) in (0..).zip(ENDS) {
        let event = watch.read();
        assert_eq!(short(&event).to_lowercase(), format!("prefetch {end}"), "{at}");
        assert_eq!(event.tenant, client.tenant());
        let Some(Event::Prefetch(told)) = event.event else { panic!("of a prefetch") };
        let is_own = end == "wasted" || matches!(at, 4..=6);
        let bytes = if is_own { 2 * MIB } else { 6 * MIB };
        assert_eq!((told.session_id, told.device, told.bytes), (client.session_id().get(), 0, bytes), "{at}");
        assert_eq!(told.prefetch_id >= 1 << 63, is_own, "{at}");
        let line = program.next().unwrap();
        assert_eq!((&line["kind"], &line["change"]), (&"prefetch".into(), &end.into()), "{line}");
        assert_eq!(line["session_id"], client.session_id().to_string());
        assert_eq!(
            (&line["prefetch_id"], &line["bytes"]),
            (&told.prefetch_id.into(), &bytes.into()),
            "{line}"
        );
        if at == 0 {
            assert_eq!(told.prefetch_id, first);
        }
        // The batch that filled the device needed the room.
        let why = (end == "dropped").then_some(("demand", client.tenant()));
        assert_eq!(line["drop_cause"].as_str().zip(line["drop_tenant"].as_str()), why, "{line}");
    }
    assert_eq!(program.end(), (Some(0), String::new()));
    for (end, expected) in
        [("late", 1), ("ready", 4), ("dropped", 1), ("cancelled", 1), ("wasted", 1), ("failed", 1)]
    {
        let label = format!("vramd_prefetch_outcome=\"{end}\"");
        until(end, || metric(&daemon, "vramd_prefetches_total", &[&label]) == Some(expected));
    }
    drop(client);
    daemon.drains();
}

/// Without proto files, by reflection alone.
#[test]
fn grpcurl_watches() {
    let daemon = Daemon::new();
    let described = daemon.grpcurl("admin.sock").reflect(&["describe", "vramd.v1.WatchResponse"]);
    assert!(described.contains("WatchBegun"), "{described}");
    let watching = {
        let grpcurl = daemon.grpcurl("admin.sock");
        let request = json!({ "tenant": "team-a", "kinds": ["EVENT_KIND_QUOTA"] });
        std::thread::spawn(move || {
            grpcurl.stream("vramd.v1.AdminService/Watch", &request, Duration::from_secs(4))
        })
    };
    let mut limit = 0;
    while !watching.is_finished() {
        limit += 1;
        daemon.set_quota("team-a", "", &format!("{limit}MiB"));
        std::thread::sleep(Duration::from_millis(100));
    }
    let seen = watching.join().unwrap();
    assert!(seen[0].get("begun").is_some(), "{seen:?}");
    assert_eq!(seen[1]["quota"]["change"], "CHANGE_SET", "{seen:?}");
    assert_eq!(seen[1]["tenant"], "team-a");
}

#[test]
fn an_allocations_end_is_reported_when_its_last_mapper_unmaps() {
    let daemon = Daemon::new();
    let mut owner = daemon.open();
    let allocation = owner.allocate(persistent("weights", 4 * MIB)).allocation_id;
    owner.seal(allocation);
    let mut reader = daemon.open();
    reader.attach("weights");
    let kinds = vec![EventKind::Allocation.into()];
    let mut watch = Watching::start(&daemon.admin, WatchRequest { kinds, ..Default::default() }).unwrap();
    owner.free(allocation);
    assert_eq!(short(&watch.read()), "allocation Freed");
    reader.detach(allocation);
    let Some(Event::Allocation(gone)) = watch.read().event else { panic!("of an allocation") };
    assert_eq!((gone.change(), gone.allocation_id), (AllocationChange::Gone, allocation));
}
