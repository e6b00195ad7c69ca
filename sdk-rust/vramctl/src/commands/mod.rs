//! The subcommands, one module each. A new one gets a variant of [`Command`], an arm of [`Command::run`] and a module here.

mod alloc;
mod completions;
mod device;
mod file;
mod link;
mod moves;
mod node;
mod quota;
mod session;
mod settings;
mod status;
mod wait;
mod watch;

use std::path::Path;

use clap::Subcommand;
use vramd_client::admin::AdminClient;

pub(crate) use self::watch::event::Told;
use crate::output::{Output, failure::Failure};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// The node at a glance: driver, devices, tenants, allocations.
    Status,
    /// Guarantees and limits of tenants.
    #[command(subcommand)]
    Quota(quota::Verb),
    /// Connected client processes.
    #[command(subcommand)]
    Session(session::Verb),
    /// Allocations of all tenants.
    #[command(subcommand)]
    Alloc(alloc::Verb),
    /// Short for `alloc list`.
    Ls(alloc::List),
    /// The line of waiters for room on a device.
    #[command(subcommand)]
    Wait(wait::Verb),
    /// Parts that move between tiers.
    #[command(subcommand)]
    Move(moves::Verb),
    /// The links by which bytes move.
    #[command(subcommand)]
    Link(link::Verb),
    /// The node's devices.
    #[command(subcommand)]
    Device(device::Verb),
    /// The node itself, and whether it is in service.
    #[command(subcommand)]
    Node(node::Verb),
    /// Levels of pressure, sizes of tiers and shares of links.
    #[command(subcommand)]
    Settings(settings::Verb),
    /// Shows what happens, as it happens, until it is interrupted or the daemon ends.
    Watch(watch::Watch),
    /// Puts a file into a named allocation and seals it.
    Put(file::put::Put),
    /// Maps a sealed allocation and hashes the mapped bytes.
    Verify(file::verify::Verify),
    /// Prints a script that completes this program's command line.
    Completions(completions::Completions),
}

impl Command {
    /// Runs the subcommand against the daemon whose sockets lie in `socket_dir`.
    pub(crate) fn run(self, socket_dir: &Path, output: &Output) -> Result<(), Failure> {
        let admin = || AdminClient::new(socket_dir).map_err(Failure::from);
        match self {
            Self::Status => status::run(&admin()?, output),
            Self::Quota(verb) => quota::run(verb, &admin()?, output),
            Self::Session(verb) => session::run(verb, &admin()?, output),
            Self::Alloc(verb) => alloc::run(verb, &admin()?, output),
            Self::Ls(list) => alloc::run(alloc::Verb::List(list), &admin()?, output),
            Self::Wait(verb) => wait::run(verb, &admin()?, output),
            Self::Move(verb) => moves::run(&verb, &admin()?, output),
            Self::Link(verb) => link::run(&verb, &admin()?, output),
            Self::Device(verb) => device::run(verb, &admin()?, output),
            Self::Node(verb) => node::run(verb, &admin()?, output),
            Self::Settings(verb) => settings::run(verb, &admin()?, output),
            Self::Watch(watch) => watch::run(watch, &admin()?, output),
            Self::Completions(shell) => completions::run(&shell, output),
            Self::Put(put) => file::put::run(&put, socket_dir, output),
            Self::Verify(verify) => file::verify::run(&verify, socket_dir, output),
        }
    }
}
