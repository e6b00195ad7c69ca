//! The word table of one session, as the daemon has it: made with the session, mapped by its client, sealed after that.

use std::{
    io,
    num::NonZeroUsize,
    sync::{Arc, Mutex, PoisonError},
};

use broker_core::Slot;
use broker_driver::{Export, SharedFd};
use vramd_proto::channel::{FEATURES, PROTOCOL_MAJOR, PROTOCOL_MINOR};
use vramd_words::{Daemon, DaemonSlot, Evict, Fence, Header, Impossible, State, WriteBack, bytes_for};

use crate::platform::shared_memory::{SharedMemory, close_to_writers};

#[derive(Debug)]
pub(crate) struct WordTable {
    table: Daemon<SharedMemory>,
    slots: u32,
    /// Until the client has mapped it.
    fd: Mutex<Option<Arc<SharedFd>>>,
}

/// What came of asking for one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvictOutcome {
    /// REVOKE stands, and nobody pins.
    Revoked,
    Pinned,
    /// Not mapped, or about to be unmapped by its client, which says so.
    Leaving,
}

/// What a word says of its part's use: how often it was used, and whether it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Use {
    /// Counted by the client, and wraps.
    pub(crate) uses: u32,
    pub(crate) pinned: bool,
    /// Whether it was written since that was cleared in its word last.
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

    /// What the client maps it by, while it has not.
    pub(crate) fn handle(&self) -> Option<Export> {
        self.fd.lock().unwrap_or_else(PoisonError::into_inner).clone().map(Export::Memfd)
    }

    /// The client has mapped it: nobody else can from now on. The error says what is wrong with that.
    pub(super) fn seal(&self) -> Result<(), String> {
        let fd = self.fd.lock().unwrap_or_else(PoisonError::into_inner).take();
        let fd = fd.ok_or("the client mapped the word table before")?;
        close_to_writers(&fd).map_err(|error| format!("the word table cannot be sealed: {error}"))
    }

    /// Asks for a part that nobody pins.
    pub(super) fn evict(&self, slot: Slot) -> Result<EvictOutcome, String> {
        Ok(match self.slot(slot)?.revoke_to_evict().map_err(impossible)? {
            Evict::Revoked => EvictOutcome::Revoked,
            Evict::StillPinned => EvictOutcome::Pinned,
            Evict::Leaving => EvictOutcome::Leaving,
        })
    }

    /// Takes that back, as long as no frame told of it.
    pub(super) fn cancel_evict(&self, slot: Slot) {
        if let Ok(slot) = self.slot(slot) {
            slot.take_back();
        }
    }

    /// Asks for a part whoever pins it, if that has not been asked before.
    pub(super) fn fence(&self, slot: Slot) -> Result<(), String> {
        let slot = self.slot(slot)?;
        if let State::Revoking { .. } = slot.state().map_err(impossible)? {
            return Ok(());
        }
        match slot.revoke_to_fence().map_err(impossible)? {
            Fence::Revoked { .. } | Fence::Leaving => Ok(()),
        }
    }

    /// Whatever is written from now on says so, if nobody pins the part. Whether that was done.
    pub(super) fn clear_written(&self, slot: Slot) -> Result<bool, String> {
        Ok(self.slot(slot)?.begin_write_back().map_err(impossible)? == WriteBack::Begun)
    }

    /// The slot will serve another part.
    pub(super) fn forget(&self, slot: Slot) -> Result<(), String> {
        self.slot(slot)?.collect_written().map(drop).map_err(impossible)
    }

    /// By plain loads. The error says what no honest client writes.
    pub(crate) fn use_of(&self, slot: Slot) -> Result<Use, String> {
        let slot = self.slot(slot)?;
        let written = slot.is_written().map_err(impossible)?;
        let (State::Resident { pins } | State::Revoking { pins }) = slot.state().map_err(impossible)? else {
            return Ok(Use { uses: slot.touched().uses, pinned: false, written });
        };
        Ok(Use { uses: slot.touched().uses, pinned: pins > 0, written })
    }

    /// How often the parts were used whose words were there so far.
    pub(crate) fn uses(&self, slot: Slot) -> Option<u32> {
        Some(self.table.slot(slot.0)?.touched().uses)
    }

    fn slot(&self, slot: Slot) -> Result<DaemonSlot<'_>, String> {
        self.table
            .slot(slot.0)
            .ok_or_else(|| format!("the word table has no slot {}: it has {}", slot.0, self.slots))
    }
}

fn impossible(impossible: Impossible) -> String {
    format!("word table: {impossible}")
}
