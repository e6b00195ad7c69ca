//! Lets other tasks read the broker between two turns of the reactor.
//!
//! Only the reactor changes the broker. A reader does not wait for it: while the reactor works, or is about to, the
//! read goes through the reactor's queue. The queue costs four changes of tasks, of which tokio moves the last to
//! another thread; that made a call that only reads twice as long. The price of reading at once is a lock, taken for
//! one read, as small as one in the queue, or for one turn.
//!
//! The lock is not fair: a reader that tries again and again could overtake a reactor that sleeps for it. So the
//! reactor first sets a flag, and from then on readers do not try. The reactor waits for the read in progress, and at
//! most for one further read of each thread that had tried before it saw the flag.

use std::sync::{
    Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError,
    atomic::{AtomicBool, Ordering},
};

use broker_core::Broker;

/// The reactor's end.
#[derive(Clone, Debug)]
pub(super) struct SharedBroker(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    broker: Mutex<Broker>,
    /// Whether the reactor waits for the lock. It is only a hint: no other data depends on it.
    wanted: AtomicBool,
}

/// Readers keep away while this lives.
struct Wanted<'a>(&'a AtomicBool);

/// The readers' end. It is empty until the reactor exists.
#[derive(Clone, Debug, Default)]
pub(super) struct BrokerReader(Arc<OnceLock<SharedBroker>>);

impl SharedBroker {
    pub(super) fn new(broker: Broker) -> Self {
        Self(Arc::new(Inner { broker: Mutex::new(broker), wanted: AtomicBool::new(false) }))
    }

    /// Locks the broker for the reactor, before all readers that have not begun.
    pub(super) fn lock(&self) -> MutexGuard<'_, Broker> {
        let _until_locked = self.set_wanted();
        // A read that panics has changed nothing; a reactor that panics ends the daemon.
        self.0.broker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_wanted(&self) -> Wanted<'_> {
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

impl BrokerReader {
    /// Sets the broker to read. An inbox has one reactor.
    pub(super) fn set(&self, broker: &SharedBroker) {
        let first = self.0.set(broker.clone());
        debug_assert!(first.is_ok(), "an inbox has one reactor");
    }

    /// Reads the broker, or returns the closure if the broker cannot be read now.
    pub(super) fn try_read<T, Read: FnOnce(&Broker) -> T>(&self, read: Read) -> Result<T, Read> {
        match self.0.get().and_then(SharedBroker::try_lock) {
            Some(broker) => Ok(read(&broker)),
            None => Err(read),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc::channel, thread};

    use broker_core::{Config, StoredQuotas, Time};

    use super::*;

    fn shared() -> (SharedBroker, BrokerReader) {
        let config = Config {
            boot_epoch: 1,
            sessions_reserved: 0,
            eviction: broker_core::EvictionPolicy::default(),
            victim_script: Vec::new(),
            check_clean_backings: false,
            files: false,
            pressure: broker_core::PressureBounds::default(),
            shares: vramd_types::Shares::default(),
            devices: Vec::new(),
            part_size: vramd_types::Bytes::mib(256),
            default_limit: vramd_types::Quantity::Percent(100),
            default_host_limit: vramd_types::Quantity::Percent(100),
            default_disk_limit: vramd_types::Quantity::Percent(100),
            tenants: std::collections::BTreeMap::new(),
            limits: broker_core::Limits::default(),
        };
        let (broker, reader) = (
            SharedBroker::new(Broker::new(config, StoredQuotas::default(), Time::START)),
            BrokerReader::default(),
        );
        reader.set(&broker);
        (broker, reader)
    }

    #[test]
    fn readers_do_not_overtake_a_waiting_reactor() {
        let (broker, reader) = shared();
        let wanted = broker.set_wanted();
        assert!(reader.try_read(|_| ()).is_err(), "the broker is free, and the reactor is to have it");
        drop(wanted);
        assert!(reader.try_read(|_| ()).is_ok());
    }

    #[test]
    fn the_wanted_flag_is_set_until_the_reactor_has_the_lock() {
        let (broker, reader) = shared();
        let reactor = broker.clone();
        let (began, begun) = channel();
        let (end, ended) = channel();
        thread::scope(|scope| {
            scope
                .spawn(|| reader.try_read(move |_| (began.send(()).unwrap(), ended.recv().unwrap())).is_ok());
            begun.recv().unwrap();
            let turn = scope.spawn(move || drop(reactor.lock()));
            while !broker.0.wanted.load(Ordering::Relaxed) {
                thread::yield_now();
            }
            end.send(()).unwrap();
            turn.join().unwrap();
        });
        assert!(reader.try_read(|_| ()).is_ok(), "and no longer");
    }
}
