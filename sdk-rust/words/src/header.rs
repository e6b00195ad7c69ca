//! The header: the first 64 bytes of a table, by which both sides check that they mean the same.
//!
//! An SDK lives in its clients' images and outlives daemons. So the header names the daemon's protocol, and an SDK of
//! another major leaves the table alone. It has no checksum: the session's own process can write to it, and could
//! correct the sum too.
//!
//! ```text
//!  word 0 magic │ 1 major << 32 | minor │ 2 feature bits │ 3 slots │ 4 to 7 zero
//! ```

use core::fmt;

use crate::sync::{AtomicU64, Ordering};

/// `VRAMDWRD` in the order of bytes in memory.
pub const MAGIC: u64 = u64::from_ne_bytes(*b"VRAMDWRD");
/// The words of a header: 64 bytes.
pub const HEADER_WORDS: usize = 8;

/// The daemon's description of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The version of the protocol, as in `hello`.
    pub major: u32,
    pub minor: u32,
    /// The daemon's features, as in `hello`.
    pub features: u64,
    /// How many parts the session can map at once.
    pub slots: u32,
}

/// Why an SDK will not use a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenError {
    /// Not a table of words.
    Magic(u64),
    /// A protocol that this SDK doesn't know.
    Major { ours: u32, theirs: u32 },
    /// The header promises more slots than fit in the memory, or than can be counted.
    Slots { promised: u64, room: usize },
}

impl Header {
    /// `words` is the whole table, and has room for a header.
    pub(crate) fn write(self, words: &[AtomicU64]) {
        let version = u64::from(self.major) << 32 | u64::from(self.minor);
        for (word, value) in words.iter().zip([MAGIC, version, self.features, u64::from(self.slots)]) {
            word.store(value, Ordering::Relaxed);
        }
    }

    #[expect(clippy::cast_possible_truncation, reason = "each half of the version is 32 bits")]
    pub(crate) fn read(words: &[AtomicU64], major: u32) -> Result<Header, OpenError> {
        let word = |index: usize| words.get(index).map_or(0, |word| word.load(Ordering::Relaxed));
        if word(0) != MAGIC {
            return Err(OpenError::Magic(word(0)));
        }
        let version = word(1);
        let theirs = (version >> 32) as u32;
        if theirs != major {
            return Err(OpenError::Major { ours: major, theirs });
        }
        let room = words.len().saturating_sub(HEADER_WORDS) / crate::SLOT_WORDS;
        let promised = word(3);
        match u32::try_from(promised) {
            Ok(slots) if slots as usize <= room => {
                Ok(Header { major, minor: version as u32, features: word(2), slots })
            }
            _ => Err(OpenError::Slots { promised, room }),
        }
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Magic(found) => {
                write!(f, "not a word table: it starts with {found:#x}, not with {MAGIC:#x}")
            }
            OpenError::Major { ours, theirs } => {
                write!(f, "the word table is of protocol {theirs}, and this SDK speaks {ours}")
            }
            OpenError::Slots { promised, room } => {
                write!(f, "the word table claims {promised} slots and has room for {room}")
            }
        }
    }
}

impl core::error::Error for OpenError {}
