//! A program for CUDA that knows nothing of vramd: it finds the driver's functions as programs do, calls them, and says
//! what it finds. `vramctl run` runs it over the fake driver library.
//!
//! `bare checks DOOR` checks each function of the preload library's table, found by that door, and writes a line for each:
//! its name, then `ok` or what differs. `bare scene NAME` plays one of the scenes, which says `done` or what went wrong.
//! `bare gated DOOR` does so for the functions that have the device touch memory: how often the call came to the gate.
//! `bare launches BATCHES` measures launches. `bare look` opens the driver and closes it again. `bare versions` finds
//! functions of the C library by `dlvsym`.

#![allow(clippy::print_stdout, reason = "the test reads it")]
#![allow(unsafe_code, reason = "functions of a C library, found and called as programs do")]

mod checks;
mod door;
mod frees;
mod gated;
mod launches;
mod pools;
mod scenes;
mod turns;

use std::{env, process::ExitCode};

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["checks", name] => checks::run(&door::Driver::open(name)),
        ["gated", name] => gated::run(&door::Driver::open(name)),
        ["launches", batches] => return launches::run(batches),
        ["scene", name, more @ ..] => match scenes::play(name, more, &door::Driver::open("dlsym")) {
            Ok(()) => println!("done"),
            Err(problem) => println!("{problem}"),
        },
        ["versions"] => println!("count: {}", door::versions_count()),
        ["look"] => println!("stays: {}", door::stays_loaded_after_a_look()),
        _ => return ExitCode::from(2),
    }
    ExitCode::SUCCESS
}
