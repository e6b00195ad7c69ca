//! The provenance of a report: machine, time and commit. Figures mean nothing without it.

use std::{fs, process::Command, thread};

use serde_json::{Value, json};

use crate::repository;

pub fn machine() -> Value {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or_default();
    json!({
        "cpu": model.trim_start_matches([' ', '\t', ':']),
        "cores": thread::available_parallelism().map_or(0, std::num::NonZero::get),
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
        "load": read("/proc/loadavg").trim(),
    })
}

/// Returns the output of a program that runs in the repository: the commit from `git`, the time from `date`. Returns `None` if the program
/// is missing or fails. A binary that was carried to another machine does not know its commit.
pub fn output_of(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).current_dir(repository()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
