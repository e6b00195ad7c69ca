//! `vramctl run --turns`: programs that know nothing of turns, and whose memory does not fit on the device together.

use std::{
    collections::BTreeMap,
    process::{Command, Output, Stdio},
    thread,
    time::Duration,
};

use fake_cuda::Fake;
use serde_json::Value;
use vramd_tests::{programs::program, wait::until};

use crate::{LIMIT, Node, Talk, linked, refused, table, text};

/// The device of these tests, less the contexts of two programs and the daemon. Two sets of 40 MiB do not fit.
const DEVICE: &str = "memory_mib = 96";

/// Copies go on only while the test lets them.
const HELD: &str = "carries = 100000\nheld = 1";

impl Node {
    fn with_turns(fake: Fake) -> Self {
        Self::configured(fake, |config| {
            let config = config.memory("host_size = \"400MiB\"").memory("harvest_ms = 5");
            let config = config.turns("quantum_ms = 50").turns("min_quantum_ms = 10");
            config.telemetry("prometheus_listen = \"127.0.0.1:0\"")
        })
    }

    /// `vramctl run --turns` with `bare` as the program.
    fn in_turns(&self, arguments: &[&str]) -> Command {
        let mut command = self.run(&["--turns", "--"]);
        command.arg(program("bare")).args(arguments);
        command
    }

    fn talk(&self, scene: &str) -> Talk {
        self.talk_with(&["--turns"], scene)
    }

    fn talk_with(&self, flags: &[&str], scene: &str) -> Talk {
        let mut command = self.run(&[flags, &["--"]].concat());
        command.stderr(Stdio::piped());
        Talk::started(command, scene)
    }

    /// The working sets, as operators see them.
    fn sets(&self) -> Vec<Value> {
        let listed = self.daemon.vramctl().args(["turn", "list", "--json"]).output().unwrap();
        let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
        listed["turns"].as_array().unwrap().clone()
    }

    /// The phase of the one working set. `None` if there is none.
    fn phase(&self) -> Option<String> {
        let sets = self.sets();
        assert!(sets.len() <= 1, "{sets:?}");
        sets.first().and_then(|set| set["phase"].as_str().map(str::to_owned))
    }

    #[track_caller]
    fn until_phase(&self, wanted: &str) {
        until(&format!("the set is {wanted}"), || self.phase().as_deref() == Some(wanted));
    }

    /// Asks the one program that has the turn to yield it.
    #[track_caller]
    fn ask(&self) {
        let sets = self.sets();
        let (session, name) = (sets[0]["session_id"].clone(), sets[0]["name"].as_str().unwrap().to_owned());
        let session = session.as_str().map_or_else(|| format!("s-{session}"), str::to_owned);
        let asked = self.daemon.vramctl().args(["turn", "yield", &session, &name]).output().unwrap();
        assert!(asked.status.success(), "{}\n{sets:?}", text(&asked.stderr));
    }

    fn hand_overs(&self) -> usize {
        let metrics = self.daemon.metrics();
        let counts =
            metrics.lines().filter(|line| line.starts_with("vramd_turn_hand_over_duration_seconds_count"));
        counts.filter_map(|line| line.rsplit(' ').next()?.parse::<usize>().ok()).sum()
    }
}

#[track_caller]
fn is_done(output: &Output) {
    assert_eq!(text(&output.stdout), "done\n", "{}", text(&output.stderr));
    assert!(output.status.success());
}

