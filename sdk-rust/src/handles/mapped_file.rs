//! Files that this process maps, so that a device reads them in place.
//!
//! The bytes are page cache of the kernel: all processes of the node share them, the kernel takes them back under
//! pressure, and no tenant is charged for them. The daemon says whether the device can read them and whether the file
//! never changes. If not, the file is copied to the device, and the daemon counts that by its reason.

#![allow(unsafe_code, reason = "mapping a file has no safe interface")]

use std::{
    fs::File,
    os::fd::{AsFd, AsRawFd as _, BorrowedFd},
    ptr::{self, NonNull},
    slice,
    sync::Arc,
};

use rustix::{
    fs::fstat,
    io::{Errno, pread},
    mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap},
};
use vramd_proto::v1;
use vramd_types::{Bytes, FallBack, Reason, SessionId};

use crate::{
    cuda::Context,
    error::{Error, Result},
    process::{Process, fork::ProcessBound},
    session::{
        Session,
        call_style::{CallStyle, run_ready},
        check_process, missing_field,
    },
};

/// The bytes that are brought into memory between two looks at the thread's interrupt.
const PREPARED_AT_ONCE: usize = 256 << 20;

/// The bytes that are read at once where the kernel does not fill page tables.
const READ_AT_ONCE: usize = 4 << 20;

/// How a device reads a file that this process maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileAccess {
    /// At the address of the mapping. The pages stay page cache.
    Direct,
    /// At an address of the driver's. The pages are pinned while the file is mapped.
    Registered,
}

/// The daemon's answer on one file and one device.
#[derive(Clone, Debug)]
pub struct FileCheck {
    access: std::result::Result<FileAccess, NotInPlace>,
    device: v1::Device,
    in_place_by_default: bool,
    /// The file before the daemon looked at it.
    file: Version,
    session: SessionId,
}

/// A file, and the facts that change with every write to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Version {
    device: u64,
    inode: u64,
    size: i64,
    written: (i64, i64),
    changed: (i64, i64),
}

/// Why a file is copied to a device instead of being read in place.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NotInPlace {
    pub reason: FallBack,
    /// The same in one sentence, with the facts of this case.
    pub problem: String,
}

/// The outcome of an attempt to map a file.
#[derive(Debug)]
pub enum FileMapping {
    Mapped(MappedFile),
    /// The program copies the file instead, and reports that ([`crate::Client::report_fall_back`]).
    NotInPlace(NotInPlace),
}

/// A file in this process's memory, which a device reads in place. Dropping it unmaps it: kernels that read it must have
/// ended.
#[derive(Debug)]
pub struct MappedFile {
    start: NonNull<u8>,
    len: usize,
    device: v1::Device,
    device_ptr: u64,
    /// Set if the driver has registered the mapping.
    registered: Option<Arc<Context>>,
    process: Process,
}

// SAFETY: needed for the pointer. The mapping belongs to this value, is only read, and may be unmapped by any thread.
unsafe impl Send for MappedFile {}
// SAFETY: as above.
unsafe impl Sync for MappedFile {}

impl FileCheck {
    /// How the device reads the file, or why it does not.
    pub fn access(&self) -> std::result::Result<FileAccess, &NotInPlace> {
        self.access.as_ref().copied()
    }

    /// Whether programs should read the file in place here unless they need a copy: device memory and host memory are the
    /// same bytes.
    pub fn is_in_place_by_default(&self) -> bool {
        self.in_place_by_default
    }

    /// UUID of the device.
    pub fn device(&self) -> &str {
        &self.device.uuid
    }
}

