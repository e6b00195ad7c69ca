//! Pinned buffers that the lanes of the disk and the hashing threads borrow.
//!
//! ```text
//!             ┌──── an idle one of the requested size ◄──── returned by a borrower
//!  borrower ──┼──── a new one, if there is room
//!             └──── none yet: other borrowers have all that there is room for
//! ```
//!
//! Returned buffers are idle for all borrowers. If there is no room for a new buffer, idle ones of other sizes
//! are freed for it. A borrower that has no buffer and gets none waits in line for a returned one. Until then
//! no borrower takes one that has some already or came later. So with room for only a few buffers no lane keeps
//! another from its work.

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

/// How long to wait before asking for room again while others have buffers. Asking takes about as long as
/// copying a buffer.
const RETRY_AFTER: Duration = Duration::from_millis(100);
/// How long a hashing thread waits for a buffer of another: a hung disk keeps what it has.
const WAIT_MAX: Duration = Duration::from_secs(2);
const POLL_EVERY: Duration = Duration::from_micros(200);
/// A waiter asks continually. If it has not asked for so long it needs no buffer any more, and leaves the line.
const WAITER_EXPIRES_AFTER: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(crate) struct Buffers {
    state: Mutex<BufferState>,
}

#[derive(Debug, Default)]
struct BufferState {
    idle: Vec<Pinned>,
    borrowers: Vec<BorrowerState>,
    /// When there last was no room, and why.
    refused: Option<(Instant, DriverError)>,
    /// The number of the next waiter.
    next: u64,
}

#[derive(Debug, Default)]
struct BorrowerState {
    borrowed: usize,
    /// Set if the borrower has no buffer and waits for one.
    wait: Option<Wait>,
}

#[derive(Clone, Copy, Debug)]
struct Wait {
    /// Its position in the line.
    number: u64,
    requested: Instant,
}

/// One user of buffers.
#[derive(Debug)]
pub(crate) struct Borrower {
    of: Arc<Buffers>,
    number: usize,
}

/// A borrowed buffer, returned when it is dropped.
#[derive(Debug)]
pub(crate) struct LentBuffer {
    /// Taken at the drop.
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

    /// Every change is complete before any code could panic, so a poisoned lock is still good.
    fn state(&self) -> MutexGuard<'_, BufferState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The answer to a request.
enum Offer {
    Idle(Pinned),
    /// Wait for a returned buffer.
    Later,
    /// Make one, in place of this idle one that is too small.
    None(Option<Pinned>),
}

impl Borrower {
    /// A buffer of at least so many bytes, from any context. None while others have all that there is room for.
    pub(crate) fn take(
        &self,
        context: &Arc<Context>,
        length: usize,
    ) -> Result<Option<LentBuffer>, DriverError> {
        let found = self.of.state().find(self.number, length);
        match found {
            Offer::Idle(pinned) => Ok(Some(self.lent(pinned))),
            Offer::Later => Ok(None),
            Offer::None(small) => {
                drop(small);
                // A refused borrower does not wait.
                self.make(context, length).inspect_err(|_| self.of.state().borrowers[self.number].wait = None)
            }
        }
    }

    /// The same, but sleeps until another borrower returns a buffer, within a limit.
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
        // Locked until the next request can see the new buffer.
        let lock = headroom::lock_requests();
        loop {
            let error = match pinned::make_buffer(&lock, context, length) {
                Ok(pinned) => {
                    self.of.state().record_borrow(self.number);
                    return Ok(Some(self.lent(pinned)));
                }
                Err(error @ DriverError::OutOfHostMemory(_)) => error,
                Err(error) => return Err(error),
            };
            let mut state = self.of.state();
            // A buffer may have been returned meanwhile.
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

    /// Wraps a buffer that is already counted.
    fn lent(&self, pinned: Pinned) -> LentBuffer {
        LentBuffer { pinned: Some(pinned), of: Arc::clone(&self.of), by: self.number }
    }
}

impl BufferState {
    fn find(&mut self, number: usize, length: usize) -> Offer {
        let place = self.borrowers[number].wait.map_or(u64::MAX, |own| own.number);
        let is_before =
            |other: Wait| other.number < place && other.requested.elapsed() < WAITER_EXPIRES_AFTER;
        if self.borrowers.iter().any(|it| it.wait.is_some_and(is_before)) {
            self.enter_line(number);
            return Offer::Later;
        }
        if let Some(pinned) = self.take_idle(number, length) {
            return Offer::Idle(pinned);
        }
        let was_just_refused = self.refused.as_ref().is_some_and(|(when, _)| when.elapsed() < RETRY_AFTER);
        if was_just_refused && self.any_lent() && self.idle.is_empty() {
            self.enter_line(number);
            return Offer::Later;
        }
        let small = self.idle.iter().position(|it| is_similar_size(it, length));
        Offer::None(small.map(|at| self.idle.swap_remove(at)))
    }

    /// The smallest idle buffer of a similar size.
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

    /// Lets the borrower wait, if it has no buffer.
    fn enter_line(&mut self, number: usize) {
        let account = &mut self.borrowers[number];
        if account.borrowed > 0 {
            return;
        }
        let place = account.wait.map_or(self.next, |own| own.number);
        account.wait = Some(Wait { number: place, requested: Instant::now() });
        self.next = self.next.max(place + 1);
    }

    /// Without room and idle buffers: lets the borrower wait if others have buffers, else fails.
    fn refuse_or_wait(&mut self, number: usize, error: DriverError) -> Result<(), DriverError> {
        self.refused = Some((Instant::now(), error.clone()));
        if self.any_lent() {
            self.enter_line(number);
            return Ok(());
        }
        Err(error)
    }

    /// Ends the borrower's wait, and returns why it had to wait.
    fn leave_line(&mut self, number: usize) -> DriverError {
        self.borrowers[number].wait = None;
        let error = self.refused.as_ref().map(|(_, error)| error.clone());
        error.unwrap_or(DriverError::OutOfHostMemory(HostLimit::Pinned))
    }

    fn any_lent(&self) -> bool {
        self.borrowers.iter().any(|it| it.borrowed > 0)
    }
}

/// A chunk does not serve where a piece would do, and is not freed for one without need.
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
    /// The buffer is never lent again, and no borrower waits for it.
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
