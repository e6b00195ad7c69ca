//! Runs the contract suite on the CUDA driver of this machine: one program, no toolchain needed.
//!
//! ```text
//! contract-cuda [--library PATH] [--nvml PATH] [--params PATH] [--device UUID]... [--directory PATH] [--json FILE]
//!     [PART OF A NAME]...
//! ```
//!
//! Without a part of a name, or with `pinning`, it also measures pinning host memory ahead of need; with
//! `disk_speed`, how fast extents go to disk and come back.
//!
//! The exit status is 0 if no case failed, 1 if one did, and 2 if the suite could not run.
#![allow(clippy::print_stdout, reason = "it reports to people")]

mod arguments;
mod disk_speed;
mod harness;
mod importer;
mod pinning;
mod plain_disk;
mod report;
#[path = "../tests/importer/wire.rs"]
mod wire;

use std::{env, process::ExitCode};

use self::{arguments::Arguments, harness::CudaHarness};

fn main() -> ExitCode {
    if let Some(role) = importer::role() {
        importer::serve(&role);
        return ExitCode::SUCCESS;
    }
    let arguments = match Arguments::read(env::args_os().skip(1)) {
        Ok(arguments) => arguments,
        Err(problem) => return fail(&problem),
    };
    let harness = match CudaHarness::new(&arguments) {
        Ok(harness) => harness,
        Err(problem) => return fail(&problem),
    };
    println!("{}", harness.facts_text());
    let mut facts = harness.facts_json();
    // Unless only some cases are requested.
    if arguments.only.is_empty() || arguments.only.iter().any(|part| part == "pinning") {
        match pinning::measure(&harness) {
            Ok((figures, text)) => {
                println!("{text}");
                facts["pinning"] = figures;
            }
            Err(problem) => return fail(&problem),
        }
    }
    if arguments.only.iter().any(|part| part == "disk_speed") {
        match disk_speed::measure(&harness) {
            Ok((figures, text)) => {
                println!("{text}");
                facts["disk_speed"] = figures;
            }
            Err(problem) => return fail(&problem),
        }
    }
    match report::run(&harness, &facts, &arguments.only, arguments.json.as_deref()) {
        Ok(failed) => ExitCode::from(u8::from(failed > 0)),
        Err(problem) => fail(&problem),
    }
}

fn fail(problem: &str) -> ExitCode {
    eprintln!("contract-cuda: {problem}");
    ExitCode::from(2)
}
