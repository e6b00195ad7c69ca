//! Wakes the threads and tasks that wait for a change of a session.

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

    /// Ready after the next change since it was first polled or enabled.
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
