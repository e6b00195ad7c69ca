//! The daemon's end of one session's word table. The daemon creates it with the session, the client maps it, and the
//! daemon then seals it.

use std::{
    io,
    num::NonZeroUsize,
    sync::{Arc, Mutex, PoisonError},
};

use broker_core::Slot;
use broker_driver::{Export, SharedFd};
use vramd_proto::channel::{FEATURES, PROTOCOL_MAJOR, PROTOCOL_MINOR};
use vramd_words::{Daemon, DaemonSlot, Evict, Fence, Header, InvalidWord, State, WriteBack, bytes_for};

use crate::platform::shared_memory::{SharedMemory, close_to_writers};

#[derive(Debug)]
pub(crate) struct WordTable {
    table: Daemon<SharedMemory>,
    slots: u32,
    /// The descriptor, until the client has mapped it.
    fd: Mutex<Option<Arc<SharedFd>>>,
}

/// The outcome of an eviction by word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvictOutcome {
    /// REVOKE is set, and the session does not pin the part.
    Revoked,
    Pinned,
    /// The session does not map the part, or is about to unmap it and will report that.
    Leaving,
}

/// The use of a part as its word shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Use {
    /// The number of uses. The client counts it, and it wraps.
    pub(crate) uses: u32,
    pub(crate) pinned: bool,
    /// Whether the client has written the part since the written bit was last cleared.
    pub(crate) written: bool,
}

impl WordTable {
    pub(crate) fn create(slots: u32) -> io::Result<Self> {
        let words = usize::try_from(bytes_for(slots) / 8).ok().and_then(NonZeroUsize::new);
        let (memory, fd) = SharedMemory::create("vramd-words", words.ok_or(io::ErrorKind::OutOfMemory)?)?;
        let header = Header { major: PROTOCOL_MAJOR, minor: PROTOCOL_MINOR, features: FEATURES, slots };
        let table = Daemon::create(memory, header).map_err(io::Error::other)?;
        Ok(Self { table, slots, fd: Mutex::new(Some(Arc::new(fd.into()))) })
    }

    /// The export by which the client maps the table, until it has done so.
    pub(crate) fn export(&self) -> Option<Export> {
        self.fd.lock().unwrap_or_else(PoisonError::into_inner).clone().map(Export::Memfd)
    }

    /// Seals the table after the client has mapped it, so that no other process can map it for writing. The error says
    /// why that is not possible.
    pub(super) fn seal(&self) -> Result<(), String> {
        let fd = self.fd.lock().unwrap_or_else(PoisonError::into_inner).take();
        let fd = fd.ok_or("the client mapped the word table before")?;
        close_to_writers(&fd).map_err(|error| format!("the word table cannot be sealed: {error}"))
    }

    /// Revokes a part unless the session pins it.
    pub(super) fn evict(&self, slot: Slot) -> Result<EvictOutcome, String> {
        Ok(match self.slot(slot)?.revoke_to_evict().map_err(impossible)? {
            Evict::Revoked => EvictOutcome::Revoked,
            Evict::StillPinned => EvictOutcome::Pinned,
            Evict::Leaving => EvictOutcome::Leaving,
        })
    }

    /// Takes an eviction back. Allowed until a frame has reported it.
    pub(super) fn cancel_evict(&self, slot: Slot) {
        if let Ok(slot) = self.slot(slot) {
            slot.withdraw_revoke();
        }
    }

    /// Revokes a part whether the session pins it or not, unless it is being revoked already.
    pub(super) fn fence(&self, slot: Slot) -> Result<(), String> {
        let slot = self.slot(slot)?;
        if let State::Revoking { .. } = slot.state().map_err(impossible)? {
            return Ok(());
        }
        match slot.revoke_to_fence().map_err(impossible)? {
            Fence::Revoked { .. } | Fence::Leaving => Ok(()),
        }
    }

    /// Clears the written bit of an unpinned part, so that later writes set it again. Returns whether it did.
    pub(super) fn clear_written(&self, slot: Slot) -> Result<bool, String> {
        Ok(self.slot(slot)?.begin_write_back().map_err(impossible)? == WriteBack::Begun)
    }

    /// Clears a slot before another part gets it.
    pub(super) fn forget(&self, slot: Slot) -> Result<(), String> {
        self.slot(slot)?.collect_written().map(drop).map_err(impossible)
    }

    /// Reads the use of a part by plain loads. The error describes a word that no honest client writes.
    pub(crate) fn use_of(&self, slot: Slot) -> Result<Use, String> {
        let slot = self.slot(slot)?;
        let written = slot.is_written().map_err(impossible)?;
        let (State::Resident { pins } | State::Revoking { pins }) = slot.state().map_err(impossible)? else {
            return Ok(Use { uses: slot.last_use().uses, pinned: false, written });
        };
        Ok(Use { uses: slot.last_use().uses, pinned: pins > 0, written })
    }

    /// Reads the use counter of a slot, which also counts uses of parts that had the slot before.
    pub(crate) fn uses(&self, slot: Slot) -> Option<u32> {
        Some(self.table.slot(slot.0)?.last_use().uses)
    }

    fn slot(&self, slot: Slot) -> Result<DaemonSlot<'_>, String> {
        self.table
            .slot(slot.0)
            .ok_or_else(|| format!("the word table has no slot {}: it has {}", slot.0, self.slots))
    }
}

fn impossible(impossible: InvalidWord) -> String {
    format!("word table: {impossible}")
}
