//! Moves bytes between simulated memory and disk, and injects scheduled faults.

use std::{ops::Range, os::fd::AsRawFd, sync::Arc, time::Duration};

use rustix::{
    fs::{Mode, OFlags, fdatasync, open},
    io::{Errno, pread, pwrite},
};
use vramd_types::Bytes;

use super::{copier::short, fault::CopyFlaw, memory::Memory};
use crate::{
    CopyError, DriverError,
    copies::Mover,
    disk::{Buffer, DiskDirection, DiskExtent, DiskMover, DiskWork, IoMemory, Side},
};

/// The memory end of such a copy, and the copy's fault.
#[derive(Clone, Debug)]
pub(super) struct DiskEnd {
    pub(super) memory: Arc<Memory>,
    /// The size of the copy.
    pub(super) size: Bytes,
    pub(super) flaw: Option<CopyFlaw>,
}

/// All bytes go through a buffer, since the kernel writes the memory.
#[derive(Debug, Default)]
pub(super) struct SimSide {
    idle: Vec<Buffer>,
}

impl Side for SimSide {
    type Memory = DiskEnd;
    type Io = Buffer;
    /// Done when it is begun.
    type Hop = Option<Buffer>;

    fn is_same(one: &DiskEnd, other: &DiskEnd) -> bool {
        Arc::ptr_eq(&one.memory, &other.memory)
    }

    fn unbuffered(&self, _: &DiskEnd, _at: u64, _length: usize) -> Option<Buffer> {
        None
    }

    fn buffer(&mut self, length: usize) -> Result<Option<Buffer>, DriverError> {
        // A buffer that is too small is replaced.
        let made = match self.idle.pop().filter(|idle| idle.length() >= length) {
            Some(idle) => Ok(idle),
            None => Buffer::new(length),
        };
        made.map(Some).map_err(|error| DriverError::Failed(format!("cannot allocate a buffer: {error}")))
    }

    fn give_back(&mut self, buffer: Buffer) {
        self.idle.push(buffer);
    }

    fn fetch(
        &mut self,
        end: &DiskEnd,
        at: u64,
        length: usize,
        mut buffer: Buffer,
    ) -> Result<Self::Hop, DriverError> {
        let bytes = end.memory.bytes(Bytes::new(at + length as u64))?;
        buffer.fill(&bytes[bytes.len() - length..]);
        Ok(Some(buffer))
    }

    fn store(
        &mut self,
        end: &DiskEnd,
        at: u64,
        range: Range<usize>,
        buffer: Buffer,
    ) -> Result<Self::Hop, DriverError> {
        end.memory.write(at, &buffer.bytes()[range])?;
        Ok(Some(buffer))
    }

    fn arrived(&mut self, hop: &mut Self::Hop) -> Result<Option<Buffer>, DriverError> {
        Ok(hop.take())
    }

    fn disk_fails(&self, end: &DiskEnd, piece: Range<u64>) -> Option<Errno> {
        (end.flaw == Some(CopyFlaw::Io) && piece.contains(&(end.size.get() / 2))).then_some(Errno::IO)
    }
}

/// A mover that injects scheduled faults.
#[derive(Debug)]
pub(super) struct SimDiskMover {
    pub(super) direction: DiskDirection,
    pub(super) mover: DiskMover<SimSide>,
}

/// A piece in flight, and what follows its successful end.
#[derive(Debug)]
pub(super) struct SpoiltPiece {
    number: u64,
    then: Option<Then>,
}

#[derive(Debug)]
enum Then {
    Fail(DriverError),
    Flip(Arc<DiskExtent>, u64),
}

impl Mover for SimDiskMover {
    const CHUNK: u64 = <DiskMover<SimSide> as Mover>::CHUNK;
    const BACKGROUND_CHUNK: u64 = <DiskMover<SimSide> as Mover>::BACKGROUND_CHUNK;
    const IN_FLIGHT_MAX: usize = <DiskMover<SimSide> as Mover>::IN_FLIGHT_MAX;

    type Work = DiskWork<DiskEnd>;
    type Chunk = SpoiltPiece;

    fn background_in_flight_max(&self) -> usize {
        self.mover.background_in_flight_max()
    }

    fn begin(&mut self, work: &Self::Work, at: u64, length: u64) -> Result<SpoiltPiece, CopyError> {
        let DiskEnd { size, flaw, .. } = &work.memory;
        let half = size.get() / 2;
        let has_half = (at..at + length).contains(&half);
        match (flaw, self.direction) {
            (Some(CopyFlaw::Short), _) if at >= half => Err(short(*size).into()),
            (Some(CopyFlaw::Short), _) if has_half => {
                let number = self.mover.begin(work, at, half - at)?;
                Ok(SpoiltPiece { number, then: Some(Then::Fail(short(*size))) })
            }
            (Some(CopyFlaw::Corrupt), DiskDirection::FromDisk) if has_half => {
                flip(&work.disk, half)?;
                Ok(SpoiltPiece { number: self.mover.begin(work, at, length)?, then: None })
            }
            (Some(CopyFlaw::Corrupt), DiskDirection::ToDisk) if has_half => {
                let then = Then::Flip(Arc::clone(&work.disk), half);
                Ok(SpoiltPiece { number: self.mover.begin(work, at, length)?, then: Some(then) })
            }
            _ => Ok(SpoiltPiece { number: self.mover.begin(work, at, length)?, then: None }),
        }
    }

    fn poll(&mut self, piece: &mut SpoiltPiece) -> Result<bool, CopyError> {
        let ended = self.mover.poll(&mut piece.number)?;
        match piece.then.take_if(|_| ended) {
            None => {}
            Some(Then::Fail(error)) => return Err(error.into()),
            Some(Then::Flip(disk, at)) => flip(&disk, at)?,
        }
        Ok(ended)
    }

    fn poll_after(&self, piece: &SpoiltPiece, is_last: bool) -> Duration {
        self.mover.poll_after(&piece.number, is_last)
    }
}

/// Changes one byte of an extent's file, like a failing disk.
fn flip(disk: &DiskExtent, at: u64) -> Result<(), DriverError> {
    // A foreign file is never changed.
    if !disk.is_own() {
        return Ok(());
    }
    // Through the page cache: a single byte is no whole block.
    let path = format!("/proc/self/fd/{}", disk.file().as_raw_fd());
    let flipped = open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).and_then(|file| {
        let mut byte = [0];
        pread(&file, &mut byte, at)?;
        pwrite(&file, &[!byte[0]], at)?;
        fdatasync(&file)
    });
    flipped.map_err(|error| DriverError::Failed(format!("cannot corrupt extent {}: {error}", disk.id())))
}
