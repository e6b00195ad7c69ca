//! The role of the channel's reader: the worker's, unless a caller that waits for memory takes the seat.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, ThreadId},
    time::Duration,
};

use rustix::{
    event::{EventfdFlags, eventfd},
    io::{Errno, read, write},
};

/// How long the worker leaves a packet to a seated caller: longer than an answer takes that the daemon sent with it,
/// and too short for any other caller to notice.
const LEFT_TO_CALLER: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(super) struct ReaderRole {
    /// Locked for a moment only, and never during a read.
    reader: Mutex<Reader>,
    caller_left: Condvar,
    /// Readable when a seated, sleeping caller must check again: the worker has read something, or has taken over.
    nudge: OwnedFd,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reader {
    Worker,
    /// A thread that waits for memory.
    Caller(ThreadId),
}

/// A caller's seat as the reader, until it is dropped or the worker takes over.
#[derive(Debug)]
pub(crate) struct ReaderSeat<'a>(&'a ReaderRole);

impl Reader {
    pub(super) fn this_caller() -> Self {
        Self::Caller(thread::current().id())
    }
}

impl ReaderRole {
    pub(super) fn new() -> Result<Self, Errno> {
        let nudge = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { reader: Mutex::new(Reader::Worker), caller_left: Condvar::new(), nudge })
    }

    pub(super) fn take_seat(&self) -> Option<ReaderSeat<'_>> {
        let mut reader = self.lock();
        (*reader == Reader::Worker).then(|| {
            self.clear_nudge();
            *reader = Reader::this_caller();
            ReaderSeat(self)
        })
    }

    pub(super) fn is_reader(&self, reader: Reader) -> bool {
        *self.lock() == reader
    }

    /// Lets a seated caller read first, for a while.
    pub(super) fn wait_for_caller(&self) {
        let occupied = |reader: &mut Reader| *reader != Reader::Worker;
        drop(self.caller_left.wait_timeout_while(self.lock(), LEFT_TO_CALLER, occupied));
    }

    /// Makes the worker the reader again, and wakes a seated caller that did not read.
    pub(super) fn take_over(&self) {
        let previous = std::mem::replace(&mut *self.lock(), Reader::Worker);
        if previous != Reader::Worker {
            self.signal_nudge();
        }
    }

    /// Wakes a caller that took the seat meanwhile: the worker has changed something that it may wait for.
    pub(super) fn nudge(&self) {
        if !self.is_reader(Reader::Worker) {
            self.signal_nudge();
        }
    }

    /// The descriptor that is readable after a nudge.
    pub(super) fn nudged(&self) -> BorrowedFd<'_> {
        self.nudge.as_fd()
    }

    pub(super) fn clear_nudge(&self) {
        // No nudge may be pending.
        let _ = read(&self.nudge, &mut [0; 8]);
    }

    fn signal_nudge(&self) {
        // This fails only if so many nudges are pending that the descriptor is readable anyway.
        let _ = write(&self.nudge, &1u64.to_ne_bytes());
    }

    /// Gives up the seat, if this thread has it.
    pub(super) fn leave_seat(&self) {
        let mut reader = self.lock();
        if *reader == Reader::this_caller() {
            *reader = Reader::Worker;
            self.caller_left.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Reader> {
        self.reader.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ReaderSeat<'_> {
    fn drop(&mut self) {
        self.0.leave_seat();
    }
}
