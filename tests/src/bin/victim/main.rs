//! A client that comes to one step of the protocol and dies there, in the way that its arguments say.
//!
//! It reports each step in one line, so that its watcher knows when it has come to its last.

mod moves;
mod reaper;
mod sdk;
mod steps;
mod wire;

use std::{
    io::{self, Write as _},
    process, thread,
    time::Duration,
};

use anyhow::Result;
use clap::Parser;
use rustix::process::{Signal, set_parent_process_death_signal};
use vramd_tests::victim::{Fate, Order, Report};

/// Longer than any life takes. The watcher may be gone, or wait for a victim that hangs.
const LIFE_MAX: Duration = Duration::from_secs(90);

#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    fate: Fate,
}

fn main() -> Result<()> {
    let Arguments { fate } = Arguments::parse();
    set_parent_process_death_signal(Some(Signal::KILL))?;
    thread::spawn(|| {
        thread::sleep(LIFE_MAX);
        process::abort();
    });
    if fate.script.is_of_sdk() { sdk::live(fate) } else { wire::live(fate) }
}

fn say(word: &Report) {
    // One write, so that a kill leaves no half of a line.
    let line = format!("{word}\n");
    io::stdout().write_all(line.as_bytes()).expect("somebody listens");
}

/// Obeys orders until it is killed.
fn obey(mut obeyed: impl FnMut(Order) -> Result<Report>) -> Result<()> {
    for line in io::stdin().lines() {
        say(&obeyed(line?.parse()?)?);
    }
    stand_still()
}

fn stand_still() -> ! {
    loop {
        thread::park();
    }
}
