//! The SDK's handle, shared by the Python object and all views of its memory.
//!
//! Readers of the handle share its lock; seal, free and detach take it alone and are refused while a view lives.

use std::{
    collections::BTreeMap,
    ops::Range,
    process,
    sync::{
        Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use pyo3::prelude::*;
use vramd_client::{
    Access, Advice, Allocation, AllocationId, AllocationInfo, Client, Error, Pinnable, Pinned, Reason,
    Released, Sealed, Tier,
};

use crate::{
    error::Fault,
    interrupt::without_gil,
    view::{self, PinRequest, View},
};

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) facts: Facts,
    pid: u32,
    views: AtomicUsize,
    client: Client,
    /// `None` once it was sealed, freed or detached.
    handle: RwLock<Option<Handle>>,
}

/// The facts that never change while the handle exists.
#[derive(Debug)]
pub(crate) struct Facts {
    pub(crate) info: AllocationInfo,
    pub(crate) size: usize,
    pub(crate) writable: bool,
    /// Known once a part has arrived.
    place: OnceLock<Place>,
}

/// The address of the memory.
#[derive(Clone, Copy, Debug)]
struct Place {
    address: usize,
    is_device: bool,
}

#[derive(Debug)]
pub(crate) enum Handle {
    Open(Allocation),
    Sealed(Sealed),
}

/// The handles of several allocations, none of which is taken away meanwhile.
pub(crate) struct Locked<'a>(BTreeMap<*const Shared, RwLockReadGuard<'a, Option<Handle>>>);

impl<'a> Locked<'a> {
    /// Locks each once, always in the order of their addresses, since a waiting writer keeps later readers out.
    pub(crate) fn all(handles: impl IntoIterator<Item = &'a Arc<Shared>>) -> Self {
        let sorted: BTreeMap<_, _> = handles.into_iter().map(|it| (Arc::as_ptr(it), it)).collect();
        Self(sorted.into_iter().map(|(at, it)| (at, it.lock_to_read())).collect())
    }

    /// One of these handles. It is an error if it was closed.
    pub(crate) fn handle(&self, shared: &Arc<Shared>) -> Result<&Handle, Fault> {
        let handle = self.0.get(&Arc::as_ptr(shared)).and_then(|handle| handle.as_ref());
        handle.ok_or_else(|| shared.closed())
    }
}

impl Shared {
    pub(crate) fn new(client: Client, handle: Handle) -> Result<Arc<Self>, Fault> {
        let facts = Facts::of(&handle)?;
        Ok(Arc::new(Self {
            facts,
            pid: process::id(),
            views: AtomicUsize::new(0),
            client,
            handle: RwLock::new(Some(handle)),
        }))
    }

    pub(crate) fn id(&self) -> AllocationId {
        self.facts.info.id
    }

