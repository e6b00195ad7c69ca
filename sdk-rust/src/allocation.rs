//! Handles of mapped memory: an [`Allocation`] is written, then sealed; a [`Sealed`] one is only read.
//!
//! The address of a handle never changes. What lies there can be taken away: when an operator frees the allocation or
//! ends the session, the daemon revokes the mapping, and the SDK obeys. From then on an access through a slice that
//! the program still holds faults (SIGSEGV), as memory of a device that fell off the bus would; new slices panic.
//! `is_mapped` tells.

use std::fmt;

use vramd_types::AllocationId;

use crate::{
    error::{Error, Result},
    handle::Handle,
    info::AllocationInfo,
    session::Released,
};

/// Memory of this session alone, mapped for reading and writing. Dropped unsealed it is freed.
#[derive(Debug)]
pub struct Allocation {
    // Boxed, so that a failed seal can hand it back at no cost to one that does not fail.
    handle: Box<Handle>,
}

/// Memory that nobody writes any more, mapped read-only.
///
/// Dropped, the session lets go of it; if the session owns it and it is not persistent, it is freed.
#[derive(Debug)]
pub struct Sealed {
    handle: Box<Handle>,
}

/// Sealing failed; the allocation comes back. Whether it is still mapped, [`Allocation::is_mapped`] tells.
#[derive(Debug)]
pub struct SealFailed {
    pub allocation: Allocation,
    pub error: Error,
}

impl Allocation {
    pub(crate) fn new(handle: Handle) -> Self {
        Self { handle: Box::new(handle) }
    }

    pub fn id(&self) -> AllocationId {
        self.handle.info().id
    }

    /// As the daemon described it when it was made.
    pub fn info(&self) -> &AllocationInfo {
        self.handle.info()
    }

    /// The bytes that were asked for.
    ///
    /// # Panics
    /// If it is not mapped any more, or in a forked child.
    pub fn as_slice(&self) -> &[u8] {
        self.handle.as_slice()
    }

    /// The bytes that were asked for, to be written.
    ///
    /// # Panics
    /// If it is not mapped any more, or in a forked child.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        self.handle.as_mut_slice()
    }

    pub fn is_mapped(&self) -> bool {
        self.handle.is_mapped()
    }

    /// Ends writing for ever: the session unmaps, the daemon hashes the bytes, and they are mapped again read-only at
    /// the same address.
    pub fn seal(mut self) -> Result<Sealed, SealFailed> {
        match self.handle.seal() {
            Ok(()) => Ok(Sealed { handle: self.handle }),
            Err(error) => Err(SealFailed { allocation: self, error }),
        }
    }

    /// Unmaps and frees it, and reports what is still charged.
    pub fn free(self) -> Result<Released> {
        self.handle.free()
    }
}

impl Sealed {
    pub(crate) fn new(handle: Handle) -> Self {
        Self { handle: Box::new(handle) }
    }

    pub fn id(&self) -> AllocationId {
        self.handle.info().id
    }

    /// As the daemon described it when it was sealed or attached.
    pub fn info(&self) -> &AllocationInfo {
        self.handle.info()
    }

    /// `blake3:` and 64 hexadecimal digits over the asked bytes, as the daemon hashed them.
    pub fn digest(&self) -> &str {
        self.handle.info().digest.as_deref().unwrap_or_default()
    }

    /// The bytes that were asked for.
    ///
    /// # Panics
    /// If it is not mapped any more, or in a forked child.
    pub fn as_slice(&self) -> &[u8] {
        self.handle.as_slice()
    }

    pub fn is_mapped(&self) -> bool {
        self.handle.is_mapped()
    }

    /// Unmaps it and frees it for everybody, which its owner may. Others that map it keep their mappings.
    pub fn free(self) -> Result<Released> {
        self.handle.free()
    }

    /// Unmaps it, and leaves it as it is.
    pub fn detach(self) -> Result<()> {
        self.handle.detach()
    }
}

impl fmt::Display for SealFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sealing {}: {}", self.allocation.id(), self.error)
    }
}

impl std::error::Error for SealFailed {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// Gives up the allocation.
impl From<SealFailed> for Error {
    fn from(failed: SealFailed) -> Self {
        failed.error
    }
}
