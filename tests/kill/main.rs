//! Clients that die at every step of the protocol, in every way, while others go on: they leave no byte, descriptor or
//! session, and no other client loses a byte.
//!
//! One daemon is left in peace. Another one revokes mappings all the time, at steps that its configuration schedules, and
//! has clients that pin. On a third one, whose device and host have no room for all, memory moves all the time: an operator
//! writes it back, evicts it to the host or the disk and fetches it, and pins have other parts evicted. A round is every
//! life, at every step, with every death, once. The seed decides the rest. One round runs by default:
//!
//! ```text
//! VRAMD_KILL_ROUNDS=10 VRAMD_KILL_SEED=7 cargo test -p vramd-tests --test kill -- --nocapture
//! VRAMD_KILL_CASES=12..40 cargo test -p vramd-tests --test kill
//! ```
//!
//! Each case is checked by itself: its sessions and its memory are gone, and its sealed allocations have the bytes that it
//! wrote. After each stretch of cases, and once the survivors have left, everything is checked: the node's state,
//! descriptors, memfds.

mod case;
mod operator;
mod plan;
mod scene;
mod survivors;

use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use plan::{Case, Plan};
use scene::Scene;

/// Cases that run at a time.
const AT_ONCE: usize = 6;
/// Cases after which everything is checked.
const STRETCH: usize = 175;
/// Longer than a client takes from its start to its hello.
const DRAINED_FOR: Duration = Duration::from_millis(300);

#[test]
fn a_dying_client_leaves_nothing_and_harms_no_other() {
    let plan = Plan::from_env().unwrap_or_else(|why| panic!("{why:#}"));
    let started = Instant::now();
    let revoking = plan.revocations();
    let mut scenes = [Scene::with_room(Vec::new()), Scene::with_room(revoking), Scene::moving()];
    let target = scenes[0].target.clone();
    let numbers: Vec<u64> = plan.numbers().collect();
    for stretch in numbers.chunks(STRETCH) {
        let (first, last) = (stretch[0], stretch[stretch.len() - 1]);
        let mut cases: [Vec<_>; 3] = [const { Vec::new() }; 3];
        for case in stretch.iter().map(|&number| plan.case(number, &target)) {
            cases[case.fate.script.setting() as usize].push(case);
        }
        let command = plan.command(first..last + 1);
        for (scene, cases) in scenes.iter_mut().zip(cases) {
            let failed = run(scene, &cases, &command);
            assert!(failed.is_empty(), "{}", failed.join("\n"));
            if let Err(why) = scene.check_as_before() {
                panic!("after cases {first} to {last}: {why:#}\n  to repeat them: {command}");
            }
        }
    }
    let (count, mut checks) = (numbers.len(), 0);
    for scene in scenes {
        for (way, parts) in scene.moves() {
            eprintln!("{parts} parts went {way}");
            assert!(parts > 0 || count < plan::matrix().len(), "none went {way}");
        }
        checks += scene.survivors.checks();
        scene.end().unwrap_or_else(|why| panic!("after the survivors: {why:#}"));
    }
    let seconds = started.elapsed().as_secs();
    eprintln!(
        "{count} clients died in {seconds} s, seed {}; the survivors' bytes were checked {checks} times",
        plan.seed
    );
}

/// Runs the cases among survivors, several at a time. Returns the failures, each with the command that repeats it.
fn run(scene: &mut Scene, cases: &[Case], command: &str) -> Vec<String> {
    let (survivors, scene) = scene.split();
    let left = Mutex::new(cases.iter().rev().collect::<Vec<_>>());
    let failed = Mutex::new(Vec::new());
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let living = scope.spawn(|| survivors.run_until(&over));
        let moving = scene.moves.then(|| scope.spawn(|| operator::move_until(&scene.daemon.admin, &over)));
        let work = || {
            loop {
                // On a line of its own: a `while let` would hold the lock until the case has ended.
                let next = left.lock().expect("no worker panics with it").pop();
                let Some(case) = next else { return };
                if let Err(why) = case::run(scene, case) {
                    failed.lock().expect("no worker panics with it").push(case.failure(&why));
                    return;
                }
            }
        };
        let workers: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(work)).collect();
        let outcomes: Vec<_> = workers.into_iter().map(thread::ScopedJoinHandle::join).collect();
        over.store(true, Ordering::SeqCst);
        let mut failed = failed.lock().expect("no worker panics with it");
        if living.join().is_err() {
            failed.push(format!("a survivor came to harm, as told above\n  to repeat it: {command}"));
        }
        let moved = moving.map(|moving| moving.join().expect("no operator panics"));
        if let Some(Err(why)) = moved {
            failed.push(format!("an operator: {why:#}\n  to repeat it: {command}"));
        }
        for outcome in outcomes {
            outcome.expect("no worker panics");
        }
    });
    failed.into_inner().expect("no worker panics with it")
}

/// The client may have been told of the drain before its channel was closed. It must not ask again, and live on with
/// another channel.
#[test]
fn a_client_opens_no_new_channel_on_a_drained_node() {
    let mut scene = Scene::with_room(Vec::new());
    let (plan, target) = (Plan::new(7, 0..1), scene.target.clone());
    let (_, stage) = scene.split();
    let cases: Vec<_> = (0..4 * AT_ONCE as u64).map(|number| plan.close_at_hello(number, &target)).collect();
    for some in cases.chunks(AT_ONCE) {
        thread::scope(|scope| {
            let draining = stage.drain();
            let runs: Vec<_> = some.iter().map(|case| scope.spawn(|| case::run(stage, case))).collect();
            thread::sleep(DRAINED_FOR);
            drop(draining);
            for (run, case) in runs.into_iter().zip(some) {
                if let Err(why) = run.join().expect("no run panics") {
                    panic!("{}", case.failure(&why));
                }
            }
        });
    }
    scene.check_as_before().expect("nothing is left");
    scene.end().expect("the survivors leave");
}

#[test]
fn a_round_is_every_life_at_every_step_with_every_death() {
    let plan = Plan::new(7, 0..1);
    let round = plan::matrix().len() as u64;
    for first in [0, round] {
        let mut seen = BTreeMap::new();
        for number in first..first + round {
            let fate = plan.case(number, "t/n").fate;
            *seen.entry(format!("{:?} {:?} {:?}", fate.script, fate.step, fate.death)).or_insert(0) += 1;
        }
        assert_eq!(seen.len() as u64, round, "{seen:?}");
    }
    let all = |plan: &Plan| format!("{:?}", (0..2 * round).map(|n| plan.case(n, "t/n")).collect::<Vec<_>>());
    assert_eq!(all(&plan), all(&Plan::new(7, 0..1)));
    assert_ne!(all(&plan), all(&Plan::new(8, 0..1)));
}

#[test]
fn a_plan_without_cases_is_refused() {
    let round = plan::matrix().len() as u64;
    assert_eq!(plan::numbers(None, None).unwrap(), 0..round);
    assert_eq!(plan::numbers(Some("10"), None).unwrap(), 0..10 * round);
    assert_eq!(plan::numbers(None, Some("3..5")).unwrap(), 3..5);
    for (rounds, cases) in [
        (Some("0"), None),
        (Some("18446744073709551615"), None),
        (Some("few"), None),
        (None, Some("0..0")),
        (None, Some("5..3")),
        (None, Some("5")),
        (Some("1"), Some("0..1")),
    ] {
        assert!(plan::numbers(rounds, cases).is_err(), "{rounds:?} {cases:?}");
    }
}
