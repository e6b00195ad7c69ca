//! One extent on disk: the driver's own file, or a range of a file that it only reads.

use std::{os::fd::OwnedFd, sync::Arc};

use rustix::io::Errno;
use vramd_types::{Bytes, ExtentId, GRANULARITY};

use super::{
    ALIGNMENT, PIECE,
    checksums::{Checksum, Checksums},
    directory::{Directory, ExtentFile},
    engine::IoFlaw,
};
use crate::{CopyError, DriverError, FileSpan};

/// Dropping it deletes the file, if it is the driver's own.
#[derive(Debug)]
pub(crate) struct DiskExtent {
    id: ExtentId,
    size: Bytes,
    checksums: Checksums,
    bytes: Source,
}

#[derive(Debug)]
enum Source {
    Own(ExtentFile),
    Anothers(FileSpan),
}

/// How to read a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PieceRead {
    /// The offset in the file, at a whole block.
    pub(super) at: u64,
    pub(super) blocks: usize,
    /// Where the piece begins in the first block.
    pub(super) skip: usize,
    /// The bytes of the piece that exist; behind them are zeros.
    pub(super) length: usize,
    /// The expected checksum. None for a file that the driver does not own.
    pub(super) expected: Option<Checksum>,
}

impl PieceRead {
    /// Accepts a short read that has all of the piece: the last block of a file may be incomplete.
    pub(super) fn check(self, result: Result<(), IoFlaw>) -> Result<(), IoFlaw> {
        match result {
            Err(IoFlaw::Short(came)) if self.expected.is_none() && came >= self.skip + self.length => Ok(()),
            result => result,
        }
    }
}

impl DiskExtent {
    pub(super) fn new(directory: &Arc<Directory>, id: ExtentId, size: Bytes) -> Result<Self, DriverError> {
        check(size)?;
        let file = directory.create_file(id, size)?;
        Ok(Self { id, size, checksums: Checksums::new(id, size), bytes: Source::Own(file) })
    }

    pub(super) fn of_file(id: ExtentId, size: Bytes, span: FileSpan) -> Result<Self, DriverError> {
        check(size)?;
        let fits = span.bytes <= size && span.offset.checked_add(size).is_some();
        if !fits {
            let (bytes, offset) = (span.bytes.get(), span.offset.get());
            return Err(DriverError::Failed(format!(
                "extent {id} cannot be {bytes} bytes of a file at offset {offset}"
            )));
        }
        Ok(Self { id, size, checksums: Checksums::new(id, size), bytes: Source::Anothers(span) })
    }

    pub(crate) fn id(&self) -> ExtentId {
        self.id
    }

    pub(crate) fn size(&self) -> Bytes {
        self.size
    }

    pub(crate) fn file(&self) -> &Arc<OwnedFd> {
        match &self.bytes {
            Source::Own(file) => &file.fd,
            Source::Anothers(span) => &span.file,
        }
    }

    /// Whether the file is the driver's own. It never writes others.
    pub(crate) fn is_own(&self) -> bool {
        matches!(self.bytes, Source::Own(_))
    }

    /// Deletes its own file, or says why the disk does not have its bytes back.
    pub(super) fn delete(self) -> Result<(), Errno> {
        match self.bytes {
            Source::Own(file) => file.delete(),
            Source::Anothers(_) => Ok(()),
        }
    }

    pub(super) fn checksums(&self) -> &Checksums {
        &self.checksums
    }

    /// Whether the piece has content. An unwritten piece is zeros.
    pub(super) fn has_content(&self, at: u64) -> bool {
        !self.is_own() || self.checksums.is_written(at)
    }

    /// How to read the piece at that offset, of which the caller wants so many bytes. All bytes are read that
    /// the checksum covers.
    pub(super) fn reading(&self, at: u64, wanted: usize) -> Result<PieceRead, CopyError> {
        match &self.bytes {
            Source::Own(_) => {
                let sum = self.checksums.expected(at, wanted)?;
                let blocks = sum.length.next_multiple_of(ALIGNMENT);
                Ok(PieceRead { at, blocks, skip: 0, length: sum.length, expected: Some(sum) })
            }
            Source::Anothers(span) => {
                let length = as_length(span.bytes.get().saturating_sub(at).min(PIECE));
                if length == 0 {
                    return Ok(PieceRead { at: 0, blocks: 0, skip: 0, length, expected: None });
                }
                let begins = span.offset.get() + at;
                let skip = as_length(begins % ALIGNMENT as u64);
                let blocks = (skip + length).next_multiple_of(ALIGNMENT);
                Ok(PieceRead { at: begins - skip as u64, blocks, skip, length, expected: None })
            }
        }
    }

    /// Checks the checksum of a piece that was read. In a foreign file the first read defines it.
    pub(super) fn verify(
        &self,
        at: u64,
        expected: Option<Checksum>,
        found: Checksum,
    ) -> Result<(), CopyError> {
        match expected {
            Some(expected) => self.checksums.compare(at, expected, found),
            None => self.checksums.learn(at, found),
        }
    }
}

fn check(size: Bytes) -> Result<(), DriverError> {
    match size.is_zero() || !size.is_multiple_of(GRANULARITY) {
        true => Err(DriverError::Failed(format!("{} bytes are not a multiple of 2 MiB", size.get()))),
        false => Ok(()),
    }
}

/// At most a piece, which fits in memory.
fn as_length(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_blocks_are_read_around_a_piece_of_a_file() {
        let file = Arc::new(OwnedFd::from(std::fs::File::open("/dev/null").unwrap()));
        let bytes = Bytes::new(PIECE + 5000);
        let span = |offset| FileSpan { file: Arc::clone(&file), offset: Bytes::new(offset), bytes };
        let of = |offset| DiskExtent::of_file(ExtentId::from_raw(7), Bytes::mib(6), span(offset)).unwrap();
        let read = |offset, at| of(offset).reading(at, 1).unwrap();
        let reading = |at, blocks, skip, length| PieceRead { at, blocks, skip, length, expected: None };
        let piece = as_length(PIECE);
        assert_eq!(read(0, 0), reading(0, piece, 0, piece));
        assert_eq!(read(4096, PIECE), reading(4096 + PIECE, 8192, 0, 5000));
        assert_eq!(read(4100, 0), reading(4096, piece + 4096, 4, piece));
        assert_eq!(read(4000, PIECE), reading(PIECE, 12_288, 4000, 5000));
        // Nothing lies beyond its end.
        for offset in [0, 4100] {
            assert_eq!(read(offset, 2 * PIECE), reading(0, 0, 0, 0), "{offset}");
        }
        for (size, offset) in
            [(Bytes::mib(2), 0), (Bytes::mib(6), u64::MAX), (Bytes::new(7), 0), (Bytes::ZERO, 0)]
        {
            assert!(
                DiskExtent::of_file(ExtentId::from_raw(7), size, span(offset)).is_err(),
                "{size} {offset}"
            );
        }
    }
}
