//! Runs the contract suite on the simulated driver, and writes it down as `contract-cuda` does: so that what the two
//! say can be laid side by side.
//!
//! ```text
//! contract-sim [--json FILE] [PART OF A NAME]...
//! ```
//!
//! Ends with 0 where no case failed, with 1 where one did, with 2 where the suite could not run.
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
