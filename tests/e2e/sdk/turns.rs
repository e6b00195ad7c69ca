//! Programs whose working sets do not fit on the device together, and that use it in turns.

use std::{
    collections::BTreeMap,
    io::Write as _,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use vramd_client::{
    Access, Allocation, AllocationRequest, Bytes, Client, Error, Reason, Turn, TurnState, WorkingSet, aio,
};
use vramd_proto::v1::{EventKind, ListWaitsRequest, WatchRequest, turn_event::Change, watch_response::Event};
use vramd_tests::{Config, Daemon, MIB_2, Probe, Watching, content, digest, wait::until};

use crate::{
    has_other_users,
    moves::{tiers, vramctl, vramctl_json},
    pressure::metric,
};

const PATIENCE: Duration = Duration::from_secs(60);

const QUANTUM_MS: u64 = 50;

/// The device has eight parts. A quantum is so short that it is over at once.
fn config() -> Config {
    with_turns(tiers("16MiB", "128MiB"))
}

fn with_turns(config: Config) -> Config {
    let config = config.memory("harvest_ms = 5");
    config
        .turns(&format!("quantum_ms = {QUANTUM_MS}"))
        .turns("min_quantum_ms = 10")
        .telemetry("prometheus_listen = \"127.0.0.1:0\"")
}

fn connect(daemon: &Daemon) -> Client {
    Client::builder().socket_dir(daemon.sockets()).name("test").request_timeout(PATIENCE).connect().unwrap()
}

/// Memory of so many parts, and its working set.
struct Program {
    memory: Allocation,
    set: WorkingSet,
    client: Client,
}

impl Program {
    fn new(daemon: &Daemon, name: &str, parts: u64, seed: u64) -> Self {
        Self::on_device(daemon, 0, name, parts, seed)
    }

    fn on_device(daemon: &Daemon, device: u32, name: &str, parts: u64, seed: u64) -> Self {
        let client = connect(daemon);
        let memory = memory_on(&client, device, parts, seed);
        let set = client.working_set(name, &[&memory]).unwrap();
        Self { memory, set, client }
    }

    /// Compares all of its memory, which its turn has brought to the device: no pin waits.
    #[track_caller]
    fn compare(&self, seed: u64) {
        let pinned = self.memory.pin_timeout(0..self.parts(), Access::Read, Duration::ZERO).unwrap();
        let bytes = pinned.as_slice().unwrap();
        assert_eq!(digest(bytes), digest(&content(bytes.len() as u64, seed)));
    }

    fn parts(&self) -> u32 {
        u32::try_from(self.memory.info().size.get() / MIB_2).unwrap()
    }
}

fn memory(client: &Client, parts: u64, seed: u64) -> Allocation {
    memory_on(client, 0, parts, seed)
}

fn memory_on(client: &Client, device: u32, parts: u64, seed: u64) -> Allocation {
    let request = AllocationRequest::new(Bytes::new(parts * MIB_2)).part_size(Bytes::mib(2)).unpinned();
    let mut memory = client.allocate(request.device(device.to_string())).unwrap();
    memory.copy_from_host(0, &content(parts * MIB_2, seed)).unwrap();
    memory
}

#[track_caller]
fn until_ending(turn: &Turn) {
    assert!(turn.wait_ending(PATIENCE).unwrap(), "the daemon asks for the turn");
}

/// The phase of a working set, as operators see it.
fn phase(daemon: &Daemon, name: &str) -> Option<String> {
    let listed = vramctl_json(daemon, &["turn", "list"]);
    let sets = listed["turns"].as_array().unwrap().clone();
    let set = sets.into_iter().find(|it| it["name"] == name)?;
    set["phase"].as_str().map(str::to_owned)
}

#[track_caller]
fn until_phase(daemon: &Daemon, name: &str, wanted: &str) {
    until(&format!("{name} is {wanted}"), || phase(daemon, name).as_deref() == Some(wanted));
}

/// A process with a working set of so many parts.
fn program(daemon: &Daemon, name: &str, parts: u64) -> Probe {
    of_program(daemon.probe(), name, parts)
}

fn of_program(mut probe: Probe, name: &str, parts: u64) -> Probe {
    probe.ask("sdk open");
    probe.ask(&format!("sdk set {parts} 7 {name}"));
    probe
}

#[test]
fn programs_whose_sets_do_not_fit_together_alternate() {
    const ROUNDS: usize = 5;
    let daemon = Daemon::start(&config());
    let (one, other) = (Program::new(&daemon, "one", 6, 1), Program::new(&daemon, "other", 6, 2));
    std::thread::scope(|scope| {
        for (program, seed) in [(&one, 1), (&other, 2)] {
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let turn = program.set.acquire().unwrap();
                    program.compare(seed);
                    // No program waits for the last turn of all.
                    let asked =
                        turn.wait_ending(Duration::from_secs(if round + 1 < ROUNDS { 20 } else { 1 }));
                    assert!(asked.unwrap() || round + 1 == ROUNDS, "round {round} of {seed}");
                    turn.yield_now();
                }
            });
        }
    });
    let listed = vramctl_json(&daemon, &["turn", "list"]);
    for set in listed["turns"].as_array().unwrap() {
        assert_eq!((&set["phase"], &set["turn_count"]), (&"idle".into(), &ROUNDS.into()), "{set}");
        assert!(set["held_ms"].as_u64().unwrap() >= QUANTUM_MS * ROUNDS as u64, "{set}");
    }
    for name in ["vramd_turn_hand_over_duration_seconds_count", "vramd_turn_duration_seconds_count"] {
        assert_eq!(metric::<usize>(&daemon, name, &[]), Some(2 * ROUNDS), "{name}");
    }
    drop((one, other));
    daemon.drains();
}

