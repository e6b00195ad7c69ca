//! The daemon's command line.

use std::path::PathBuf;

use clap::Parser;

/// Owns the GPU memory of this node and hands it to client processes.
///
/// Exit status: 0 stopped, 1 failed, 2 wrong command line, 3 wrong configuration, 4 a live daemon has the sockets,
/// the state directory or the directory of the disk tier, 5 a configured device is not there, 6 the driver cannot start,
/// 7 the driver could not go on.
#[derive(Debug, Parser)]
#[command(name = "vramd", version)]
pub struct Args {
    /// Configuration file [default: /etc/vramd/vramd.toml, if it is there]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Read the configuration, say what is wrong, and do nothing else; but the directory of the disk tier is tried as at a start:
    /// what a dead daemon left there is deleted
    #[arg(long)]
    pub check: bool,
}
