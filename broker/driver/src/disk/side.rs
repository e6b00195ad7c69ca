//! The driver's part of a copy between memory and disk.

use std::{fmt, ops::Range};

use rustix::io::Errno;

use super::io_memory::IoMemory;
use crate::DriverError;

/// A driver's access to its memory.
pub(crate) trait Side {
    type Memory: Clone + fmt::Debug;
    /// A buffer of the ring, or memory that the disk accesses itself.
    type Io: IoMemory + fmt::Debug;
    /// Bytes on their way between a buffer and memory.
    type Hop: fmt::Debug;

    /// Whether both are the same memory.
    fn is_same(one: &Self::Memory, other: &Self::Memory) -> bool;

    /// The memory itself, if the disk can read and write it there.
    fn unbuffered(&self, memory: &Self::Memory, at: u64, length: usize) -> Option<Self::Io>;

    /// A buffer of at least so many bytes. None if all buffers that fit are in use; one of them comes back
    /// later.
    fn buffer(&mut self, length: usize) -> Result<Option<Self::Io>, DriverError>;

    /// Returns an unused buffer.
    fn give_back(&mut self, buffer: Self::Io);

    /// Begins to copy from memory to the beginning of a buffer. On failure the buffer is lost.
    fn fetch(
        &mut self,
        memory: &Self::Memory,
        at: u64,
        length: usize,
        buffer: Self::Io,
    ) -> Result<Self::Hop, DriverError>;

    /// Begins to copy a range of a buffer to memory.
    fn store(
        &mut self,
        memory: &Self::Memory,
        at: u64,
        range: Range<usize>,
        buffer: Self::Io,
    ) -> Result<Self::Hop, DriverError>;

    /// The buffer, once the bytes have arrived. Not called again after that or after an error.
    fn arrived(&mut self, hop: &mut Self::Hop) -> Result<Option<Self::Io>, DriverError>;

    /// The error that the disk shall report for a piece, whatever it has done. A simulated disk follows a
    /// schedule.
    fn disk_fails(&self, _: &Self::Memory, _piece: Range<u64>) -> Option<Errno> {
        None
    }
}
