//! Opens files that clients load, and checks that they never change.
//!
//! A client names a file by one of its own descriptors. The daemon takes exactly that descriptor from the process and
//! checks that it is open for reading, so no client can load a file that it could not read. If the daemon may not look
//! at the file, or cannot open it at once, it treats the file as mutable.

use std::{
    fs,
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{
        AtFlags, FileType, Mode, OFlags, Stat, Statx, StatxAttributes, StatxFlags, fcntl_getfl, fcntl_setfl,
        fstat, open, stat, statx,
    },
    io::{Errno, pread},
    process::{PidfdGetfdFlags, geteuid, pidfd_getfd},
};
use vramd_types::{Bytes, file_kind_name};

use super::peer::Peer;

/// The block size of direct IO, as the driver reads.
const BLOCK: usize = 4096;

/// A file that never changes, open for reading, with direct IO if its file system has it.
#[derive(Debug)]
pub struct Immutable {
    pub file: OwnedFd,
    /// The path of the file at the time when it was opened.
    pub path: PathBuf,
    pub size: Bytes,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotLoadable {
    /// The descriptor is no regular file, or the client cannot read it.
    Invalid(String),
    /// The file may change, as far as the daemon knows, for that reason.
    Mutable { path: PathBuf, why: String },
}

/// Opens the file behind a process's descriptor, if it has fs-verity or lies below one of the paths. Takes as long as
/// the file system does.
pub fn open_of(peer: &Peer, number: u32, immutable: &[PathBuf]) -> Result<Immutable, NotLoadable> {
    let name = format!("descriptor {number} of process {}", peer.pid);
    let unknown = |error: Errno| NotLoadable::Mutable {
        path: PathBuf::from(&name),
        why: format!("the daemon cannot open it at once: {error}"),
    };
    let theirs = duplicate(peer, number).map_err(|error| match error {
        Errno::BADF => NotLoadable::Invalid(format!("{name} is not open")),
        error => unknown(error),
    })?;
    let found = fstat(&theirs.file).map_err(unknown)?;
    let kind = FileType::from_raw_mode(found.st_mode);
    if kind != FileType::RegularFile {
        return Err(NotLoadable::Invalid(format!(
            "{name} is not a regular file but {}",
            file_kind_name(found.st_mode)
        )));
    }
    if !theirs.is_readable() {
        return Err(NotLoadable::Invalid(format!("{name} is not open for reading")));
    }
    let file = reopen_for_driver(&theirs.file).map_err(unknown)?;
    let path = fs::read_link(own_path(&file)).unwrap_or_default();
    if !is_on_verity(&file)
        && let Err(why) = check_below(&path, &found, immutable)
    {
        return Err(NotLoadable::Mutable { path, why });
    }
    Ok(Immutable { file, path, size: Bytes::new(u64::try_from(found.st_size).unwrap_or_default()) })
}

/// A descriptor of a client, with its flags.
#[derive(Debug)]
struct ClientDescriptor {
    /// A duplicate of the descriptor, or another descriptor of the same file.
    file: OwnedFd,
    /// The flags with which the process has it open.
    flags: OFlags,
}

impl ClientDescriptor {
    fn is_readable(&self) -> bool {
        let reads = [OFlags::RDONLY, OFlags::RDWR].contains(&(self.flags & OFlags::RWMODE));
        reads && !self.flags.contains(OFlags::PATH)
    }
}

/// Duplicates the process's descriptor. If the daemon may not, and the process runs as the daemon's user, opens the
/// same file again: that user may read it.
fn duplicate(peer: &Peer, number: u32) -> Result<ClientDescriptor, Errno> {
    let raw = i32::try_from(number).map_err(|_| Errno::BADF)?;
    match pidfd_getfd(&peer.pidfd, raw, PidfdGetfdFlags::empty()) {
        Err(Errno::PERM) if peer.uid == geteuid().as_raw() => reopen_by_path(peer, number),
        taken => {
            let file = taken?;
            Ok(ClientDescriptor { flags: fcntl_getfl(&file)?, file })
        }
    }
}

fn reopen_by_path(peer: &Peer, number: u32) -> Result<ClientDescriptor, Errno> {
    let not_open = |error| if error == Errno::NOENT { Errno::BADF } else { error };
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let file = open(format!("/proc/{}/fd/{number}", peer.pid), flags, Mode::empty()).map_err(not_open)?;
    // The new descriptor does not have the flags of the process's own.
    let flags = flags_of(peer.pid, number).map_err(not_open)?;
    // The pid may name another process by now.
    if peer.has_ended() { Err(Errno::SRCH) } else { Ok(ClientDescriptor { file, flags }) }
}

fn flags_of(pid: u32, number: u32) -> Result<OFlags, Errno> {
    let text = fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}"));
    let text = text.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    let flags =
        text.lines().find_map(|line| u32::from_str_radix(line.strip_prefix("flags:")?.trim(), 8).ok());
    flags.map(OFlags::from_bits_retain).ok_or(Errno::IO)
}

