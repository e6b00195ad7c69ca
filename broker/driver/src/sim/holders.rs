//! Surveys which processes hold memory of the simulated devices. It is to the simulated driver what NVML is to
//! the real one.
//!
//! A memfd lives as long as any process has a descriptor of it or maps it. `/proc` shows both: `/proc/PID/fd/N`
//! links to `/memfd:NAME (deleted)`, and a line of `/proc/PID/maps` has the same path, with the inode. No
//! ledger is involved. This process is surveyed like any other: a live clone of an export holds memory.
//!
//! The survey cannot see:
//! - Processes of other users, unless it runs as root, and those hidden by `hidepid` or outside the PID
//!   namespace. They are passed over: memory that only they hold counts as free.
//! - Descriptors queued in a socket, sent and not yet received. They go when the receiver's end is closed, at
//!   the latest with its process; closing the sender's end does not take them back. The daemon releases only
//!   what its sessions have answered for, or what was sent to a process that has ended. So this concerns
//!   clients that answer without having received, or that send to one another.
//! - Moves during the survey, which takes a while and is no snapshot. It misses a descriptor that moves from a
//!   process not yet visited to one already visited.
//!
//! Memory missed in one of these ways is freed too early in the accounts. The next survey that sees it finds no
//! extent that explains it, counts it as unbrokered, and so takes it off the capacity again.
//!
//! A survey reads the links and maps of every process: 5 ms among 80 small processes, unoptimised, on one core.
//! Releases that wait together share one.

use std::{
    collections::HashMap,
    ffi::CStr,
    fs::File,
    io::{self, Read},
    mem::MaybeUninit,
    os::fd::{AsFd, OwnedFd},
};

use rustix::{
    fs::{AtFlags, CWD, Dir, Mode, OFlags, fstat, major, minor, openat, readlinkat_raw, statat},
    io::Errno,
};
use vramd_types::{Bytes, DeviceIndex};

use super::memory::{HOST_MARK, Identity, NAME_PREFIX, open_memfd};
use crate::{DeviceInfo, location::Location};

/// The size of each piece of held memory, once for all its holders.
pub(super) type Sightings = HashMap<Identity, Bytes>;

/// The longest interesting link: a memfd's name has at most 249 bytes.
const LINK_BYTES_MAX: usize = 512;

const LINK_PREFIX: &str = "/memfd:";
const LINK_SUFFIX: &str = " (deleted)";

/// Surveys `/proc`.
#[derive(Debug)]
pub(super) struct Holders {
    uuids: HashMap<String, DeviceIndex>,
    /// The device number of the kernel's own shmem mount, where all memfds live, as a number and as `maps`
    /// writes it.
    memfd_device: u64,
    memfd_device_text: String,
}

impl Holders {
    pub(super) fn new(devices: &[DeviceInfo]) -> io::Result<Self> {
        let memfd_device = fstat(open_memfd("vramd-probe")?)?.st_dev;
        let memfd_device_text = format!("{:02x}:{:02x}", major(memfd_device), minor(memfd_device));
        let uuids = (0..).map(DeviceIndex).zip(devices).map(|(index, info)| (info.uuid.clone(), index));
        Ok(Self { uuids: uuids.collect(), memfd_device, memfd_device_text })
    }

    /// All memory of these devices that any process holds. Fails as a whole on any problem but the end of a
    /// process or missing permissions, for example without descriptors: then the survey proves nothing.
    pub(super) fn survey(&self) -> io::Result<Sightings> {
        let mut walk = ProcWalk { holders: self, seen: Sightings::new(), text: Vec::new() };
        let proc = open_dir(CWD, c"/proc")?;
        each_number(&proc, |pid| {
            ignore_vanished(open_dir(&proc, pid).and_then(|dir| walk.process(pid, &dir)))
        })?;
        Ok(walk.seen)
    }

    /// The location and number in the path of a link or line.
    fn parse(&self, path: &str) -> Option<(Location, u64)> {
        let name = path.strip_prefix(LINK_PREFIX)?.strip_suffix(LINK_SUFFIX)?.strip_prefix(NAME_PREFIX)?;
        let (uuid, number) = name.rsplit_once(':')?;
        let device = *self.uuids.get(uuid)?;
        let (location, number) = match number.strip_prefix(HOST_MARK) {
            // Another daemon may have the device as its second, and name its host memory after its first.
            Some(number) => ((device == DeviceIndex(0)).then_some(Location::Host)?, number),
            None => (Location::Device(device), number),
        };
        Some((location, number.parse().ok()?))
    }

