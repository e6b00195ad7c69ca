//! One extent of simulated memory: a memfd whose name identifies it and whose size never changes.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, OnceLock},
};

use rustix::{
    fs::{FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fstat, ftruncate, memfd_create},
    io::{Errno, pwrite},
};
use vramd_types::Bytes;

use super::mapping::Mapping;
use crate::{DriverError, Export, SharedFd, location::Location};

/// The beginning of every memfd name on every simulated node.
pub(super) const NAME_PREFIX: &str = "vramd-sim:";

/// Stands before the number of host memory, which is named after the first device.
pub(super) const HOST_MARK: &str = "host-";

/// The longest UUID that leaves room, in the 249 bytes of a memfd's name, for everything else: a colon and a
/// number too.
pub(super) const UUID_BYTES_MAX: usize = 249 - NAME_PREFIX.len() - HOST_MARK.len() - 1 - 20;

/// Identifies memory in another process. The kernel's inode numbers have 32 bits and are shared with pipes and
/// sockets, so that a busy node wraps them. Together with the number they are unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Identity {
    pub(super) location: Location,
    /// The extent's id on a device. Host memory serves several extents in turn, and has a counter of its own.
    pub(super) number: u64,
    pub(super) inode: u64,
}

/// Memory that the driver holds.
#[derive(Debug)]
pub(super) struct Memory {
    fd: Arc<SharedFd>,
    identity: Identity,
    size: Bytes,
    /// Made by the first digest or copy, then kept.
    mapping: OnceLock<Mapping>,
}

impl Memory {
    /// Creates zeroed memory of exactly `size`. Clients get the descriptor, so the size is sealed in both
    /// directions for good: no client can truncate it under the others, whose access would be SIGBUS, nor seal
    /// it against writing. Holes cannot be forbidden while writing is allowed; a hole reads as zero.
    pub(super) fn new(uuid: &str, location: Location, number: u64, size: Bytes) -> io::Result<Self> {
        let mark = if location == Location::Host { HOST_MARK } else { "" };
        let fd = open_memfd(&format!("{NAME_PREFIX}{uuid}:{mark}{number}"))?;
        ftruncate(&fd, size.get())?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let identity = Identity { location, number, inode: fstat(&fd)?.st_ino };
        Ok(Self { fd: Arc::new(fd.into()), identity, size, mapping: OnceLock::new() })
    }

    pub(super) fn export(&self) -> Export {
        Export::Memfd(Arc::clone(&self.fd))
    }

    pub(super) fn identity(&self) -> Identity {
        self.identity
    }

    pub(super) fn size(&self) -> Bytes {
        self.size
    }

    /// Whether no other process has or will get the memory, since no caller borrowed its descriptor.
    pub(super) fn is_sole(&self) -> bool {
        self.fd.is_sole()
    }

    /// The first `length` bytes, on the driver's own mapping.
    pub(super) fn bytes(&self, length: Bytes) -> Result<&[u8], DriverError> {
        let bytes = self.mapping()?.bytes();
        usize::try_from(length.get()).ok().and_then(|length| bytes.get(..length)).ok_or_else(|| {
            DriverError::Failed(format!(
                "the extent has {} bytes, {} were requested",
                self.size.get(),
                length.get()
            ))
        })
    }

    /// Turns all of it into one hole.
    pub(super) fn zero(&self) -> Result<(), DriverError> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(self.fd.own(), flags, 0, self.size.get()).map_err(|error| failed("zero", error))
    }

    /// Writes through the kernel, like another process: so this process never changes bytes by address under a
    /// reference to the mapping.
    pub(super) fn write(&self, at: u64, bytes: &[u8]) -> Result<(), DriverError> {
        let (mut at, mut bytes) = (at, bytes);
        while !bytes.is_empty() {
            let written = match pwrite(self.fd.own(), bytes, at) {
                Err(Errno::INTR) => continue,
                written => written.map_err(|error| failed("write", error))?,
            };
            at += written as u64;
            bytes = &bytes[written..];
        }
        Ok(())
    }

    fn mapping(&self) -> Result<&Mapping, DriverError> {
        if let Some(mapping) = self.mapping.get() {
            return Ok(mapping);
        }
        let length = usize::try_from(self.size.get())
            .map_err(|_| DriverError::Failed("the extent is larger than the address space".to_owned()))?;
        let mapping = Mapping::new(self.fd.own().as_fd(), length).map_err(|error| failed("map", error))?;
        // If another thread was first, its mapping serves and this one ends.
        Ok(self.mapping.get_or_init(|| mapping))
    }
}

fn failed(what: &str, error: impl Into<io::Error>) -> DriverError {
    DriverError::Failed(format!("cannot {what} memory: {}", error.into()))
}

/// Kernels before 6.3 do not know the flag that forbids execution.
pub(super) fn open_memfd(name: &str) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    match memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => Ok(memfd_create(name, flags)?),
        made => Ok(made?),
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{FallocateFlags, fallocate};
    use vramd_types::{DeviceIndex, GRANULARITY};

    use super::*;

    fn memory() -> Memory {
        let location = Location::Device(DeviceIndex(0));
        Memory::new("GPU-memory-test", location, 7, GRANULARITY).unwrap()
    }

    #[test]
    fn size_and_seals_cannot_be_changed() {
        let memory = memory();
        for size in [0, GRANULARITY.get() - 4096, GRANULARITY.get() + 4096] {
            assert_eq!(ftruncate(memory.fd.own(), size), Err(Errno::PERM), "{size}");
        }
        assert_eq!(fcntl_add_seals(memory.fd.own(), SealFlags::WRITE), Err(Errno::PERM));
        assert_eq!(fstat(memory.fd.own()).unwrap().st_size.unsigned_abs(), GRANULARITY.get());
    }

    #[test]
    fn a_hole_under_the_mapping_reads_as_zero() {
        let memory = memory();
        memory.write(4096, &[9; 8192]).unwrap();
        assert_eq!(memory.bytes(GRANULARITY).unwrap()[4096..12288], [9; 8192]);
        fallocate(
            memory.fd.own(),
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            0,
            GRANULARITY.get(),
        )
        .unwrap();
        assert!(memory.bytes(GRANULARITY).unwrap().iter().all(|byte| *byte == 0));
    }

    #[test]
    fn reading_beyond_the_extent_fails() {
        assert!(memory().bytes(Bytes::new(GRANULARITY.get() + 1)).is_err());
        assert!(memory().bytes(Bytes::ZERO).unwrap().is_empty());
    }

    #[test]
    fn the_longest_name_fits() {
        let uuid = "G".repeat(UUID_BYTES_MAX);
        let new = |uuid: &str| Memory::new(uuid, Location::Host, u64::MAX, GRANULARITY);
        new(&uuid).unwrap();
        assert!(new(&format!("{uuid}G")).is_err());
    }
}
