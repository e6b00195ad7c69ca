//! Identifies the process at the other end of a connection, and keeps its pidfd.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::OnceLock,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, pidfd_open},
};
use thiserror::Error;

use super::{
    credentials::{self, Credentials},
    process::status_field,
};

/// The process that connected. Credentials are those at connect time: a process that passes its socket on passes its
/// identity on.
#[derive(Debug)]
pub struct Peer {
    /// Never 0.
    pub pid: u32,
    pub uid: u32,
    pub gid: u32,
    pub pidfd: OwnedFd,
    is_in_container: OnceLock<bool>,
}

/// Why the daemon cannot identify a peer and so cannot charge a tenant.
#[derive(Debug, Error)]
pub enum Unidentified {
    #[error("the kernel does not identify the peer: {0}")]
    Unknown(#[source] io::Error),
    #[error(
        "the peer is in a pid namespace that the daemon does not see: run the daemon in the host's (`--pid=host`), or in that of its clients"
    )]
    ForeignPid,
    #[error("the peer's uid {0} stands for every user that this user namespace does not map")]
    OverflowUid(u32),
    #[error("the peer has ended already")]
    Ended,
}

impl Peer {
    /// Identifies the peer of a socket.
    pub fn of(socket: BorrowedFd<'_>) -> Result<Self, Unidentified> {
        let credentials = credentials::of_peer(socket).map_err(Unidentified::Unknown)?;
        let pid = identified(credentials, overflow_uid())?;
        let pidfd = match credentials::pidfd_of_peer(socket) {
            Ok(pidfd) => pidfd,
            Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => {
                pidfd_by_number(credentials).map_err(Unidentified::Unknown)?
            }
            // The process's parent has waited for it: the kernel has forgotten it.
            Err(error)
                if matches!(error.raw_os_error(), Some(libc::ESRCH | libc::ENODATA | libc::EINVAL)) =>
            {
                return Err(Unidentified::Ended);
            }
            Err(error) => return Err(Unidentified::Unknown(error)),
        };
        let peer =
            Self { pid, uid: credentials.uid, gid: credentials.gid, pidfd, is_in_container: OnceLock::new() };
        if peer.has_ended() { Err(Unidentified::Ended) } else { Ok(peer) }
    }

    /// Whether the process has ended. If this returns `false`, everything that `/proc` showed of its pid before was
    /// about this process.
    pub fn has_ended(&self) -> bool {
        has_ended(&self.pidfd)
    }

    /// Whether the process is in a pid namespace below the daemon's, as processes of containers are. Root of such a
    /// container has uid 0 unless it has a user namespace too. A process never changes its own pid namespace, so the
    /// kernel is asked once.
    pub fn is_in_container(&self) -> io::Result<bool> {
        if let Some(known) = self.is_in_container.get() {
            return Ok(*known);
        }
        let found = has_inner_pid(&status_field(self.pid, "NSpid")?);
        Ok(*self.is_in_container.get_or_init(|| found))
    }
}

/// `NSpid` has the number of the process in each pid namespace, from that of `/proc` down to its own.
fn has_inner_pid(numbers: &str) -> bool {
    numbers.split_ascii_whitespace().count() > 1
}

/// Whether the process of a pidfd has ended.
pub fn has_ended(pidfd: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
    !matches!(poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(0))
}

/// Returns the pid, if pid and uid identify one process and one user here.
fn identified(credentials: Credentials, overflow_uid: u32) -> Result<u32, Unidentified> {
    if credentials.uid == overflow_uid || credentials.uid == u32::MAX {
        return Err(Unidentified::OverflowUid(credentials.uid));
    }
    match u32::try_from(credentials.pid) {
        Ok(pid) if pid > 0 => Ok(pid),
        _ => Err(Unidentified::ForeignPid),
    }
}

/// Opens a pidfd by number, for kernels that do not give a peer's pidfd. The pid may name another process by now, so
/// the owner is checked again. A new process of the same user in the same instant is not detected.
fn pidfd_by_number(credentials: Credentials) -> io::Result<OwnedFd> {
    let pid = Pid::from_raw(credentials.pid).ok_or(io::ErrorKind::NotFound)?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
    let owner = rustix::fs::stat(format!("/proc/{}", credentials.pid))?;
    if owner.st_uid == credentials.uid || effective_uid(credentials.pid)? == credentials.uid {
        Ok(pidfd)
    } else {
        Err(io::ErrorKind::NotFound.into())
    }
}

/// Reads the uid from `/proc/PID/status`: the directory's owner is root for processes that may not be dumped.
fn effective_uid(pid: i32) -> io::Result<u32> {
    let uids = status_field(pid, "Uid")?;
    let effective = uids.split_ascii_whitespace().nth(1).and_then(|uid| uid.parse().ok());
    effective.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The uid that stands for users whom this user namespace does not map.
fn overflow_uid() -> u32 {
    const USUAL: u32 = 65_534;
    std::fs::read_to_string("/proc/sys/kernel/overflowuid")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(USUAL)
}

impl AsFd for Peer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead, BufReader},
        os::unix::net::{UnixListener, UnixStream},
        process::{Command, Stdio},
    };

    use super::*;

    #[test]
    fn a_peer_is_named_and_found_alive() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let peer = Peer::of(ours.as_fd()).unwrap();
        assert_eq!(peer.pid, std::process::id());
        assert!(!peer.has_ended() && !peer.is_in_container().unwrap());
    }

    #[test]
    fn a_peer_that_has_ended_is_not_identified() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        // A process that connects, prints that, and waits until it is ended.
        let script = "import socket,sys; s=socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); \
                      print('connected', flush=True); sys.stdin.read()";
        let mut child = Command::new("python3")
            .args(["-c", script])
            .arg(&path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (connection, _) = listener.accept().unwrap();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
        let peer = Peer::of(connection.as_fd()).unwrap();
        assert_eq!(peer.pid, child.id());
        assert!(!peer.has_ended());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(peer.has_ended());
        assert!(matches!(Peer::of(connection.as_fd()), Err(Unidentified::Ended)));
    }

    #[test]
    fn a_process_with_a_second_pid_is_in_a_container() {
        assert!(has_inner_pid("7\t1") && !has_inner_pid("7"));
    }

    #[test]
    fn unmapped_pids_and_uids_identify_no_peer() {
        let credentials = |pid, uid| Credentials { pid, uid, gid: 0 };
        assert!(matches!(identified(credentials(7, 1000), 65_534), Ok(7)));
        assert!(matches!(identified(credentials(0, 1000), 65_534), Err(Unidentified::ForeignPid)));
        assert!(matches!(identified(credentials(7, 65_534), 65_534), Err(Unidentified::OverflowUid(65_534))));
        assert!(matches!(identified(credentials(7, u32::MAX), 65_534), Err(Unidentified::OverflowUid(_))));
    }

    #[test]
    fn the_fallback_for_older_kernels_finds_the_same_process() {
        let own = Credentials {
            pid: std::process::id().cast_signed(),
            uid: rustix::process::geteuid().as_raw(),
            gid: 0,
        };
        assert!(pidfd_by_number(own).is_ok());
        assert!(pidfd_by_number(Credentials { uid: 12_345_678, ..own }).is_err());
        assert_eq!(effective_uid(own.pid).unwrap(), own.uid);
    }
}
