//! The directory for extents on disk: checked when it is opened, and used by one daemon only.
//!
//! The daemon locks the directory itself. The lock goes with the process, however it ends. Files of an earlier
//! daemon, which no longer has the lock, are then deleted, since their checksums are lost. A lock file names
//! the process, for people.

use std::{
    fs::{self, File},
    io::{Read, Write},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use rustix::{
    fs::{AtFlags, FallocateFlags, Mode, OFlags, fallocate, fstatvfs, ftruncate, open, openat, unlinkat},
    io::{Errno, pread, pwrite},
};
use vramd_types::{Bytes, ExtentId};

use super::{
    ALIGNMENT, DirectoryError,
    directory_error::DirectoryContext,
    io_memory::{Buffer, IoMemory},
};
use crate::{DiskLimit, DriverError, FileLock};

/// The name of an extent's file is this and the extent's id.
const PREFIX: &str = "vramd-extent-";
const LOCK: &str = "vramd.lock";
const PROBE: &str = "vramd-probe";

#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    /// The directory itself.
    locked: FileLock,
    capacity: Bytes,
    used: Mutex<Bytes>,
}

impl Directory {
    pub(crate) fn open(path: &Path, capacity: Bytes) -> Result<Self, DirectoryError> {
        let context = DirectoryContext::of(path);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = open(path, flags, Mode::empty()).map_err(|error| match error {
            Errno::NOENT => DirectoryError::Missing(path.to_owned()),
            Errno::NOTDIR => DirectoryError::NoDirectory(path.to_owned()),
            error => context.failed("open it", error),
        })?;
        let (locked, mut owner) = lock(&context, fd)?;
        delete_leftovers(&context, &locked)?;
        // Not earlier: left-over files may have filled the disk.
        writeln!(owner, "{}", std::process::id())
            .map_err(|error| context.failed("write its lock file", error))?;
        probe(&context, &locked)?;
        let free = free(&locked).map_err(|error| context.failed("read its free space", error))?;
        if free < capacity {
            return Err(DirectoryError::TooSmall { directory: path.to_owned(), free, capacity });
        }
        Ok(Self { path: path.to_owned(), locked, capacity, used: Mutex::default() })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn capacity(&self) -> Bytes {
        self.capacity
    }

    /// Creates a file of that size with all blocks allocated.
    pub(super) fn create_file(
        self: &Arc<Self>,
        extent: ExtentId,
        size: Bytes,
    ) -> Result<ExtentFile, DriverError> {
        let charge = Charge::new(Arc::clone(self), size)?;
        let failed = |what: &str, error: Errno| {
            DriverError::Failed(format!("cannot {what} a file for extent {extent}: {error}"))
        };
        let name = name_of(extent);
        let fd = openat(&self.locked, &name, DIRECT | OFlags::CREATE | OFlags::EXCL, PRIVATE)
            .map_err(|error| failed("create", error))?;
        let file = ExtentFile { fd: Arc::new(fd), name, charge, is_deleted: false };
        loop {
            match fallocate(&*file.fd, FallocateFlags::empty(), 0, size.get()) {
                Err(Errno::INTR) => {}
                Err(Errno::NOSPC) => {
                    let free = free(&self.locked).unwrap_or(Bytes::ZERO);
                    return Err(DriverError::OutOfDisk(DiskLimit::Free(free)));
                }
                Err(Errno::DQUOT) => return Err(DriverError::OutOfDisk(DiskLimit::Quota)),
                made => return made.map(|()| file).map_err(|error| failed("preallocate", error)),
            }
        }
    }
}

const DIRECT: OFlags = OFlags::RDWR.union(OFlags::DIRECT).union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);
const PRIVATE: Mode = Mode::RUSR.union(Mode::WUSR);

/// The file of an extent. Dropping it deletes the file, unless that was done before.
#[derive(Debug)]
pub(super) struct ExtentFile {
    pub(super) fd: Arc<OwnedFd>,
    name: String,
    charge: Charge,
    is_deleted: bool,
}

impl ExtentFile {
    /// Deletes the file, or says why the disk does not have its bytes back. They stay charged then.
    pub(super) fn delete(mut self) -> Result<(), Errno> {
        self.delete_now()
    }

    fn delete_now(&mut self) -> Result<(), Errno> {
        self.is_deleted = true;
        match unlinkat(&self.charge.directory.locked, &self.name, AtFlags::empty()) {
            // The next daemon deletes the file. Until then it must have no bytes.
            Err(error) if error != Errno::NOENT => {
                let emptied = ftruncate(&self.fd, 0);
                emptied.inspect_err(|_| self.charge.size = Bytes::ZERO).map_err(|_| error)
            }
            _ => Ok(()),
        }
    }
}

impl Drop for ExtentFile {
    fn drop(&mut self) {
        if !self.is_deleted {
            // No caller waits for the result.
            let _ = self.delete_now();
        }
    }
}

/// The part of the capacity that a file uses.
#[derive(Debug)]
struct Charge {
    directory: Arc<Directory>,
    size: Bytes,
}

