//! Where and when a report was made.

use std::{env, fs, process::Command, thread};

use serde_json::{Value, json};

pub(crate) fn machine() -> Value {
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

/// What a program says: of `git`, the commit; of `date`, the time.
pub(crate) fn said_by(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// How this was called.
pub(crate) fn command() -> String {
    let arguments: Vec<_> = env::args().skip(1).collect();
    format!("cargo run -p simulator -- {}", arguments.join(" "))
}