    /// Parses `START-END PERMS OFFSET MAJOR:MINOR INODE   /memfd:NAME (deleted)`.
    fn parse_mapping(&self, line: &[u8]) -> Option<(Identity, Bytes)> {
        // Nearly every line ends here.
        if !line.ends_with(LINK_SUFFIX.as_bytes()) {
            return None;
        }
        let line = std::str::from_utf8(line).ok()?;
        let path_at = line.find(LINK_PREFIX)?;
        let (location, number) = self.parse(&line[path_at..])?;
        let mut fields = line[..path_at].split_ascii_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let hex = |text| u64::from_str_radix(text, 16).ok();
        let length = hex(end)?.checked_sub(hex(start)?)?;
        let offset = hex(fields.nth(1)?)?;
        if fields.next()? != self.memfd_device_text {
            return None;
        }
        let inode = fields.next()?.parse().ok()?;
        // The path begins right after it; otherwise it is that of a file in some folder.
        if fields.next().is_some() {
            return None;
        }
        Some((Identity { location, number, inode }, Bytes::new(offset.checked_add(length)?)))
    }
}

struct ProcWalk<'a> {
    holders: &'a Holders,
    seen: Sightings,
    /// One buffer for all maps.
    text: Vec<u8>,
}

impl ProcWalk<'_> {
    fn process(&mut self, pid: &CStr, dir: &OwnedFd) -> io::Result<()> {
        if self.task(dir)? {
            return Ok(());
        }
        // A kernel thread has neither, but neither has a process whose first thread ended before its others.
        let tasks = open_dir(dir, c"task")?;
        each_number(&tasks, |tid| {
            if tid == pid {
                return Ok(());
            }
            ignore_vanished(open_dir(&tasks, tid).and_then(|dir| self.task(&dir).map(drop)))
        })
    }

    /// Reads descriptors before mappings: a process that maps memory and then closes its descriptor is seen one
    /// way or the other. Returns whether there was either.
    fn task(&mut self, dir: &OwnedFd) -> io::Result<bool> {
        let any_fd = self.descriptors(dir)?;
        let any_mapping = self.mappings(dir)?;
        Ok(any_fd || any_mapping)
    }

    fn descriptors(&mut self, dir: &OwnedFd) -> io::Result<bool> {
        let fds = open_dir(dir, c"fd")?;
        let mut any = false;
        each_number(&fds, |fd| {
            any = true;
            ignore_vanished(self.descriptor(&fds, fd))
        })?;
        Ok(any)
    }

    fn descriptor(&mut self, fds: &OwnedFd, fd: &CStr) -> io::Result<()> {
        let mut buffer = [MaybeUninit::uninit(); LINK_BYTES_MAX];
        let (link, _) = readlinkat_raw(fds, fd, &mut buffer)?;
        let named = std::str::from_utf8(link).ok().and_then(|link| self.holders.parse(link));
        let Some((location, number)) = named else { return Ok(()) };
        let stat = statat(fds, fd, AtFlags::empty())?;
        if stat.st_dev == self.holders.memfd_device {
            let size = Bytes::new(stat.st_size.unsigned_abs());
            self.record(Identity { location, number, inode: stat.st_ino }, size);
        }
        Ok(())
    }

    fn mappings(&mut self, dir: &OwnedFd) -> io::Result<bool> {
        let mut text = std::mem::take(&mut self.text);
        text.clear();
        let read = match openat(dir, c"maps", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
            Ok(maps) => File::from(maps).read_to_end(&mut text),
            // For a task without memory some kernels say so, and some show an empty file.
            Err(Errno::SRCH) => Ok(0),
            Err(error) => Err(error.into()),
        };
        for line in text.split(|byte| *byte == b'\n') {
            if let Some((identity, size)) = self.holders.parse_mapping(line) {
                self.record(identity, size);
            }
        }
        self.text = text;
        read.map(|length| length > 0)
    }

    /// A mapping may cover only a part; the largest holding shows the size.
    fn record(&mut self, identity: Identity, size: Bytes) {
        let known = self.seen.entry(identity).or_insert(size);
        *known = size.max(*known);
    }
}

