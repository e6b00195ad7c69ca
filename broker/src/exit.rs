//! The exit status of the daemon: one for each action that the operator would take.

use std::{io, path::PathBuf};

use broker_driver::{DriverError, cuda::ProbeError};
use thiserror::Error;

use crate::{
    config::{ConfigError, HostTooSmall, UnknownDevice},
    grpc::ServeError,
    platform::{
        private_dir::PrivateDirError, process::ForeignProc, sockets::SocketsError, tenant_rules::Namespaced,
    },
    reactor::DriverLost,
    state::StateError,
};

/// Exit statuses. 0 is a clean stop, 2 a wrong command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// An unexpected failure.
    Runtime = 1,
    Config = 3,
    /// A live daemon uses the sockets, the state directory, or the disk directory.
    InUse = 4,
    /// A configured device is missing.
    NoDevice = 5,
    /// The driver cannot start.
    Driver = 6,
    /// The driver could not go on. Clients keep their mappings, and a new start may succeed.
    DriverLost = 7,
    /// The state on disk is damaged. A start with `--reset-state` may succeed.
    StateDamaged = 8,
}

/// Why the daemon did not start, or ended.
#[derive(Debug, Error)]
pub enum Failure {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("daemon.state_dir: there is no default, since the user has no home directory. Set it")]
    NoStateDir,
    #[error(transparent)]
    Device(#[from] UnknownDevice),
    #[error(transparent)]
    Host(#[from] HostTooSmall),
    /// The error of the disk directory, with the line of the configuration.
    #[error("{wrong}")]
    Disk { wrong: String, in_use: bool },
    #[error("files.immutable_paths: {0:?} does not exist. Correct the path, or mount what belongs there")]
    NoImmutablePath(PathBuf),
    #[error(transparent)]
    Cuda(#[from] ProbeError),
    #[error("the driver cannot start: {0}")]
    Driver(#[from] DriverError),
    /// `driver.kind = "auto"` on a machine with a GPU that cannot be used.
    #[error(
        "driver.kind = \"auto\": this machine has an NVIDIA device ({device}), and it cannot be used: {why}. Mend the driver, or set driver.kind = \"sim\" to serve simulated memory"
    )]
    BrokenDriver { device: String, why: String },
    #[error(
        "{dir} is in use by a live daemon. It was chosen by {chosen_by}: end that daemon, or choose another directory"
    )]
    SocketDirInUse { dir: PathBuf, chosen_by: &'static str },
    #[error(transparent)]
    Sockets(#[from] SocketsError),
    #[error(transparent)]
    State(#[from] StateError),
    #[error("cannot {action}: {source}")]
    Io { action: &'static str, source: io::Error },
    #[error(transparent)]
    Rules(#[from] Namespaced),
    #[error(transparent)]
    Proc(#[from] ForeignProc),
    #[error(transparent)]
    Serve(#[from] ServeError),
    #[error(transparent)]
    DriverLost(#[from] DriverLost),
    #[error("the reactor ended by itself: this is a bug")]
    ReactorEnded,
    #[error("{0}")]
    Telemetry(String),
    #[error("cannot make the path {0} absolute: the working directory does not exist")]
    NoWorkingDir(PathBuf),
}

impl Failure {
    pub fn exit(&self) -> Exit {
        match self {
            Self::Config(_)
            | Self::Host(_)
            | Self::Rules(_)
            | Self::Proc(_)
            | Self::Disk { in_use: false, .. }
            | Self::NoStateDir
            | Self::NoImmutablePath(_)
            | Self::NoWorkingDir(_)
            | Self::Telemetry(_)
            | Self::Sockets(SocketsError::NoGroup(_) | SocketsError::Dir(PrivateDirError::NotPrivate(_)))
            | Self::State(StateError::Dir(PrivateDirError::NotPrivate(_))) => Exit::Config,
            Self::SocketDirInUse { .. }
            | Self::Sockets(SocketsError::InUse(_))
            | Self::State(StateError::InUse(_))
            | Self::Disk { in_use: true, .. } => Exit::InUse,
            Self::Device(_) => Exit::NoDevice,
            Self::Cuda(_) | Self::Driver(_) | Self::BrokenDriver { .. } => Exit::Driver,
            Self::DriverLost(_) => Exit::DriverLost,
            Self::State(StateError::Damaged { .. }) => Exit::StateDamaged,
            Self::Sockets(SocketsError::InTheWay(_) | SocketsError::Io { .. } | SocketsError::Dir(_))
            | Self::State(StateError::Io { .. } | StateError::Dir(_))
            | Self::Io { .. }
            | Self::Serve(_)
            | Self::ReactorEnded => Exit::Runtime,
        }
    }
}
