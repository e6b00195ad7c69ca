//! The broker, where others can look at it between two turns of the reactor.
//!
//! Only the reactor changes it. Who looks does not wait for it: while the reactor is at work or about to be, the
//! question goes through its queue. The way through the queue is four changes of tasks for one call, and tokio hands the
//! last of them to another thread, which made a call that only asks twice as long. The price is a lock, which is held
//! for one look, as small as one in the queue, or for one turn.
//!
//! The lock is not a fair one: who only tries for it again and again would overtake a reactor that sleeps for it. So the
//! reactor says first that it wants it, and from then on nobody tries. It waits for the look under way, and at most for
//! one more of each thread that had asked before it saw that.

use std::sync::{
    Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError,
    atomic::{AtomicBool, Ordering},
};

use broker_core::Broker;

/// The reactor's own end.
#[derive(Clone, Debug)]
pub(super) struct Book(Arc<Pages>);

#[derive(Debug)]
struct Pages {
    broker: Mutex<Broker>,
    /// The reactor waits for the lock. A hint: nothing else is read on the strength of it.
    wanted: AtomicBool,
}

/// As long as it lives the reactor is let by.
struct Wanted<'a>(&'a AtomicBool);

/// Everybody's end: empty until the reactor is made.
#[derive(Clone, Debug, Default)]
pub(super) struct Window(Arc<OnceLock<Book>>);

impl Book {
    pub(super) fn new(broker: Broker) -> Self {
        Self(Arc::new(Pages { broker: Mutex::new(broker), wanted: AtomicBool::new(false) }))
    }

    /// For the reactor, before all who have not begun to look.
    pub(super) fn lock(&self) -> MutexGuard<'_, Broker> {
        let _until_it_is_ours = self.want();
        // A look that panics has changed nothing; a reactor that does ends the daemon.
        self.0.broker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn want(&self) -> Wanted<'_> {
        self.0.wanted.store(true, Ordering::Relaxed);
        Wanted(&self.0.wanted)
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, Broker>> {
        if self.0.wanted.load(Ordering::Relaxed) {
            return None;
        }
        match self.0.broker.try_lock() {
            Ok(broker) => Some(broker),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl Drop for Wanted<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
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

#[cfg(test)]
mod tests {
    use std::{sync::mpsc::channel, thread};

    use broker_core::{Config, StoredQuotas, Time};

    use super::*;

    fn book() -> (Book, Window) {
        let config = Config {
            boot_epoch: 1,
            sessions_reserved: 0,
            eviction: broker_core::EvictionPolicy::default(),
            check_shadows: false,
            files: false,
            pressure: broker_core::PressureBounds::default(),
            shares: vramd_types::Shares::default(),
            devices: Vec::new(),
            part_size: vramd_types::Bytes::mib(256),
            default_limit: vramd_types::Quantity::Percent(100),
            default_host_limit: vramd_types::Quantity::Percent(100),
            default_disk_limit: vramd_types::Quantity::Percent(100),
            limits: broker_core::Limits::default(),
        };
        let (book, window) =
            (Book::new(Broker::new(config, StoredQuotas::default(), Time::START)), Window::default());
        window.open(&book);
        (book, window)
    }

    #[test]
    fn nobody_overtakes_a_reactor_that_waits() {
        let (book, window) = book();
        let wanted = book.want();
        assert!(window.look(|_| ()).is_err(), "the book is free, and the reactor is to have it");
        drop(wanted);
        assert!(window.look(|_| ()).is_ok());
    }

    #[test]
    fn a_reactor_says_that_it_waits_until_it_has_the_book() {
        let (book, window) = book();
        let reactor = book.clone();
        let (began, begun) = channel();
        let (end, ended) = channel();
        thread::scope(|scope| {
            scope.spawn(|| window.look(move |_| (began.send(()).unwrap(), ended.recv().unwrap())).is_ok());
            begun.recv().unwrap();
            let turn = scope.spawn(move || drop(reactor.lock()));
            while !book.0.wanted.load(Ordering::Relaxed) {
                thread::yield_now();
            }
            end.send(()).unwrap();
            turn.join().unwrap();
        });
        assert!(window.look(|_| ()).is_ok(), "and no longer");
    }
}