fn own_path(file: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// Opens the file once more, for the driver alone. It does not wait for leases.
fn reopen_for_driver(theirs: &OwnedFd) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let opened = open(own_path(theirs), flags | OFlags::DIRECT, Mode::empty());
    let file = match opened.and_then(|file| reads_blocks(&file).map(|()| file)) {
        Err(Errno::INVAL) => open(own_path(theirs), flags, Mode::empty())?,
        opened => opened?,
    };
    // The driver's reads must block.
    let flags = fcntl_getfl(&file)? - OFlags::NONBLOCK;
    fcntl_setfl(&file, flags)?;
    Ok(file)
}

/// Checks that direct IO works in the driver's blocks: some file systems want larger ones.
fn reads_blocks(file: &OwnedFd) -> Result<(), Errno> {
    let mut room = [0; 2 * BLOCK];
    let begins = room.as_ptr().align_offset(BLOCK).min(BLOCK);
    pread(file, &mut room[begins..begins + BLOCK], 0).map(drop)
}

fn is_on_verity(file: &OwnedFd) -> bool {
    let found = statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::empty());
    found.is_ok_and(|found| has_verity(&found))
}

fn has_verity(found: &Statx) -> bool {
    found.stx_attributes.contains(StatxAttributes::VERITY)
}

