//! Buffers that are used again and again: by the lanes of the disk, and by the threads that hash.
//!
//! ```text
//!             ┌──── idle, the size that is asked for ◄──── who needs one no more
//!  borrower ──┼──── a new one, if there is room
//!             └──── not yet: all that there is room for others have
//! ```
//!
//! What one has done with lies here for all. Where there is no room for a new one idle ones of other sizes go for it. Who has none, and
//! finds none, waits in line for what comes back: until then nobody takes one who has some, or came later. So where there is room for a few
//! buffers only, no lane keeps another from its work.

use std::{
    ops::Deref,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use crate::cuda::{
    api::{Context, KeepAlive, Pinned},
    copies::pinned,
    host::headroom,
};
use crate::{DriverError, HostLimit, disk::IoMemory as _};

/// Where there was no room, and some have buffers: to ask takes about as long as a copy of a buffer.
const RETRY_AFTER: Duration = Duration::from_millis(100);
/// So long who hashes waits for what others have: a disk that hangs keeps what it has.
const WAIT_MAX: Duration = Duration::from_secs(2);
const POLL_EVERY: Duration = Duration::from_micros(200);
/// Who waits asks all the time. Who has not for so long has nothing to do with it any more, and is waited for by nobody.
const WAITER_EXPIRES_AFTER: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(crate) struct Buffers {
    state: Mutex<BufferState>,
}

#[derive(Debug, Default)]
struct BufferState {
    idle: Vec<Pinned>,
    borrowers: Vec<BorrowerState>,
    /// When there was no room the last time, and why.
    refused: Option<(Instant, DriverError)>,
    /// Who begins to wait is given the next number.
    next: u64,
}

#[derive(Debug, Default)]
struct BorrowerState {
    borrowed: usize,
    /// It has none, and waits for one that others have.
    wait: Option<Wait>,
}

#[derive(Clone, Copy, Debug)]
struct Wait {
    /// Its place in the line.
    number: u64,
    requested: Instant,
}

/// Who takes buffers.
#[derive(Debug)]
pub(crate) struct Borrower {
    of: Arc<Buffers>,
    number: usize,
}

/// A buffer, until it is dropped.
#[derive(Debug)]
pub(crate) struct LentBuffer {
    /// Until then.
    pinned: Option<Pinned>,
    of: Arc<Buffers>,
    by: usize,
}

impl Buffers {
    pub(crate) fn borrower(self: &Arc<Self>) -> Borrower {
        let mut state = self.state();
        state.borrowers.push(BorrowerState::default());
        Borrower { of: Arc::clone(self), number: state.borrowers.len() - 1 }
    }

    /// Every change is whole before anything could panic, so a poisoned lock is a good one.
    fn state(&self) -> MutexGuard<'_, BufferState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What there is for one who comes.
enum Located {
    Idle(Pinned),
    /// What others have will come back.
    Later,
    /// None: one may be made, in the place of this one that is too small.
    None(Option<Pinned>),
}

impl Borrower {
    /// Of so many bytes at least. None while others have all that there is room for. It is of any context.
    pub(crate) fn take(
        &self,
        context: &Arc<Context>,
        length: usize,
    ) -> Result<Option<LentBuffer>, DriverError> {
        let found = self.of.state().find(self.number, length);
        match found {
            Located::Idle(pinned) => Ok(Some(self.lent(pinned))),
            Located::Later => Ok(None),
            Located::None(small) => {
                drop(small);
                // Who is refused waits no longer.
                self.make(context, length).inspect_err(|_| self.of.state().borrowers[self.number].wait = None)
            }
        }
    }

    /// The same, and where others have all that there is room for it sleeps until one is back; but not for long.
    pub(crate) fn take_or_wait(
        &self,
        context: &Arc<Context>,
        length: usize,
    ) -> Result<LentBuffer, DriverError> {
        let began = Instant::now();
        loop {
            if let Some(lent) = self.take(context, length)? {
                return Ok(lent);
            }
            if began.elapsed() > WAIT_MAX {
                return Err(self.of.state().leave_line(self.number));
            }
            thread::sleep(POLL_EVERY);
        }
    }

    fn make(&self, context: &Arc<Context>, length: usize) -> Result<Option<LentBuffer>, DriverError> {
        // Until what is made can be seen by who asks next.
        let asking = headroom::lock_requests();
        loop {
            let error = match pinned::make_buffer(&asking, context, length) {
                Ok(pinned) => {
                    self.of.state().record_borrow(self.number);
                    return Ok(Some(self.lent(pinned)));
                }
                Err(error @ DriverError::OutOfHostMemory(_)) => error,
                Err(error) => return Err(error),
            };
            let mut state = self.of.state();
            // One may have come back meanwhile.
            if let Some(pinned) = state.take_idle(self.number, length) {
                return Ok(Some(self.lent(pinned)));
            }
            let Some(other) = state.idle.pop() else {
                return state.refuse_or_wait(self.number, error).map(|()| None);
            };
            drop(state);
            drop(other);
        }
    }

    /// It has been counted.
    fn lent(&self, pinned: Pinned) -> LentBuffer {
        LentBuffer { pinned: Some(pinned), of: Arc::clone(&self.of), by: self.number }
    }
}

impl BufferState {
    fn find(&mut self, number: usize, length: usize) -> Located {
        let place = self.borrowers[number].wait.map_or(u64::MAX, |own| own.number);
        let is_before =
            |other: Wait| other.number < place && other.requested.elapsed() < WAITER_EXPIRES_AFTER;
        if self.borrowers.iter().any(|it| it.wait.is_some_and(is_before)) {
            self.enter_line(number);
            return Located::Later;
        }
        if let Some(pinned) = self.take_idle(number, length) {
            return Located::Idle(pinned);
        }
        let was_just_refused = self.refused.as_ref().is_some_and(|(when, _)| when.elapsed() < RETRY_AFTER);
        if was_just_refused && self.any_lent() && self.idle.is_empty() {
            self.enter_line(number);
            return Located::Later;
        }
        let small = self.idle.iter().position(|it| is_similar_size(it, length));
        Located::None(small.map(|at| self.idle.swap_remove(at)))
    }

    /// The smallest of that size.
    fn take_idle(&mut self, number: usize, length: usize) -> Option<Pinned> {
        let fitting = self
            .idle
            .iter()
            .enumerate()
            .filter(|(_, it)| it.length() >= length && is_similar_size(it, length));
        let at = fitting.min_by_key(|(_, it)| it.length())?.0;
        self.record_borrow(number);
        Some(self.idle.swap_remove(at))
    }

    fn record_borrow(&mut self, number: usize) {
        let account = &mut self.borrowers[number];
        (account.borrowed, account.wait) = (account.borrowed + 1, None);
    }

    /// If it has none.
    fn enter_line(&mut self, number: usize) {
        let account = &mut self.borrowers[number];
        if account.borrowed > 0 {
            return;
        }
        let place = account.wait.map_or(self.next, |own| own.number);
        account.wait = Some(Wait { number: place, requested: Instant::now() });
        self.next = self.next.max(place + 1);
    }

    /// There is no room, and nothing idle. It may wait if anybody has a buffer.
    fn refuse_or_wait(&mut self, number: usize, error: DriverError) -> Result<(), DriverError> {
        self.refused = Some((Instant::now(), error.clone()));
        if self.any_lent() {
            self.enter_line(number);
            return Ok(());
        }
        Err(error)
    }

    /// It waits no longer; and why it had to.
    fn leave_line(&mut self, number: usize) -> DriverError {
        self.borrowers[number].wait = None;
        let error = self.refused.as_ref().map(|(_, error)| error.clone());
        error.unwrap_or(DriverError::OutOfHostMemory(HostLimit::Pinned))
    }

    fn any_lent(&self) -> bool {
        self.borrowers.iter().any(|it| it.borrowed > 0)
    }
}

/// A chunk is not used where a piece would do, nor given up for one without need.
fn is_similar_size(pinned: &Pinned, length: usize) -> bool {
    pinned.length() < 2 * length && length < 2 * pinned.length()
}

impl LentBuffer {
    fn take_back(&mut self) -> Option<(Pinned, MutexGuard<'_, BufferState>)> {
        let pinned = self.pinned.take()?;
        let mut state = self.of.state();
        state.borrowers[self.by].borrowed -= 1;
        Some((pinned, state))
    }
}

impl Drop for LentBuffer {
    fn drop(&mut self) {
        if let Some((pinned, mut state)) = self.take_back() {
            state.idle.push(pinned);
        }
    }
}

impl KeepAlive for LentBuffer {
    /// Nobody has it again, and nobody waits for it.
    fn leak(mut self) {
        let pinned = self.take_back().map(|(pinned, _)| pinned);
        if let Some(pinned) = pinned {
            pinned.leak();
        }
    }
}

impl Deref for LentBuffer {
    type Target = Pinned;

    fn deref(&self) -> &Pinned {
        self.pinned.as_ref().expect("it is there until it is dropped")
    }
}

impl AsRef<Pinned> for LentBuffer {
    fn as_ref(&self) -> &Pinned {
        self
    }
}
