//! The subcommands, one module each. A new one gets a variant of [`Command`], an arm of [`Command::run`] and a module here.

mod alloc;
mod apply;
mod completions;
mod device;
mod doctor;
mod estimate;
mod file;
mod freed;
mod link;
mod mine;
mod moves;
mod names;
mod node;
mod prefetch;
mod quota;
mod replay;
mod run;
mod session;
mod settings;
mod status;
mod tenant;
mod top;
mod trace;
mod turn;
mod wait;
mod watch;

use std::{path::Path, time::Duration};

use clap::Subcommand;
use vramd_client::{Client, ClientBuilder, admin::AdminClient};

use crate::output::{Output, failure::Failure};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show the node on one page: driver, devices, tenants, allocations.
    Status,
    /// Show the node as it changes: tiers, tenants, moves, the line and prefetches. `?` shows the keys.
    Top(top::Top),
    /// Show and set guarantees and limits of tenants.
    #[command(subcommand)]
    Quota(quota::Verb),
    /// Show and set the classes and weights of tenants.
    #[command(subcommand)]
    Tenant(tenant::Verb),
    /// Apply a file of tenants, their rules, classes and quotas: all of it, or nothing.
    Apply(apply::Apply),
    /// Show and end sessions of client processes.
    #[command(subcommand)]
    Session(session::Verb),
    /// Show, free, move and hold allocations.
    #[command(subcommand)]
    Alloc(alloc::Verb),
    /// Short for `alloc list`.
    Ls(alloc::List),
    /// Show the waiters for room on devices, and end their waits.
    #[command(subcommand)]
    Wait(wait::Verb),
    /// Show the parts that clients asked for ahead of their use, and cancel requests.
    #[command(subcommand)]
    Prefetch(prefetch::Verb),
    /// Show working sets and whose turn it is, and ask a program to yield.
    #[command(subcommand)]
    Turn(turn::Verb),
    /// Show the parts that move between tiers.
    #[command(subcommand)]
    Move(moves::Verb),
    /// Show the links that copies use.
    #[command(subcommand)]
    Link(link::Verb),
    /// Show the node's devices.
    #[command(subcommand)]
    Device(device::Verb),
    /// Show the node, and take it out of service or back.
    #[command(subcommand)]
    Node(node::Verb),
    /// Say what the node is, which limits stand in the way, and what to set. Needs no daemon.
    Doctor(doctor::Doctor),
    /// Show and change levels of pressure, sizes of tiers and shares of links.
    #[command(subcommand)]
    Settings(settings::Verb),
    /// Show what the own tenant may have, has and can get, and its allocations. Needs no operator.
    Mine(mine::Mine),
    /// Say whether a model fits into device memory, and how fast it would stream if it does not.
    Estimate(estimate::Estimate),
    /// Record what happens to parts, for `vramctl replay`.
    #[command(subcommand)]
    Trace(trace::Verb),
    /// Play a trace with eviction policies, and print what each would fetch. Needs no daemon.
    Replay(replay::Replay),
    /// Print events as they happen, until interrupted or until the daemon ends.
    Watch(watch::Watch),
    /// Run a program for CUDA with memory of the daemon, without changing the program.
    Run(run::Run),
    /// Put a file into a named allocation and seal it. It stays until it is freed or the daemon ends.
    Put(file::put::Put),
    /// Map a sealed allocation, hash the mapped bytes and compare digests.
    Verify(file::verify::Verify),
    /// Print a script that completes this command line in a shell.
    Completions(completions::Completions),
}

impl Command {
    /// Runs the subcommand against the daemon whose sockets lie in `socket_dir`, or else where clients look for them.
    pub(crate) fn run(
        self,
        socket_dir: Option<&Path>,
        timeout: Duration,
        output: &Output,
    ) -> Result<(), Failure> {
        let admin = || {
            let admin = socket_dir.map_or_else(AdminClient::find, AdminClient::new)?;
            Ok::<_, Failure>(admin.request_timeout(timeout))
        };
        match self {
            Self::Status => status::run(&admin()?, output),
            Self::Top(top) => {
                let daemon = top::Daemon { socket_dir: socket_dir.map(Path::to_owned), timeout };
                top::run(&top, &daemon, output)
            }
            Self::Quota(verb) => quota::run(verb, &admin()?, output),
            Self::Tenant(verb) => tenant::run(verb, &admin()?, output),
            Self::Apply(apply) => apply::run(&apply, &admin()?, output),
            Self::Session(verb) => session::run(verb, &admin()?, output),
            Self::Alloc(verb) => alloc::run(verb, &admin()?, output),
            Self::Ls(list) => alloc::run(alloc::Verb::List(list), &admin()?, output),
            Self::Wait(verb) => wait::run(verb, &admin()?, output),
            Self::Prefetch(verb) => prefetch::run(verb, &admin()?, output),
            Self::Turn(verb) => turn::run(verb, &admin()?, output),
            Self::Move(verb) => moves::run(&verb, &admin()?, output),
            Self::Link(verb) => link::run(&verb, &admin()?, output),
            Self::Device(verb) => device::run(verb, &admin()?, output),
            Self::Node(verb) => node::run(verb, &admin()?, output),
            Self::Doctor(doctor) => doctor::run(&doctor, admin, output),
            Self::Settings(verb) => settings::run(verb, &admin()?, output),
            Self::Trace(verb) => trace::run(&verb, &admin()?, output),
            Self::Replay(replay) => replay::run(&replay, output),
            Self::Watch(watch) => watch::run(watch, &admin()?, output),
            Self::Completions(shell) => completions::run(&shell, output),
            Self::Estimate(estimate) => estimate::run(&estimate, client(socket_dir), output),
            Self::Mine(mine) => mine::run(mine, client(socket_dir), output),
            Self::Run(run) => run::run(&run, socket_dir, client(socket_dir)),
            Self::Put(put) => file::put::run(&put, client(socket_dir), output),
            Self::Verify(verify) => file::verify::run(&verify, client(socket_dir), output),
        }
    }
}

/// A client that looks in this folder, or else where all clients look.
fn client(socket_dir: Option<&Path>) -> ClientBuilder {
    match socket_dir {
        Some(dir) => Client::builder().socket_dir(dir),
        None => Client::builder(),
    }
}
