//! The daemon's view: revoke, write back, harvest. No call here waits for a client or retries against one.
//!
//! The daemon never asks a word *whether* a session maps a part: its own table of mappers knows, and a word may say
//! "absent" while a `map` frame is on its way. It asks only whether a mapping is in use.

use core::fmt;

use crate::header::Header;
use crate::last_use::LastUse;
use crate::sync::{AtomicU64, Ordering};
use crate::table::{Slot, Table, TooSmall};
use crate::word::{State, Word, bits};

/// The table of one session as the daemon sees it.
#[derive(Debug)]
pub struct Daemon<S> {
    table: Table<S>,
}

/// One part of one session as the daemon sees it.
#[derive(Clone, Copy)]
pub struct DaemonSlot<'a> {
    slot: Slot<'a>,
}

/// A word that no honest client makes: the daemon quarantines the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidWord(pub Word);

/// The outcome of a revoke that must not wait.
#[must_use = "a revoke that stands must be followed by its frame"]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evict {
    /// REVOKE is set and no thread can pin: send the frame. From here on it is never withdrawn.
    Revoked,
    /// In use. REVOKE was withdrawn and no frame is sent.
    StillPinned,
    /// The client is unmapping on its own account. REVOKE was withdrawn and no frame is sent, since `unmapped` is
    /// coming.
    Leaving,
}

/// The outcome of a revoke that waits for pins to end.
#[must_use = "a revoke that stands must be followed by its frame"]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fence {
    /// REVOKE is set: send the frame. While one of these pins lasts, more may join. It is never withdrawn.
    Revoked { pins: u32 },
    /// As [`Evict::Leaving`].
    Leaving,
}

/// The outcome of the first step of a write-back.
#[must_use = "only what was begun may be copied"]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteBack {
    /// No pin was held, and WRITTEN is off: copy now. The copy counts only while WRITTEN stays off.
    Begun,
    /// In use, being unmapped, or changed concurrently: leave it for another time.
    Stopped,
}

impl<S: AsRef<[AtomicU64]>> Daemon<S> {
    /// Lays a table out in memory that is all zero, as a new memfd is.
    pub fn create(words: S, header: Header) -> Result<Daemon<S>, TooSmall> {
        Ok(Daemon { table: Table::create(words, header)? })
    }

    /// `None` beyond the last slot.
    pub fn slot(&self, index: u32) -> Option<DaemonSlot<'_>> {
        self.table.slot(index).map(|slot| DaemonSlot { slot })
    }
}

impl DaemonSlot<'_> {
    /// Revokes the part if no thread pins it, and leaves it otherwise. Only for a mapping that is not being revoked:
    /// the core knows, so a REVOKE that is set already is the client's.
    pub fn revoke_to_evict(self) -> Result<Evict, InvalidWord> {
        let outcome = match self.revoke()? {
            Some(0) => return Ok(Evict::Revoked),
            Some(_) => Evict::StillPinned,
            None => Evict::Leaving,
        };
        self.withdraw_revoke();
        Ok(outcome)
    }

    /// Revokes the part although it may be pinned: at the end of a turn, under a lowered limit, or for an operator.
    /// The same condition holds.
    pub fn revoke_to_fence(self) -> Result<Fence, InvalidWord> {
        if let Some(pins) = self.revoke()? {
            return Ok(Fence::Revoked { pins });
        }
        self.withdraw_revoke();
        Ok(Fence::Leaving)
    }

    /// Begins a write-back, in one attempt and one step: pins 0 *and* WRITTEN off. Between two steps a write pin
    /// could fit, and its WRITTEN would be lost.
    pub fn begin_write_back(self) -> Result<WriteBack, InvalidWord> {
        let old = self.valid_word()?;
        let Some(new) = old.begin_write_back() else { return Ok(WriteBack::Stopped) };
        let begun =
            self.slot.state.compare_exchange(old.raw(), new.raw(), Ordering::AcqRel, Ordering::Acquire);
        Ok(if begun.is_ok() { WriteBack::Begun } else { WriteBack::Stopped })
    }

    /// Whether the copy that a write-back made of this part is worthless. Final only once the part is unmapped.
    /// Ignore it for a sealed part, whose readers can write any value.
    pub fn is_written(self) -> Result<bool, InvalidWord> {
        self.valid_word().map(Word::is_written)
    }

    /// Takes WRITTEN before the slot is reused: returns whether this part was written, and clears the mark. Only
    /// after `unmapped`, when the word must be absent.
    pub fn collect_written(self) -> Result<bool, InvalidWord> {
        let (old, _) = self.slot.update(|word| word.collect().ok_or(InvalidWord(word)))?;
        Ok(old.is_written())
    }

    pub fn last_use(self) -> LastUse {
        LastUse::load(self.slot.last_use)
    }

    /// The state that the word shows now: for people and for checks, since it may be old by the time it is read.
    pub fn state(self) -> Result<State, InvalidWord> {
        let word = self.slot.load();
        word.state().ok_or(InvalidWord(word))
    }

    fn valid_word(self) -> Result<Word, InvalidWord> {
        let word = self.slot.load();
        word.state().map(|_| word).ok_or(InvalidWord(word))
    }

    /// Sets REVOKE. Returns the pins of a mapped word, or `None` if the client has unmapped or is about to. A word
    /// that was invalid before is left as it was.
    fn revoke(self) -> Result<Option<u32>, InvalidWord> {
        let old = self.slot.set(bits::REVOKE);
        match old.state() {
            Some(State::Resident { pins }) => Ok(Some(pins)),
            Some(State::Absent | State::Unmapping) => Ok(None),
            Some(State::Revoking { .. }) => Err(InvalidWord(old)),
            None => {
                if !old.is_revoked() {
                    self.withdraw_revoke();
                }
                Err(InvalidWord(old))
            }
        }
    }

    /// Withdraws a revoke, because another mapper of the part pins it. Only before its frame is sent, never after
    /// that.
    pub fn withdraw_revoke(self) {
        self.slot.mask(!bits::REVOKE);
    }
}

impl fmt::Debug for DaemonSlot<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.slot.fmt(f)
    }
}

impl fmt::Display for InvalidWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no honest client makes this word: {:?}", self.0)
    }
}

impl core::error::Error for InvalidWord {}