/// Checks that the path leads to this very file for the daemon too, and lies below one of the roots. A client may have
/// mounted anything at a path of that name. The error says why not.
fn check_below(path: &Path, found: &Stat, immutable: &[PathBuf]) -> Result<(), String> {
    let without_verity = "it has no fs-verity, and";
    if immutable.is_empty() {
        return Err(format!("{without_verity} the configuration names no immutable path"));
    }
    let is_there = stat(path).is_ok_and(|there| (there.st_dev, there.st_ino) == (found.st_dev, found.st_ino));
    let is_straight = fs::canonicalize(path).is_ok_and(|canonical| canonical == path);
    if !(is_there && is_straight) {
        return Err(format!(
            "{without_verity} the daemon finds another file, or none, at that path: the client has a mount of its own \
             there, or the file was removed"
        ));
    }
    let roots: Vec<PathBuf> = immutable.iter().filter_map(|root| fs::canonicalize(root).ok()).collect();
    if roots.iter().any(|root| path.starts_with(root)) {
        return Ok(());
    }
    // A folder of links into its sibling, as download caches have.
    let beside = roots.iter().find_map(|root| Some((root, root.parent()?)));
    let beside = beside.filter(|(_, parent)| parent.parent().is_some() && path.starts_with(parent));
    if let Some((root, parent)) = beside {
        return Err(format!(
            "{without_verity} it lies beside the immutable path {}, not below it. If links there lead to it, list {} too",
            root.display(),
            path.strip_prefix(parent)
                .ok()
                .and_then(|rest| rest.components().next())
                .map_or_else(|| parent.to_owned(), |first| parent.join(first))
                .display()
        ));
    }
    let missing = immutable.iter().find(|root| !root.exists());
    let missing = missing.map(|root| format!("; {} does not exist", root.display())).unwrap_or_default();
    Err(format!(
        "{without_verity} it lies below no immutable path of the configuration{missing}. Links count by the file that \
         they lead to, and a bind mount is a path of its own"
    ))
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        os::{
            fd::AsFd,
            unix::{fs::symlink, net::UnixStream},
        },
        process::{Command, Stdio},
        time::{Duration, Instant},
    };

    use rustix::{
        fs::CWD,
        process::{Pid, PidfdFlags, pidfd_open},
    };

    use super::*;

    /// This process as a peer.
    fn this() -> Peer {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        Peer::of(ours.as_fd()).unwrap()
    }

    fn opened(file: &OwnedFd, immutable: &[PathBuf]) -> Result<Immutable, NotLoadable> {
        open_of(&this(), u32::try_from(file.as_raw_fd()).unwrap(), immutable)
    }

    #[test]
    fn a_file_below_an_immutable_path_is_opened_and_others_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(folder.path()).unwrap();
        let (models, others) = (root.join("models"), root.join("models-of-others"));
        for folder in [&models, &others] {
            fs::create_dir(folder).unwrap();
            fs::write(folder.join("m"), b"weights").unwrap();
        }
        let immutable = [root.join("not/there"), models.clone()];
        let fd = |path: PathBuf| OwnedFd::from(File::open(path).unwrap());
        let good = opened(&fd(models.join("m")), &immutable).unwrap();
        assert_eq!((good.path, good.size), (models.join("m"), Bytes::new(7)));
        let NotLoadable::Mutable { path, why } = opened(&fd(others.join("m")), &immutable).unwrap_err()
        else {
            panic!("it may change");
        };
        assert_eq!(path, others.join("m"));
        assert!(
            why.contains("beside the immutable path") || why.contains("below no immutable path"),
            "{why}"
        );
        // A link from elsewhere to a file below the root is that file. A link below the root to a file elsewhere is not
        // below it.
        symlink(models.join("m"), others.join("link")).unwrap();
        assert!(opened(&fd(others.join("link")), &immutable).is_ok());
        symlink(others.join("m"), models.join("link")).unwrap();
        assert!(matches!(opened(&fd(models.join("link")), &immutable), Err(NotLoadable::Mutable { .. })));
        symlink(&models, root.join("alias")).unwrap();
        assert!(opened(&fd(models.join("m")), &[root.join("alias")]).is_ok());
        let gone = fd(models.join("m"));
        fs::remove_file(models.join("m")).unwrap();
        assert!(matches!(opened(&gone, &immutable), Err(NotLoadable::Mutable { .. })));
    }

    #[test]
    fn a_descriptor_not_open_for_reading_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m");
        fs::write(&path, b"weights").unwrap();
        let root = [folder.path().to_owned()];
        let refused = |file: &OwnedFd, problem: &str| match opened(file, &root) {
            Err(NotLoadable::Invalid(why)) => assert!(why.contains(problem), "{why}"),
            other => panic!("{problem}: {other:?}"),
        };
        let write_only = File::options().write(true).open(&path).unwrap().into();
        refused(&write_only, "not open for reading");
        let named = open(&path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        refused(&named, "not open for reading");
        refused(&File::open(folder.path()).unwrap().into(), "not a regular file");
        let both: OwnedFd = File::options().read(true).write(true).open(&path).unwrap().into();
        assert!(opened(&both, &root).is_ok());
        for nothing in [1 << 20, u32::MAX] {
            assert!(matches!(open_of(&this(), nothing, &root), Err(NotLoadable::Invalid(_))));
        }
    }

    #[test]
    fn a_descriptor_that_cannot_be_duplicated_is_reopened_by_path() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m");
        fs::write(&path, b"weights").unwrap();
        let taken = |file: &OwnedFd| reopen_by_path(&this(), u32::try_from(file.as_raw_fd()).unwrap());
        let fd = |options: &fs::OpenOptions| OwnedFd::from(options.open(&path).unwrap());
        let good = fd(File::options().read(true));
        let taken_good = taken(&good).unwrap();
        assert!(taken_good.is_readable());
        assert_eq!(fstat(&taken_good.file).unwrap().st_ino, fstat(&good).unwrap().st_ino);
        assert!(taken(&fd(File::options().read(true).write(true))).unwrap().is_readable());
        // The daemon itself could read both.
        assert!(!taken(&fd(File::options().write(true))).unwrap().is_readable());
        let named = open(&path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        assert!(!taken(&named).unwrap().is_readable());
        for nothing in [1 << 20, u32::MAX] {
            assert_eq!(reopen_by_path(&this(), nothing).unwrap_err(), Errno::BADF);
        }
    }

    #[test]
    fn nothing_is_taken_by_the_pid_of_a_process_that_has_ended() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        // Its pid now names this process.
        let mut peer = this();
        peer.pidfd = pidfd;
        let file = File::open("/proc/self/exe").unwrap();
        let number = u32::try_from(file.as_raw_fd()).unwrap();
        assert_eq!(reopen_by_path(&peer, number).unwrap_err(), Errno::SRCH);
        assert!(reopen_by_path(&this(), number).is_ok());
    }

    #[test]
    fn verity_is_recognised_by_its_own_attribute() {
        let mut found = statx(CWD, "/proc/self/exe", AtFlags::empty(), StatxFlags::empty()).unwrap();
        found.stx_attributes = StatxAttributes::IMMUTABLE;
        assert!(!has_verity(&found), "root may undo that");
        // STATX_ATTR_VERITY, as linux/stat.h has it.
        found.stx_attributes |= StatxAttributes::from_bits_retain(0x0010_0000);
        assert!(has_verity(&found));
    }

    /// A process with a lease on a file can hold up every other process that opens it.
    #[test]
    fn a_file_that_cannot_be_opened_at_once_may_change() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m");
        fs::write(&path, b"weights").unwrap();
        let file = OwnedFd::from(File::open(&path).unwrap());
        leased(&file);
        // The kernel ends a lease after 45 s, unless the machine says otherwise.
        let begun = Instant::now();
        let refused = opened(&file, &[folder.path().to_owned()]);
        assert!(matches!(refused, Err(NotLoadable::Mutable { .. })), "{refused:?}");
        assert!(begun.elapsed() < Duration::from_secs(30));
    }

    #[allow(unsafe_code, reason = "rustix has no leases")]
    fn leased(file: &OwnedFd) {
        // SAFETY: both calls take numbers and an open descriptor. No code here waits for SIGIO, which reports that a
        // process opens the file, and which would end this process if it were not ignored.
        let set = unsafe {
            libc::signal(libc::SIGIO, libc::SIG_IGN);
            libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK)
        };
        assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
    }

    #[test]
    fn the_driver_reads_blocking_and_past_the_page_cache() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = folder.path().join("m");
        fs::write(&path, b"weights").unwrap();
        let good = opened(&File::open(&path).unwrap().into(), &[folder.path().to_owned()]).unwrap();
        let flags = fcntl_getfl(&good.file).unwrap();
        assert!(flags.contains(OFlags::DIRECT) && !flags.contains(OFlags::NONBLOCK), "{flags:?}");
    }
}
