//! The second word of a slot: when a part was last used and how often, as a hint to policies.
//!
//! Advice, so it costs the client a plain load and a plain store. Two threads at once may lose a count, and a client may
//! lie; the worst that comes of it is a poor choice among its own parts.

use crate::sync::{AtomicU64, Ordering};

/// Who harvests sees by the count that a part was used since the last time; the tick may be that of an earlier use.
const USES_PER_TICK: u32 = 8;

/// What a slot says of its use. The daemon compares it with what it saw before: both numbers wrap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Touch {
    /// A coarse tick of the client's clock.
    pub tick: u32,
    pub uses: u32,
}

impl Touch {
    #[expect(clippy::cast_possible_truncation, reason = "each half is 32 bits")]
    #[inline]
    pub(crate) fn load(word: &AtomicU64) -> Touch {
        let raw = word.load(Ordering::Relaxed);
        Touch { tick: raw as u32, uses: (raw >> 32) as u32 }
    }

    pub(crate) fn record(word: &AtomicU64, tick: u32) {
        Touch::record_by(word, |_| tick);
    }

    /// Reads the clock at the first of every [`USES_PER_TICK`] uses: it costs as much as the pin itself.
    #[inline]
    pub(crate) fn record_seldom(word: &AtomicU64, clock: impl FnOnce() -> u32) {
        Touch::record_by(word, |before| match before.uses % USES_PER_TICK {
            0 => clock(),
            _ => before.tick,
        });
    }

    #[inline]
    fn record_by(word: &AtomicU64, tick: impl FnOnce(Touch) -> u32) {
        let before = Touch::load(word);
        let (uses, tick) = (before.uses.wrapping_add(1), tick(before));
        word.store(u64::from(uses) << 32 | u64::from(tick), Ordering::Relaxed);
    }
}
