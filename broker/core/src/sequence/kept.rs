//! The parts of a loop that stay on the device while the others stream past them.
//!
//! Of a loop that is larger than the device, many choices of parts that stay cost the fewest copies. If the parts of one
//! stretch stay, the link is idle while the program goes through them, and the program waits for copies in the rest. So
//! they are spread evenly over the bytes of a pass: every step has about as much to copy as the others.

use vramd_types::Bytes;

use super::Sequence;
use crate::event::PartRef;

impl Sequence {
    /// Each part once, in the order of first uses.
    pub(crate) fn parts(&self) -> impl Iterator<Item = PartRef> {
        (0..).zip(&self.steps).flat_map(move |(at, step)| {
            step.parts.iter().copied().filter(move |part| self.use_at_or_after(*part, 0) == Some(at))
        })
    }

    pub(crate) fn is_kept(&self, part: PartRef) -> bool {
        self.kept.binary_search(&part).is_ok()
    }

    /// Whether a pass has begun since the parts that stay were chosen.
    pub(crate) fn is_to_choose_kept(&self) -> bool {
        self.kept_since != self.now_at().checked_div(self.pass_len())
    }

    /// Chooses the parts that stay where the sequence has so much room. Returns the most bytes that they have: the rest is
    /// for the begun step and the window. A part stays when the shares summed up to it reach its size.
    pub(crate) fn choose_kept(&mut self, room: Bytes, size_of: impl Fn(PartRef) -> Bytes) -> Bytes {
        let all = self.parts().map(&size_of).fold(Bytes::ZERO, Bytes::saturating_add);
        let kept = self.kept_of(room, all);
        let mut due = 0_u128;
        let mut chosen: Vec<_> = self
            .parts()
            .filter(|part| {
                let size = u128::from(size_of(*part).get());
                let whole = size.saturating_mul(all.get().into());
                due = due.saturating_add(size.saturating_mul(kept.get().into()));
                let stays = size > 0 && due >= whole;
                due = due.saturating_sub(if stays { whole } else { 0 });
                stays
            })
            .collect();
        chosen.sort_unstable();
        self.kept = chosen;
        self.kept_since = self.now_at().checked_div(self.pass_len());
        kept
    }

    /// How much of a pass can stay: of the steps in use and ahead, only what streams needs room beside it.
    fn kept_of(&self, room: Bytes, all: Bytes) -> Bytes {
        if room >= all {
            return all;
        }
        let steps = u64::from(self.window.steps).saturating_add(1);
        let ahead = self.mean_bytes().get().saturating_mul(steps).min(all.get());
        let kept = u128::from(room.get().saturating_sub(ahead)).saturating_mul(all.get().into());
        let kept = kept.checked_div(u128::from(all.get().saturating_sub(ahead))).unwrap_or_default();
        Bytes::new(u64::try_from(kept).unwrap_or(u64::MAX)).min(all)
    }
}
