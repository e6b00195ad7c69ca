//! Moves bytes between simulated memory and disk, and spoils what the schedule says.

use std::{ops::Range, os::fd::AsRawFd, sync::Arc, time::Duration};

use rustix::{
    fs::{Mode, OFlags, fdatasync, open},
    io::{Errno, pread, pwrite},
};
use vramd_types::Bytes;

use super::{copier::short, fault::Flaw, memory::Memory};
use crate::{
    CopyError, DriverError,
    copies::Link,
    disk::{Buffer, DiskExtent, DiskLink, DiskWork, Room, Side, Way},
};

/// Memory at one end of such a copy, and what is wrong with the copy.
#[derive(Clone, Debug)]
pub(super) struct DiskEnd {
    pub(super) memory: Arc<Memory>,
    /// Of the copy.
    pub(super) size: Bytes,
    pub(super) flaw: Option<Flaw>,
}

/// All bytes go through a buffer: memory is written by way of the kernel.
#[derive(Debug, Default)]
pub(super) struct SimSide {
    idle: Vec<Buffer>,
}

impl Side for SimSide {
    type Memory = DiskEnd;
    type Room = Buffer;
    /// It is done when it is begun.
    type Hop = Option<Buffer>;

    fn is_same(one: &DiskEnd, other: &DiskEnd) -> bool {
        Arc::ptr_eq(&one.memory, &other.memory)
    }

    fn straight(&self, _: &DiskEnd, _at: u64, _length: usize) -> Option<Buffer> {
        None
    }

    fn buffer(&mut self, length: usize) -> Result<Option<Buffer>, DriverError> {
        // One that is too small gives way.
        let made = match self.idle.pop().filter(|idle| idle.length() >= length) {
            Some(idle) => Ok(idle),
            None => Buffer::new(length),
        };
        made.map(Some).map_err(|error| DriverError::Failed(format!("make a buffer: {error}")))
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
        (end.flaw == Some(Flaw::Io) && piece.contains(&(end.size.get() / 2))).then_some(Errno::IO)
    }
}

/// A link that spoils what it is told to.
#[derive(Debug)]
pub(super) struct DiskWire {
    pub(super) way: Way,
    pub(super) link: DiskLink<SimSide>,
}

/// A piece under way, and what happens once it has ended well.
#[derive(Debug)]
pub(super) struct Piece {
    number: u64,
    then: Option<Then>,
}

#[derive(Debug)]
enum Then {
    Fail(DriverError),
    Flip(Arc<DiskExtent>, u64),
}

impl Link for DiskWire {
    const CHUNK: u64 = <DiskLink<SimSide> as Link>::CHUNK;
    const BACKGROUND_CHUNK: u64 = <DiskLink<SimSide> as Link>::BACKGROUND_CHUNK;
    const UNDER_WAY_MAX: usize = <DiskLink<SimSide> as Link>::UNDER_WAY_MAX;

    type Work = DiskWork<DiskEnd>;
    type Chunk = Piece;

    fn background_under_way_max(&self) -> usize {
        self.link.background_under_way_max()
    }

    fn begin(&mut self, work: &Self::Work, at: u64, length: u64) -> Result<Piece, CopyError> {
        let DiskEnd { size, flaw, .. } = &work.memory;
        let half = size.get() / 2;
        let has_half = (at..at + length).contains(&half);
        match (flaw, self.way) {
            (Some(Flaw::Short), _) if at >= half => Err(short(*size).into()),
            (Some(Flaw::Short), _) if has_half => {
                let number = self.link.begin(work, at, half - at)?;
                Ok(Piece { number, then: Some(Then::Fail(short(*size))) })
            }
            (Some(Flaw::Corrupt), Way::FromDisk) if has_half => {
                flip(&work.disk, half)?;
                Ok(Piece { number: self.link.begin(work, at, length)?, then: None })
            }
            (Some(Flaw::Corrupt), Way::ToDisk) if has_half => {
                let then = Then::Flip(Arc::clone(&work.disk), half);
                Ok(Piece { number: self.link.begin(work, at, length)?, then: Some(then) })
            }
            _ => Ok(Piece { number: self.link.begin(work, at, length)?, then: None }),
        }
    }

    fn has_ended(&mut self, piece: &mut Piece) -> Result<bool, CopyError> {
        let ended = self.link.has_ended(&mut piece.number)?;
        match piece.then.take_if(|_| ended) {
            None => {}
            Some(Then::Fail(error)) => return Err(error.into()),
            Some(Then::Flip(disk, at)) => flip(&disk, at)?,
        }
        Ok(ended)
    }

    fn patience(&self, piece: &Piece, is_last: bool) -> Duration {
        self.link.patience(&piece.number, is_last)
    }
}

/// Changes one byte of an extent's file, as a disk would that has gone bad.
fn flip(disk: &DiskExtent, at: u64) -> Result<(), DriverError> {
    // Another's file is nothing to be spoilt.
    if !disk.is_own() {
        return Ok(());
    }
    // Not past the page cache: a single byte is no whole block.
    let path = format!("/proc/self/fd/{}", disk.file().as_raw_fd());
    let flipped = open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).and_then(|file| {
        let mut byte = [0];
        pread(&file, &mut byte, at)?;
        pwrite(&file, &[!byte[0]], at)?;
        fdatasync(&file)
    });
    flipped.map_err(|error| DriverError::Failed(format!("spoil {}: {error}", disk.id())))
}
