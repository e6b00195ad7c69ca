//! Leaks after sessions that are killed at a random point.
//!
//! There are three kinds of victims. Some have a context, a mapping and a kernel in flight. Some are killed on their way there, while they
//! get a context, map or launch. Some have no context, and are killed at a chosen step or at any time. The plan comes from a seed. The
//! duration of a step depends on how many processes take it at once; a context takes some seconds. So a victim that is to die in the middle
//! of a step is killed a moment after the step before it.

use std::{
    collections::BTreeMap,
    io::{self, BufRead as _, BufReader, Write as _},
    process::{Command, Stdio},
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, bail};
use serde_json::{Value, json};
use vramd_tests::{Config, Daemon, proc::fd_count, wait::until};

use super::victim::{IN_FLIGHT, SIZE, STEPS, STEPS_WITH_CONTEXT};
use crate::{cuda, machine, nvml::Witness};

const SEED: u64 = 0x5eed;
/// Contexts at once: as many as the reference machine has cores.
const AT_ONCE: usize = 16;
/// No new victims start after that time, so that a slow machine gives an answer about fewer.
const BUDGET: Duration = Duration::from_secs(210);

/// The number of victims of each kind.
#[derive(Clone, Copy, Debug)]
struct Plan {
    in_flight: usize,
    on_the_way: usize,
    without: usize,
}

const WARM_UP: Plan = Plan { in_flight: 8, on_the_way: 0, without: 32 };
const FULL: Plan = Plan { in_flight: 310, on_the_way: 30, without: 1660 };
const QUICK: Plan = Plan { in_flight: 32, on_the_way: 9, without: 160 };

#[derive(Clone, Copy, Debug)]
struct Victim {
    /// `None` for a victim with a context.
    steps: Option<usize>,
    /// The victim is killed this long after the step, or after its start if there is no step.
    after: Option<&'static str>,
    delay: Duration,
}

/// The number of victims that reached each step.
#[derive(Debug, Default)]
struct Reached {
    without: BTreeMap<String, usize>,
    with_context: BTreeMap<String, usize>,
}

/// Resources that can leak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Trace {
    charged: u64,
    daemon_fds: usize,
    device_used: u64,
}

/// Returns true if all planned victims ran and nothing leaked.
pub(crate) fn run(quick: bool) -> Result<(bool, Value)> {
    let witness = Witness::new()?;
    let gpu = cuda::uuids()?.into_iter().next().context("no GPU")?;
    let daemon = Daemon::start(&Config::cuda());
    // The daemon creates its lasting resources now.
    kill_all(&daemon, plan(WARM_UP, SEED ^ 1))?;
    let before = wait_until_clean(&daemon, &witness, &gpu, None)?;
    let sorts = if quick { QUICK } else { FULL };
    let victims = plan(sorts, SEED);
    let planned = victims.len();
    let started = Instant::now();
    let reached = kill_all(&daemon, victims)?;
    let (killed_in, count) = (started.elapsed(), reached.count());
    let after = wait_until_clean(&daemon, &witness, &gpu, Some(before))?;

    let in_flight = reached.with_context.get(IN_FLIGHT).copied().unwrap_or(0);
    let device = after.device_used.saturating_sub(before.device_used);
    let leaked = after.charged + device;
    let leaked_fds = after.daemon_fds.saturating_sub(before.daemon_fds);
    writeln!(
        io::stdout(),
        "leak      {count} of {planned} sessions killed in {:.0} s, {in_flight} with a kernel in flight: \
         {leaked} bytes and {leaked_fds} descriptors left",
        killed_in.as_secs_f64(),
    )?;
    let good = leaked == 0 && leaked_fds == 0 && count == planned && in_flight >= sorts.in_flight;
    let trace = |trace: Trace| {
        json!({
            "charged_bytes": trace.charged, "daemon_fds": trace.daemon_fds,
            "nvml_used_bytes": trace.device_used,
        })
    };
    Ok((
        good,
        json!({
            "machine": machine::facts(&witness)?,
            "leaked_bytes": leaked, "leaked_fds": leaked_fds,
            "sessions": count, "sessions_planned": planned, "with_a_kernel_in_flight": in_flight, "bytes_each": SIZE, "seed": SEED,
            "seconds": killed_in.as_secs_f64(),
            "killed_after_step": reached.without, "killed_after_step_with_context": reached.with_context,
            "before": trace(before), "after": trace(after),
        }),
    ))
}

fn plan(sorts: Plan, seed: u64) -> Vec<Victim> {
    let mut random = Random(seed);
    let mut victims = Vec::new();
    for _ in 0..sorts.in_flight {
        victims.push(Victim { steps: None, after: Some(IN_FLIGHT), delay: random.below_ms(40) });
    }
    // Each step but the last, with a delay far shorter than the next step.
    for (after, within_ms) in STEPS_WITH_CONTEXT.into_iter().zip([300, 3, 10]).cycle().take(sorts.on_the_way)
    {
        victims.push(Victim { steps: None, after: Some(after), delay: random.below_ms(within_ms) });
    }
    for index in 0..sorts.without {
        // One in four dies at any time. The others die after a step, most of them after an allocation.
        let steps = if index % 4 == 0 { STEPS.len() } else { 1 + random.below_index(STEPS.len()) };
        let (after, within_ms) = if index % 4 == 0 { (None, 30) } else { (Some(STEPS[steps - 1]), 10) };
        victims.push(Victim { steps: Some(steps), after, delay: random.below_ms(within_ms) });
    }
    // Shuffled, so that all kinds run beside each other.
    for last in (1..victims.len()).rev() {
        victims.swap(last, random.below_index(last + 1));
    }
    victims
}

