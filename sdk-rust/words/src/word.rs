//! The first word of a slot as a value: its meanings, and its transitions.
//!
//! Pure, so that a step can be read, tested and refused without threads. The views retry a step until the word has
//! not changed under it.

use core::fmt;

const PINS: u64 = (1 << 24) - 1;
const WRITTEN: u64 = 1 << 24;
const MAPPED: u64 = 1 << 25;
const REVOKE: u64 = 1 << 26;
const UNMAPPING: u64 = 1 << 27;
const FORKED: u64 = 1 << 63;

/// The access of a pin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Read,
    /// Marks the part as written from now on, even if no byte is written: an older copy is no longer valid.
    Write,
}

/// The meaning of a word that an honest client and the daemon made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Not mapped in this session.
    Absent,
    /// Mapped, and not being revoked.
    Resident { pins: u32 },
    /// Mapped, being revoked, and not yet unmapped.
    Revoking { pins: u32 },
    /// Being unmapped, or stuck there because the driver refused.
    Unmapping,
}

/// The calls of this process that wait for one part; they get their pins when it is mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Waiting {
    pub readers: u32,
    pub writers: u32,
}

/// Why a pin was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PinRefused {
    /// Not mapped, or being revoked: send a `pin` frame.
    NeedsFrame,
    /// The word has as many pins as it can count.
    Saturated,
    /// This is a forked child, which does not have the parent's memory.
    Forked,
}

/// Why there was nothing to unpin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotPinned {
    /// More unpins than pins: a bug in this process.
    NoPins,
    /// This is a forked child, and the pin is its parent's: dropping it is harmless.
    Forked,
}

/// Why the worker may not unmap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotUnmappable {
    /// Still pinned: the last unpin under a revoke wakes the worker.
    Pinned,
    /// Unmapped already, or about to be: the report is on its way.
    Leaving,
    /// Not revoked. After a `revoke` frame this is the daemon's breach of the protocol.
    NotRevoked,
}

/// Why a word could not become mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotMappable {
    /// Not absent, so its `map` frame is the daemon's breach of the protocol.
    NotAbsent(Word),
    /// More calls wait than a word can count; the word is unchanged.
    Saturated,
}

/// One value of `w0`.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Word(u64);

impl Word {
    /// The value of every word of the page that the SDK maps over its table in a forked child. No daemon ever sees
    /// it.
    pub const FORKED: Word = Word(FORKED);
    /// The largest number of pins that a word can count.
    pub const PINS_MAX: u32 = (1 << 24) - 1;

    #[inline]
    pub const fn from_raw(raw: u64) -> Word {
        Word(raw)
    }

    #[inline]
    pub const fn raw(self) -> u64 {
        self.0
    }

    #[inline]
    pub const fn pins(self) -> u32 {
        (self.0 & PINS) as u32
    }

    pub const fn is_written(self) -> bool {
        self.has(WRITTEN)
    }

    pub(crate) const fn is_revoked(self) -> bool {
        self.has(REVOKE)
    }

    /// The meaning of this word, or `None` if no honest client and no step of this crate leads to it.
    pub const fn state(self) -> Option<State> {
        let pins = self.pins();
        match self.0 & !PINS & !WRITTEN {
            0 if pins == 0 => Some(State::Absent),
            UNMAPPING if pins == 0 => Some(State::Unmapping),
            MAPPED => Some(State::Resident { pins }),
            bits if bits == MAPPED | REVOKE => Some(State::Revoking { pins }),
            _ => None,
        }
    }

    /// Adds a pin: to a mapped word that is not being revoked, or that other pins keep mapped during a revoke.
    #[inline]
    pub fn pin(self, access: Access) -> Result<Word, PinRefused> {
        self.pin_all(match access {
            Access::Read => Waiting { readers: 1, writers: 0 },
            Access::Write => Waiting { readers: 0, writers: 1 },
        })
    }

    /// Adds the pins of several calls at once.
    #[inline]
    pub fn pin_all(self, calls: Waiting) -> Result<Word, PinRefused> {
        if self == Word::FORKED {
            return Err(PinRefused::Forked);
        }
        if !self.has(MAPPED) || (self.has(REVOKE) && self.pins() == 0) {
            return Err(PinRefused::NeedsFrame);
        }
        self.with_calls(calls).ok_or(PinRefused::Saturated)
    }

