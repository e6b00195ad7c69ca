//! `vramctl`: the operator's tool. [`commands`] has one module for each subcommand, [`output`] what they all print with.

mod args;
mod commands;
mod output;

use std::process::ExitCode;

use clap::Parser as _;

use crate::{
    args::Args,
    output::{Output, failure::Failure},
};

fn main() -> ExitCode {
    let args = Args::parse();
    let output = Output::new(args.json);
    match run(args, &output) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output.failure(&failure);
            failure.exit_code()
        }
    }
}

fn run(args: Args, output: &Output) -> Result<(), Failure> {
    let socket_dir = args.socket_dir.unwrap_or_else(vramd_client::socket_dir);
    args.command.run(&socket_dir, output)
}
