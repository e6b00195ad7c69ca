//! The cost of revoking memory and pinning it again, and whether programs that pin survive it. `docs/benchmarks/pins/README.md` says what is
//! timed.

mod pinner;
mod revocations;
mod revoke;

use std::{
    fs,
    io::{self, Write as _},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};
use vramd_tests::{Config, Daemon, programs::program};

use crate::{cuda::Gpu, machine, nvml::Witness};

pub(crate) use pinner::run as pinner;

const PAIRS: usize = 15;
const PAIRS_QUICK: usize = 7;

/// Returns true if every question has an answer, and no program that pins was harmed. The report is saved after each.
pub(crate) fn run(quick: bool, save: impl Fn(&Value) -> Result<()>) -> Result<bool> {
    let limit = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: limit, maximum: limit })?;
    let daemon = Daemon::start(&Config::cuda().log_level("info"));
    let mut report = json!({
        "machine": machine::facts(&Witness::new()?)?,
        "configuration": "the default one",
    });
    let mut good = true;
    type Question = fn(&Daemon, bool, &mut Value) -> Result<()>;
    let questions: [(&str, Question); 3] =
        [("revoke", revoke_ratio), ("revocations", revocations::run), ("pin_unpin", pin_unpin)];
    for (name, question) in questions {
        if let Err(error) = question(&daemon, quick, &mut report) {
            good = false;
            writeln!(io::stdout(), "{name:9} FAILED: {error:#}")?;
            report[name]["problem"] = json!(format!("{error:#}"));
        }
        save(&report)?;
        daemon.drains();
    }
    Ok(good)
}

fn revoke_ratio(daemon: &Daemon, quick: bool, report: &mut Value) -> Result<()> {
    let gpu = Gpu::open(None)?;
    let measure = revoke::run(daemon, &gpu, if quick { PAIRS_QUICK } else { PAIRS })?;
    writeln!(io::stdout(), "{}", measure.line("revoke"))?;
    report["revoke_ratio"] = json!(measure.median());
    report["revoke"] = measure.json();
    Ok(())
}

/// Runs `bench-rpc pins` on this machine, which needs no GPU.
fn pin_unpin(_: &Daemon, quick: bool, report: &mut Value) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("pins.json");
    let mut command = Command::new(program("bench-rpc"));
    command.arg("pins").arg("--json").arg(&file);
    if quick {
        command.arg("--quick");
    }
    let done = command.stdin(Stdio::null()).output()?;
    let said = String::from_utf8_lossy(&done.stdout);
    for line in said.lines() {
        writeln!(io::stdout(), "pin_unpin {line}")?;
    }
    ensure!(done.status.success(), "bench-rpc pins: {}", String::from_utf8_lossy(&done.stderr).trim());
    let found: Value = serde_json::from_slice(&fs::read(&file)?)?;
    report["pin_unpin_ns"] = found.get("pin_unpin_ns").context("no pin_unpin_ns")?.clone();
    report["pin_unpin"] = found.get("pins").context("no table of pins")?.clone();
    Ok(())
}
