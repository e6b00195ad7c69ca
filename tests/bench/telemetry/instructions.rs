//! Instructions of one `DescribeAllocation` in the daemon, counted by valgrind as the difference between many calls and few.

use std::{
    fs,
    io::{self, Write as _},
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use vramd_tests::{
    Home, MIB, RawSession,
    collector::Collector,
    rpc::is_serving,
    session::persistent,
    wait::{PATIENCE, within},
};

use super::Amount;
use crate::caller::Caller;

const FEW: usize = 200;
const MANY: usize = 4_200;
const MANY_QUICK: usize = 1_200;

/// Counts for each amount of telemetry. The result is null without valgrind.
pub(super) fn run(sink: &Collector, quick: bool) -> Result<Value> {
    let mut out = io::stdout();
    if Command::new("valgrind").arg("--version").output().is_err() {
        writeln!(out, "instructions  unavailable: there is no valgrind")?;
        return Ok(Value::Null);
    }
    let many = if quick { MANY_QUICK } else { MANY };
    let mut off = 0.0;
    let mut report = serde_json::Map::new();
    for amount in [Amount::Nothing, Amount::Usual, Amount::Everything] {
        let each = each(amount, sink, many)?;
        if amount == Amount::Nothing {
            off = each;
        }
        let ratio = each / off;
        writeln!(out, "instructions  {}: {each:.0} a call, {ratio:.3} times those without", amount.name())?;
        report.insert(amount.name().to_owned(), json!({ "each": each.round(), "ratio_to_off": ratio }));
    }
    report.insert("calls".to_owned(), json!(many - FEW));
    Ok(Value::Object(report))
}

#[expect(clippy::cast_precision_loss, reason = "counts of instructions are far below 2^53")]
fn each(amount: Amount, sink: &Collector, many: usize) -> Result<f64> {
    let (few, many_took) = (daemon(amount, sink, FEW)?, daemon(amount, sink, many)?);
    ensure!(many_took > few, "{many} calls took fewer instructions than {FEW}");
    Ok((many_took - few) as f64 / (many - FEW) as f64)
}

/// Counts the instructions of a daemon's whole life with `calls` calls.
fn daemon(amount: Amount, sink: &Collector, calls: usize) -> Result<u64> {
    let home = Home::new();
    amount.config(sink).write(home.path());
    let counted = home.path().join("counted");
    let plain = home.command();
    let mut child = Command::new("valgrind")
        .args(["--quiet", "--tool=cachegrind", "--cache-sim=no", "--branch-sim=no"])
        .arg(format!("--cachegrind-out-file={}", counted.display()))
        .arg(plain.get_program())
        .args(plain.get_args())
        .current_dir(home.path())
        .env_remove("VRAMD_SOCKET_DIR")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(fs::File::create(home.path().join("log"))?)
        .spawn()?;
    let admin = home.sockets().join("admin.sock");
    let serving = within(PATIENCE * 2, || is_serving(&admin, "").then_some(()));
    let called =
        serving.context("the daemon serves under valgrind").and_then(|()| call(&home.sockets(), calls));
    kill_process(Pid::from_child(&child), Signal::TERM)?;
    let status = child.wait()?;
    called.with_context(|| home.log())?;
    ensure!(status.success(), "the daemon ended with {status}: {}", home.log());
    let text = fs::read_to_string(&counted).context("valgrind has counted")?;
    let summary = text.lines().find_map(|line| line.strip_prefix("summary:"));
    Ok(summary.context("a sum")?.trim().parse()?)
}

fn call(sockets: &Path, calls: usize) -> Result<()> {
    let mut session = RawSession::open(sockets);
    let allocation = session.allocate(persistent("bench", 2 * MIB)).allocation_id;
    let mut caller = Caller::connect(&sockets.join("vramd.sock"), session.id(), allocation)?;
    caller.time(calls).map(drop)
}
