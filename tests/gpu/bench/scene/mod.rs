//! The common scene of benchmarks of moves: a daemon, its operator, and the size of the memory that moves.

mod answer;
mod client;
mod counts;
mod holder;
mod operator;

use std::{
    io::{self, Write as _},
    path::Path,
    time::Duration,
};

use anyhow::{Result, bail, ensure};
use clap::ValueEnum;
use rustix::process::{Resource, Rlimit, geteuid, getrlimit, setrlimit};
use serde_json::{Value, json};
use vramd_proto::v1::Tier;
use vramd_tests::{Config, Daemon, wait::within};

pub(crate) use self::{
    answer::Answer,
    client::run as holder,
    counts::Left,
    holder::{Holder, Scan},
    operator::{Eviction, Operator},
};

/// The default user of clients.
pub(crate) const TENANT: &str = "owners";
/// The user that plays another tenant.
pub(crate) const OTHER_UID: u32 = 20_002;
/// The host has room for this many clients: two that change places, and memory that was just fetched and is not returned yet.
const CLIENTS_IN_HOST: usize = 3;
/// The host has room for this many parts beside them.
const ROOM: usize = 4;
/// Above a disk, the host has room for this many parts.
const PARTS_IN_HOST: usize = 4;
/// How long to wait for the host tier. A machine with a GPU pins some GiB a second.
const PINNED_WITHIN: Duration = Duration::from_secs(90);

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Driver {
    Cuda,
    Sim,
}

pub(crate) struct Scene {
    pub(crate) driver: Driver,
    pub(crate) daemon: Daemon,
    pub(crate) operator: Operator,
    /// The memory of a client.
    pub(crate) parts: usize,
    pub(crate) part: usize,
    pub(crate) pairs: usize,
    quick: bool,
    /// The tier below.
    below_bytes: usize,
}

/// The parts of a scene.
struct Scale {
    parts: usize,
    part: usize,
    pairs: usize,
}

impl Scale {
    fn new(driver: Driver, quick: bool) -> Self {
        let (parts, part) = match (driver, quick) {
            (Driver::Cuda, false) => (64, 256 << 20),
            (Driver::Cuda, true) => (16, 256 << 20),
            (Driver::Sim, false) => (16, 2 << 20),
            (Driver::Sim, true) => (4, 2 << 20),
        };
        Self { parts, part, pairs: if quick { 7 } else { 9 } }
    }

    fn client(&self) -> usize {
        self.parts * self.part
    }
}

impl Driver {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Cuda => "cuda",
            Self::Sim => "sim",
        }
    }
}

impl Scene {
    /// Opens a scene with a host tier. A simulated link is as fast as the machine unless it has a speed, in bytes a second.
    pub(crate) fn above_host(driver: Driver, quick: bool, simulated_link: Option<&str>) -> Result<Self> {
        let scale = Scale::new(driver, quick);
        let host = (CLIENTS_IN_HOST * scale.parts + ROOM) * scale.part;
        // Whole pieces are pinned ahead, so one is as large as a part.
        let memory = format!("host_size = \"{host}\"\npart_size = \"{}\"", scale.part);
        let config = config(driver).memory(&memory);
        let daemon = Daemon::start(&simulated_link.into_iter().fold(config, Config::link));
        // Until then creating and mapping may wait for the driver for tens of milliseconds.
        let line = within(PINNED_WITHIN, || {
            let log = daemon.log();
            log.lines().find(|line| line.contains("host memory is pinned ahead")).map(str::to_owned)
        });
        let is_all = line.as_ref().is_some_and(|line| !line.contains("no further host memory"));
        ensure!(is_all, "not all of the host's memory is pinned: {line:?}");
        let operator = Operator::new(&daemon, Tier::Host, scale.client())?;
        Ok(Self::of(driver, quick, daemon, operator, scale, host))
    }