/// Each call comes to the gate with turns, and to the driver alone without. It has its arguments in both cases.
#[track_caller]
pub(crate) fn every_gated_function_works_by(door: &str) {
    let node = Node::with_turns(Fake::new());
    let gated: Vec<String> =
        table().into_iter().filter(|(_, kind)| kind == "Gated").map(|(name, _)| name).collect();
    assert!(gated.len() > 100, "{gated:?}");
    // A function that no door gives out has no version to be found by.
    let without_turns = (door != "dlvsym").then_some(("--report", "0"));
    for (flag, times) in [("--turns", "1")].into_iter().chain(without_turns) {
        let mut command = node.run(&[flag, "--"]);
        let output = command.arg(program("bare")).args(["gated", door]).output().unwrap();
        let said = text(&output.stdout);
        let outcomes: BTreeMap<&str, &str> = said.lines().filter_map(|line| line.split_once(' ')).collect();
        for name in &gated {
            assert_eq!(outcomes.get(name.as_str()), Some(&times), "{name} by {door} {flag}\n{said}");
        }
        assert_eq!(outcomes.len(), gated.len(), "a check of what is not in the table:\n{said}");
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
}

#[test]
fn programs_whose_sets_do_not_fit_together_both_finish() {
    let node = Node::with_turns(Fake::new().with(DEVICE));
    let outputs: Vec<_> = thread::scope(|scope| {
        let run = |seed| node.in_turns(&["scene", "rounds", "3", "16", "60", seed]).output().unwrap();
        let running: Vec<_> = ["1", "2"].map(|seed| scope.spawn(move || run(seed))).into_iter().collect();
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    outputs.iter().for_each(is_done);
    assert!(node.hand_overs() >= 4, "both had turns, and again: {}", node.hand_overs());
    assert!(asked(&node) >= 2, "and both had to leave");
    node.daemon.drains();
}

#[test]
fn programs_whose_sets_fit_together_need_no_turns() {
    let node = Node::with_turns(Fake::new().with("memory_mib = 200"));
    thread::scope(|scope| {
        for seed in ["1", "2"] {
            let node = &node;
            scope.spawn(move || {
                is_done(&node.in_turns(&["scene", "rounds", "1", "48", "40", seed]).output().unwrap())
            });
        }
    });
    assert_eq!(asked(&node), 0, "none has to leave for the other");
    node.daemon.drains();
}

/// How often the daemon has asked for a turn.
fn asked(node: &Node) -> usize {
    node.daemon.log().lines().filter(|line| line.contains("client asked to yield its turn")).count()
}

#[test]
fn a_captured_launch_waits_for_no_turn() {
    let node = Node::with_turns(Fake::new());
    let mut talk = node.talk("captured");
    talk.expect("captured");
    assert_eq!(node.phase(), None, "it has asked for no turn");
    talk.answer();
    talk.expect("launched");
    node.until_phase("granted");
    talk.answer();
    talk.expect("done");
}

#[test]
fn a_program_keeps_its_turn_during_a_capture() {
    let node = Node::with_turns(Fake::new());
    let mut talk = node.talk("capturing");
    talk.expect("capturing");
    node.until_phase("granted");
    node.ask();
    talk.answer();
    talk.expect("computed");
    assert_eq!(node.phase().as_deref(), Some("ending"), "the daemon waits for it");
    talk.answer();
    talk.expect("ended");
    node.until_phase("idle");
    talk.answer();
    talk.expect("done");
}

/// The work may wait for a call that waits at the gate, so that one goes on before the work is done.
#[test]
fn a_hand_over_waits_for_work_but_does_not_hold_up_calls_for_it() {
    let node = Node::with_turns(Fake::new().with(HELD));
    let mut talk = node.talk("in-flight");
    talk.expect("ready");
    node.until_phase("granted");
    node.fake.trigger(true);
    talk.answer();
    talk.expect("launched");
    node.ask();
    // The call waits at the closed gate until the library opens it again: it comes back before the work is done.
    talk.answer();
    talk.expect("added");
    assert_eq!(node.phase().as_deref(), Some("ending"), "the work goes on");
    node.fake.trigger(false);
    node.until_phase("idle");
    talk.answer();
    talk.expect("done");
}

#[test]
fn a_program_that_does_not_use_its_turn_yields_early() {
    let node = Node::configured(Fake::new().with(DEVICE), |config| {
        config
            .memory("host_size = \"400MiB\"")
            .turns("quantum_ms = 3600000")
            .turns("overdue_after_ms = 60000")
    });
    let mut idle = node.talk_with(&["--turns", "--idle-after", "1"], "in-turn");
    idle.expect("ready");
    // Long before the quantum is over, and without being asked.
    node.until_phase("idle");
    assert_eq!(asked(&node), 0);
    is_done(&node.in_turns(&["scene", "rounds", "1", "48", "3", "2"]).output().unwrap());
    // It gets its memory back with its next call.
    idle.answer();
    idle.expect("done");
    node.daemon.drains();
}

#[test]
fn a_program_whose_work_goes_on_is_not_idle() {
    let node = Node::with_turns(Fake::new().with(HELD));
    let mut talk = node.talk_with(&["--turns", "--idle-after", "1"], "in-flight");
    talk.expect("ready");
    node.until_phase("granted");
    node.fake.trigger(true);
    talk.answer();
    talk.expect("launched");
    // Longer than it may be idle, by its own clock.
    thread::sleep(Duration::from_secs(3));
    assert_eq!(node.phase().as_deref(), Some("granted"), "its copies go on");
    node.fake.trigger(false);
    node.until_phase("idle");
    talk.answer();
    talk.expect("added");
    talk.answer();
    talk.expect("done");
}

#[test]
fn a_program_that_is_killed_in_its_turn_lets_the_other_go_on() {
    let node = Node::with_turns(Fake::new().with(DEVICE));
    // It does not yield during the capture.
    let mut killed = node.talk("capturing");
    killed.expect("capturing");
    node.until_phase("granted");
    let other = thread::scope(|scope| {
        let other =
            scope.spawn(|| node.in_turns(&["scene", "rounds", "1", "48", "3", "2"]).output().unwrap());
        until("the daemon asks for the turn", || node.sets().iter().any(|set| set["phase"] == "ending"));
        assert!(!other.is_finished());
        drop(killed);
        other.join().unwrap()
    });
    is_done(&other);
    node.daemon.drains();
}

#[test]
fn a_program_goes_on_when_the_daemon_dies_in_its_turn() {
    let node = Node::with_turns(Fake::new());
    let mut talk = node.talk("in-turn");
    talk.expect("ready");
    node.until_phase("granted");
    let Node { daemon, fake } = node;
    drop(daemon.kill());
    talk.answer();
    talk.expect("done");
    drop(fake);
    let said = talk.stderr();
    let told = said.lines().filter(|line| line.contains("goes on with the memory that it has")).count();
    assert_eq!(told, 1, "{said}");
}

/// Nothing has needed the room meanwhile, so all of the memory is still there.
#[test]
fn a_program_goes_on_when_the_daemon_dies_after_its_turn() {
    let node = Node::with_turns(Fake::new());
    let mut talk = node.talk("in-turn");
    talk.expect("ready");
    node.until_phase("granted");
    node.ask();
    node.until_phase("idle");
    let Node { daemon, fake: _fake } = node;
    drop(daemon.kill());
    talk.answer();
    talk.expect("done");
    assert!(talk.stderr().contains("goes on with the memory that it has"));
}

#[test]
fn a_program_whose_memory_is_lost_gets_an_error() {
    let node = Node::with_turns(Fake::new().with(DEVICE));
    let mut away = node.talk("in-turn");
    away.expect("ready");
    node.until_phase("granted");
    is_done(&node.in_turns(&["scene", "rounds", "1", "56", "3", "2"]).output().unwrap());
    let Node { daemon, fake: _fake } = node;
    drop(daemon.kill());
    away.answer();
    away.expect("cuLaunchKernel: 802, not 0");
    let said = away.stderr();
    assert!(said.contains("memory was not on its device"), "{said}");
}

#[test]
fn thousands_of_blocks_are_few_allocations_and_come_back() {
    let node = Node::with_turns(Fake::new().with("memory_mib = 104"));
    let mut talk = node.talk("many-blocks");
    talk.expect("ready");
    node.until_phase("granted");
    let allocations = node.daemon.state().allocations.len();
    assert!(allocations <= 16, "{allocations} allocations for 4000 blocks");
    node.ask();
    node.until_phase("idle");
    // It leaves for another program, which has most of the device.
    is_done(&node.in_turns(&["scene", "rounds", "1", "64", "3", "2"]).output().unwrap());
    talk.answer();
    talk.expect("computed");
    node.until_phase("granted");
    talk.answer();
    talk.expect("done");
    node.daemon.drains();
}

#[test]
fn a_forked_child_does_not_wait_at_its_parents_gate() {
    let node = Node::with_turns(Fake::new());
    is_done(&node.in_turns(&["scene", "fork-in-turn"]).output().unwrap());
    node.daemon.drains();
}

/// The turn was that of the old image, which the process has given up with all its memory.
#[test]
fn a_program_that_executes_another_in_its_turn_leaves_it() {
    let node = Node::with_turns(Fake::new().with(DEVICE));
    let mut talk = node.talk("execute-in-turn");
    talk.expect("ready");
    node.until_phase("granted");
    talk.answer();
    talk.expect("executed");
    until("its set is gone", || node.phase().is_none());
    is_done(&node.in_turns(&["scene", "rounds", "1", "48", "3", "2"]).output().unwrap());
    talk.answer();
    talk.expect("done");
    node.daemon.drains();
}

/// The library cannot tell when such a call is over, so it waits for the turn, and the process keeps that.
#[test]
fn a_launch_that_the_library_does_not_know_takes_the_turn_and_keeps_it() {
    let node = Node::with_turns(Fake::new());
    let mut talk = node.talk_with(&["--turns", "--report"], "of-the-future");
    talk.expect("ready");
    assert_eq!(node.phase(), None, "it has asked for no turn");
    talk.answer();
    talk.expect("launched");
    assert_eq!(node.phase().as_deref(), Some("granted"));
    node.ask();
    let reason =
        "this program keeps its turn: it calls cuLaunchOfTheFuture, which this library does not know";
    talk.expect_error(reason);
    assert_eq!(node.phase().as_deref(), Some("ending"), "the daemon waits for it");
    talk.answer();
    talk.expect("done");
    let said = talk.stderr();
    assert!(!said.contains("this program keeps its turn"), "it says so once: {said}");
    for function in ["cuLaunchOfTheFuture", "cuLaunchKernel_v2"] {
        let counted = format!("1 {function}: this library does not know it: the program keeps its turn");
        assert!(said.contains(&counted), "{counted}: {said}");
    }
    node.daemon.drains();
}

#[test]
fn calls_of_a_program_that_is_linked_to_the_driver_wait_for_its_turn() {
    let node = Node::with_turns(Fake::new());
    let mut command = node.run(&["--turns", "--limit", LIMIT, "--"]);
    command.arg(linked(&node.fake));
    let mut talk = Talk::spawned(command);
    talk.expect(&format!("{} bytes in all, 0 blocks of the driver", 200 << 20));
    talk.expect("ready");
    assert_eq!(node.phase().as_deref(), Some("granted"));
    talk.answer();
    talk.expect("done");
    node.daemon.drains();
}

#[test]
fn all_that_works_without_turns_works_with_them() {
    let node = Node::with_turns(Fake::new());
    let limit = ["--limit", LIMIT, "--turns", "--"];
    for scene in
        ["allocate", "execute", "fork-before", "fork-after", "capture", "threads", "kept", "kept-and-charged"]
    {
        let output = node.run(&limit).arg(program("bare")).args(["scene", scene]).output().unwrap();
        assert_eq!(text(&output.stdout), "done\n", "{scene}: {}", text(&output.stderr));
    }
    let output = node.run(&limit).arg(program("bare")).args(["checks", "dlsym"]).output().unwrap();
    let said = text(&output.stdout);
    let failed: Vec<_> = said.lines().filter(|line| !line.ends_with(" ok")).collect();
    assert!(failed.is_empty() && said.lines().count() > 40, "{failed:?}");
    node.daemon.drains();
}

/// The measurement runs wherever a program does. Its figures are of a GPU's node alone.
#[test]
fn launches_are_measured() {
    let node = Node::with_turns(Fake::new());
    let output = node.in_turns(&["launches", "2"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(found["refused"].as_f64().is_some_and(|ns| ns > 0.0), "{found}");
    assert_eq!(found["launch"], Value::Null, "the fake driver loads no kernels");
}

#[test]
fn a_node_without_a_tier_below_has_no_turns() {
    let node = Node::new(Fake::new());
    refused(&mut node.run(&["--turns", "true"]), 1, "no tier below its devices");
    let node = Node::with_turns(Fake::new());
    assert!(node.run(&["--turns", "true"]).status().unwrap().success());
}
