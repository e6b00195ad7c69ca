//! Binds the daemon's three sockets in a directory that it has locked. No socket is ever too open: a socket is bound
//! with its owner's mode and opened afterwards. The mode is set before the bind, since the umask belongs to the whole
//! process.

use std::{
    fs,
    io::{self, ErrorKind},
    os::{
        fd::OwnedFd,
        unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown},
        unix::net::UnixListener,
    },
    path::{Path, PathBuf},
    time::SystemTime,
};

use rustix::{
    fs::{Mode, fchmod},
    io::Errno,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with},
};
use thiserror::Error;

use super::{
    lock::DirLock,
    private_dir::{self, PrivateDirError},
};

/// Connections that the kernel queues for the daemon to accept.
const BACKLOG: i32 = 1024;

/// The sockets of a directory. Dropping this removes those that are still the ones that it bound.
#[derive(Debug)]
pub struct Sockets {
    dir: PathBuf,
    admin_group: Option<u32>,
    bound: Vec<(Socket, FileId)>,
    lock: DirLock,
}

/// One of the three sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Socket {
    /// gRPC for clients.
    Memory,
    /// gRPC for operators.
    Admin,
    /// SOCK_SEQPACKET, with SO_PASSCRED.
    Channel,
}

/// A file that no other file ever was, on file systems that keep the time of its birth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileId {
    device: u64,
    inode: u64,
    born: Option<SystemTime>,
}

/// The listening, non-blocking sockets.
#[derive(Debug)]
pub struct Bound {
    /// gRPC for clients.
    pub memory: UnixListener,
    /// gRPC for operators.
    pub admin: UnixListener,
    /// SOCK_SEQPACKET, with SO_PASSCRED.
    pub channel: OwnedFd,
}

/// Why the sockets cannot be bound.
#[derive(Debug, Error)]
pub enum SocketsError {
    #[error("{0} is in use by a live daemon")]
    InUse(PathBuf),
    #[error(transparent)]
    Dir(#[from] PrivateDirError),
    #[error("{0} exists and is not a socket: remove it, or set daemon.socket_dir")]
    InTheWay(PathBuf),
    #[error("daemon.admin_group: there is no group `{0}`")]
    NoGroup(String),
    #[error("cannot {action} {path}: {source}")]
    Io { action: &'static str, path: PathBuf, source: io::Error },
}

impl Socket {
    /// In the order in which they are bound.
    pub const ALL: [Self; 3] = [Self::Memory, Self::Channel, Self::Admin];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Memory => Sockets::MEMORY,
            Self::Admin => Sockets::ADMIN,
            Self::Channel => Sockets::CHANNEL,
        }
    }
}

impl Sockets {
    pub const MEMORY: &str = "vramd.sock";
    pub const ADMIN: &str = "admin.sock";
    pub const CHANNEL: &str = "channel.sock";

    /// Makes the directory if it is missing, takes over stale sockets, binds and listens.
    pub fn bind(dir: &Path, admin_group: Option<&str>) -> Result<(Self, Bound), SocketsError> {
        private_dir::take(dir, 0o755)?;
        let lock = take_lock(dir)?;
        let group =
            admin_group.map(|name| group_id(name).ok_or_else(|| SocketsError::NoGroup(name.to_owned())));
        let mut sockets =
            Self { dir: dir.to_owned(), admin_group: group.transpose()?, bound: Vec::new(), lock };
        let memory = sockets.bind_one(Socket::Memory)?;
        let channel = sockets.bind_one(Socket::Channel)?;
        let admin = sockets.bind_one(Socket::Admin)?;
        Ok((sockets, Bound { memory: memory.into(), admin: admin.into(), channel }))
    }

    /// Checks what [`Self::bind`] needs, and makes nothing. Returns whether a live daemon has the sockets.
    pub fn check(dir: &Path, admin_group: Option<&str>) -> Result<bool, SocketsError> {
        if let Some(name) = admin_group
            && group_id(name).is_none()
        {
            return Err(SocketsError::NoGroup(name.to_owned()));
        }
        for socket in Socket::ALL {
            let path = dir.join(socket.name());
            SocketAddrUnix::new(&path).map_err(|error| io_error("name", &path)(error.into()))?;
            if fs::symlink_metadata(&path).is_ok_and(|found| !found.file_type().is_socket()) {
                return Err(SocketsError::InTheWay(path));
            }
        }
        Ok(private_dir::check(dir)? && DirLock::is_taken(dir).map_err(io_error("lock", dir))?)
    }

    /// Lists the sockets whose files are no longer the ones that this daemon bound.
    pub fn lost(&self) -> Vec<Socket> {
        let stands = |socket: &Socket| {
            let found = FileId::of(&self.path(*socket));
            self.bound.iter().any(|(bound, id)| bound == socket && found == Some(*id))
        };
        Socket::ALL.into_iter().filter(|socket| !stands(socket)).collect()
    }

