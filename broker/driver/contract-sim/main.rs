//! Runs the contract suite on the simulated driver, and reports as `contract-cuda` does, so that both reports
//! can be compared.
//!
//! ```text
//! contract-sim [--json FILE] [PART OF A NAME]...
//! ```
//!
//! The exit status is 0 if no case failed, 1 if one did, and 2 if the suite could not run.
#![allow(clippy::print_stdout, reason = "it reports to people")]

mod harness;
#[path = "../tests/importer/mod.rs"]
mod importer;
#[path = "../contract-cuda/report.rs"]
mod report;

use std::{env, path::PathBuf, process::ExitCode};

use serde_json::json;

use self::harness::SimHarness;

fn main() -> ExitCode {
    if importer::serves() {
        return ExitCode::SUCCESS;
    }
    match run() {
        Ok(failed) => ExitCode::from(u8::from(failed > 0)),
        Err(problem) => {
            eprintln!("contract-sim: {problem}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<usize, String> {
    let (mut file, mut only) = (None, Vec::new());
    let mut words = env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--json" => file = Some(PathBuf::from(words.next().ok_or("--json needs a value")?)),
            option if option.starts_with('-') => return Err(format!("there is no option {option}")),
            _ => only.push(word),
        }
    }
    report::run(&SimHarness::new(), &json!({ "name": "sim" }), &only, file.as_deref())
}
