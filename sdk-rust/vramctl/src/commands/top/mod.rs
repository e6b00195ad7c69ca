//! `vramctl top`: the node as it is now, drawn again and again, or once.
//!
//! [`view`] is the state and what keys do to it, [`render`] draws it, [`grids`] makes the tables of a [`snapshot`], and
//! [`live`] alone touches the terminal and the daemon.

mod action;
mod grid;
mod grids;
mod live;
mod rates;
mod render;
mod snapshot;
#[cfg(test)]
mod tests;
mod view;

use std::{
    io::{self, IsTerminal as _},
    path::PathBuf,
    time::Duration,
};

use clap::{Args, CommandFactory as _, error::ErrorKind};
use serde_json::Value;
use vramd_client::admin::AdminClient;

use self::{
    snapshot::{Fetcher, Snapshot, Wants},
    view::View,
};
use super::device;
use crate::output::{Output, device_names::DeviceNames, failure::Failure, text::now};

/// Width of a frame for a reader that is no terminal.
const WIDTH: u16 = 120;

#[derive(Debug, Args)]
pub(crate) struct Top {
    /// Print one frame as plain text, and end. With `--json`, print one object.
    #[arg(long)]
    once: bool,
    /// Columns of that frame [default: those of the terminal, else 120].
    #[arg(long, value_name = "COLUMNS", requires = "once", value_parser = clap::value_parser!(u16).range(20..=1000))]
    width: Option<u16>,
    /// Seconds between two frames.
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = interval, conflicts_with = "once")]
    interval: Duration,
}

/// A time between a tenth of a second and an hour.
fn interval(text: &str) -> Result<Duration, String> {
    let seconds: Option<f64> = text.parse().ok();
    let seconds = seconds.filter(|seconds| (0.1..=3600.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "it must be between 0.1 and 3600 seconds".to_owned())
}

/// Where the daemon is, and how long to wait for it.
#[derive(Clone, Debug)]
pub(crate) struct Daemon {
    pub(crate) socket_dir: Option<PathBuf>,
    pub(crate) timeout: Duration,
}

impl Daemon {
    fn connect(&self) -> Result<AdminClient, Failure> {
        let admin = self.socket_dir.as_deref().map_or_else(AdminClient::find, AdminClient::new)?;
        Ok(admin.request_timeout(self.timeout))
    }
}

pub(crate) fn run(top: &Top, daemon: &Daemon, output: &Output) -> Result<(), Failure> {
    if top.once {
        let snapshot = Fetcher::default().fetch(&daemon.connect()?, wants_of_frame(output))?;
        let width = top.width.unwrap_or_else(width);
        let fields = if output.is_json() { snapshot.to_json() } else { Value::Null };
        let names = names(&snapshot, output);
        let view = View::new(snapshot, names, now());
        return output.show(|| render::page(&view, width.into()), fields);
    }
    if output.is_json() {
        let problem = "`vramctl top --json` needs `--once`: a live view is no JSON\n";
        crate::args::Args::command().error(ErrorKind::MissingRequiredArgument, problem).exit();
    }
    if !io::stdout().is_terminal() {
        let problem = "standard output is no terminal; `vramctl top --once` prints one frame".to_owned();
        return Err(Failure::Terminal { problem });
    }
    live::run(top.interval, daemon, output)
}

/// A frame of text has neither sessions nor links. JSON has all.
fn wants_of_frame(output: &Output) -> Wants {
    let is_json = output.is_json();
    Wants { allocations: true, sessions: is_json, links: is_json }
}

fn names(snapshot: &Snapshot, output: &Output) -> DeviceNames {
    device::names(&snapshot.devices, snapshot.mentioned(), output)
}

/// The columns of standard output.
fn width() -> u16 {
    let of_terminal = || ratatui::crossterm::terminal::size().ok().map(|(columns, _)| columns);
    let is_terminal = io::stdout().is_terminal();
    is_terminal.then(of_terminal).flatten().filter(|columns| *columns > 0).unwrap_or(WIDTH)
}
