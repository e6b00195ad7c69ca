//! `vramctl`, the operator's tool, as a library: the binary is [`main`], and the page of commands is made of [`command_line`].
//!
//! `commands` has one module for each subcommand, `output` the code that prints for all of them.

mod args;
mod commands;
mod output;

use std::{process::ExitCode, time::Duration};

use clap::{CommandFactory as _, Parser as _};

use crate::{
    args::Args,
    output::{Output, failure::Failure},
};

/// Runs the program on the arguments of the process.
pub fn main() -> ExitCode {
    let args = Args::parse();
    let output = Output::new(args.json, args.uuids);
    match run(args, &output) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output.failure(&failure);
            failure.exit_code()
        }
    }
}

/// Returns the command line with all subcommands and their help.
pub fn command_line() -> clap::Command {
    Args::command()
}

fn run(args: Args, output: &Output) -> Result<(), Failure> {
    args.command.run(args.socket_dir.as_deref(), Duration::from_secs(args.timeout), output)
}
