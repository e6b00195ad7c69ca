//! Says what the daemon found on the node and chose at its start, in lines of the log and as readings for `vramctl
//! doctor`.

use std::path::Path;

use broker_driver::{DiskFacts, Driver, PinPace};
use broker_platform::{
    Diagnosis, Readings, collect, diagnose,
    readings::{DaemonReadings, DeviceReadings},
};
use vramd_types::Bytes;

use crate::{
    config::{self, Config, HostTier},
    driver_choice::SIM,
    fall_backs::FallBacks,
    platform::descriptors::Descriptors,
};

/// The facts of a running daemon that its readings have beside those of the node.
#[derive(Clone, Debug, Default)]
pub struct NodeReport {
    devices: Vec<DeviceReadings>,
    daemon: DaemonReadings,
    fall_backs: FallBacks,
}

/// The choices of a start, and the driver that it has opened.
#[derive(Clone, Copy, Debug)]
pub struct Started<'a> {
    pub config: &'a Config,
    pub driver: &'a dyn Driver,
    pub driver_reason: &'a str,
    pub host: HostTier,
    /// Whether host memory counts as locked by this process.
    pub host_locked: bool,
    pub descriptors: Descriptors,
    pub limits: &'a broker_core::Limits,
}

impl NodeReport {
    pub fn new(started: Started<'_>) -> Self {
        let Started { config, driver, host, .. } = started;
        let share = |device: &broker_driver::DeviceInfo| config::share_of(&config.memory, device.total).get();
        let daemon = DaemonReadings {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            driver: driver.name().to_owned(),
            driver_reason: started.driver_reason.to_owned(),
            device_bytes: driver.devices().iter().map(share).collect(),
            host_bytes: host.each.get(),
            host_reason: host.reason.to_string(),
            host_pinned_from_start: host.pace == PinPace::FromStart,
            host_locked_by_daemon: started.host_locked,
            disk_bytes: config.disk.size.get(),
            words_per_session_max: u64::from(config.limits.words_per_session_max),
            extents_max: u64::try_from(started.limits.extents_max).unwrap_or(u64::MAX),
            fall_backs: Vec::new(),
        };
        Self { devices: driver.readings(), daemon, fall_backs: FallBacks::default() }
    }

    /// The devices as the driver shows them, in its order.
    pub fn devices(&self) -> &[DeviceReadings] {
        &self.devices
    }

    /// The counts of copies, to which the service of clients adds.
    pub fn fall_backs(&self) -> &FallBacks {
        &self.fall_backs
    }

    /// Reads the node anew, and adds the facts of the daemon.
    pub fn readings(&self) -> Readings {
        let fall_backs = self.fall_backs.readings();
        Readings {
            devices: Some(self.devices.clone()),
            daemon: Some(DaemonReadings { fall_backs, ..self.daemon.clone() }),
            ..collect("vramd")
        }
    }

    /// Logs node, devices, tiers and limits in a line each; the daemon says where it serves in the fifth. A limit
    /// that leaves too few open files is a warning.
    pub fn log(&self, started: Started<'_>, boot_epoch: u64) {
        let diagnosis = diagnose(&self.readings());
        self.log_node(started, &diagnosis, boot_epoch);
        self.log_devices(started.driver);
        self.log_tiers(started);
        log_limits(started, &diagnosis);
        if started.limits.extents_max > started.descriptors.extents_max() {
            tracing::warn!("limits.extents_max leaves too few open files to connections");
        }
    }

    fn log_node(&self, started: Started<'_>, diagnosis: &Diagnosis, boot_epoch: u64) {
        let DaemonReadings { version, driver, driver_reason: reason, .. } = &self.daemon;
        let platform = diagnosis.detected.platform;
        if driver == SIM && started.config.driver.kind == config::DriverKind::Auto {
            let memory = "SIMULATED, and no GPU's";
            tracing::warn!(memory, %platform, driver, reason, version, boot_epoch, "node found");
        } else {
            tracing::info!(%platform, driver, reason, version, boot_epoch, "node found");
        }
    }

    fn log_devices(&self, driver: &dyn Driver) {
        let total = |device: &DeviceReadings| Bytes::new(device.total_bytes);
        let devices: Vec<String> = (0..)
            .zip(&self.devices)
            .map(|(index, device)| format!("{index}: {} {} {}", device.uuid, device.name, total(device)))
            .collect();
        let links: Vec<String> = driver.links().iter().map(ToString::to_string).collect();
        let links = (!links.is_empty()).then(|| links.join("; "));
        tracing::info!(count = devices.len(), devices = devices.join(", "), links, "devices found");
    }

    fn log_tiers(&self, started: Started<'_>) {
        let Started { host, driver, .. } = started;
        let device_bytes = self.daemon.device_bytes.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
        let host_pinned = match (host.each.is_zero(), host.pace) {
            (true, _) => None,
            (_, PinPace::FromStart) => Some("from the start"),
            (_, PinPace::WithUse) => Some("with use"),
        };
        let disk = driver.disk();
        let directory = disk.map(|disk: &DiskFacts| disk.directory.display().to_string());
        tracing::info!(
            device_bytes,
            host_bytes = host.each.get(),
            host_reason = %host.reason,
            host_pinned,
            disk_bytes = self.daemon.disk_bytes,
            directory,
            engine = disk.map(|disk| tracing::field::display(disk.engine)),
            no_uring = disk.and_then(|disk| disk.no_uring.as_deref()),
            "tiers chosen"
        );
    }
}

fn log_limits(started: Started<'_>, diagnosis: &Diagnosis) {
    let limits = started.limits;
    let mut in_the_way: Vec<&str> = diagnosis.limits.iter().map(|limit| limit.about).collect();
    in_the_way.dedup();
    let in_the_way = if in_the_way.is_empty() { "none".to_owned() } else { in_the_way.join(", ") };
    tracing::info!(
        open_files_max = started.descriptors.limit,
        extents_max = limits.extents_max,
        parts_per_tenant_max = limits.parts_per_tenant_max,
        fds_in_flight_max = limits.fds_in_flight_max,
        in_the_way,
        "limits found"
    );
}

/// Logs where the daemon serves.
pub fn log_serving(sockets: &Path, state: &Path) {
    tracing::info!(sockets = %sockets.display(), state = %state.display(), "serving");
}
