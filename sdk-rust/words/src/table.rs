//! A table in memory: a header, then two words a slot. Every access is within bounds.
//!
//! The memory is the caller's: a mapped memfd behind its owner, or a plain slice. The daemon lays a table out with
//! [`Daemon::create`](crate::Daemon::create); a client opens it with [`open`], once a session.

use core::fmt;

use crate::client::Client;
use crate::header::{HEADER_WORDS, Header, OpenError};
use crate::sync::{AtomicU64, Ordering};
use crate::word::Word;
use crate::worker::Worker;

/// The default number of slots: the parts that one session can map at once. Untouched slots take no memory.
pub const DEFAULT_SLOTS: u32 = 65_536;
/// The words of one slot.
pub const SLOT_WORDS: usize = 2;

/// The bytes of a table with that many slots.
pub const fn bytes_for(slots: u32) -> u64 {
    (HEADER_WORDS as u64 + SLOT_WORDS as u64 * slots as u64) * 8
}

/// The given memory cannot hold the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooSmall {
    pub needed_bytes: u64,
    pub bytes: u64,
}

/// Checks the header, and returns the client's two views of the table: for the threads that pin, and for the one that
/// maps. A process has one worker, so it cannot be copied. `major` is the protocol that this SDK speaks.
///
/// `words` must return the same memory each time: a slice, or an `Arc` of the owner of the mapping.
pub fn open<S>(words: S, major: u32) -> Result<(Client<S>, Worker<S>), OpenError>
where
    S: AsRef<[AtomicU64]> + Clone,
{
    let header = Header::read(words.as_ref(), major)?;
    let table = Table { words, header };
    Ok((Client::new(table.clone()), Worker::new(table)))
}

#[derive(Clone)]
pub(crate) struct Table<S> {
    words: S,
    /// As it was when the table was made or opened; later values in the memory are ignored.
    header: Header,
}

impl<S: AsRef<[AtomicU64]>> Table<S> {
    pub(crate) fn create(words: S, header: Header) -> Result<Table<S>, TooSmall> {
        let (needed_bytes, bytes) = (bytes_for(header.slots), words.as_ref().len() as u64 * 8);
        if bytes < needed_bytes {
            return Err(TooSmall { needed_bytes, bytes });
        }
        header.write(words.as_ref());
        Ok(Table { words, header })
    }

    #[inline]
    pub(crate) fn slot(&self, index: u32) -> Option<Slot<'_>> {
        if index >= self.header.slots {
            return None;
        }
        let at = HEADER_WORDS + SLOT_WORDS * index as usize;
        match self.words.as_ref().get(at..at + SLOT_WORDS)? {
            [state, last_use] => Some(Slot { state, last_use }),
            _ => None,
        }
    }
}

impl<S> Table<S> {
    pub(crate) fn header(&self) -> Header {
        self.header
    }
}

/// The two words of one slot.
#[derive(Clone, Copy)]
pub(crate) struct Slot<'a> {
    pub(crate) state: &'a AtomicU64,
    pub(crate) last_use: &'a AtomicU64,
}

impl Slot<'_> {
    #[inline]
    pub(crate) fn load(self) -> Word {
        Word::from_raw(self.state.load(Ordering::Acquire))
    }

    /// Applies `step` as one atomic change, and retries while the word changes meanwhile. Returns the word before and
    /// after, or the refusal.
    #[inline]
    pub(crate) fn update<E>(self, step: impl Fn(Word) -> Result<Word, E>) -> Result<(Word, Word), E> {
        let mut old = self.load();
        loop {
            let new = step(old)?;
            let taken =
                self.state.compare_exchange_weak(old.raw(), new.raw(), Ordering::AcqRel, Ordering::Acquire);
            match taken {
                Ok(_) => return Ok((old, new)),
                Err(found) => old = Word::from_raw(found),
            }
        }
    }

    pub(crate) fn set(self, bits: u64) -> Word {
        Word::from_raw(self.state.fetch_or(bits, Ordering::AcqRel))
    }

    pub(crate) fn mask(self, bits: u64) -> Word {
        Word::from_raw(self.state.fetch_and(bits, Ordering::AcqRel))
    }
}

impl<S> fmt::Debug for Table<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.header.fmt(f)
    }
}

impl fmt::Debug for Slot<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}, {:?}", self.load(), crate::LastUse::load(self.last_use))
    }
}

impl fmt::Display for TooSmall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the word table needs {} bytes, and the memory has {}", self.needed_bytes, self.bytes)
    }
}

impl core::error::Error for TooSmall {}
