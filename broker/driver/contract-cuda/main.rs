//! Runs the contract suite on the CUDA driver of this machine: one program, no toolchain needed.
//!
//! ```text
//! contract-cuda [--library PATH] [--nvml PATH] [--params PATH] [--device UUID]... [--json FILE] [PART OF A NAME]...
//! ```
//!
//! Ends with 0 where no case failed, with 1 where one did, with 2 where the suite could not run.
#![allow(clippy::print_stdout, reason = "it reports to people")]

mod arguments;
mod harness;
mod importer;
#[path = "../tests/importer/wire.rs"]
mod wire;

use std::{
    env, fs,
    panic::{self, AssertUnwindSafe},
    process::ExitCode,
    time::Instant,
};

use broker_driver::contract::{self, Verdict};
use serde_json::{Value, json};

use self::{arguments::Arguments, harness::CudaHarness};

fn main() -> ExitCode {
    if let Some(role) = importer::role() {
        importer::serve(&role);
        return ExitCode::SUCCESS;
    }
    let arguments = match Arguments::read(env::args_os().skip(1)) {
        Ok(arguments) => arguments,
        Err(problem) => return cannot(&problem),
    };
    let harness = match CudaHarness::new(&arguments) {
        Ok(harness) => harness,
        Err(problem) => return cannot(&problem),
    };
    println!("{}", harness.facts_text());
    let mut results = Vec::new();
    let wanted =
        |name: &str| arguments.only.is_empty() || arguments.only.iter().any(|part| name.contains(part));
    for (name, case) in contract::cases().iter().filter(|(name, _)| wanted(name)) {
        let begun = Instant::now();
        let result = panic::catch_unwind(AssertUnwindSafe(|| case(&harness)));
        let seconds = begun.elapsed().as_secs_f64();
        let (result, detail) = match result {
            Ok(Verdict::Passed) => ("ok", String::new()),
            Ok(Verdict::NotApplicable(why)) => ("not applicable", why.to_owned()),
            Err(panic) => ("FAILED", said(panic.as_ref())),
        };
        println!("{name} ... {result} ({seconds:.2} s){}{detail}", if detail.is_empty() { "" } else { ": " });
        results.push(json!({ "case": name, "result": result, "seconds": seconds, "detail": detail }));
    }
    let failed = results.iter().filter(|it| it["result"] == "FAILED").count();
    println!("{} cases, {failed} failed", results.len());
    let report = json!({ "driver": harness.facts_json(), "failed": failed, "cases": Value::Array(results) });
    if let Some(path) = &arguments.json
        && let Err(error) = fs::write(path, format!("{report:#}\n"))
    {
        return cannot(&format!("write {}: {error}", path.display()));
    }
    ExitCode::from(u8::from(failed > 0))
}

fn cannot(problem: &str) -> ExitCode {
    eprintln!("contract-cuda: {problem}");
    ExitCode::from(2)
}

/// What a panic said.
fn said(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic".to_owned())
}
