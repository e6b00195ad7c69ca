//! The second word of a slot: when a part was last used and how often, as a hint for the daemon's policies.
//!
//! It is advice, so it costs the client a plain load and a plain store. Two threads at once may lose a count, and a
//! client may lie; the worst effect is a poor choice among its own parts.

use crate::sync::{AtomicU64, Ordering};

/// How many uses share one reading of the clock. The harvest sees by the count that a part was used since the last
/// one; the tick may be that of an earlier use.
const USES_PER_TICK: u32 = 8;

/// The recorded use of a part. The daemon compares it with the previous harvest; both numbers wrap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LastUse {
    /// A coarse tick of the client's clock.
    pub tick: u32,
    pub uses: u32,
}

impl LastUse {
    #[expect(clippy::cast_possible_truncation, reason = "each half is 32 bits")]
    #[inline]
    pub(crate) fn load(word: &AtomicU64) -> LastUse {
        let raw = word.load(Ordering::Relaxed);
        LastUse { tick: raw as u32, uses: (raw >> 32) as u32 }
    }

    pub(crate) fn record(word: &AtomicU64, tick: u32) {
        LastUse::record_by(word, |_| tick);
    }

    /// Records a use, and reads the clock at the first of every [`USES_PER_TICK`] uses: reading it costs as much as
    /// the pin itself.
    #[inline]
    pub(crate) fn record_seldom(word: &AtomicU64, clock: impl FnOnce() -> u32) {
        LastUse::record_by(word, |before| match before.uses % USES_PER_TICK {
            0 => clock(),
            _ => before.tick,
        });
    }

    #[inline]
    fn record_by(word: &AtomicU64, tick: impl FnOnce(LastUse) -> u32) {
        let before = LastUse::load(word);
        let (uses, tick) = (before.uses.wrapping_add(1), tick(before));
        word.store(u64::from(uses) << 32 | u64::from(tick), Ordering::Relaxed);
    }
}
