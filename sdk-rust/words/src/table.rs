//! A table in memory: a header, then two words a slot, every access within bounds.
//!
//! The memory is the caller's: a mapped memfd behind whatever owns the mapping, or a plain slice. The daemon lays a
//! table out with [`Daemon::create`](crate::Daemon::create); a client opens it with [`open`], once a session.

use core::fmt;

use crate::client::Client;
use crate::header::{HEADER_WORDS, Header, OpenError};
use crate::sync::{AtomicU64, Ordering};
use crate::word::Word;
use crate::worker::Worker;

/// Slots of a table unless configured: the parts that one session can map at once. Untouched ones take no memory.
pub const DEFAULT_SLOTS: u32 = 65_536;
/// The words of one slot.
pub const SLOT_WORDS: usize = 2;

/// The bytes that a table of so many slots takes.
pub const fn bytes_for(slots: u32) -> u64 {
    (HEADER_WORDS as u64 + SLOT_WORDS as u64 * slots as u64) * 8
}

/// The memory that was handed in can't hold the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooSmall {
    pub needed_bytes: u64,
    pub bytes: u64,
}

/// The client's two views of a table whose header is good: for the threads that call, and for the one that maps. There is
/// one worker a process, so it can't be copied; `major` is the protocol that this SDK speaks.
///
/// `words` must give the same memory each time that it is asked: a slice, or an `Arc` of what owns the mapping.
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
    /// As it was when the table was made or opened: what the memory says later is of no interest.
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
            [state, touch] => Some(Slot { state, touch }),
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
    pub(crate) touch: &'a AtomicU64,
}

impl Slot<'_> {
    #[inline]
    pub(crate) fn look(self) -> Word {
        Word::from_raw(self.state.load(Ordering::Acquire))
    }

    /// Takes `step` as one atomic change, as often as the word moves meanwhile. The word before and after, or the refusal.
    #[inline]
    pub(crate) fn take<E>(self, step: impl Fn(Word) -> Result<Word, E>) -> Result<(Word, Word), E> {
        let mut old = self.look();
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

    pub(crate) fn keep(self, bits: u64) -> Word {
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
        write!(f, "{:?}, {:?}", self.look(), crate::Touch::load(self.touch))
    }
}

impl fmt::Display for TooSmall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a table of {} bytes does not fit into {}", self.needed_bytes, self.bytes)
    }
}

impl core::error::Error for TooSmall {}