impl Charge {
    fn new(directory: Arc<Directory>, size: Bytes) -> Result<Self, DriverError> {
        let capacity = directory.capacity;
        // Every change is complete before any code could panic, so a poisoned lock is still good.
        let mut used = directory.used.lock().unwrap_or_else(PoisonError::into_inner);
        let with = used.checked_add(size).filter(|with| *with <= capacity);
        *used = with.ok_or(DriverError::OutOfDisk(DiskLimit::Capacity(capacity)))?;
        drop(used);
        Ok(Self { directory, size })
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let mut used = self.directory.used.lock().unwrap_or_else(PoisonError::into_inner);
        *used = used.saturating_sub(self.size);
    }
}

fn name_of(extent: ExtentId) -> String {
    format!("{PREFIX}{}", extent.get())
}

/// Whether the name is one that only the driver gives.
fn is_own_name(name: &str) -> bool {
    let id = name.strip_prefix(PREFIX).and_then(|id| id.parse::<u64>().ok());
    id.is_some_and(|id| name_of(ExtentId::from_raw(id)) == name) || name == PROBE
}

/// Locks the directory, and returns it with the lock file, still empty.
fn lock(context: &DirectoryContext<'_>, directory: OwnedFd) -> Result<(FileLock, File), DirectoryError> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let fd = openat(&directory, LOCK, flags, PRIVATE).map_err(|error| match error {
        Errno::ACCESS | Errno::PERM | Errno::ROFS => context.not_writable(error),
        error => context.failed("open its lock file", error),
    })?;
    let mut file = File::from(fd);
    // The lock is on the directory: the file could be deleted and made again.
    let locked = FileLock::take(directory).map_err(|error| context.failed("lock it", error))?;
    let Some(directory) = locked else {
        let mut text = String::new();
        let by = file.read_to_string(&mut text).ok().and_then(|_| text.trim().parse().ok());
        return Err(DirectoryError::InUse { directory: context.directory(), by });
    };
    file.set_len(0).map_err(|error| context.failed("empty its lock file", error))?;
    Ok((directory, file))
}

fn delete_leftovers(context: &DirectoryContext<'_>, directory: &FileLock) -> Result<(), DirectoryError> {
    let failed = |error| context.failed("list files of an earlier daemon", error);
    for entry in fs::read_dir(context.directory()).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let is_file = entry.file_type().map_err(failed)?.is_file();
        if is_file && entry.file_name().to_str().is_some_and(is_own_name) {
            unlinkat(directory, entry.file_name(), AtFlags::empty())
                .map_err(|error| context.failed("delete a file of an earlier daemon", error))?;
        }
    }
    Ok(())
}

/// Checks that files can be preallocated there, and written and read with direct IO.
fn probe(context: &DirectoryContext<'_>, directory: &FileLock) -> Result<(), DirectoryError> {
    let mut is_own_name = true;
    let probed = try_out(context, || {
        let opened = openat(directory, PROBE, DIRECT | OFlags::CREATE | OFlags::EXCL, PRIVATE);
        is_own_name = !matches!(opened, Err(Errno::EXIST));
        opened
    });
    if !is_own_name {
        return probed;
    }
    // Some file systems create the file before they refuse direct IO.
    match unlinkat(directory, PROBE, AtFlags::empty()) {
        Err(error) if error != Errno::NOENT => Err(context.failed("delete the probe file", error)),
        _ => probed,
    }
}

fn try_out(
    context: &DirectoryContext<'_>,
    open: impl FnOnce() -> Result<OwnedFd, Errno>,
) -> Result<(), DirectoryError> {
    let direct = |error| match error {
        Errno::INVAL => DirectoryError::NoDirectIo(context.directory()),
        Errno::ACCESS | Errno::PERM | Errno::ROFS => context.not_writable(error),
        error => context.failed("write and read the probe file", error),
    };
    let file = open().map_err(direct)?;
    fallocate(&file, FallocateFlags::empty(), 0, 2 * BLOCK).map_err(|error| match error {
        Errno::OPNOTSUPP | Errno::NOSYS => DirectoryError::NoPreallocation(context.directory()),
        error => context.failed("preallocate the probe file", error),
    })?;
    let mut buffer = Buffer::new(ALIGNMENT).map_err(|error| context.failed("allocate a buffer", error))?;
    let text = [0x5a; ALIGNMENT];
    buffer.fill(&text);
    let written = pwrite(&file, buffer.bytes(), BLOCK).map_err(direct)?;
    let mut back = Buffer::new(ALIGNMENT).map_err(|error| context.failed("allocate a buffer", error))?;
    let read = pread(&file, back.bytes_mut(), BLOCK).map_err(direct)?;
    if written != ALIGNMENT || read != ALIGNMENT || back.bytes() != text {
        return Err(context.failed("write and read the probe file", "it reads other bytes than were written"));
    }
    Ok(())
}

const BLOCK: u64 = ALIGNMENT as u64;

/// The bytes that the file system has left for the daemon's user.
fn free(directory: &FileLock) -> Result<Bytes, Errno> {
    let reported = fstatvfs(directory)?;
    Ok(Bytes::new(reported.f_bavail.saturating_mul(reported.f_frsize)))
}

#[cfg(test)]
mod tests;
