//! Sums pieces up on threads of their own: who polls the disk has other work, and a checksum takes as long as a fast disk takes
//! for the piece.

use std::sync::Arc;

use super::{checksums::Checksum, extent::DiskExtent, io_memory::IoMemory, workers::Workers};
use crate::DriverError;

/// In each direction. One keeps up with 5 GB/s at least.
const THREADS: usize = 2;

/// A piece whose bytes are there: in a buffer, or in memory itself, which is lent until it is told.
#[derive(Debug)]
pub(super) struct ToChecksum<R> {
    /// By which the caller knows it again.
    pub(super) tag: u64,
    pub(super) disk: Arc<DiskExtent>,
    pub(super) at: u64,
    /// Where in the room they begin.
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