    /// Binds lost sockets anew, unless another daemon has taken the directory, and hands on each new listening socket.
    pub fn restore(&mut self, mut serve: impl FnMut(Socket, OwnedFd)) -> Result<(), SocketsError> {
        private_dir::take(&self.dir, 0o755)?;
        // Without the file of its lock the directory is open to another daemon.
        if !self.lock.stands(&self.dir) {
            self.lock = take_lock(&self.dir)?;
        }
        for socket in self.lost() {
            serve(socket, self.bind_one(socket)?);
        }
        Ok(())
    }

    /// Binds one socket with its final mode.
    fn bind_one(&mut self, socket: Socket) -> Result<OwnedFd, SocketsError> {
        let path = self.path(socket);
        let kind = if socket == Socket::Channel { SocketType::SEQPACKET } else { SocketType::STREAM };
        let fd = bind_one(&path, kind)?;
        self.bound.retain(|(bound, _)| *bound != socket);
        self.bound.extend(FileId::of(&path).map(|id| (socket, id)));
        match (socket, self.admin_group) {
            (Socket::Admin, None) => {}
            (Socket::Admin, Some(group)) => {
                chown(&path, None, Some(group)).map_err(io_error("give to its group", &path))?;
                open_to(&path, 0o660)?;
            }
            (Socket::Memory | Socket::Channel, _) => open_to(&path, 0o666)?,
        }
        if socket == Socket::Channel {
            rustix::net::sockopt::set_socket_passcred(&fd, true)
                .map_err(|error| io_error("configure", &path)(error.into()))?;
        }
        Ok(fd)
    }

    fn path(&self, socket: Socket) -> PathBuf {
        self.dir.join(socket.name())
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        for (socket, id) in &self.bound {
            let path = self.path(*socket);
            // Another daemon may have taken the directory. A socket that stays would be taken over as stale.
            if FileId::of(&path) == Some(*id) {
                let _ = fs::remove_file(path);
            }
        }
    }
}

impl FileId {
    /// Returns the file at that path, without following a link. `None` if there is none.
    fn of(path: &Path) -> Option<Self> {
        let found = fs::symlink_metadata(path).ok()?;
        Some(Self { device: found.dev(), inode: found.ino(), born: found.created().ok() })
    }
}

fn take_lock(dir: &Path) -> Result<DirLock, SocketsError> {
    DirLock::take(dir).map_err(io_error("lock", dir))?.ok_or_else(|| SocketsError::InUse(dir.to_owned()))
}

fn io_error<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> SocketsError + 'a {
    move |source| SocketsError::Io { action, path: path.to_owned(), source }
}

fn open_to(path: &Path, mode: u32) -> Result<(), SocketsError> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(io_error("open", path))
}

/// Binds one socket for its owner alone. The directory's lock is taken, so no other daemon binds it.
fn bind_one(path: &Path, kind: SocketType) -> Result<OwnedFd, SocketsError> {
    let failed = |action| move |error: Errno| io_error(action, path)(error.into());
    let make = || {
        socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)
            .map_err(failed("make"))
    };
    let address = SocketAddrUnix::new(path).map_err(failed("name"))?;
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => return Err(SocketsError::InTheWay(path.to_owned())),
        // A daemon whose lock file was removed still answers here.
        Ok(_) => match connect(&make()?, &address) {
            Err(Errno::CONNREFUSED) => fs::remove_file(path).map_err(io_error("remove", path))?,
            Ok(()) | Err(_) => return Err(SocketsError::InUse(path.to_owned())),
        },
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(io_error("look at", path)(error)),
    }
    let socket = make()?;
    // Before the bind, a socket's mode is the mode with which its file will be made.
    fchmod(&socket, Mode::RUSR | Mode::WUSR).map_err(failed("restrict"))?;
    bind(&socket, &address).map_err(failed("bind"))?;
    listen(&socket, BACKLOG).map_err(failed("listen on"))?;
    Ok(socket)
}

