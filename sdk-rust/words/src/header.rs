//! The first 64 bytes of a table: what it is, and whether both sides mean the same by it.
//!
//! An SDK lives in its clients' images and outlasts daemons. So the header says which protocol the daemon speaks, and an
//! SDK of another major leaves the table alone. It carries no checksum: the session's own process can write to it, and
//! so could mend the sum.
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

/// What the daemon says of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The version of the protocol, as in `hello`.
    pub major: u32,
    pub minor: u32,
    /// What the daemon can do, as in `hello`.
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
    /// The header promises more slots than there is memory for, or more than can be counted.
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
            OpenError::Magic(found) => write!(f, "not a table of words: it starts with {found:#x}"),
            OpenError::Major { ours, theirs } => {
                write!(f, "the daemon's words are of protocol {theirs}, ours of {ours}")
            }
            OpenError::Slots { promised, room } => write!(f, "{promised} slots promised, room for {room}"),
        }
    }
}

impl core::error::Error for OpenError {}