/// Starts and kills victims, several at a time. Returns how many reached each step.
fn kill_all(daemon: &Daemon, victims: Vec<Victim>) -> Result<Reached> {
    let started = Instant::now();
    let (left, reached) = (Mutex::new(victims), Mutex::new(Reached::default()));
    thread::scope(|scope| {
        let work = || -> Result<()> {
            loop {
                if started.elapsed() > BUDGET {
                    return Ok(());
                }
                let next = left.lock().map_err(|_| anyhow!("another worker panicked"))?.pop();
                let Some(victim) = next else { return Ok(()) };
                let step = kill(daemon, victim)?;
                let mut reached = reached.lock().map_err(|_| anyhow!("another worker panicked"))?;
                reached.note(victim, step);
            }
        };
        let workers: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().map_err(|_| anyhow!("a worker panicked"))?)
    })?;
    reached.into_inner().map_err(|_| anyhow!("a worker panicked"))
}

/// Runs one victim and returns the last step that it reported.
fn kill(daemon: &Daemon, victim: Victim) -> Result<String> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("victim").args(victim.steps.map(|steps| format!("--steps={steps}")));
    command.env("VRAMD_SOCKET_DIR", daemon.sockets()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn()?;
    let mut lines = BufReader::new(child.stdout.take().context("its output is a pipe")?).lines();
    let mut step = "started".to_owned();
    if let Some(after) = victim.after {
        while step != after {
            let Some(line) = lines.next() else { bail!("a victim ended by itself after `{step}`") };
            step = line?;
        }
    }
    thread::sleep(victim.delay);
    child.kill()?;
    for line in lines {
        step = line?;
    }
    child.wait()?;
    Ok(step)
}

impl Reached {
    fn note(&mut self, victim: Victim, step: String) {
        let sort = if victim.steps.is_some() { &mut self.without } else { &mut self.with_context };
        *sort.entry(step).or_insert(0) += 1;
    }

    fn count(&self) -> usize {
        self.without.values().chain(self.with_context.values()).sum()
    }
}

/// Returns the resources in use once they no longer fall: the ledger is empty, the device back at its former use.
fn wait_until_clean(daemon: &Daemon, witness: &Witness, gpu: &str, before: Option<Trace>) -> Result<Trace> {
    until("all sessions are gone and nothing is charged", || {
        let state = daemon.state();
        state.sessions.is_empty() && state.is_empty()
    });
    let device_used = match before {
        Some(before) => witness.used_once_down_to(gpu, before.device_used)?,
        None => at_rest(witness, gpu)?,
    };
    // A connection ends a moment after its session.
    let most = before.map_or(0, |before| before.daemon_fds);
    let end = Instant::now() + Duration::from_secs(5);
    let mut daemon_fds = fd_count(daemon.pid());
    while daemon_fds > most && Instant::now() < end {
        thread::sleep(Duration::from_millis(50));
        daemon_fds = daemon_fds.min(fd_count(daemon.pid()));
    }
    let state = daemon.state();
    Ok(Trace { charged: state.charged() + state.unreturned(), daemon_fds, device_used })
}

/// Returns the device's lowest use once it has been stable for a while.
fn at_rest(witness: &Witness, gpu: &str) -> Result<u64> {
    let mut lowest = witness.used(gpu)?;
    let mut since = Instant::now();
    while since.elapsed() < Duration::from_secs(3) {
        thread::sleep(Duration::from_millis(50));
        let used = witness.used(gpu)?;
        if used < lowest {
            (lowest, since) = (used, Instant::now());
        }
    }
    Ok(lowest)
}

/// `xorshift64*`
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) % bound
    }

    fn below_index(&mut self, bound: usize) -> usize {
        usize::try_from(self.below(bound as u64)).unwrap_or(0)
    }

    fn below_ms(&mut self, bound: u64) -> Duration {
        Duration::from_millis(self.below(bound))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_plan_and_has_all_sorts() {
        let count =
            |victims: &[Victim], wanted: fn(&Victim) -> bool| victims.iter().filter(|v| wanted(v)).count();
        let victims = plan(FULL, SEED);
        assert_eq!(victims.len(), 2000);
        assert_eq!(count(&victims, |victim| victim.after == Some(IN_FLIGHT)), FULL.in_flight);
        for step in &STEPS_WITH_CONTEXT[..3] {
            let dies_there = |victim: &&Victim| victim.steps.is_none() && victim.after == Some(step);
            assert_eq!(victims.iter().filter(dies_there).count(), FULL.on_the_way / 3, "after {step}");
        }
        assert_eq!(format!("{victims:?}"), format!("{:?}", plan(FULL, SEED)));
        for steps in 1..=STEPS.len() {
            assert!(victims.iter().any(|victim| victim.steps == Some(steps)), "{steps} steps");
        }
    }
}
