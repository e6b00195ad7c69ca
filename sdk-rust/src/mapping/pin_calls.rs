//! Pin calls of this process that wait until all parts of a set are pinned for them.
//!
//! A part that arrives by a `Map` frame is pinned for each waiting call in the step that makes it usable, so nothing
//! can revoke it in between. Parts that are mapped already are pinned when the daemon answers; it protects them until
//! `PinEnded`.

use std::collections::BTreeMap;

use vramd_proto::v1::PartRef;
use vramd_types::{AllocationId, Reason};
use vramd_words::{Access, PinRefused, Waiting};

use crate::{
    error::Error,
    pins::{Words, one_waiter},
};

/// One part of a set to pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PinTarget {
    pub(crate) id: AllocationId,
    pub(crate) index: u32,
    /// Its slot, if the part has ever arrived.
    pub(crate) slot: Option<u32>,
    pub(crate) access: Access,
}

impl PinTarget {
    pub(super) fn pin(&self, words: &Words) -> Result<(), PinRefused> {
        words.pin(self.slot.ok_or(PinRefused::NeedsFrame)?, one_waiter(self.access))
    }

    /// Returns true if the worker waits for this unpin.
    pub(super) fn unpin(&self, words: &Words) -> bool {
        self.slot.is_some_and(|slot| words.unpin(slot))
    }
}

#[derive(Debug, Default)]
pub(super) struct Calls {
    last: u64,
    waiting: BTreeMap<u64, Call>,
}

#[derive(Debug)]
struct Call {
    /// Sorted by allocation and part; true for a part that is pinned for this call.
    parts: Vec<(PinTarget, bool)>,
    missing: usize,
    refused: Option<Error>,
    /// The daemon has answered it, or is to hear `PinEnded`.
    ended: bool,
}

/// The follow-up work of a call that has ended.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct FollowUp {
    /// The call whose end is to be reported to the daemon.
    pub(super) ended: Option<u64>,
    /// An unpin was the last one that a revoke waits for.
    pub(super) wake: bool,
}

impl Calls {
    /// Opens a call for parts, each named once.
    pub(super) fn open(&mut self, mut parts: Vec<PinTarget>) -> u64 {
        parts.sort_unstable_by_key(|part| (part.id, part.index));
        self.last += 1;
        let missing = parts.len();
        let parts = parts.into_iter().map(|part| (part, false)).collect();
        self.waiting.insert(self.last, Call { parts, missing, refused: None, ended: false });
        self.last
    }

    /// The parts of the calls whose callers have not taken their outcome.
    pub(super) fn waiting(&self) -> impl Iterator<Item = PinTarget> {
        self.waiting.values().flat_map(|call| call.parts.iter().map(|(part, _)| *part))
    }

    /// Whether this call number was ever given out, so that the daemon may answer it.
    pub(super) fn was_made(&self, call: u64) -> bool {
        (1..=self.last).contains(&call)
    }

    /// Counts the calls that wait for a part.
    pub(super) fn waiting_for(&mut self, id: AllocationId, index: u32) -> Waiting {
        let mut all = Waiting::default();
        for (part, _) in self.waiting.values_mut().filter_map(|call| call.missing(id, index)) {
            let waiter = one_waiter(part.access);
            all.readers += waiter.readers;
            all.writers += waiter.writers;
        }
        all
    }

    /// Records that the waiting calls have their pins of a part, in the slot where it has arrived.
    pub(super) fn grant(&mut self, id: AllocationId, index: u32, slot: Option<u32>) {
        for call in self.waiting.values_mut() {
            if let Some((part, pinned)) = call.missing(id, index) {
                part.slot = slot;
                *pinned = true;
                call.missing -= 1;
            }
        }
    }

    /// Takes the calls that became complete: their end is to be reported to the daemon.
    pub(super) fn take_complete(&mut self) -> Vec<u64> {
        let complete = |call: &Call| call.missing == 0 && !call.ended && call.refused.is_none();
        let ended = self.waiting.iter_mut().filter(|(_, call)| complete(call));
        ended.map(|(id, call)| (call.ended = true, *id).1).collect()
    }

    /// Handles the daemon's answer: all parts of the set are mapped and stay, or the refusal.
    pub(super) fn finish(&mut self, id: u64, refusal: Option<Error>, words: &Words) -> FollowUp {
        let Some(call) = self.waiting.get_mut(&id).filter(|call| !call.ended) else {
            return FollowUp::default();
        };
        let told = refusal.is_some();
        let refusal = refusal.or_else(|| call.pin_missing(words).err());
        call.ended = true;
        let wake = refusal.is_some() && call.release_pins(words);
        call.refused = refusal;
        FollowUp { ended: (!told).then_some(id), wake }
    }

    /// Takes the outcome of a call once there is one; its pins are then the caller's.
    pub(super) fn take_outcome(&mut self, id: u64) -> Option<Result<(), Error>> {
        let call = self.waiting.get(&id)?;
        if call.refused.is_none() && call.missing > 0 {
            return None;
        }
        self.waiting.remove(&id).map(|call| call.refused.map_or(Ok(()), Err))
    }

    /// Ends a call whose caller has stopped waiting.
    pub(super) fn cancel_pin(&mut self, id: u64, words: &Words) -> FollowUp {
        let Some(mut call) = self.waiting.remove(&id) else { return FollowUp::default() };
        FollowUp { ended: (!call.ended).then_some(id), wake: call.release_pins(words) }
    }
}

impl Call {
    fn missing(&mut self, id: AllocationId, index: u32) -> Option<&mut (PinTarget, bool)> {
        let at = self.parts.binary_search_by_key(&(id, index), |(part, _)| (part.id, part.index)).ok()?;
        self.parts.get_mut(at).filter(|(_, pinned)| !pinned && self.refused.is_none())
    }

    fn pin_missing(&mut self, words: &Words) -> Result<(), Error> {
        for (part, pinned) in self.parts.iter_mut().filter(|(_, pinned)| !pinned) {
            part.pin(words).map_err(|refused| refusal(refused, part.id))?;
            *pinned = true;
            self.missing -= 1;
        }
        Ok(())
    }

    /// Returns true if the worker waits for this unpin.
    fn release_pins(&mut self, words: &Words) -> bool {
        let mut wake = false;
        for (part, pinned) in self.parts.iter_mut().filter(|(_, pinned)| *pinned) {
            wake |= part.unpin(words);
            *pinned = false;
            self.missing += 1;
        }
        wake
    }
}

/// The error for a part that should be mapped and cannot be pinned.
pub(crate) fn refusal(refused: PinRefused, id: AllocationId) -> Error {
    match refused {
        // An end of the allocation or the session does not wait for calls that have no pin yet.
        PinRefused::NeedsFrame => Error::refused(Reason::Raced, &[("allocation", &id)]),
        PinRefused::Saturated => Error::refused(
            Reason::PinsTooMany,
            &[("allocation", &id), ("limit_count", &vramd_words::Word::PINS_MAX)],
        ),
        // The SDK writes no such word: a forked child does not have the session's words.
        PinRefused::Forked => Error::NotMapped { allocation: id.to_string() },
    }
}

/// The parts as frames name them.
pub(super) fn part_refs(parts: &[PinTarget]) -> Vec<PartRef> {
    parts.iter().map(|part| PartRef { allocation_id: part.id.get(), part_index: part.index }).collect()
}