/// Returns the group's number, by its name in `/etc/group` or by the number itself.
fn group_id(name: &str) -> Option<u32> {
    if let Ok(number) = name.parse() {
        return Some(number);
    }
    let groups = fs::read_to_string("/etc/group").ok()?;
    let line = groups.lines().find(|line| line.split(':').next() == Some(name))?;
    line.split(':').nth(2)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    fn private() -> (tempfile::TempDir, PathBuf) {
        let outer = tempfile::tempdir().unwrap();
        let dir = outer.path().join("run");
        (outer, dir)
    }

    #[test]
    fn modes_are_right_and_nothing_is_left() {
        let (_outer, dir) = private();
        let sockets = Sockets::bind(&dir, None).unwrap();
        assert_eq!(mode(&dir), 0o755);
        assert_eq!(mode(&dir.join("vramd.sock")), 0o666);
        assert_eq!(mode(&dir.join("channel.sock")), 0o666);
        assert_eq!(mode(&dir.join("admin.sock")), 0o600);
        UnixStream::connect(dir.join("vramd.sock")).unwrap();
        drop(sockets);
        for name in [Sockets::MEMORY, Sockets::ADMIN, Sockets::CHANNEL] {
            assert!(!dir.join(name).exists(), "{name}");
        }
    }

    #[test]
    fn a_socket_is_its_owners_from_the_moment_it_is_bound() {
        let outer = tempfile::tempdir().unwrap();
        let _socket = bind_one(&outer.path().join("s"), SocketType::STREAM).unwrap();
        assert_eq!(mode(&outer.path().join("s")), 0o600);
    }

    #[test]
    fn an_admin_group_may_connect() {
        let (_outer, dir) = private();
        let gid = rustix::process::getegid().as_raw();
        let _sockets = Sockets::bind(&dir, Some(&gid.to_string())).unwrap();
        assert_eq!(mode(&dir.join("admin.sock")), 0o660);
        let (_outer, other) = private();
        assert!(matches!(Sockets::bind(&other, Some("no-such-group")), Err(SocketsError::NoGroup(_))));
    }

    #[test]
    fn a_live_daemon_keeps_its_sockets_and_a_dead_one_does_not() {
        let (_outer, dir) = private();
        let (first, bound) = Sockets::bind(&dir, None).unwrap();
        assert!(matches!(Sockets::bind(&dir, None), Err(SocketsError::InUse(_))));
        // Also if the lock file is gone.
        fs::remove_file(dir.join("vramd.lock")).unwrap();
        assert!(matches!(Sockets::bind(&dir, None), Err(SocketsError::InUse(_))));
        // The state that a killed daemon leaves: bound sockets, no listener, no lock.
        drop(bound);
        std::mem::forget(first);
        fs::remove_file(dir.join("vramd.lock")).unwrap();
        assert!(dir.join("vramd.sock").exists());
        let _second = Sockets::bind(&dir, None).unwrap();
        UnixStream::connect(dir.join("vramd.sock")).unwrap();
    }

    #[test]
    fn lost_sockets_are_bound_again_with_their_modes() {
        let (outer, dir) = private();
        let (mut sockets, _bound) = Sockets::bind(&dir, None).unwrap();
        assert_eq!(sockets.lost(), []);
        fs::set_permissions(dir.join("admin.sock"), fs::Permissions::from_mode(0o640)).unwrap();
        assert_eq!(sockets.lost(), [], "another mode is no other file");
        fs::remove_file(dir.join("admin.sock")).unwrap();
        assert_eq!(sockets.lost(), [Socket::Admin]);
        let mut restored = Vec::new();
        let mut restore = |sockets: &mut Sockets| {
            restored.clear();
            sockets.restore(|socket, _| restored.push(socket)).unwrap();
            restored.len()
        };
        assert_eq!(restore(&mut sockets), 1);
        assert_eq!(mode(&dir.join("admin.sock")), 0o600);
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!(restore(&mut sockets), 3);
        assert_eq!(mode(&dir.join("channel.sock")), 0o666);
        assert!(DirLock::take(&dir).unwrap().is_none(), "the directory is locked again");
        drop(outer);
    }

    #[test]
    fn sockets_of_another_daemon_are_never_touched() {
        let (_outer, dir) = private();
        let (mut first, _bound) = Sockets::bind(&dir, None).unwrap();
        fs::remove_dir_all(&dir).unwrap();
        let (_second, _listening) = Sockets::bind(&dir, None).unwrap();
        assert!(matches!(first.restore(|_, _| {}), Err(SocketsError::InUse(_))));
        drop(first);
        UnixStream::connect(dir.join("vramd.sock")).unwrap();
    }

    #[test]
    fn foreign_files_are_left_alone() {
        let (outer, dir) = private();
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("vramd.sock"), "precious").unwrap();
        assert!(matches!(Sockets::bind(&dir, None), Err(SocketsError::InTheWay(_))));
        assert_eq!(fs::read_to_string(dir.join("vramd.sock")).unwrap(), "precious");
        fs::remove_file(dir.join("vramd.sock")).unwrap();
        fs::write(dir.join("admin.sock"), "precious").unwrap();
        assert!(Sockets::bind(&dir, None).is_err());
        assert!(!dir.join("vramd.sock").exists(), "sockets bound before are removed");
        assert_eq!(fs::read_to_string(dir.join("admin.sock")).unwrap(), "precious");

        fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(Sockets::bind(&dir, None), Err(SocketsError::Dir(PrivateDirError::NotPrivate(_)))));

        let link = dir.join("link");
        std::os::unix::fs::symlink(outer.path(), &link).unwrap();
        assert!(matches!(Sockets::bind(&link, None), Err(SocketsError::Dir(PrivateDirError::NotPrivate(_)))));

        let long = dir.join("x".repeat(120));
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(matches!(Sockets::bind(&long, None), Err(SocketsError::Io { action: "name", .. })));
    }
}