    /// Opens a scene with a disk for two clients, in the given directory if any. The device has room for one client, and the host for
    /// little. Nothing leaves by itself.
    pub(crate) fn above_disk(driver: Driver, quick: bool, directory: Option<&Path>) -> Result<Self> {
        let scale = Scale::new(driver, quick);
        let disk = 2 * scale.client();
        // Less than one part more, so that a few bytes of other programs do not matter.
        let device = scale.client() + scale.part / 2;
        let config = match driver {
            Driver::Cuda => {
                // The reserve for contexts is taken from the share too.
                let reserve = Daemon::start(&Config::cuda()).state().devices[0].context_reserve_bytes;
                let share = device as u64 + reserve;
                config(driver).memory(&format!("devices = [\"0\"]\ndevice_share = \"{share}\""))
            }
            Driver::Sim => Config { devices: vec![device.to_string()], ..config(driver) },
        };
        let host = PARTS_IN_HOST * scale.part;
        let config = config.memory(&format!("host_size = \"{host}\""));
        let config = config.pressure("cold_after_ms = 0").disk(&disk.to_string());
        let config = directory.into_iter().fold(config, Config::disk_directory);
        let daemon = Daemon::start(&config);
        let operator = Operator::new(&daemon, Tier::Disk, 0)?;
        Ok(Self::of(driver, quick, daemon, operator, scale, disk))
    }

    fn of(
        driver: Driver,
        quick: bool,
        daemon: Daemon,
        operator: Operator,
        scale: Scale,
        below_bytes: usize,
    ) -> Self {
        let Scale { parts, part, pairs } = scale;
        Self { driver, daemon, operator, parts, part, pairs, quick, below_bytes }
    }

    /// Starts a client whose memory fills the host above a disk until it ends.
    pub(crate) fn fill_host(&self) -> Result<Holder> {
        let mut filler = Holder::with_parts(self, PARTS_IN_HOST, None)?;
        filler.fill()?;
        self.operator.move_all(filler.memory(), Tier::Host)?;
        self.operator.wait_until_charged(0)?;
        ensure!(self.operator.host_left()? < self.part as u64, "the host has room for a part");
        Ok(filler)
    }

    /// Returns the bytes of a client.
    pub(crate) fn bytes(&self) -> usize {
        self.parts * self.part
    }

    /// Returns the head of the report for a scene with a host tier.
    pub(crate) fn report(&self, machine: Value) -> Value {
        json!({
            "machine": machine,
            "driver_kind": self.driver.name(),
            "quick": self.quick,
            "parts": self.parts,
            "part_bytes": self.part,
            "host_bytes": self.below_bytes,
            "samples": {},
        })
    }

    /// Asks one question, keeps its answer, and waits until its memory is returned. Returns true if it has an answer, of any value.
    pub(crate) fn ask(
        &self,
        name: &str,
        question: impl FnOnce() -> Result<Answer>,
        report: &mut Value,
        save: impl Fn(&Value) -> Result<()>,
    ) -> Result<bool> {
        let found = question();
        let good = found.is_ok();
        match found {
            Ok(answer) => answer.report(name, report)?,
            Err(error) => {
                writeln!(io::stdout(), "{name} FAILED: {error:#}")?;
                report["samples"][name] = json!({ "problem": format!("{error:#}") });
            }
        }
        report["tried_again"] = json!(self.operator.tried_again());
        save(report)?;
        self.daemon.drains();
        Ok(good)
    }
}

fn config(driver: Driver) -> Config {
    let config = match driver {
        Driver::Cuda => Config::cuda(),
        Driver::Sim => Config::default(),
    };
    config
        .log_level("info")
        .telemetry("prometheus_listen = \"127.0.0.1:0\"")
        .tenant(geteuid().as_raw(), TENANT)
        .tenant(OTHER_UID, "others")
}

/// Tells whether that question is asked: named ones are, or all if none is named.
pub(crate) fn is_asked(name: &str, asked: &[String]) -> bool {
    asked.is_empty() || asked.iter().any(|of| of == name)
}

/// Refuses unknown questions, and raises the limit of open files for this process and its children.
pub(crate) fn prepare(asked: &[String], questions: &[&str]) -> Result<()> {
    if let Some(unknown) = asked.iter().find(|name| !questions.contains(&name.as_str())) {
        bail!("`{unknown}` is no question; there are {}", questions.join(", "));
    }
    let limit = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: limit, maximum: limit })?;
    Ok(())
}
