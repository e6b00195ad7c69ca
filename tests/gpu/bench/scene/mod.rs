//! A daemon, how much is moved there, and who moves it: what benchmarks of moves have in common.

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

/// Who clients are unless told.
pub(crate) const TENANT: &str = "owners";
/// Who plays another tenant.
pub(crate) const OTHER_UID: u32 = 20_002;
/// The host has room for so many clients: two that change places, and what has just come from there and is not given back yet.
const CLIENTS_IN_HOST: usize = 3;
/// And for so many parts beside them.
const ROOM: usize = 4;
/// Where a disk is below, the host has room for so many parts.
const PARTS_IN_HOST: usize = 4;
/// A GPU's machine pins some GiB a second.
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
    /// What a client holds.
    pub(crate) parts: usize,
    pub(crate) part: usize,
    pub(crate) pairs: usize,
    quick: bool,
    /// Of the tier below.
    below_bytes: usize,
}

/// What a scene is made of.
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
    /// With the host's memory below the device. A simulated link takes as long as it must unless it has a speed, in bytes a second.
    pub(crate) fn above_host(driver: Driver, quick: bool, simulated_link: Option<&str>) -> Result<Self> {
        let scale = Scale::new(driver, quick);
        let host = (CLIENTS_IN_HOST * scale.parts + ROOM) * scale.part;
        let config = config(driver).memory(&format!("host_size = \"{host}\""));
        let daemon = Daemon::start(&simulated_link.into_iter().fold(config, Config::link));
        // Until then whatever is made or mapped may wait for the driver, for tens of milliseconds.
        let line = within(PINNED_WITHIN, || {
            let log = daemon.log();
            log.lines().find(|line| line.contains("host memory is pinned ahead")).map(str::to_owned)
        });
        let is_all = line.as_ref().is_some_and(|line| !line.contains("no further host memory"));
        ensure!(is_all, "not all of the host's memory is pinned: {line:?}");
        let operator = Operator::new(&daemon, Tier::Host, scale.client())?;
        Ok(Self::of(driver, quick, daemon, operator, scale, host))
    }

    /// With a disk below the device, on which two clients have room, in that directory if one is given; the device has room for
    /// one, and the host for little. Nothing leaves there that nobody has asked to.
    pub(crate) fn above_disk(driver: Driver, quick: bool, directory: Option<&Path>) -> Result<Self> {
        let scale = Scale::new(driver, quick);
        let disk = 2 * scale.client();
        // Less than a part more: what others take there by the byte is to be in nobody's way.
        let device = scale.client() + scale.part / 2;
        let config = match driver {
            Driver::Cuda => {
                // What is kept for contexts is taken from the share too.
                let reserve = Daemon::start(&Config::cuda()).books().devices[0].context_reserve_bytes;
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

    /// A client whose memory fills the host above a disk, until it leaves.
    pub(crate) fn fill_host(&self) -> Result<Holder> {
        let mut filler = Holder::with_parts(self, PARTS_IN_HOST, None)?;
        filler.fill()?;
        self.operator.move_all(filler.memory(), Tier::Host)?;
        self.operator.until_held(0)?;
        ensure!(self.operator.host_left()? < self.part as u64, "the host has room for a part");
        Ok(filler)
    }

    /// All bytes of a client.
    pub(crate) fn bytes(&self) -> usize {
        self.parts * self.part
    }

    /// What the report begins with, where the host is below.
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

    /// Asks one question, keeps what it found, and waits until nothing of it is left. True if it was answered, whatever the
    /// answer.
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
            Ok(answer) => answer.tell(name, report)?,
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

/// Whether that question is asked: these are, or all if there are none.
pub(crate) fn is_asked(name: &str, asked: &[String]) -> bool {
    asked.is_empty() || asked.iter().any(|of| of == name)
}

/// Refuses what is no question, and has this process, and those that it starts, open as many files as they may.
pub(crate) fn prepare(asked: &[String], questions: &[&str]) -> Result<()> {
    if let Some(unknown) = asked.iter().find(|name| !questions.contains(&name.as_str())) {
        bail!("`{unknown}` is no question; there are {}", questions.join(", "));
    }
    let limit = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: limit, maximum: limit })?;
    Ok(())
}
