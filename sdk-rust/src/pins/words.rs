//! The pin words of a session, for the code of the SDK that maps and unmaps.
//!
//! A daemon without pins shares no table. The session then has a private one, so that all code takes the same path:
//! this side itself sets the revoke mark that such a daemon cannot set, and a revoke waits for pins as usual.

use std::{
    collections::BTreeMap,
    fmt,
    os::fd::{BorrowedFd, OwnedFd},
    sync::Arc,
};

use rustix::event::{EventfdFlags, eventfd};

use vramd_proto::channel::{PROTOCOL_MAJOR, PROTOCOL_MINOR};
use vramd_types::AllocationId;
use vramd_words::{
    Access, Client, Daemon, Header, NotUnmappable, PinRefused, Unmapping, Unpinned, Waiting, Worker,
    bytes_for, open,
};

use super::memory::Memory;

/// Enough for any session of a daemon without a table; untouched slots take no memory.
const OWN_SLOTS: u32 = 1 << 20;

/// The view of any thread.
pub(crate) type WordsView = Client<Memory>;

pub(crate) struct Words {
    view: WordsView,
    wake: Arc<OwnedFd>,
    worker: Worker<Memory>,
    slots: u32,
    /// The part that owns each slot, or owned it last.
    owners: BTreeMap<u32, (AllocationId, u32)>,
    /// Allocations that lost a slot to another part.
    reassigned: Vec<AllocationId>,
    /// The daemon's side of a private table.
    own: Option<Own>,
}

struct Own {
    daemon: Daemon<Memory>,
    free: Vec<u32>,
    next: u32,
}

/// The outcome of the first step of an unmap.
#[must_use = "unmap, then finish"]
pub(crate) enum Unmappable<'a> {
    Now(Unmapping<'a>),
    /// A pin remains; the last unpin wakes the worker.
    Pinned,
}

impl Words {
    /// Maps the table that the daemon has sent.
    pub(crate) fn shared(fd: BorrowedFd<'_>, slots: u32) -> Result<Self, String> {
        let memory =
            Memory::shared(fd, bytes_for(slots)).map_err(|error| format!("the word table: {error}"))?;
        let (view, worker) =
            open(memory, PROTOCOL_MAJOR).map_err(|error| format!("the word table: {error}"))?;
        match view.header().slots {
            found if found == slots => Ok(Self {
                view,
                wake: waker()?,
                worker,
                slots,
                owners: BTreeMap::new(),
                reassigned: Vec::new(),
                own: None,
            }),
            found => Err(format!("the word table has {found} slots, not {slots}")),
        }
    }

    pub(crate) fn own() -> Result<Self, String> {
        let header = Header { major: PROTOCOL_MAJOR, minor: PROTOCOL_MINOR, features: 0, slots: OWN_SLOTS };
        let memory =
            Memory::private(bytes_for(OWN_SLOTS)).map_err(|error| format!("a word table: {error}"))?;
        let daemon = Daemon::create(memory.clone(), header).map_err(|error| error.to_string())?;
        let (view, worker) = open(memory, PROTOCOL_MAJOR).map_err(|error| error.to_string())?;
        let own = Own { daemon, free: Vec::new(), next: 0 };
        let (owners, reassigned) = (BTreeMap::new(), Vec::new());
        Ok(Self { view, wake: waker()?, worker, slots: OWN_SLOTS, owners, reassigned, own: Some(own) })
    }

    /// Whether the daemon shares the table, and so answers pin calls.
    pub(crate) fn is_shared(&self) -> bool {
        self.own.is_none()
    }

    pub(crate) fn view(&self) -> WordsView {
        self.view.clone()
    }

