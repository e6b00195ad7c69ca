//! Interrupts: a caller ends its own waits early, as Python does at Ctrl-C.
//!
//! A blocking call asks the check of its own thread several times a second. Once the check says yes, every wait of that
//! call ends with [`Error::Interrupted`], and what was under way is undone as for a dropped future.

use std::{
    cell::Cell,
    future,
    time::{Duration, Instant},
};

use crate::error::{Error, Result};

/// How long a wait goes on between two checks.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

thread_local! {
    static INTERRUPT: Cell<Interrupt> = const { Cell::new(Interrupt { check: None, raised: false }) };
}

/// The check of a thread, and whether it has said yes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interrupt {
    check: Option<fn() -> bool>,
    raised: bool,
}

/// Runs calls of this crate on this thread, whose waits end with [`Error::Interrupted`] soon after `check` has returned
/// true. The SDK undoes the calls in the background: nothing of them arrives afterwards.
pub fn interruptible<T>(check: fn() -> bool, work: impl FnOnce() -> T) -> T {
    struct Restore(Interrupt);
    impl Drop for Restore {
        fn drop(&mut self) {
            INTERRUPT.set(self.0);
        }
    }
    let _restore = Restore(INTERRUPT.replace(Interrupt { check: Some(check), raised: false }));
    work()
}

impl Interrupt {
    pub(crate) fn of_thread() -> Self {
        INTERRUPT.get()
    }

    /// Whether waits of this thread can be interrupted.
    pub(crate) fn is_possible(self) -> bool {
        self.check.is_some()
    }

    /// When a wait is to check again: at its deadline, or sooner.
    pub(crate) fn next_check(self, deadline: Instant) -> Instant {
        if self.is_possible() { deadline.min(Instant::now() + CHECK_INTERVAL) } else { deadline }
    }

    /// Fails once the thread was interrupted.
    pub(crate) fn check(self) -> Result<()> {
        let Some(check) = self.check else { return Ok(()) };
        let raised = INTERRUPT.get().raised || check();
        if raised {
            INTERRUPT.set(Self { raised, ..self });
            return Err(Error::Interrupted);
        }
        Ok(())
    }

    /// Returns when the thread was interrupted.
    pub(crate) async fn raised(self) -> Error {
        if !self.is_possible() {
            return future::pending().await;
        }
        loop {
            match self.check() {
                Err(interrupted) => return interrupted,
                Ok(()) => tokio::time::sleep(CHECK_INTERVAL).await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    thread_local! {
        static ASKED: Cell<u32> = const { Cell::new(0) };
    }

    fn third_time() -> bool {
        ASKED.set(ASKED.get() + 1);
        ASKED.get() == 3
    }

    #[test]
    fn interrupted_thread_stays_so_until_the_work_ends() {
        assert_eq!(Interrupt::of_thread().check(), Ok(()));
        let outcomes =
            interruptible(third_time, || [(); 5].map(|()| Interrupt::of_thread().check().is_err()));
        assert_eq!((outcomes, ASKED.get()), ([false, false, true, true, true], 3));
        assert_eq!(Interrupt::of_thread().check(), Ok(()));
        let far = Instant::now() + Duration::from_secs(3600);
        assert_eq!(Interrupt::of_thread().next_check(far), far);
        assert!(interruptible(third_time, || Interrupt::of_thread().next_check(far)) < far);
    }
}
