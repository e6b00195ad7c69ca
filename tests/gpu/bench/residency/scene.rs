//! A daemon, and how much is moved there.

use anyhow::Result;
use clap::ValueEnum;
use rustix::process::geteuid;
use serde_json::{Value, json};
use vramd_tests::{Config, Daemon};

use super::operator::Operator;

/// Who clients are unless told.
pub(super) const TENANT: &str = "owners";
/// Who plays another tenant.
pub(super) const OTHER_UID: u32 = 20_002;
/// The host has room for so many clients: two that change places, and what has just come from there and is not given back yet.
const CLIENTS_IN_HOST: usize = 3;
/// And for so many parts beside them.
const ROOM: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Driver {
    Cuda,
    Sim,
}

pub(super) struct Scene {
    pub(super) driver: Driver,
    pub(super) daemon: Daemon,
    pub(super) operator: Operator,
    /// What a client holds.
    pub(super) parts: usize,
    pub(super) part: usize,
    pub(super) pairs: usize,
    quick: bool,
    host_bytes: usize,
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
    pub(super) fn new(driver: Driver, quick: bool) -> Result<Self> {
        let (parts, part) = match (driver, quick) {
            (Driver::Cuda, false) => (64, 256 << 20),
            (Driver::Cuda, true) => (16, 256 << 20),
            (Driver::Sim, false) => (16, 2 << 20),
            (Driver::Sim, true) => (4, 2 << 20),
        };
        let config = match driver {
            Driver::Cuda => Config::cuda(),
            Driver::Sim => Config::default(),
        };
        let host_bytes = (CLIENTS_IN_HOST * parts + ROOM) * part;
        let config = config
            .log_level("info")
            .memory(&format!("host_size = \"{host_bytes}\""))
            .telemetry("prometheus_listen = \"127.0.0.1:0\"")
            .tenant(geteuid().as_raw(), TENANT)
            .tenant(OTHER_UID, "others");
        let daemon = Daemon::start(&config);
        let operator = Operator::new(&daemon, parts * part)?;
        let pairs = if quick { 7 } else { 9 };
        Ok(Self { driver, daemon, operator, parts, part, pairs, quick, host_bytes })
    }

    /// All bytes of a client.
    pub(super) fn bytes(&self) -> usize {
        self.parts * self.part
    }

    /// What the report begins with.
    pub(super) fn report(&self, machine: Value) -> Value {
        json!({
            "machine": machine,
            "driver_kind": self.driver.name(),
            "quick": self.quick,
            "parts": self.parts,
            "part_bytes": self.part,
            "host_bytes": self.host_bytes,
            "samples": {},
        })
    }
}
