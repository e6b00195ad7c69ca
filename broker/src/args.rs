//! The daemon's command line.

use std::path::PathBuf;

use clap::Parser;

/// The daemon that owns the GPU memory of this node and hands it to client processes.
///
/// Exit status: 0 stopped, 1 failed, 2 wrong command line, 3 wrong configuration, 4 a live daemon uses the sockets, the
/// state directory or the disk directory, 5 a configured device is missing, 6 the driver cannot start, 7 the driver could
/// not go on, 8 the state on disk is damaged.
#[derive(Debug, Parser)]
#[command(name = "vramd", version)]
pub struct Args {
    /// Configuration file [default: /etc/vramd/vramd.toml, if it exists]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Check all that a start needs, report what is wrong, and exit: configuration, sizes against the machine, driver,
    /// directories and state. The disk directory is tested as at a start, so files that an ended daemon left in it are
    /// deleted
    #[arg(long)]
    pub check: bool,
    /// Start although the state on disk is damaged. A damaged file is set aside as NAME.damaged; quotas are those before the
    /// last change, and ids go on from a number that was never used. Undamaged state is used as it is
    #[arg(long, conflicts_with = "check")]
    pub reset_state: bool,
}