impl MappedFile {
    /// All bytes of the file.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: needed to lend them. They are mapped while this value lives. The daemon has found of this very file that
        // it never changes, and it had no other size or times once it was mapped. So nothing writes them.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    pub fn size(&self) -> Bytes {
        Bytes::new(self.len as u64)
    }

    /// The address at which kernels read the first byte.
    pub fn as_device_ptr(&self) -> u64 {
        self.device_ptr
    }

    /// UUID of the device.
    pub fn device(&self) -> &str {
        &self.device.uuid
    }

    /// Whether a GPU reads it. Otherwise the device is simulated, and the CPU does.
    pub fn is_device_memory(&self) -> bool {
        !self.device.simulated
    }

    pub fn access(&self) -> FileAccess {
        if self.registered.is_some() { FileAccess::Registered } else { FileAccess::Direct }
    }

    fn map(file: BorrowedFd<'_>, len: usize, device: &v1::Device) -> rustix::io::Result<Self> {
        // SAFETY: there is no safe interface. Without MAP_FIXED the kernel chooses addresses that nothing else uses.
        let start = unsafe { mmap(ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, file, 0)? };
        let start = NonNull::new(start.cast::<u8>()).ok_or(Errno::NOMEM)?;
        Ok(Self {
            start,
            len,
            device: device.clone(),
            device_ptr: start.as_ptr().expose_provenance() as u64,
            registered: None,
            process: Process::current(),
        })
    }

    /// Has the kernel read the file and fill the page tables of this process, which a coherent device uses too. So no
    /// kernel waits for a disk. Bytes that cannot be read are refused here, where the CPU's read would end the process.
    fn prepare(&self, style: CallStyle, file: BorrowedFd<'_>) -> Result<()> {
        let unreadable = |error: Errno| invalid(&format!("its bytes cannot be read: {error}"));
        for at in (0..self.len).step_by(PREPARED_AT_ONCE) {
            style.check_interrupt()?;
            let len = PREPARED_AT_ONCE.min(self.len - at);
            match self.advise(at, len, Advice::LinuxPopulateRead) {
                Ok(()) => {}
                // Linux before 5.14 has no such advice.
                Err(Errno::INVAL) => read_through(file, at as u64, len).map_err(unreadable)?,
                Err(error) => return Err(unreadable(error)),
            }
        }
        Ok(())
    }

    fn advise(&self, at: usize, len: usize, advice: Advice) -> rustix::io::Result<()> {
        // SAFETY: there is no safe interface. The range lies in the mapping, and neither advice changes its content.
        unsafe { madvise(self.start.as_ptr().add(at).cast(), len, advice) }
    }

    fn register(&mut self, session: &Session) -> std::result::Result<(), String> {
        let context = session.table().context_of_device(self.device.index)?;
        let registered = context.register_read_only(self.start, self.len);
        self.device_ptr = registered.map_err(|fault| fault.to_string())?;
        self.registered = Some(context);
        Ok(())
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        if let Some(context) = &self.registered {
            // The driver of the parent process serves no child. Memory that the driver still has registered must stay.
            if self.process != Process::current() || context.unregister_host(self.start).is_err() {
                return;
            }
        }
        // SAFETY: needed to unmap it. The range is this value's own, and nothing borrows it.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// Asks the daemon how a device reads a file.
pub(crate) async fn check(
    style: CallStyle,
    session: &ProcessBound<Session>,
    file: BorrowedFd<'_>,
    device: Option<String>,
) -> Result<FileCheck> {
    check_process(session)?;
    let file_now = Version::of(file)?;
    let request = v1::CheckFileRequest {
        session_id: session.id().get(),
        fd: u32::try_from(file.as_raw_fd()).unwrap_or(u32::MAX),
        device,
    };
    let answer = style.call(session, session.deadline(), request, |mut client, request| async move {
        client.check_file(request).await
    });
    let answer = answer.await?;
    let device = session.devices().iter().find(|device| device.uuid == answer.device);
    let access = match answer.access() {
        v1::FileAccess::Direct => Ok(FileAccess::Direct),
        v1::FileAccess::Registered => Ok(FileAccess::Registered),
        v1::FileAccess::Copy => {
            // A reason that this client does not know is one of the platform's, as far as it can tell.
            let reason = FallBack::of_number(answer.reason).unwrap_or(FallBack::SeparateTiers);
            Err(NotInPlace { reason, problem: answer.problem.clone() })
        }
        v1::FileAccess::Unspecified => {
            let problem = "the daemon names a way to read the file that this client does not know".to_owned();
            Err(NotInPlace { reason: FallBack::SeparateTiers, problem })
        }
    };
    Ok(FileCheck {
        access,
        device: device.ok_or_else(|| missing_field("device"))?.clone(),
        in_place_by_default: answer.in_place_by_default,
        file: file_now,
        session: session.id(),
    })
}

/// Maps a file that was checked, and has its bytes read.
pub(crate) async fn map(
    style: CallStyle,
    session: &ProcessBound<Session>,
    file: Arc<File>,
    check: FileCheck,
) -> Result<FileMapping> {
    check_process(session)?;
    let session = session.clone();
    style.run_blocking(move || map_now(style, &session, file.as_fd(), &check)).await
}

fn map_now(
    style: CallStyle,
    session: &Session,
    file: BorrowedFd<'_>,
    check: &FileCheck,
) -> Result<FileMapping> {
    if check.session != session.id() {
        return Err(invalid("it was checked for another session"));
    }
    let access = match &check.access {
        Ok(access) => *access,
        Err(not) => return Ok(FileMapping::NotInPlace(not.clone())),
    };
    let not = |reason, problem: String| Ok(FileMapping::NotInPlace(NotInPlace { reason, problem }));
    check.file.check_same(file)?;
    let len = usize::try_from(check.file.size).unwrap_or(0);
    if len == 0 {
        return Err(invalid("it is empty"));
    }
    let mut mapped = match MappedFile::map(file, len, &check.device) {
        Ok(mapped) => mapped,
        Err(error) => return not(FallBack::MapFailed, format!("the file cannot be mapped: {error}")),
    };
    mapped.prepare(style, file)?;
    check.file.check_same(file)?;
    if access == FileAccess::Registered
        && let Err(problem) = mapped.register(session)
    {
        return not(FallBack::RegisterFailed, problem);
    }
    Ok(FileMapping::Mapped(mapped))
}

/// Reads a range of a file into the page cache.
fn read_through(file: BorrowedFd<'_>, at: u64, len: usize) -> rustix::io::Result<()> {
    let mut scratch = vec![0; READ_AT_ONCE.min(len)];
    let mut done = 0;
    while done < len {
        let wanted = scratch.len().min(len - done);
        match pread(file, scratch.get_mut(..wanted).unwrap_or_default(), at + done as u64) {
            // It was cut off. Any other write is found by the file's times.
            Ok(0) => return Err(Errno::NXIO),
            Ok(count) => done += count,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Has the daemon count a copy.
pub(crate) async fn report(
    style: CallStyle,
    session: &ProcessBound<Session>,
    reason: FallBack,
    copied: Bytes,
) -> Result<()> {
    check_process(session)?;
    let request = v1::ReportFallBackRequest {
        session_id: session.id().get(),
        reason: reason.number(),
        size_bytes: copied.get(),
    };
    let answer = style.call(session, session.deadline(), request, |mut client, request| async move {
        client.report_fall_back(request).await
    });
    answer.await.map(|_| ())
}

impl Version {
    fn of(file: BorrowedFd<'_>) -> Result<Self> {
        let found = fstat(file).map_err(|error| invalid(&error.to_string()))?;
        Ok(Self {
            device: found.st_dev,
            inode: found.st_ino,
            size: found.st_size,
            written: (found.st_mtime, found.st_mtime_nsec.cast_signed()),
            changed: (found.st_ctime, found.st_ctime_nsec.cast_signed()),
        })
    }

    /// Fails if a descriptor is of another file, or of this one after a write.
    fn check_same(self, file: BorrowedFd<'_>) -> Result<()> {
        let now = Self::of(file)?;
        if (now.device, now.inode) != (self.device, self.inode) {
            return Err(invalid("another file was checked"));
        }
        if now != self {
            return Err(invalid("it was written after it was checked"));
        }
        Ok(())
    }
}

fn invalid(problem: &str) -> Error {
    Error::refused(Reason::FileInvalid, &[("problem", &problem)])
}

impl crate::Client {
    /// Asks the daemon whether a device, by UUID or index, reads a file in place, and how. Without a device it is the
    /// first that the session sees. The file must be open for reading.
    pub fn check_file(&self, file: impl AsFd, device: Option<&str>) -> Result<FileCheck> {
        let device = device.map(str::to_owned);
        run_ready(check(CallStyle::Blocking, self.session(), file.as_fd(), device))
    }

    /// Maps a file that [`Self::check_file`] of this client has found to be readable in place, and has its bytes read.
    /// Nothing is allocated or charged. The mapping outlives the session. A file that was written since is refused.
    ///
    /// The process ends by SIGBUS when the CPU reads bytes that are no longer there: the file was cut off, although an
    /// operator called it immutable, or its disk or server fails after the kernel has taken pages back. Files with
    /// fs-verity cannot be cut off.
    pub fn map_file(&self, file: impl AsFd, check: &FileCheck) -> Result<FileMapping> {
        check_process(self.session())?;
        map_now(CallStyle::Blocking, self.session(), file.as_fd(), check)
    }

    /// Tells the daemon that this program copied a file to a device instead of having it read in place, and why. The
    /// daemon counts that for operators (`vramctl doctor`). [`Self::load_in_place`] does it by itself.
    pub fn report_fall_back(&self, reason: FallBack, copied: Bytes) -> Result<()> {
        run_ready(report(CallStyle::Blocking, self.session(), reason, copied))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_through_a_range_ends_where_the_file_does() {
        let file = File::open("/proc/self/exe").unwrap();
        let size = file.metadata().unwrap().len();
        assert!(size > READ_AT_ONCE as u64, "it takes more than one read");
        let read = |at: u64, len: u64| read_through(file.as_fd(), at, usize::try_from(len).unwrap());
        assert_eq!((read(0, size), read(3, 1), read(size, 0)), (Ok(()), Ok(()), Ok(())));
        assert_eq!((read(0, size + 1), read(size, 1)), (Err(Errno::NXIO), Err(Errno::NXIO)));
        let unreadable = File::options().write(true).open("/dev/null").unwrap();
        assert_eq!(read_through(unreadable.as_fd(), 0, 1), Err(Errno::BADF));
    }
}