#[test]
fn programs_whose_sets_fit_together_need_no_turns() {
    let daemon = Daemon::start(&config());
    let third = Program::new(&daemon, "third", 6, 3);
    let (one, other) = (Program::new(&daemon, "one", 4, 1), Program::new(&daemon, "other", 4, 2));
    let turns = [one.set.acquire().unwrap(), other.set.acquire().unwrap()];
    one.compare(1);
    other.compare(2);
    for turn in &turns {
        assert!(!turn.wait_ending(Duration::from_millis(300)).unwrap(), "nobody waits");
        assert_eq!(turn.state(), TurnState::Held);
    }
    // A third set does not fit, and turns begin. They end with it.
    let [first, second] = turns;
    let ended = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| third.set.acquire().unwrap());
        until_ending(&first);
        first.yield_now();
        until_ending(&second);
        second.yield_now();
        waiting.join().unwrap()
    });
    third.compare(3);
    ended.yield_now();
    let turns = [one.set.acquire().unwrap(), other.set.acquire().unwrap()];
    assert!(!turns[0].wait_ending(Duration::from_millis(300)).unwrap());
    drop((turns, one, other, third));
    daemon.drains();
}

#[test]
fn a_client_with_a_turn_may_not_wait_for_another() {
    let daemon = Daemon::start(&config());
    let program = Program::new(&daemon, "one", 2, 1);
    let more = memory(&program.client, 2, 2);
    let second = program.client.working_set("second", &[&more]).unwrap();
    let turn = program.set.acquire().unwrap();
    for set in [&program.set, &second] {
        let error = set.acquire().unwrap_err();
        assert!(matches!(&error, Error::TurnHeld { set, .. } if set == "one"), "{error:?}");
        assert!(error.to_string().contains("could wait for itself"), "{error}");
    }
    assert_eq!(turn.state(), TurnState::Held, "the refusals change nothing");
    turn.yield_now();
    second.acquire().unwrap().yield_now();
    drop((more, second, program));
    daemon.drains();
}

