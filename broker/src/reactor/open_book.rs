//! The broker, where others can look at it between two turns of the reactor.
//!
//! Only the reactor changes it. Who looks does not wait for it: while the reactor is at work, the question goes through
//! its queue. The way through the queue is four changes of tasks for one call, and tokio hands the last of them to
//! another thread, which made a call that only asks twice as long. The price is a lock, which is held for one look, as
//! small as one in the queue, or for one turn.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

use broker_core::Broker;

/// The reactor's own end.
#[derive(Clone, Debug)]
pub(super) struct Book(Arc<Mutex<Broker>>);

/// Everybody's end: empty until the reactor is made.
#[derive(Clone, Debug, Default)]
pub(super) struct Window(Arc<OnceLock<Book>>);

impl Book {
    pub(super) fn new(broker: Broker) -> Self {
        Self(Arc::new(Mutex::new(broker)))
    }

    /// For the reactor, which waits for one look at most.
    pub(super) fn lock(&self) -> MutexGuard<'_, Broker> {
        // A look that panics has changed nothing; a reactor that does ends the daemon.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, Broker>> {
        match self.0.try_lock() {
            Ok(broker) => Some(broker),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl Window {
    /// There is one reactor to an inbox.
    pub(super) fn open(&self, book: &Book) {
        let first = self.0.set(book.clone());
        debug_assert!(first.is_ok(), "an inbox has one reactor");
    }

    /// What is seen, or the look itself where nothing can be seen now.
    pub(super) fn look<T, Look: FnOnce(&Broker) -> T>(&self, look: Look) -> Result<T, Look> {
        match self.0.get().and_then(Book::try_lock) {
            Some(broker) => Ok(look(&broker)),
            None => Err(look),
        }
    }
}
