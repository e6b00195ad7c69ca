//! The allocations of the process that come and go with its turn.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};

use vramd_client::{Allocation, AllocationId, Error};

use super::Turns;
use crate::session::lock;

/// An allocation that is pinned while the process has its turn.
#[derive(Debug)]
pub(crate) struct Member {
    pub(super) id: AllocationId,
    pub(super) bytes: u64,
    pub(super) parts: usize,
    address: u64,
    /// Only its maker and the thread of the turns lock it.
    allocation: Mutex<Allocation>,
    is_pinned: AtomicBool,
    /// An operator has freed it, or its session has ended: it comes back with no turn.
    is_lost: AtomicBool,
}

/// A member that lives until this is dropped, or until the thread of the turns has done with it.
#[derive(Debug)]
pub(crate) struct Owned {
    turns: &'static Turns,
    /// The member's number in the turns.
    number: u64,
    member: Arc<Member>,
}

impl Owned {
    /// Takes in a new allocation, which is pinned. Without a turn its pin ends here.
    pub(crate) fn new(turns: &'static Turns, allocation: Allocation) -> Self {
        let (id, address, info) = (allocation.id(), allocation.as_device_ptr(), allocation.info());
        let (bytes, parts) = (info.size.get(), info.parts.len());
        let member = Arc::new(Member {
            id,
            bytes,
            parts,
            address,
            allocation: Mutex::new(allocation),
            is_pinned: AtomicBool::new(true),
            is_lost: AtomicBool::new(false),
        });
        // Until the pin has ended, so that the thread of the turns does not pin it in between.
        let mut allocation = lock(&member.allocation);
        let (number, is_pinned) = turns.add(&member);
        if !is_pinned {
            // It fails in a forked child alone, which has no such memory.
            let _ = allocation.unpin();
        }
        drop(allocation);
        Self { turns, number, member }
    }

    pub(crate) fn address(&self) -> u64 {
        self.member.address
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        self.turns.remove(self.number);
    }
}

impl Member {
    pub(super) fn is_pinned(&self) -> bool {
        self.is_pinned.load(Ordering::Acquire)
    }

    pub(super) fn set_pinned(&self, is_pinned: bool) {
        self.is_pinned.store(is_pinned, Ordering::Release);
    }

    pub(super) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Acquire)
    }

    pub(super) fn set_lost(&self) {
        self.is_lost.store(true, Ordering::Release);
    }

    pub(super) fn lock(&self) -> std::sync::MutexGuard<'_, Allocation> {
        lock(&self.allocation)
    }

    /// Pins all of it, and waits until it is there.
    pub(super) fn pin(&self) -> Result<(), Error> {
        if self.is_pinned() || self.is_lost() {
            return Ok(());
        }
        self.lock().repin()?;
        self.set_pinned(true);
        Ok(())
    }

    /// Lets all of it leave the device.
    pub(super) fn unpin(&self) {
        self.set_pinned(false);
        // It fails in a forked child alone, which has no such memory.
        let _ = self.lock().unpin();
    }

    /// Whether the process can use it now, and as long as nothing more comes from the daemon.
    pub(super) fn is_mapped(&self) -> bool {
        self.lock().is_mapped()
    }
}