    /// Reads the handle, beside other readers.
    pub(crate) fn read<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&Handle) -> Result<T, Error> + Send,
    ) -> Result<T, Fault> {
        self.check_own_process()?;
        without_gil(py, || {
            let handle = self.handle.read().unwrap_or_else(PoisonError::into_inner);
            let handle = handle.as_ref().ok_or_else(|| self.closed())?;
            let outcome = work(handle).map_err(Fault::from);
            self.facts.record_place(handle)?;
            outcome
        })
    }

    /// Uses the handle exclusively.
    pub(crate) fn write<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Handle) -> Result<T, Error> + Send,
    ) -> Result<T, Fault> {
        self.check_own_process()?;
        without_gil(py, || {
            let mut handle = self.lock();
            let handle = handle.as_mut().ok_or_else(|| self.closed())?;
            let outcome = work(handle).map_err(Fault::from);
            self.facts.record_place(handle)?;
            outcome
        })
    }

    /// Makes a view of all the memory, which keeps it mapped.
    pub(crate) fn view(self: &Arc<Self>, py: Python<'_>) -> Result<View, Fault> {
        self.pin_view(py, None, PinRequest { access: self.access(), wait: None })
    }

    /// Makes a view of the parts in which these bytes lie, for which its caller has checked them.
    pub(crate) fn view_of(
        self: &Arc<Self>,
        py: Python<'_>,
        bytes: &Range<usize>,
        access: Access,
    ) -> Result<View, Fault> {
        let parts = self.facts.parts_of(bytes);
        self.pin_view(py, Some(parts), PinRequest { access, wait: None })
    }

    /// The most that this object may do with the memory.
    pub(crate) fn access(&self) -> Access {
        if self.facts.writable { Access::Write } else { Access::Read }
    }

    /// Makes a view of some parts, or all, for reading or writing; waits until they have arrived.
    pub(crate) fn pin_view(
        self: &Arc<Self>,
        py: Python<'_>,
        parts: Option<Range<u32>>,
        request: PinRequest,
    ) -> Result<View, Fault> {
        self.read(py, |handle| Ok(self.count_view(view::pin(handle, parts, request)?)))
    }

    /// Makes views of several allocations, pinned together: all or none.
    pub(crate) fn view_set(
        py: Python<'_>,
        client: &Client,
        set: &[(Arc<Self>, Access)],
        wait: Option<Duration>,
    ) -> Result<Vec<View>, Fault> {
        set.iter().try_for_each(|(shared, _)| shared.check_own_process())?;
        without_gil(py, || {
            let locked = Locked::all(set.iter().map(|(shared, _)| shared));
            if locked.0.len() < set.len() {
                return Err(Fault::invalid("set", "an allocation is named twice"));
            }
            let members: Vec<_> = set
                .iter()
                .map(|(shared, access)| Ok((locked.handle(shared)?.pinnable(), *access)))
                .collect::<Result<_, Fault>>()?;
            let pinned = match wait {
                Some(wait) => client.pin_set_timeout(&members, wait),
                None => client.pin_set(&members),
            };
            let guards = pinned?.into_guards();
            let view = |((shared, _), pinned): (&(Arc<Self>, Access), Pinned)| {
                shared.facts.record_place(locked.handle(shared)?)?;
                Ok(shared.count_view(vec![pinned]))
            };
            set.iter().zip(guards).map(view).collect()
        })
    }

    /// Keeps the handle from being taken away.
    fn lock_to_read(&self) -> RwLockReadGuard<'_, Option<Handle>> {
        self.handle.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Called under the lock, so that an exclusive holder sees every view that exists.
    fn count_view(self: &Arc<Self>, pins: Vec<Pinned>) -> View {
        self.views.fetch_add(1, Ordering::Relaxed);
        View::new(Arc::clone(self), pins)
    }

    /// For the drop of a [`View`] alone.
    pub(crate) fn uncount_view(&self) {
        // Release: accesses through the view happen before the memory is released.
        self.views.fetch_sub(1, Ordering::Release);
    }

    pub(crate) fn seal(&self, py: Python<'_>) -> Result<Arc<Self>, Fault> {
        self.take_handle(py, |handle| match handle {
            Handle::Open(allocation) => match allocation.seal() {
                Ok(sealed) => Ok(Handle::Sealed(sealed)),
                Err(failed) => Err((Some(Handle::Open(failed.allocation)), failed.error.into())),
            },
            sealed @ Handle::Sealed(_) => {
                let error = Fault::refused(
                    Reason::AlreadySealed,
                    Reason::AlreadySealed.meaning(),
                    &[("allocation", &self.id())],
                );
                Err((Some(sealed), error))
            }
        })
        .and_then(|handle| Self::new(self.client.clone(), handle))
    }

    pub(crate) fn free(&self, py: Python<'_>) -> Result<Released, Fault> {
        self.take_handle(py, |handle| match handle {
            Handle::Open(allocation) => {
                allocation.free().map_err(|failed| (Some(Handle::Open(failed.handle)), failed.error.into()))
            }
            // If the session may not free it, it stays attached.
            Handle::Sealed(sealed) => match self.client.free(self.id()) {
                Ok(released) => {
                    // The daemon has revoked the mapping by now, or is about to; the caller has nothing more to fail
                    // for.
                    let _ = sealed.detach();
                    Ok(released)
                }
                Err(error) => Err((Some(Handle::Sealed(sealed)), error.into())),
            },
        })
    }

    /// Frees the allocation, whichever handle has it.
    pub(crate) fn free_by_id(&self, py: Python<'_>) -> Result<(), Fault> {
        self.check_own_process()?;
        without_gil(py, || self.client.free(self.id()).map(drop).map_err(Fault::from))
    }

    pub(crate) fn detach(&self, py: Python<'_>) -> Result<(), Fault> {
        self.take_handle(py, |handle| match handle {
            Handle::Sealed(sealed) => {
                sealed.detach().map_err(|failed| (Some(Handle::Sealed(failed.handle)), failed.error.into()))
            }
            // Open allocations have no `detach` in Python.
            open @ Handle::Open(_) => {
                let id = self.id();
                let message = Reason::NotSealed.meaning();
                Err((Some(open), Fault::refused(Reason::NotSealed, message, &[("allocation", &id)])))
            }
        })
    }

    /// Gives the handle up, unless a view lives; a handle that `work` returns with its error stays.
    fn take_handle<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(Handle) -> Result<T, (Option<Handle>, Fault)> + Send,
    ) -> Result<T, Fault> {
        self.check_own_process()?;
        without_gil(py, || {
            let mut slot = self.lock();
            // Acquire: see `uncount_view`.
            match self.views.load(Ordering::Acquire) {
                0 => {}
                views => return Err(self.pinned(views)),
            }
            let handle = slot.take().ok_or_else(|| self.closed())?;
            work(handle).map_err(|(handle, fault)| {
                *slot = handle;
                fault
            })
        })
    }

    /// Refuses a forked child, also to keep it away from locks that the parent's threads held.
    pub(crate) fn check_own_process(&self) -> Result<(), Fault> {
        check_process(self.pid)
    }

    fn lock(&self) -> RwLockWriteGuard<'_, Option<Handle>> {
        self.handle.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn closed(&self) -> Fault {
        Fault::own(
            "HandleClosed",
            format!(
                "{} was sealed, freed or detached through this object: use the object that seal returned, or attach it again",
                self.id()
            ),
        )
    }

    fn pinned(&self, views: usize) -> Fault {
        let message = format!(
            "{views} buffers, tensors or pins of {} are alive: release or delete them first",
            self.id()
        );
        Fault::refused(Reason::Pinned, message, &[("allocation", &self.id()), ("pins", &views)])
    }
}