#[test]
fn sets_that_no_turn_could_have_are_refused() {
    let daemon = Daemon::start(&config());
    let (client, other) = (connect(&daemon), connect(&daemon));
    let foreign = memory(&other, 1, 1);
    let own = memory(&client, 1, 2);
    let reason = |outcome: Result<WorkingSet, Error>| outcome.unwrap_err().reason();
    assert_eq!(reason(client.working_set("empty", &[])), Some(Reason::RequestInvalid));
    assert_eq!(reason(client.working_set("foreign", &[&own, &foreign])), Some(Reason::RequestInvalid));
    assert_eq!(reason(client.working_set("twice", &[&own, &own])), Some(Reason::RequestInvalid));
    assert_eq!(reason(client.working_set("", &[&own])), Some(Reason::NameInvalid));
    let pinned = client.allocate(AllocationRequest::new(Bytes::mib(2))).unwrap();
    assert_eq!(reason(client.working_set("pinned", &[&pinned])), Some(Reason::Pinned));
    let set = client.working_set("own", &[&own]).unwrap();
    assert_eq!(reason(client.working_set("own", &[&own])), Some(Reason::RequestInvalid), "the name is taken");
    drop(set);
    client.working_set("own", &[&own]).unwrap().acquire().unwrap().yield_now();
    // No device of this node could have it.
    let large =
        client.allocate(AllocationRequest::new(Bytes::mib(18)).part_size(Bytes::mib(2)).unpinned()).unwrap();
    let error = client.working_set("large", &[&large]).and_then(|set| set.acquire().map(drop)).unwrap_err();
    assert_eq!(error.reason(), Some(Reason::DeviceFull), "{error:?}");
    drop((foreign, own, pinned, large));
    client.flush().unwrap();
    other.flush().unwrap();
    daemon.drains();
}

#[test]
fn a_wait_for_a_turn_ends_with_its_deadline_its_future_and_its_set() {
    let daemon = Daemon::start(&config());
    let (one, other) = (Program::new(&daemon, "one", 6, 1), Program::new(&daemon, "other", 6, 2));
    let turn = one.set.acquire().unwrap();
    let error = other.set.acquire_timeout(Duration::from_millis(200)).unwrap_err();
    assert!(matches!(error, Error::Deadline { .. }), "{error:?}");
    until_phase(&daemon, "other", "idle");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let waited = tokio::time::timeout(Duration::from_millis(200), other.set.acquire_async()).await;
        assert!(waited.is_err(), "its future is dropped");
    });
    until_phase(&daemon, "other", "idle");
    turn.yield_now();
    runtime.block_on(async {
        let client = aio::Client::from(other.client.clone());
        let set = client.working_set("again", &[&other.memory]).await.unwrap();
        let turn = set.acquire_async().await.unwrap();
        assert!(!turn.wait_ending_async(Duration::from_millis(50)).await.unwrap());
        drop((turn, set));
    });
    until("the set is gone", || phase(&daemon, "again").is_none());
    drop((one, other));
    daemon.drains();
}

#[test]
fn an_operator_asks_for_a_turn() {
    let daemon = Daemon::start(&config());
    let one = Program::new(&daemon, "one", 6, 1);
    let session = one.client.session_id().to_string();
    let refused = vramctl(&daemon, &["turn", "yield", &session, "one"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("has no turn"), "{said}");
    let turn = one.set.acquire().unwrap();
    let kinds = vec![EventKind::Turn.into()];
    let mut watching = Watching::start(&daemon.admin, WatchRequest { kinds, ..Default::default() }).unwrap();
    assert_eq!(vramctl_json(&daemon, &["turn", "yield", &session, "one"])["set_name"], "one");
    until_ending(&turn);
    let TurnState::Ending { within } = turn.state() else { panic!("{:?}", turn.state()) };
    assert!(within <= Duration::from_secs(10) && within > Duration::from_secs(1), "{within:?}");
    assert_eq!(phase(&daemon, "one").as_deref(), Some("ending"));
    turn.yield_now();
    until_phase(&daemon, "one", "idle");
    for change in [Change::OperatorAsked, Change::Yielded] {
        let Some(Event::Turn(turn)) = watching.read().event else { panic!("an event of a turn") };
        assert_eq!((turn.change(), &*turn.set_name), (change, "one"));
    }
    drop(one);
    daemon.drains();
}

#[test]
fn a_program_that_ends_without_yielding_leaves_its_turn() {
    let daemon = Daemon::start(&config());
    let other = Program::new(&daemon, "other", 6, 2);
    for (killed, asked) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut one = program(&daemon, "one", 6);
        one.ask("sdk acquire");
        one.ask("sdk use");
        let turn = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| other.set.acquire().unwrap());
            until_phase(&daemon, "other", "waiting");
            if asked {
                until_phase(&daemon, "one", "ending");
            }
            if killed {
                one.kill()
            } else {
                one.leave()
            }
            waiting.join().unwrap()
        });
        other.compare(2);
        turn.yield_now();
    }
    drop(other);
    daemon.drains();
}

