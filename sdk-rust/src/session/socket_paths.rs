//! The paths of the daemon's sockets, and where a client looks for them.

use std::{
    env, fmt, fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use rustix::{
    io::Errno,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with},
};

use crate::error::Error;

const VARIABLE: &str = "VRAMD_SOCKET_DIR";
/// Where a daemon of root listens.
const OF_ROOT: &str = "/run/vramd";

/// The folder of the daemon's three sockets: `VRAMD_SOCKET_DIR` if it is set. Otherwise the first of these folders where
/// a daemon listens: `vramd` in `XDG_RUNTIME_DIR`, or `/tmp/vramd-UID` without that variable; then `/run/vramd`. Root
/// looks only in `/run/vramd`. Where no daemon listens, it is the first of them.
pub fn socket_dir() -> PathBuf {
    SocketPlaces::of_process().find()
}

/// The folders where a client looks for the daemon's sockets, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SocketPlaces {
    dirs: Vec<PathBuf>,
    from_variable: bool,
}

impl SocketPlaces {
    pub(crate) fn of_process() -> Self {
        let variable = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        Self::choose(variable(VARIABLE), variable("XDG_RUNTIME_DIR"), rustix::process::geteuid().as_raw())
    }

    fn choose(given: Option<PathBuf>, runtime_dir: Option<PathBuf>, uid: u32) -> Self {
        let from_variable = given.is_some();
        let dirs = match (given, runtime_dir) {
            (Some(dir), _) => vec![dir],
            (None, _) if uid == 0 => vec![PathBuf::from(OF_ROOT)],
            (None, Some(dir)) => vec![dir.join("vramd"), PathBuf::from(OF_ROOT)],
            (None, None) => vec![PathBuf::from(format!("/tmp/vramd-{uid}")), PathBuf::from(OF_ROOT)],
        };
        Self { dirs, from_variable }
    }

    /// The first folder where a daemon listens; else the first one that can be trusted.
    pub(crate) fn find(&self) -> PathBuf {
        let first = || self.dirs.iter().find(|dir| self.from_variable || !is_foreign(dir));
        let answered = match self.dirs.len() {
            0 | 1 => None,
            _ => self.dirs.iter().find(|dir| probe(dir).is_ok()),
        };
        answered.or_else(first).cloned().unwrap_or_else(|| PathBuf::from(OF_ROOT))
    }

    /// Adds what was tried, and what to do, to the error of a client that found no daemon.
    pub(crate) fn explain(&self, error: Error) -> Error {
        match error {
            Error::BrokerGone { .. } if self.dirs.iter().all(|dir| probe(dir).is_err()) => {
                Error::broker_gone(self.to_string())
            }
            error => error,
        }
    }
}

impl fmt::Display for SocketPlaces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, dir) in self.dirs.iter().enumerate() {
            let problem = probe(dir).err().unwrap_or_else(|| "a daemon listens by now".to_owned());
            write!(f, "{}{}: {problem}", if index == 0 { "" } else { "; " }, channel_socket(dir).display())?;
        }
        match self.from_variable {
            true => write!(f, ". {VARIABLE} names this folder: start the daemon, or correct the variable"),
            false => write!(f, ". Start the daemon, or set {VARIABLE} to the folder of its sockets"),
        }
    }
}

/// Whether another user may have made the folder. Anyone can make one in `/tmp`, and its daemon would be handed this
/// user's data.
fn is_foreign(dir: &Path) -> bool {
    let own = [0, rustix::process::geteuid().as_raw()];
    dir.starts_with("/tmp") && fs::symlink_metadata(dir).is_ok_and(|folder| !own.contains(&folder.uid()))
}

/// Whether a daemon listens in that folder, and otherwise why not.
fn probe(dir: &Path) -> Result<(), String> {
    let attempt = || -> Result<(), Errno> {
        let address = SocketAddrUnix::new(channel_socket(dir))?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        match connect(&socket, &address) {
            // It has more to accept than it can hold.
            Err(Errno::AGAIN) => Ok(()),
            outcome => outcome,
        }
    };
    match is_foreign(dir) {
        true => Err("skipped, since another user owns the folder".to_owned()),
        false => attempt().map_err(|error| error.to_string()),
    }
}

pub(crate) fn memory_socket(dir: &Path) -> PathBuf {
    dir.join("vramd.sock")
}

pub(crate) fn channel_socket(dir: &Path) -> PathBuf {
    dir.join("channel.sock")
}

pub(crate) fn admin_socket(dir: &Path) -> PathBuf {
    dir.join("admin.sock")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dirs(given: Option<&str>, runtime_dir: Option<&str>, uid: u32) -> Vec<PathBuf> {
        SocketPlaces::choose(given.map(PathBuf::from), runtime_dir.map(PathBuf::from), uid).dirs
    }

    #[test]
    fn the_variable_alone_counts_and_users_look_in_the_folder_of_root_last() {
        let all = |paths: &[&str]| paths.iter().map(PathBuf::from).collect::<Vec<_>>();
        assert_eq!(dirs(Some("/x"), Some("/run/user/7"), 0), all(&["/x"]));
        assert_eq!(dirs(Some("/x"), None, 7), all(&["/x"]));
        assert_eq!(dirs(None, Some("/run/user/0"), 0), all(&["/run/vramd"]));
        assert_eq!(dirs(None, Some("/run/user/7"), 7), all(&["/run/user/7/vramd", "/run/vramd"]));
        assert_eq!(dirs(None, None, 7), all(&["/tmp/vramd-7", "/run/vramd"]));
    }
}