impl Facts {
    fn of(handle: &Handle) -> Result<Self, Fault> {
        let info = handle.info().clone();
        let (size, writable) = (number(info.size.get())?, matches!(handle, Handle::Open(_)));
        let facts = Self { info, size, writable, place: OnceLock::new() };
        facts.record_place(handle)?;
        Ok(facts)
    }

    /// The parts in which bytes lie; for no bytes the part at which they would begin.
    fn parts_of(&self, bytes: &Range<usize>) -> Range<u32> {
        let (start, last) = (bytes.start as u64, bytes.end.max(bytes.start + 1) as u64 - 1);
        let part_of = |byte: u64| {
            let after = self.info.parts.partition_point(|part| part.offset.get() <= byte);
            u32::try_from(after.saturating_sub(1)).unwrap_or(u32::MAX)
        };
        part_of(start)..part_of(last).saturating_add(1)
    }

    /// The offset where a part begins.
    pub(crate) fn start_of(&self, part: u32) -> usize {
        let part = self.info.parts.get(part as usize);
        part.and_then(|part| usize::try_from(part.offset.get()).ok()).unwrap_or(0)
    }

    /// Records the address, if it is known by now.
    fn record_place(&self, handle: &Handle) -> Result<(), Fault> {
        if self.is_placed() {
            return Ok(());
        }
        let (address, is_device) = match handle {
            Handle::Open(open) => (open.as_device_ptr(), open.is_device_memory()),
            Handle::Sealed(sealed) => (sealed.as_device_ptr(), sealed.is_device_memory()),
        };
        if address != 0 {
            let place = Place { address: number(address)?, is_device };
            // Every caller finds the same address.
            let _ = self.place.set(place);
        }
        Ok(())
    }