    /// The descriptor by which the last unpin of a part that is being revoked wakes the worker.
    pub(crate) fn wake(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.wake)
    }

    /// Assigns the slot of a part that arrives for the first time, or in another slot than before. A slot may serve
    /// another part once the earlier one is unmapped for good: [`Self::take_reassigned`] returns the earlier owners.
    pub(crate) fn slot(
        &mut self,
        part: (AllocationId, u32),
        sent_slot: u32,
        before: Option<u32>,
    ) -> Result<u32, String> {
        let slot = self.assign(sent_slot)?;
        if let Some(before) = before {
            self.disown(before, part);
        }
        let (id, _) = part;
        self.reassigned
            .extend(self.owners.insert(slot, part).map(|(owner, _)| owner).filter(|owner| *owner != id));
        Ok(slot)
    }

    /// Ends a part's ownership of a slot.
    pub(crate) fn disown(&mut self, slot: u32, part: (AllocationId, u32)) {
        if self.owners.get(&slot) == Some(&part) {
            self.owners.remove(&slot);
        }
    }

    /// Whether the slot still belongs to this part.
    pub(crate) fn belongs_to(&self, slot: u32, part: (AllocationId, u32)) -> bool {
        self.owners.get(&slot) == Some(&part)
    }

    /// Takes the allocations that lost a slot since the last call. They must be flagged before a word says that the
    /// new part is mapped: a pin by the old slot then sees the flag.
    pub(crate) fn take_reassigned(&mut self) -> Vec<AllocationId> {
        std::mem::take(&mut self.reassigned)
    }

    fn assign(&mut self, sent_slot: u32) -> Result<u32, String> {
        let outside = |slot| format!("slot {slot} is outside the word table of {} slots", self.slots);
        match &mut self.own {
            None if sent_slot < self.slots => Ok(sent_slot),
            None => Err(outside(sent_slot)),
            Some(own) => match own.free.pop() {
                Some(slot) => Ok(slot),
                None if own.next < OWN_SLOTS => {
                    own.next += 1;
                    Ok(own.next - 1)
                }
                None => Err("the session's word table has no free slot".to_owned()),
            },
        }
    }

    /// Frees the slot of a part that will not arrive again.
    pub(crate) fn give_back(&mut self, slot: u32) {
        if let Some(own) = &mut self.own {
            own.free.push(slot);
        }
    }

    /// Marks a part as mapped and accessible.
    pub(crate) fn set_mapped(&self, slot: u32, calls: Waiting) -> Result<(), String> {
        let word = self.worker.slot(slot).ok_or_else(|| format!("there is no slot {slot}"))?;
        word.set_mapped(calls).map_err(|refused| format!("the word of a part to be mapped is {refused}"))
    }

    /// Pins a mapped part for waiting calls.
    pub(crate) fn pin(&self, slot: u32, calls: Waiting) -> Result<(), PinRefused> {
        self.worker.slot(slot).ok_or(PinRefused::NeedsFrame)?.pin_waiting(calls)
    }

    /// Unpins. Returns true if the worker waits for that.
    pub(crate) fn unpin(&self, slot: u32) -> bool {
        let word = self.view.slot(slot);
        word.is_some_and(|word| matches!(word.unpin(), Ok(Unpinned::WakeWorker)))
    }

    /// How many pins a part has now.
    pub(crate) fn pins(&self, slot: u32) -> u32 {
        self.worker.slot(slot).map_or(0, |word| word.pins())
    }

    /// Begins the unmap of a mapped part that a `revoke` frame names.
    pub(crate) fn begin_revoked(&self, slot: u32) -> Result<Unmappable<'_>, String> {
        if let Some(own) = &self.own
            && let Some(word) = own.daemon.slot(slot)
        {
            // A daemon without a table cannot set the mark; a second frame finds it set.
            let _ = word.revoke_to_fence();
        }
        let word = self.worker.slot(slot).ok_or_else(|| format!("there is no slot {slot}"))?;
        match word.begin_unmap_revoked() {
            Ok(unmapping) => Ok(Unmappable::Now(unmapping)),
            Err(NotUnmappable::Pinned) => Ok(Unmappable::Pinned),
            Err(refused) => Err(format!("the word of a revoked part is {refused}")),
        }
    }

    /// Begins an unmap at the program's request. A part that is still pinned is left for the daemon to revoke.
    pub(crate) fn begin_unmap(&self, slot: u32) -> Result<Unmappable<'_>, String> {
        let word = self.worker.slot(slot).ok_or_else(|| format!("there is no slot {slot}"))?;
        match word.begin_unmap() {
            Ok(unmapping) => Ok(Unmappable::Now(unmapping)),
            Err(NotUnmappable::Pinned) => Ok(Unmappable::Pinned),
            Err(refused) => Err(format!("the word of a mapped part is {refused}")),
        }
    }

    /// Clears the revoke mark, after the end of the channel.
    pub(crate) fn forget_revoke(&self, slot: u32) {
        if let Some(word) = self.worker.slot(slot) {
            word.forget_revoke();
        }
    }
}

fn waker() -> Result<Arc<OwnedFd>, String> {
    let waker = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    waker
        .map(Arc::new)
        .map_err(|error| format!("the wake descriptor of the word table could not be made: {error}"))
}

/// The count for one waiting call.
pub(crate) fn one_waiter(access: Access) -> Waiting {
    match access {
        Access::Read => Waiting { readers: 1, writers: 0 },
        Access::Write => Waiting { readers: 0, writers: 1 },
    }
}

impl fmt::Debug for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Words").field("slots", &self.slots).field("shared", &self.own.is_none()).finish()
    }
}
