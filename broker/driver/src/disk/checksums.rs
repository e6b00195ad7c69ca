//! The checksums of one extent on disk, one for each piece, kept in memory as long as the extent lives.
//!
//! No extent outlives the daemon, so its checksums need not either. A fault that corrupts the file cannot corrupt them.
//! Extent and offset go into each checksum, so that the bytes of another piece count as damage too.

use std::sync::{Mutex, MutexGuard, PoisonError};

use twox_hash::XxHash3_64;
use vramd_types::{Bytes, ExtentId};

use super::PIECE;
use crate::CopyError;

/// The checksum of the written bytes of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Checksum {
    pub(super) length: usize,
    hash: u64,
}

#[derive(Debug)]
pub(super) struct Checksums {
    extent: ExtentId,
    /// None for a piece that was never written, or is being written.
    pieces: Mutex<Vec<Option<Checksum>>>,
}

impl Checksums {
    pub(super) fn new(extent: ExtentId, size: Bytes) -> Self {
        let pieces = usize::try_from(size.get().div_ceil(PIECE)).unwrap_or(usize::MAX);
        Self { extent, pieces: Mutex::new(vec![None; pieces]) }
    }

    /// Computes the checksum of the piece at that offset.
    pub(super) fn of(&self, at: u64, bytes: &[u8]) -> Checksum {
        let seed = self.extent.get().rotate_left(32) ^ (at / PIECE);
        Checksum { length: bytes.len(), hash: XxHash3_64::oneshot_with_seed(seed, bytes) }
    }

    /// Removes the checksum of a piece, before any byte of it is written.
    pub(super) fn forget(&self, at: u64) {
        self.set(at, None);
    }

    /// Records the checksum of a written piece.
    pub(super) fn enter(&self, at: u64, sum: Checksum) {
        self.set(at, Some(sum));
    }

    /// Whether the piece was written.
    pub(super) fn is_written(&self, at: u64) -> bool {
        self.pieces().get(index(at)).is_some_and(Option::is_some)
    }

    /// The checksum of a piece of which the caller wants to read so many bytes.
    pub(super) fn expected(&self, at: u64, length: usize) -> Result<Checksum, CopyError> {
        let known = self.pieces().get(index(at)).copied().flatten();
        known
            .filter(|sum| sum.length >= length)
            .ok_or_else(|| CopyError::Unwritten { extent: self.extent, at: Bytes::new(at) })
    }

    pub(super) fn compare(&self, at: u64, expected: Checksum, found: Checksum) -> Result<(), CopyError> {
        if found == expected {
            return Ok(());
        }
        Err(CopyError::Damaged { extent: self.extent, at: Bytes::new(at) })
    }

    /// Compares with what was first read of the piece, or records it as the first.
    pub(super) fn learn(&self, at: u64, found: Checksum) -> Result<(), CopyError> {
        let known = match self.pieces().get_mut(index(at)) {
            Some(piece) => *piece.get_or_insert(found),
            None => found,
        };
        self.compare(at, known, found)
    }

    fn set(&self, at: u64, sum: Option<Checksum>) {
        if let Some(piece) = self.pieces().get_mut(index(at)) {
            *piece = sum;
        }
    }

    /// Every change is complete before any code could panic, so a poisoned lock is still good.
    fn pieces(&self) -> MutexGuard<'_, Vec<Option<Checksum>>> {
        self.pieces.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn index(at: u64) -> usize {
    usize::try_from(at / PIECE).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: ExtentId = ExtentId::from_raw(7);

    #[test]
    fn an_unwritten_piece_has_no_checksum() {
        let checksums = Checksums::new(ID, Bytes::mib(4));
        let unwritten = |at| Err(CopyError::Unwritten { extent: ID, at: Bytes::new(at) });
        assert_eq!(checksums.expected(0, 1), unwritten(0));
        let sum = checksums.of(PIECE, b"abc");
        checksums.enter(PIECE, sum);
        assert_eq!(checksums.expected(0, 1), unwritten(0));
        assert_eq!(checksums.expected(PIECE, 3), Ok(sum));
        assert_eq!(checksums.expected(PIECE, 4), unwritten(PIECE), "it was not written so far");
        checksums.forget(PIECE);
        assert_eq!(checksums.expected(PIECE, 3), unwritten(PIECE));
        assert_eq!(checksums.expected(2 * PIECE, 0), unwritten(2 * PIECE), "behind the end");
    }

    #[test]
    fn a_changed_byte_or_a_wrong_piece_is_damage() {
        let (checksums, other) =
            (Checksums::new(ID, Bytes::mib(4)), Checksums::new(ExtentId::from_raw(8), Bytes::mib(4)));
        let sum = checksums.of(0, b"abc");
        let verify = |checksums: &Checksums, at, bytes| checksums.compare(at, sum, checksums.of(at, bytes));
        assert_eq!(verify(&checksums, 0, b"abc"), Ok(()));
        let damaged = |at| Err(CopyError::Damaged { extent: ID, at: Bytes::new(at) });
        assert_eq!(verify(&checksums, 0, b"abd"), damaged(0));
        assert_eq!(verify(&checksums, PIECE, b"abc"), damaged(PIECE));
        assert!(verify(&other, 0, b"abc").is_err());
    }

    #[test]
    fn the_first_read_of_a_file_sets_its_checksum() {
        let checksums = Checksums::new(ID, Bytes::mib(4));
        let learn = |bytes| checksums.learn(PIECE, checksums.of(PIECE, bytes));
        assert_eq!(learn(b"abc"), Ok(()));
        assert_eq!(learn(b"abc"), Ok(()));
        for other in [&b"abd"[..], b"ab"] {
            assert_eq!(learn(other), Err(CopyError::Damaged { extent: ID, at: Bytes::new(PIECE) }));
        }
        assert_eq!(learn(b"abc"), Ok(()));
    }
}