    /// Whether the address is known: not before a part has arrived.
    pub(crate) fn is_placed(&self) -> bool {
        self.place.get().is_some()
    }

    /// The address; 0 while it is not known.
    pub(crate) fn address(&self) -> usize {
        self.place.get().map_or(0, |place| place.address)
    }

    /// Whether it is device memory; false while that is not known.
    pub(crate) fn is_device(&self) -> bool {
        self.place.get().is_some_and(|place| place.is_device)
    }
}

pub(crate) fn number(number: u64) -> Result<usize, Fault> {
    usize::try_from(number)
        .map_err(|_| Fault::own("Error", "the number does not fit in this process's address space"))
}

impl Handle {
    pub(crate) fn info(&self) -> &AllocationInfo {
        match self {
            Self::Open(allocation) => allocation.info(),
            Self::Sealed(sealed) => sealed.info(),
        }
    }

    pub(crate) fn part_count(&self) -> u32 {
        u32::try_from(self.info().parts.len()).unwrap_or(u32::MAX)
    }

    pub(crate) fn pinnable(&self) -> &dyn Pinnable {
        match self {
            Self::Open(allocation) => allocation,
            Self::Sealed(sealed) => sealed,
        }
    }

    pub(crate) fn pin_parts(
        &self,
        parts: Range<u32>,
        access: Access,
        wait: Option<Duration>,
    ) -> Result<Pinned, Error> {
        match (self, wait) {
            (Self::Open(allocation), None) => allocation.pin_parts(parts, access),
            (Self::Open(allocation), Some(wait)) => allocation.pin_timeout(parts, access, wait),
            (Self::Sealed(sealed), None) => sealed.pin_parts(parts, access),
            (Self::Sealed(sealed), Some(wait)) => sealed.pin_timeout(parts, access, wait),
        }
    }

    pub(crate) fn has_handle_pin(&self) -> bool {
        match self {
            Self::Open(allocation) => allocation.has_handle_pin(),
            Self::Sealed(sealed) => sealed.has_handle_pin(),
        }
    }

    pub(crate) fn repin(&mut self) -> Result<(), Error> {
        match self {
            Self::Open(allocation) => allocation.repin(),
            Self::Sealed(sealed) => sealed.repin(),
        }
    }

    pub(crate) fn unpin(&mut self) -> Result<(), Error> {
        match self {
            Self::Open(allocation) => allocation.unpin(),
            Self::Sealed(sealed) => sealed.unpin(),
        }
    }

    pub(crate) fn advise(&self, parts: Option<Range<u32>>, advice: Advice) -> Result<(), Error> {
        match (self, parts) {
            (Self::Open(allocation), None) => allocation.advise(advice),
            (Self::Open(allocation), Some(parts)) => allocation.advise_parts(parts, advice),
            (Self::Sealed(sealed), None) => sealed.advise(advice),
            (Self::Sealed(sealed), Some(parts)) => sealed.advise_parts(parts, advice),
        }
    }

    pub(crate) fn evict(&self, tier: Tier) -> Result<(), Error> {
        match self {
            Self::Open(allocation) => allocation.evict(tier),
            Self::Sealed(sealed) => sealed.evict(tier),
        }
    }

    pub(crate) fn is_mapped(&self) -> bool {
        match self {
            Self::Open(allocation) => allocation.is_mapped(),
            Self::Sealed(sealed) => sealed.is_mapped(),
        }
    }
}

/// Refuses any use of the object in a forked child.
pub(crate) fn check_process(made_in: u32) -> Result<(), Fault> {
    let pid = process::id();
    if pid == made_in {
        return Ok(());
    }
    let message = "this object belongs to the parent of this forked process: connect a new client";
    Err(Fault::refused(Reason::SessionForeign, message, &[("pid", &pid)]).with_class("Forked"))
}
