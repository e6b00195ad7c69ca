//! `vramctl`: what people ask of the node's daemon. `noun verb`, one file a noun.

mod alloc;
mod args;
mod by_hand;
mod completions;
mod device;
mod digest;
mod event;
mod failure;
mod free;
mod hold;
mod link;
mod moves;
mod node;
mod output;
mod parts;
mod progress;
mod put;
mod quota;
mod relocate;
mod revoke;
mod session;
mod settings;
mod status;
mod table;
mod verify;
mod wait;
mod watch;

use std::process::ExitCode;

use clap::Parser as _;
use vramd_client::admin::AdminClient;

use crate::{
    args::{Args, Noun},
    failure::Failure,
    output::Output,
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
    let admin = || AdminClient::new(&socket_dir).map_err(Failure::from);
    match args.noun {
        Noun::Status => status::run(&admin()?, output),
        Noun::Quota(verb) => quota::run(verb, &admin()?, output),
        Noun::Session(verb) => session::run(verb, &admin()?, output),
        Noun::Alloc(verb) => alloc::run(verb, &admin()?, output),
        Noun::Ls(list) => alloc::run(alloc::Verb::List(list), &admin()?, output),
        Noun::Wait(verb) => wait::run(verb, &admin()?, output),
        Noun::Move(verb) => moves::run(&verb, &admin()?, output),
        Noun::Link(verb) => link::run(&verb, &admin()?, output),
        Noun::Device(verb) => device::run(verb, &admin()?, output),
        Noun::Node(verb) => node::run(verb, &admin()?, output),
        Noun::Settings(verb) => settings::run(verb, &admin()?, output),
        Noun::Watch(watch) => watch::run(watch, &admin()?, output),
        Noun::Completions(shell) => completions::run(&shell, output),
        Noun::Put(put) => put::run(&put, &socket_dir, output),
        Noun::Verify(verify) => verify::run(&verify, &socket_dir, output),
    }
}
