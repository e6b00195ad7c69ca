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
    api::{Context, Pinned, Used},
    copies::pinned,
    host::headroom,
};
use crate::{DriverError, HostLimit, disk::Room as _};

/// Where there was no room, and some have buffers: to ask takes about as long as a copy of a buffer.
const ASKS_AGAIN: Duration = Duration::from_millis(100);
/// So long who hashes waits for what others have: a disk that hangs keeps what it has.
const PATIENCE: Duration = Duration::from_secs(2);
const NAP: Duration = Duration::from_micros(200);
/// Who waits asks all the time. Who has not for so long has nothing to do with it any more, and is waited for by nobody.
const FORGOTTEN: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(crate) struct Buffers {
    shelf: Mutex<Shelf>,
}

#[derive(Debug, Default)]
struct Shelf {
    idle: Vec<Pinned>,
    borrowers: Vec<Account>,
    /// When there was no room the last time, and why.
    refused: Option<(Instant, DriverError)>,
    /// Who begins to wait is given the next number.
    next: u64,
}

#[derive(Debug, Default)]
struct Account {
    has: usize,
    /// It has none, and waits for one that others have.
    waits: Option<Waits>,
}

#[derive(Clone, Copy, Debug)]
struct Waits {
    /// Its place in the line.
    number: u64,
    asked: Instant,
}

/// Who takes buffers.
#[derive(Debug)]
pub(crate) struct Borrower {
    of: Arc<Buffers>,
    number: usize,
}

/// A buffer, until it is dropped.
#[derive(Debug)]
pub(crate) struct Lent {
    /// Until then.
    pinned: Option<Pinned>,
    of: Arc<Buffers>,
    by: usize,
}

impl Buffers {
    pub(crate) fn borrower(self: &Arc<Self>) -> Borrower {
        let mut shelf = self.shelf();
        shelf.borrowers.push(Account::default());
        Borrower { of: Arc::clone(self), number: shelf.borrowers.len() - 1 }
    }

    /// Every change is whole before anything could panic, so a poisoned lock is a good one.
    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What there is for one who comes.
enum Found {
    Idle(Pinned),
    /// What others have will come back.
    Later,
    /// None: one may be made, in the place of this one that is too small.
    None(Option<Pinned>),
}

impl Borrower {
    /// Of so many bytes at least. None while others have all that there is room for. It is of any context.
    pub(crate) fn take(&self, context: &Arc<Context>, length: usize) -> Result<Option<Lent>, DriverError> {
        let found = self.of.shelf().find(self.number, length);
        match found {
            Found::Idle(pinned) => Ok(Some(self.lent(pinned))),
            Found::Later => Ok(None),
            Found::None(small) => {
                drop(small);
                // Who is refused waits no longer.
                self.make(context, length)
                    .inspect_err(|_| self.of.shelf().borrowers[self.number].waits = None)
            }
        }
    }

    /// The same, and where others have all that there is room for it sleeps until one is back; but not for long.
    pub(crate) fn wait(&self, context: &Arc<Context>, length: usize) -> Result<Lent, DriverError> {
        let began = Instant::now();
        loop {
            if let Some(lent) = self.take(context, length)? {
                return Ok(lent);
            }
            if began.elapsed() > PATIENCE {
                return Err(self.of.shelf().give_up(self.number));
            }
            thread::sleep(NAP);
        }
    }

    fn make(&self, context: &Arc<Context>, length: usize) -> Result<Option<Lent>, DriverError> {
        // Until what is made can be seen by who asks next.
        let asking = headroom::asking();
        loop {
            let error = match pinned::make(&asking, context, length) {
                Ok(pinned) => {
                    self.of.shelf().has(self.number);
                    return Ok(Some(self.lent(pinned)));
                }
                Err(error @ DriverError::OutOfHostMemory(_)) => error,
                Err(error) => return Err(error),
            };
            let mut shelf = self.of.shelf();
            // One may have come back meanwhile.
            if let Some(pinned) = shelf.take_idle(self.number, length) {
                return Ok(Some(self.lent(pinned)));
            }
            let Some(other) = shelf.idle.pop() else {
                return shelf.refuse(self.number, error).map(|()| None);
            };
            drop(shelf);
            drop(other);
        }
    }