fn open_dir(at: impl AsFd, name: &CStr) -> io::Result<OwnedFd> {
    Ok(openat(at, name, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Calls for every entry of a folder that is a number.
fn each_number(folder: &OwnedFd, mut call: impl FnMut(&CStr) -> io::Result<()>) -> io::Result<()> {
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        if entry.file_name().to_bytes().iter().all(u8::is_ascii_digit) {
            call(entry.file_name())?;
        }
    }
    Ok(())
}

/// Passes over processes that have ended meanwhile, and those without permission.
fn ignore_vanished(visited: io::Result<()>) -> io::Result<()> {
    match visited.as_ref().err().and_then(Errno::from_io_error) {
        Some(Errno::NOENT | Errno::SRCH | Errno::ACCESS | Errno::PERM) => Ok(()),
        _ => visited,
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Instant};

    use vramd_types::GRANULARITY;

    use super::super::{mapping::Mapping, memory::Memory};
    use super::*;
    use crate::Export;

    const DEVICE: DeviceIndex = DeviceIndex(0);

    fn device(test: &str) -> DeviceInfo {
        let uuid = format!("GPU-{test}-{}", std::process::id());
        DeviceInfo { uuid, name: String::new(), total: Bytes::gib(1), context: Bytes::ZERO }
    }

    fn memory(info: &DeviceInfo, raw: u64) -> Memory {
        Memory::new(&info.uuid, Location::Device(DEVICE), raw, GRANULARITY).unwrap()
    }

    #[test]
    fn a_descriptor_and_a_mapping_are_both_seen() {
        let info = device("seen");
        let holders = Holders::new(std::slice::from_ref(&info)).unwrap();
        assert_eq!(holders.survey().unwrap(), Sightings::new());

        let memory = memory(&info, 1);
        let expected = Sightings::from([(memory.identity(), GRANULARITY)]);
        assert_eq!(holders.survey().unwrap(), expected, "a descriptor");

        let Export::Memfd(fd) = memory.export() else { unreachable!("sim makes memfds") };
        let mapping = Mapping::new(fd.own().as_fd(), usize::try_from(GRANULARITY.get()).unwrap()).unwrap();
        drop(memory);
        drop(Arc::into_inner(fd).expect("the only one left"));
        assert_eq!(holders.survey().unwrap(), expected, "a mapping alone");

        drop(mapping);
        assert_eq!(holders.survey().unwrap(), Sightings::new());
    }

    #[test]
    fn other_devices_and_files_are_not_seen() {
        let info = device("others");
        let holders = Holders::new(std::slice::from_ref(&info)).unwrap();
        let longer = DeviceInfo { uuid: format!("{}-1", info.uuid), ..info.clone() };
        let _other = memory(&longer, 1);
        let _unnumbered = open_memfd(&format!("{NAME_PREFIX}{}:x", info.uuid)).unwrap();
        let _plain = File::open("/proc/self/exe").unwrap();
        assert_eq!(holders.survey().unwrap(), Sightings::new());
    }

    #[test]
    fn host_memory_is_named_after_the_first_device() {
        let (first, second) = (device("host"), device("host-beside"));
        let holders = Holders::new(&[first.clone(), second.clone()]).unwrap();
        let on = |uuid: &str| Memory::new(uuid, Location::Host, 1, GRANULARITY).unwrap();
        let (own, _others) = (on(&first.uuid), on(&second.uuid));
        assert_eq!(holders.survey().unwrap(), Sightings::from([(own.identity(), GRANULARITY)]));
    }

    #[test]
    fn lines_of_maps_are_parsed() {
        let info = device("lines");
        let holders = Holders::new(std::slice::from_ref(&info)).unwrap();
        let dev = &holders.memfd_device_text;
        let path = format!("/memfd:{NAME_PREFIX}{}:9 (deleted)", info.uuid);
        let parse = |line: String| holders.parse_mapping(line.as_bytes());
        let identity = Identity { location: Location::Device(DEVICE), number: 9, inode: 77 };
        assert_eq!(
            parse(format!("7f0000200000-7f0000400000 rw-s 00200000 {dev} 77     {path}")),
            Some((identity, Bytes::mib(4))),
            "a piece shows where it ends"
        );
        assert_eq!(parse(format!("7f0000200000-7f0000400000 rw-s 00000000 fe:00 77     {path}")), None);
        assert_eq!(parse(format!("7f0000200000-7f0000400000 rw-s 00000000 {dev} 77     /tmp{path}")), None);
        assert_eq!(parse(format!("nonsense {path}")), None);
        assert_eq!(parse(path), None);
    }

    #[test]
    fn a_survey_is_quick() {
        let info = device("quick");
        let holders = Holders::new(std::slice::from_ref(&info)).unwrap();
        let _held: Vec<_> = (0..256).map(|raw| memory(&info, raw)).collect();
        // The best of some, since other processes may have the machine for a while.
        let survey = || {
            let begun = Instant::now();
            let seen = holders.survey().unwrap().len();
            (begun.elapsed(), seen)
        };
        let (took, seen) = (0..5).map(|_| survey()).min().unwrap();
        let processes = std::fs::read_dir("/proc").unwrap().count();
        eprintln!("{seen} extents among {processes} entries of /proc: {took:?}");
        assert_eq!(seen, 256);
        assert!(took.as_secs() < 5, "{took:?}");
    }
}
