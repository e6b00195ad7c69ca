//! The end-to-end cases on real GPUs. Each has its own daemon, clients that are processes, and NVML as an outside witness. The report has
//! the observations of each case, whether it passed or not.

mod actor;
mod capture;
mod faults;
mod files;
mod fixed;
mod in_place;
mod memory;
mod moves;
mod pins;
mod python;
mod restart;
mod sharing;
mod torch;
mod turns;

use std::{
    any::Any,
    env,
    io::{self, Write as _},
    panic::{self, AssertUnwindSafe},
    process::{Command, Stdio},
    time::Instant,
};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use vramd_types::GRANULARITY;

use crate::{bench::Driver, cuda, machine, nvml::Witness};
use actor::Actor;
use turns::Below;

/// The scene of a case. A panic fails the case.
pub(crate) struct World {
    pub(crate) witness: Witness,
    /// The UUIDs in CUDA's order. Clients use the first by default.
    pub(crate) gpus: Vec<String>,
    /// Whether long cases run shorter.
    quick: bool,
}

type Case = fn(&World) -> Value;
/// Chooses a value for a quick run or a full one.
type SimCase = fn(bool) -> Value;

const FOUR_TIMES: &str = "three tenants, four times the device";
const TEN_TIMES: &str = "three tenants, ten times the device";

const CASES: &[(&str, Case)] = &[
    ("shared by three processes", sharing::three_processes),
    ("read-only means read-only", faults::a_write_through_a_read_only_mapping),
    ("a kernel that faults", faults::an_illegal_address),
    ("killed with a kernel in flight", faults::killed_in_flight),
    ("fixed memory inside a tenant", fixed::inside_a_tenant),
    ("memory taken from outside", memory::taken_from_outside),
    ("all that the daemon may hand out", memory::all_of_it),
    ("the daemon is killed", restart::killed_and_started_again),
    ("several GPUs", sharing::several_gpus),
    ("evicted and pinned again", pins::evicted_and_pinned_again),
    ("unpinned after a stream", pins::unpinned_after_a_stream),
    ("moved to the host and back", moves::to_the_host_and_back),
    ("moved to disk and back", moves::to_disk_and_back),
    ("accessed in place, and moved", in_place::accessed_and_moved),
    (FOUR_TIMES, |world| turns::three_tenants(Driver::Cuda, Below::Host, world.quick)),
    (TEN_TIMES, |world| turns::three_tenants(Driver::Cuda, Below::HostAndDisk, world.quick)),
    ("weights read in place", files::read_in_place),
    ("stream capture beside the SDK", capture::beside_the_sdk),
    ("torch", torch::shares_the_context),
    ("torch shares a model", torch::shares_a_model),
];

/// The cases that also run on the simulated driver, so that they can be tried without a GPU.
const ON_SIM: &[(&str, SimCase)] = &[
    (FOUR_TIMES, |quick| turns::three_tenants(Driver::Sim, Below::Host, quick)),
    (TEN_TIMES, |quick| turns::three_tenants(Driver::Sim, Below::HostAndDisk, quick)),
];

impl World {
    fn new(quick: bool) -> Result<Self> {
        let witness = Witness::new()?;
        let gpus = cuda::uuids()?;
        gpus.first().context("this machine has no GPU that CUDA can use")?;
        warm_up()?;
        Ok(Self { witness, gpus, quick })
    }

    pub(crate) fn gpu(&self) -> &str {
        &self.gpus[0]
    }

    #[track_caller]
    pub(crate) fn used(&self) -> u64 {
        self.witness.used(self.gpu()).expect("NVML answers")
    }

    #[track_caller]
    pub(crate) fn figures(&self) -> Value {
        self.witness.figures(self.gpu()).expect("NVML answers")
    }

    /// Waits until the device uses no more than `bytes` again. Less than the smallest extent is the driver's own bookkeeping: an H200
    /// kept 64 KiB after a client had died.
    #[track_caller]
    pub(crate) fn wait_until_down_to(&self, expected: u64) {
        let bound = expected + (GRANULARITY.get() - 1);
        let used = self.witness.used_once_down_to(self.gpu(), bound).expect("NVML answers");
        assert!(used <= bound, "{used} bytes are in use, and {expected} were");
    }
}

/// Runs every case of that driver, or the named ones. Returns true if none failed.
pub(crate) fn run(
    driver: Driver,
    quick: bool,
    only: &[String],
    save: impl Fn(&Value) -> Result<()>,
) -> Result<bool> {
    match driver {
        Driver::Cuda => {
            let world = World::new(quick)?;
            let play = |case: &Case| {
                let before = world.used();
                let seen = case(&world);
                world.wait_until_down_to(before);
                seen
            };
            run_all(CASES, only, machine::facts(&world.witness)?, play, save)
        }
        Driver::Sim => run_all(ON_SIM, only, json!("none: the simulated driver"), |case| case(quick), save),
    }
}

/// Runs the cases in turn. The report is saved after each one, since a later one may hang.
fn run_all<C>(
    cases: &[(&str, C)],
    only: &[String],
    machine: Value,
    play: impl Fn(&C) -> Value,
    save: impl Fn(&Value) -> Result<()>,
) -> Result<bool> {
    for wanted in only {
        ensure!(cases.iter().any(|(name, _)| name == wanted), "there is no case `{wanted}`");
    }
    let mut report = json!({ "machine": machine, "cases": {} });
    let mut good = true;
    let chosen = |name: &&str| only.is_empty() || only.iter().any(|wanted| wanted == name);
    for (name, case) in cases.iter().filter(|(name, _)| chosen(name)) {
        let started = Instant::now();
        let outcome = panic::catch_unwind(AssertUnwindSafe(|| play(case)));
        let seconds = started.elapsed().as_secs_f64();
        good &= outcome.is_ok();
        let (word, seen) = match outcome {
            // The machine lacks something that the case needs.
            Ok(seen) if seen.get("absent").is_some() => ("absent", seen),
            Ok(seen) => ("ok", seen),
            Err(panic) => ("FAILED", Value::String(text(&*panic))),
        };
        writeln!(io::stdout(), "{word:6} {name} ({seconds:.1} s)")?;
        report["cases"][name] = json!({ "passed": word == "ok", "seconds": seconds, "seen": seen });
        save(&report)?;
    }
    Ok(good)
}

/// Creates and destroys a context. The driver's own use after that is not a leak of the first case.
fn warm_up() -> Result<()> {
    let mut command = Command::new(env::current_exe()?);
    let mut client = command.arg("client").stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
    client.stdin.take().context("its input is a pipe")?.write_all(b"gpu\n")?;
    ensure!(client.wait()?.success(), "a process cannot use the GPU");
    Ok(())
}

fn text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without words").to_owned()
}