/// The turn was that of the old image: the process goes on, and has none.
#[test]
fn a_program_that_executes_another_leaves_its_turn() {
    let daemon = Daemon::start(&config());
    let other = Program::new(&daemon, "other", 6, 2);
    let mut one = program(&daemon, "one", 6);
    one.ask("sdk acquire");
    one.ask("sdk use");
    let turn = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| other.set.acquire().unwrap());
        until_phase(&daemon, "one", "ending");
        one.ask("exec");
        waiting.join().unwrap()
    });
    other.compare(2);
    assert_eq!(phase(&daemon, "one"), None, "its set has ended with its session");
    turn.yield_now();
    // The new image takes turns of its own.
    one.ask("sdk open");
    one.ask("sdk set 6 7 again");
    one.ask("sdk acquire");
    one.ask("sdk use");
    one.leave();
    drop(other);
    daemon.drains();
}

#[test]
fn a_forked_child_has_no_turn_and_leaves_that_of_its_parent() {
    let daemon = Daemon::start(&config());
    let (mut one, mut other) = (program(&daemon, "one", 6), program(&daemon, "other", 6));
    one.ask("sdk acquire");
    let forked = one.ask("sdk fork-turn");
    assert_eq!(forked["statuses"], serde_json::json!([0, 0]), "{forked}");
    other.tell("sdk acquire");
    until_phase(&daemon, "one", "ending");
    assert_eq!(phase(&daemon, "other").as_deref(), Some("waiting"), "the children have yielded nothing");
    one.ask("sdk use");
    one.ask("sdk yield");
    other.listen("sdk acquire");
    other.ask("sdk use");
    one.leave();
    other.leave();
    daemon.drains();
}

/// The requests that wait for room: how many stand ahead of each.
fn waiting(daemon: &Daemon) -> Vec<u32> {
    let waits = daemon.admin.list_waits(ListWaitsRequest::default()).ok().waits;
    let by_request: BTreeMap<u64, u32> =
        waits.iter().map(|wait| (wait.request, wait.requests_ahead)).collect();
    let mut ahead: Vec<u32> = by_request.into_values().collect();
    ahead.sort_unstable();
    ahead
}

