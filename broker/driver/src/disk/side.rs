//! What a driver does itself of a copy between memory and disk.

use std::{fmt, ops::Range};

use rustix::io::Errno;

use super::io_memory::IoMemory;
use crate::DriverError;

/// A driver's own way to get at its memory.
pub(crate) trait Side {
    type Memory: Clone + fmt::Debug;
    /// A buffer of the ring, or memory that needs none.
    type Io: IoMemory + fmt::Debug;
    /// Bytes on their way between a buffer and memory.
    type Hop: fmt::Debug;

    /// Whether they are the same bytes.
    fn is_same(one: &Self::Memory, other: &Self::Memory) -> bool;

    /// Where the disk itself can read and write, if there is such.
    fn unbuffered(&self, memory: &Self::Memory, at: u64, length: usize) -> Option<Self::Io>;

    /// A buffer of so many bytes at least. None while those that there is room for have others: then one of these will do, later.
    fn buffer(&mut self, length: usize) -> Result<Option<Self::Io>, DriverError>;

    /// Nobody needs it now.
    fn give_back(&mut self, buffer: Self::Io);

    /// Begins to copy from memory to the beginning of a buffer. What fails has lost the buffer.
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

    /// The buffer once the bytes have arrived. Not asked again then, nor after an error.
    fn arrived(&mut self, hop: &mut Self::Hop) -> Result<Option<Self::Io>, DriverError>;

    /// With what the disk fails at a piece of a copy, whatever it has done: a simulated one does so on a schedule.
    fn disk_fails(&self, _: &Self::Memory, _piece: Range<u64>) -> Option<Errno> {
        None
    }
}
