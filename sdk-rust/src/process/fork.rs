//! Sessions and `fork`: which process a session belongs to, and what a fork must wait for.
//!
//! A session belongs to the process that opened it. In a forked child its handles refuse every call and their drops
//! do nothing: the child has neither the mappings (they are not inherited) nor the threads that serve them. A child
//! may open a session of its own.
//!
//! Descriptors that are being mapped must not leak into a child, where they would never be closed. While the worker
//! holds any, it holds the [`Gate`], and `fork` waits for that. A raw `clone` runs no such handler; there the
//! descriptors stay with the child until it ends or executes another program.

#![allow(unsafe_code, reason = "fork handlers and a lock that survives a fork are C interfaces")]

use std::{
    cell::UnsafeCell,
    marker::PhantomData,
    mem::ManuallyDrop,
    ops::Deref,
    sync::{
        Arc, Once, Weak,
        atomic::{Ordering, fence},
    },
};

use crate::process::{Process, inherited};

/// A shared value that only the process that made it may use or drop.
#[derive(Debug)]
pub(crate) struct ProcessBound<T> {
    value: ManuallyDrop<Arc<T>>,
    process: Process,
}

impl<T> ProcessBound<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value: ManuallyDrop::new(Arc::new(value)), process: Process::current() }
    }

    /// Whether this is the process that made the value, not a forked child. No system call.
    #[inline]
    pub(crate) fn is_own_process(&self) -> bool {
        Process::current() == self.process
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.value, &other.value)
    }

    /// The number of other references.
    pub(crate) fn other_count(&self) -> usize {
        Arc::strong_count(&self.value) - 1
    }

    /// Whether this is the only reference that keeps the value. If so, everything that the other references did has
    /// happened before (acquire).
    pub(crate) fn confirm_unshared(&mut self) -> bool {
        let unshared = Arc::strong_count(&self.value) == 1;
        fence(Ordering::Acquire);
        unshared
    }

    /// A reference that does not keep the value.
    pub(crate) fn downgrade(&self) -> WeakBound<T> {
        WeakBound { value: Arc::downgrade(&self.value), process: self.process }
    }
}

/// A reference to a shared value that does not keep it.
#[derive(Debug)]
pub(crate) struct WeakBound<T> {
    value: Weak<T>,
    process: Process,
}

impl<T> WeakBound<T> {
    pub(crate) fn upgrade(&self) -> Option<ProcessBound<T>> {
        let value = ManuallyDrop::new(self.value.upgrade()?);
        Some(ProcessBound { value, process: self.process })
    }
}

impl<T> Clone for ProcessBound<T> {
    fn clone(&self) -> Self {
        Self { value: ManuallyDrop::new(Arc::clone(&self.value)), process: self.process }
    }
}

impl<T> Deref for ProcessBound<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> Drop for ProcessBound<T> {
    fn drop(&mut self) {
        if self.is_own_process() {
            // SAFETY: needed to skip the drop in a forked child. `value` is dropped here alone, once.
            unsafe { ManuallyDrop::drop(&mut self.value) }
        }
    }
}

/// Held while descriptors travel from a packet to a mapping. Never across a long wait.
#[derive(Debug)]
pub(crate) struct Gate(PhantomData<*const ()>);

impl Gate {
    pub(crate) fn hold() -> Self {
        static REGISTER: Once = Once::new();
        REGISTER.call_once(|| {
            // SAFETY: there is no safe interface. The handlers are plain functions that live as long as the process
            // and only lock and unlock, which is allowed between fork and exec.
            // A failure for want of memory leaves the gate without effect on fork, and with effect on everything else.
            unsafe { libc::pthread_atfork(Some(lock), Some(unlock), Some(in_child)) };
        });
        lock();
        Self(PhantomData)
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        unlock();
    }
}

extern "C" fn in_child() {
    unlock();
    inherited::watch();
}

struct ForkMutex(UnsafeCell<libc::pthread_mutex_t>);

// SAFETY: needed for a static. A pthread mutex is made to be used by several threads through its address.
unsafe impl Sync for ForkMutex {}

/// Not a `std` mutex: the child must unlock what its parent's thread locked before the fork.
static GATE: ForkMutex = ForkMutex(UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER));

extern "C" fn lock() {
    // SAFETY: the mutex is static and initialised. No thread locks it twice: nothing forks while it holds the gate.
    unsafe { libc::pthread_mutex_lock(GATE.0.get()) };
}

extern "C" fn unlock() {
    // SAFETY: only called by the thread that locked: a gate is not Send, and a
    // fork's handlers run in the thread that forks, which the child inherits.
    unsafe { libc::pthread_mutex_unlock(GATE.0.get()) };
}