/// A model load, a session that comes back and a turn need the same room: none two of them fit together.
#[test]
fn loads_and_sessions_that_come_back_stand_in_the_line_of_turns() {
    let daemon = Daemon::start(&config());
    let (loader, sleeper) = (connect(&daemon), connect(&daemon));
    let request = || AllocationRequest::new(Bytes::new(5 * MIB_2)).part_size(Bytes::mib(2));
    let mut asleep = sleeper.allocate(request()).unwrap();
    asleep.copy_from_host(0, &content(5 * MIB_2, 3)).unwrap();
    sleeper.detach_all().unwrap();
    let mut model = tempfile::NamedTempFile::new().unwrap();
    model.write_all(&content(5 * MIB_2, 4)).unwrap();
    let owner = Program::new(&daemon, "owner", 6, 1);
    let turn = owner.set.acquire().unwrap();
    std::thread::scope(|scope| {
        let whole = AllocationRequest::whole_file().part_size(Bytes::mib(2)).wait(PATIENCE);
        let loading = scope.spawn(|| loader.load(model.path(), 0, whole).unwrap());
        until("the load waits", || waiting(&daemon) == [0]);
        let waking = scope.spawn(|| sleeper.attach_all().unwrap());
        until("the session waits", || waiting(&daemon) == [0, 1]);
        until_ending(&turn);
        owner.compare(1);
        assert!(!loading.is_finished() && !waking.is_finished(), "the owner has all of its memory still");
        turn.yield_now();
        // The program asks again before the daemon can see that it no longer pins its set.
        let next = scope.spawn(|| owner.set.acquire().unwrap());
        let loaded = loading.join().unwrap();
        until("the session and the turn wait", || waiting(&daemon) == [0, 1]);
        assert!(!waking.is_finished() && !next.is_finished());
        assert_eq!(digest(loaded.as_slice().unwrap()), digest(&content(5 * MIB_2, 4)));
        loaded.free().unwrap();
        waking.join().unwrap();
        until("the turn waits", || waiting(&daemon) == [0]);
        assert!(!next.is_finished() && phase(&daemon, "owner").as_deref() == Some("hand-over"));
        assert_eq!(digest(asleep.as_slice().unwrap()), digest(&content(5 * MIB_2, 3)));
        asleep.free().unwrap();
        let turn = next.join().unwrap();
        owner.compare(1);
        turn.yield_now();
    });
    let listed = vramctl_json(&daemon, &["turn", "list"]);
    assert_eq!(listed["turns"][0]["turn_count"], 2, "{listed}");
    drop((owner, loader, sleeper));
    daemon.drains();
}

#[test]
fn each_device_has_turns_of_its_own() {
    let daemon =
        Daemon::start(&with_turns(Config::devices(&["16MiB", "16MiB"]).memory("host_size = \"128MiB\"")));
    let here = Program::on_device(&daemon, 0, "here", 6, 1);
    let (there, next) =
        (Program::on_device(&daemon, 1, "there", 6, 2), Program::on_device(&daemon, 1, "next", 6, 3));
    let turn = here.set.acquire().unwrap();
    let elsewhere = there.set.acquire().unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| next.set.acquire().unwrap());
        until_ending(&elsewhere);
        here.compare(1);
        elsewhere.yield_now();
        let next_turn = waiting.join().unwrap();
        next.compare(3);
        next_turn.yield_now();
    });
    assert_eq!(turn.state(), TurnState::Held, "its device has no other program");
    drop((turn, here, there, next));
    daemon.drains();
}

#[test]
fn a_yield_ends_the_wait_of_another_thread_and_another_turn_may_follow() {
    let daemon = Daemon::start(&config());
    let one = Program::new(&daemon, "one", 6, 1);
    let turn = one.set.acquire().unwrap();
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| turn.wait_ending(PATIENCE).unwrap());
        // Long enough that it waits.
        std::thread::sleep(Duration::from_millis(100));
        turn.yield_now();
        assert_eq!(turn.state(), TurnState::Yielded);
        // The thread still has the turn's handle.
        one.set.acquire().unwrap().yield_now();
        assert!(!waiting.join().unwrap(), "the daemon did not ask");
    });
    assert!(begun.elapsed() < PATIENCE / 2, "the yield ends the wait");
    assert!(!turn.wait_ending(PATIENCE).unwrap(), "it is yielded");
    drop((turn, one));
    daemon.drains();
}

/// The link is so slow that the hand-over takes a while.
#[test]
fn a_program_is_killed_in_the_hand_over() {
    let daemon = Daemon::start(&config().link("16MiB"));
    let mut one = program(&daemon, "one", 6);
    let mut other = program(&daemon, "other", 6);
    for _ in 0..2 {
        one.ask("sdk acquire");
        one.ask("sdk use");
        other.tell("sdk acquire");
        until_phase(&daemon, "other", "waiting");
        one.ask("sdk yield");
        until_phase(&daemon, "other", "hand-over");
        other.kill();
        until("its set is gone", || phase(&daemon, "other").is_none());
        other = program(&daemon, "other", 6);
    }
    // The program that yields is killed while its memory leaves.
    one.ask("sdk acquire");
    other.tell("sdk acquire");
    until_phase(&daemon, "other", "waiting");
    one.ask("sdk yield");
    until_phase(&daemon, "other", "hand-over");
    one.kill();
    other.listen("sdk acquire");
    other.ask("sdk use");
    other.leave();
    daemon.drains();
}