    /// It has been counted.
    fn lent(&self, pinned: Pinned) -> Lent {
        Lent { pinned: Some(pinned), of: Arc::clone(&self.of), by: self.number }
    }
}

impl Shelf {
    fn find(&mut self, number: usize, length: usize) -> Found {
        let place = self.borrowers[number].waits.map_or(u64::MAX, |own| own.number);
        let is_before = |other: Waits| other.number < place && other.asked.elapsed() < FORGOTTEN;
        if self.borrowers.iter().any(|it| it.waits.is_some_and(is_before)) {
            self.waits(number);
            return Found::Later;
        }
        if let Some(pinned) = self.take_idle(number, length) {
            return Found::Idle(pinned);
        }
        let was_just_refused = self.refused.as_ref().is_some_and(|(when, _)| when.elapsed() < ASKS_AGAIN);
        if was_just_refused && self.are_any_lent() && self.idle.is_empty() {
            self.waits(number);
            return Found::Later;
        }
        let small = self.idle.iter().position(|it| is_like(it, length));
        Found::None(small.map(|at| self.idle.swap_remove(at)))
    }

    /// The smallest of that size.
    fn take_idle(&mut self, number: usize, length: usize) -> Option<Pinned> {
        let fitting =
            self.idle.iter().enumerate().filter(|(_, it)| it.length() >= length && is_like(it, length));
        let at = fitting.min_by_key(|(_, it)| it.length())?.0;
        self.has(number);
        Some(self.idle.swap_remove(at))
    }

    fn has(&mut self, number: usize) {
        let account = &mut self.borrowers[number];
        (account.has, account.waits) = (account.has + 1, None);
    }

    /// If it has none.
    fn waits(&mut self, number: usize) {
        let account = &mut self.borrowers[number];
        if account.has > 0 {
            return;
        }
        let place = account.waits.map_or(self.next, |own| own.number);
        account.waits = Some(Waits { number: place, asked: Instant::now() });
        self.next = self.next.max(place + 1);
    }

    /// There is no room, and nothing idle. It may wait if anybody has a buffer.
    fn refuse(&mut self, number: usize, error: DriverError) -> Result<(), DriverError> {
        self.refused = Some((Instant::now(), error.clone()));
        if self.are_any_lent() {
            self.waits(number);
            return Ok(());
        }
        Err(error)
    }

    /// It waits no longer; and why it had to.
    fn give_up(&mut self, number: usize) -> DriverError {
        self.borrowers[number].waits = None;
        let error = self.refused.as_ref().map(|(_, error)| error.clone());
        error.unwrap_or(DriverError::OutOfHostMemory(HostLimit::Pinned))
    }

    fn are_any_lent(&self) -> bool {
        self.borrowers.iter().any(|it| it.has > 0)
    }
}

/// A chunk is not used where a piece would do, nor given up for one without need.
fn is_like(pinned: &Pinned, length: usize) -> bool {
    pinned.length() < 2 * length && length < 2 * pinned.length()
}

impl Lent {
    fn back(&mut self) -> Option<(Pinned, MutexGuard<'_, Shelf>)> {
        let pinned = self.pinned.take()?;
        let mut shelf = self.of.shelf();
        shelf.borrowers[self.by].has -= 1;
        Some((pinned, shelf))
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some((pinned, mut shelf)) = self.back() {
            shelf.idle.push(pinned);
        }
    }
}

impl Used for Lent {
    /// Nobody has it again, and nobody waits for it.
    fn keep_for_ever(mut self) {
        let pinned = self.back().map(|(pinned, _)| pinned);
        if let Some(pinned) = pinned {
            pinned.keep_for_ever();
        }
    }
}

impl Deref for Lent {
    type Target = Pinned;

    fn deref(&self) -> &Pinned {
        self.pinned.as_ref().expect("it is there until it is dropped")
    }
}

impl AsRef<Pinned> for Lent {
    fn as_ref(&self) -> &Pinned {
        self
    }
}
