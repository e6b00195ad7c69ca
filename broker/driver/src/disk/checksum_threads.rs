//! Computes checksums of pieces on threads of their own. The thread that polls the disk has other work, and a
//! checksum takes as long as a fast disk takes for the piece.

use std::sync::Arc;

use super::{checksums::Checksum, extent::DiskExtent, io_memory::IoMemory, workers::Workers};
use crate::DriverError;

/// Threads in each direction. One keeps up with at least 5 GB/s.
const THREADS: usize = 2;

/// A piece with its bytes, in a buffer or in memory itself, which is lent until the result is polled.
#[derive(Debug)]
pub(super) struct ToChecksum<R> {
    /// The caller's name for the piece.
    pub(super) tag: u64,
    pub(super) disk: Arc<DiskExtent>,
    pub(super) at: u64,
    /// Where its bytes begin in the buffer.
    pub(super) skip: usize,
    pub(super) length: usize,
    pub(super) buffer: R,
}

#[derive(Debug)]
pub(super) struct Checksummed<R> {
    pub(super) tag: u64,
    pub(super) buffer: R,
    pub(super) sum: Checksum,
}

pub(super) type ChecksumThreads<R> = Workers<ToChecksum<R>, Checksummed<R>>;

pub(super) fn checksum_threads<R: IoMemory>() -> Result<ChecksumThreads<R>, DriverError> {
    Workers::new("disk-sum", THREADS, checksum)
}

fn checksum<R: IoMemory>(piece: ToChecksum<R>) -> Checksummed<R> {
    let ToChecksum { tag, disk, at, skip, length, buffer } = piece;
    let sum = disk.checksums().of(at, &buffer.bytes()[skip..skip + length]);
    Checksummed { tag, buffer, sum }
}