#[test]
fn a_stopped_program_is_overdue_until_it_goes_on() {
    let daemon = Daemon::start(&config().turns("overdue_after_ms = 100"));
    let mut one = program(&daemon, "one", 6);
    let mut other = program(&daemon, "other", 6);
    one.ask("sdk acquire");
    one.freeze();
    other.tell("sdk acquire");
    until_phase(&daemon, "one", "overdue");
    assert!(daemon.log().contains("turn is overdue"), "{}", daemon.log());
    until("it is counted", || metric(&daemon, "vramd_turns_overdue_total", &[]) == Some(1));
    assert_eq!(phase(&daemon, "other").as_deref(), Some("waiting"), "the turn is not taken away");
    one.signal(Signal::CONT);
    until("the client has the notice", || one.ask("sdk turn-state")["state"] == "ending");
    one.ask("sdk use");
    one.ask("sdk yield");
    other.listen("sdk acquire");
    other.ask("sdk use");
    one.leave();
    other.leave();
    daemon.drains();
}

#[test]
fn a_program_that_does_not_yield_is_ended_where_that_is_configured() {
    let config = config().turns("overdue_after_ms = 100").turns("end_after_ms = 400");
    let daemon = Daemon::start(&config);
    let mut one = program(&daemon, "one", 6);
    let mut other = program(&daemon, "other", 6);
    one.ask("sdk acquire");
    other.tell("sdk acquire");
    until("its process is killed", || one.check_ended());
    other.listen("sdk acquire");
    other.ask("sdk use");
    until("nothing of it is left", || phase(&daemon, "one").is_none());
    other.leave();
    daemon.drains();
}

#[test]
fn a_program_goes_on_when_the_daemon_ends_during_its_turn() {
    let daemon = Daemon::start(&config());
    let mut one = program(&daemon, "one", 6);
    let mut other = program(&daemon, "other", 6);
    one.ask("sdk acquire");
    other.tell("sdk acquire");
    until_phase(&daemon, "other", "waiting");
    let began = Instant::now();
    let _home = daemon.kill();
    let refused = other.listen("sdk acquire");
    assert_eq!(refused["refused"]["reason"], "BROKER_GONE", "{refused}");
    until("its turn is lost", || one.ask("sdk turn-state")["state"] == "lost");
    assert!(began.elapsed() < Duration::from_secs(10));
    // It continues on what it has.
    one.ask("sdk use");
    one.ask("sdk yield");
    one.leave();
}

#[test]
fn the_program_of_the_higher_class_goes_first() {
    if !has_other_users("the_program_of_the_higher_class_goes_first") {
        return;
    }
    let (night, day) = (20_001, 20_002);
    let config = config().tenant(night, "night").class("night", "background", 1);
    let daemon = Daemon::start(&config.tenant(day, "day").class("day", "interactive", 1));
    let mut holder = of_program(daemon.probe_as(night), "holder", 6);
    let mut early = of_program(daemon.probe_as(night), "early", 6);
    let mut late = of_program(daemon.probe_as(day), "late", 6);
    holder.ask("sdk acquire");
    early.tell("sdk acquire");
    until_phase(&daemon, "early", "waiting");
    late.tell("sdk acquire");
    until_phase(&daemon, "late", "waiting");
    holder.ask("sdk yield");
    late.listen("sdk acquire");
    late.ask("sdk use");
    assert_eq!(phase(&daemon, "early").as_deref(), Some("waiting"));
    late.ask("sdk yield");
    early.listen("sdk acquire");
    early.ask("sdk use");
    for probe in [holder, early, late] {
        probe.leave();
    }
    daemon.drains();
}