    /// Removes a pin.
    #[inline]
    pub fn unpin(self) -> Result<Word, NotPinned> {
        match self.pins() {
            _ if self == Word::FORKED => Err(NotPinned::Forked),
            0 => Err(NotPinned::NoPins),
            _ => Ok(Word(self.0 - 1)),
        }
    }

    /// Whether the last unpin leaves this word, so that the worker can unmap.
    #[inline]
    pub const fn is_free_to_unmap(self) -> bool {
        self.has(REVOKE) && self.pins() == 0
    }

    /// Turns absent into mapped, with a pin for each waiting call. WRITTEN stays as it was.
    pub fn map(self, waiting: Waiting) -> Result<Word, NotMappable> {
        if self.state() != Some(State::Absent) {
            return Err(NotMappable::NotAbsent(self));
        }
        Word(self.0 | MAPPED).with_calls(waiting).ok_or(NotMappable::Saturated)
    }

    /// The worker's first step after a `revoke` frame.
    pub fn unmap_revoked(self) -> Result<Word, NotUnmappable> {
        if self.has(MAPPED) && !self.has(REVOKE) {
            return Err(NotUnmappable::NotRevoked);
        }
        self.unmap()
    }

    /// The worker's first step at the program's request, revoked or not.
    pub fn unmap(self) -> Result<Word, NotUnmappable> {
        match (self.has(MAPPED), self.pins()) {
            (false, _) => Err(NotUnmappable::Leaving),
            (true, 0) => Ok(Word(self.0 & WRITTEN | UNMAPPING)),
            (true, _) => Err(NotUnmappable::Pinned),
        }
    }

    /// The first step of the daemon's write-back: clears WRITTEN if the word is resident without pins.
    pub fn begin_write_back(self) -> Option<Word> {
        (self.state() == Some(State::Resident { pins: 0 })).then_some(Word(self.0 & !WRITTEN))
    }

    /// The daemon's last step on an absent word: clears WRITTEN.
    pub fn collect(self) -> Option<Word> {
        (self.state() == Some(State::Absent)).then_some(Word(self.0 & !WRITTEN))
    }

    #[inline]
    const fn has(self, bit: u64) -> bool {
        self.0 & bit != 0
    }

    #[inline]
    fn with_calls(self, calls: Waiting) -> Option<Word> {
        let pins = self.pins().checked_add(calls.readers)?.checked_add(calls.writers)?;
        let written = if calls.writers > 0 { WRITTEN } else { 0 };
        (pins <= Word::PINS_MAX).then_some(Word(self.0 & !PINS | u64::from(pins) | written))
    }
}

/// The bits that unconditional steps set or keep.
pub(crate) mod bits {
    pub(crate) const REVOKE: u64 = super::REVOKE;
    pub(crate) const WRITTEN: u64 = super::WRITTEN;
}

impl fmt::Debug for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} pins", self.pins())?;
        let named = [
            (WRITTEN, "WRITTEN"),
            (MAPPED, "MAPPED"),
            (REVOKE, "REVOKE"),
            (UNMAPPING, "UNMAPPING"),
            (FORKED, "FORKED"),
        ];
        for (_, name) in named.into_iter().filter(|(bit, _)| self.has(*bit)) {
            write!(f, " {name}")?;
        }
        let rest = named.into_iter().fold(self.0 & !PINS, |rest, (bit, _)| rest & !bit);
        if rest == 0 { Ok(()) } else { write!(f, " and {rest:#x}") }
    }
}

impl fmt::Display for PinRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PinRefused::NeedsFrame => "not mapped, or being revoked: ask the daemon by a pin frame",
            PinRefused::Saturated => "the word has as many pins as it can count",
            PinRefused::Forked => "a forked child has no mappings",
        })
    }
}

impl fmt::Display for NotPinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NotPinned::NoPins => "more unpins than pins",
            NotPinned::Forked => "the pin belongs to the parent process",
        })
    }
}

impl fmt::Display for NotUnmappable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NotUnmappable::Pinned => "still pinned",
            NotUnmappable::Leaving => "already unmapped or being unmapped",
            NotUnmappable::NotRevoked => "not revoked",
        })
    }
}

impl fmt::Display for NotMappable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotMappable::NotAbsent(word) => write!(f, "not absent: {word:?}"),
            NotMappable::Saturated => f.write_str("more calls wait than the word can count"),
        }
    }
}

impl core::error::Error for PinRefused {}
impl core::error::Error for NotPinned {}
impl core::error::Error for NotUnmappable {}
impl core::error::Error for NotMappable {}
