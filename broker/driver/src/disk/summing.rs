//! Sums pieces up on threads of their own: who polls the disk has other work, and a checksum takes as long as a fast disk takes
//! for the piece.

use std::sync::Arc;

use super::{extent::DiskExtent, room::Room, sums::Sum, workers::Workers};
use crate::DriverError;

/// In each direction. One keeps up with 5 GB/s at least.
const THREADS: usize = 2;

/// A piece whose bytes are there: in a buffer, or in memory itself, which is lent until it is told.
#[derive(Debug)]
pub(super) struct ToSum<R> {
    /// By which the caller knows it again.
    pub(super) tag: u64,
    pub(super) disk: Arc<DiskExtent>,
    pub(super) at: u64,
    /// Where in the room they begin.
    pub(super) skip: usize,
    pub(super) length: usize,
    pub(super) room: R,
}

#[derive(Debug)]
pub(super) struct Summed<R> {
    pub(super) tag: u64,
    pub(super) room: R,
    pub(super) sum: Sum,
}

pub(super) type Summers<R> = Workers<ToSum<R>, Summed<R>>;

pub(super) fn summers<R: Room>() -> Result<Summers<R>, DriverError> {
    Workers::new("disk-sum", THREADS, sum_up)
}

fn sum_up<R: Room>(piece: ToSum<R>) -> Summed<R> {
    let ToSum { tag, disk, at, skip, length, room } = piece;
    let sum = disk.sums().of(at, &room.bytes()[skip..skip + length]);
    Summed { tag, room, sum }
}
