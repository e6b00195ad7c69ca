//! Clients and surroundings that mean harm, or have bad luck.

mod files;
mod ids;
mod interrupts;
mod lost_sockets;
mod memory;
mod process_ends;
mod refusal_lines;
mod silent_sessions;
mod state;
mod surroundings;
mod unread_log;

use std::process::Output;

use vramd_tests::Home;

/// Starts a daemon that must end by itself, and returns its exit status and what it says; then what `--check` says.
fn refused(home: &Home) -> [(Option<i32>, String); 2] {
    let said = |output: Output| {
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&text).into_owned())
    };
    [said(home.command().output().unwrap()), said(home.command().arg("--check").output().unwrap())]
}
