//! Who waits for something of a session to change: threads, and tasks.

use std::{
    sync::{Condvar, LockResult, MutexGuard, WaitTimeoutResult},
    time::Duration,
};

use tokio::sync::{Notify, futures::Notified};

#[derive(Debug, Default)]
pub(super) struct Changed {
    threads: Condvar,
    tasks: Notify,
}

impl Changed {
    pub(super) fn notify_all(&self) {
        self.threads.notify_all();
        self.tasks.notify_waiters();
    }

    /// Ready after the next change from when it was first asked or enabled.
    pub(super) fn notified(&self) -> Notified<'_> {
        self.tasks.notified()
    }

    pub(super) fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        patience: Duration,
    ) -> LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)> {
        self.threads.wait_timeout(guard, patience)
    }
}
