//! The daemon's view: revoke, write back, look. Nothing here waits for a client or retries against one.
//!
//! The daemon never asks a word *whether* a session maps a part: its own table of mappers knows, and a word may say
//! "absent" while a `map` frame is on its way. What it asks is whether a mapping is in use.

use core::fmt;

use crate::header::Header;
use crate::sync::{AtomicU64, Ordering};
use crate::table::{Slot, Table, TooSmall};
use crate::touch::Touch;
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

/// A word that no honest client makes: the session is to be quarantined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Impossible(pub Word);

/// What came of a revoke that must not wait.
#[must_use = "a revoke that stands must be followed by its frame"]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evict {
    /// REVOKE stands and nobody can pin: send the frame. It is never taken back from here on.
    Revoked,
    /// In use. REVOKE was taken back and there is no frame.
    StillPinned,
    /// The client is unmapping on its own account. REVOKE was taken back and there is no frame, since `unmapped` comes.
    Leaving,
}

/// What came of a revoke that waits for pins to end.
#[must_use = "a revoke that stands must be followed by its frame"]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fence {
    /// REVOKE stands: send the frame. While one of these pins lasts, more may join. It is never taken back.
    Revoked { pins: u32 },
    /// As [`Evict::Leaving`].
    Leaving,
}

/// What came of the first step of a write-back.
#[must_use = "only what was begun may be copied"]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteBack {
    /// Nobody was using it, and WRITTEN is off: copy now. The copy counts only while WRITTEN stays off.
    Begun,
    /// In use, on its way out, or changed under our hands: leave it for another time.
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
    /// Asks the part back if nobody uses it, and lets it be otherwise. Only for a mapping that is not being revoked: the
    /// core knows, so a REVOKE that stands already is the client's.
    pub fn revoke_to_evict(self) -> Result<Evict, Impossible> {
        let outcome = match self.revoke()? {
            Some(0) => return Ok(Evict::Revoked),
            Some(_) => Evict::StillPinned,
            None => Evict::Leaving,
        };
        self.take_back();
        Ok(outcome)
    }

    /// Asks the part back whoever uses it: at the end of a turn, under a lowered limit, or for an operator. The same
    /// condition holds.
    pub fn revoke_to_fence(self) -> Result<Fence, Impossible> {
        if let Some(pins) = self.revoke()? {
            return Ok(Fence::Revoked { pins });
        }
        self.take_back();
        Ok(Fence::Leaving)
    }

    /// One attempt, in one step: pins 0 *and* WRITTEN off. In two, a write pin would fit in between, and its WRITTEN be lost.
    pub fn begin_write_back(self) -> Result<WriteBack, Impossible> {
        let old = self.look()?;
        let Some(new) = old.begin_write_back() else { return Ok(WriteBack::Stopped) };
        let begun =
            self.slot.state.compare_exchange(old.raw(), new.raw(), Ordering::AcqRel, Ordering::Acquire);
        Ok(if begun.is_ok() { WriteBack::Begun } else { WriteBack::Stopped })
    }

    /// Whether a copy of this part made by a write-back is worthless. Final only once the part is unmapped; a sealed
    /// part's is to be ignored, since its readers can say what they like.
    pub fn is_written(self) -> Result<bool, Impossible> {
        self.look().map(Word::is_written)
    }

    /// The last look before the slot is used for another part: whether this one was written, and not so from here on.
    /// Only after `unmapped`, when the word must be absent.
    pub fn collect_written(self) -> Result<bool, Impossible> {
        let (old, _) = self.slot.take(|word| word.collect().ok_or(Impossible(word)))?;
        Ok(old.is_written())
    }

    pub fn touched(self) -> Touch {
        Touch::load(self.slot.touch)
    }

    /// What the word says now: for people and for checks, since it may be old by the time it is read.
    pub fn state(self) -> Result<State, Impossible> {
        let word = self.slot.look();
        word.state().ok_or(Impossible(word))
    }

    fn look(self) -> Result<Word, Impossible> {
        let word = self.slot.look();
        word.state().map(|_| word).ok_or(Impossible(word))
    }

    /// Sets REVOKE. The pins of a mapped word, or `None` where the client has unmapped or is about to. What was no word
    /// before is left as it was.
    fn revoke(self) -> Result<Option<u32>, Impossible> {
        let old = self.slot.set(bits::REVOKE);
        match old.state() {
            Some(State::Resident { pins }) => Ok(Some(pins)),
            Some(State::Absent | State::Unmapping) => Ok(None),
            Some(State::Revoking { .. }) => Err(Impossible(old)),
            None => {
                if !old.is_revoked() {
                    self.take_back();
                }
                Err(Impossible(old))
            }
        }
    }

    /// Takes a revoke back that stands, since another mapper of the part pins it. Only before its frame was sent, and never
    /// after that.
    pub fn take_back(self) {
        self.slot.keep(!bits::REVOKE);
    }
}

impl fmt::Debug for DaemonSlot<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.slot.fmt(f)
    }
}

impl fmt::Display for Impossible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no honest client makes this word: {:?}", self.0)
    }
}

impl core::error::Error for Impossible {}
