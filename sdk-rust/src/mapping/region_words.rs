//! The words of one allocation's parts, from mapped to unmapped: who maps and unmaps, and the handle's own pins.
//!
//! While the handle holds its allocation, each mapped part has one pin of the handle's, the *standing* one. So slices and
//! pointers of a handle stay good without anybody's pinning, and only who frees the allocation, seals it or ends the
//! session takes it away: for that the standing pin goes first, and what remains are pins of the program's own.

use vramd_proto::v1::{Access, RevokeReason};
use vramd_words::{PinRefused, Waiting};

use super::region::{Place, Region};
use crate::pins::{Unmappable, Words, one_waiter};

/// What became of a part that the daemon wants back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnmapOutcome {
    /// It is unmapped; the daemon is to hear so, and whether it was written.
    Unmapped { written: bool },
    /// Somebody uses it; the last unpin wakes the worker.
    Pinned,
    /// It is not here, or none of this side's to unmap: there is nothing to say.
    NotMapped,
}

impl Region {
    /// A part is mapped and accessible: so its word says, with a pin for each call that waits and for the handle.
    pub(super) fn set_mapped(&mut self, index: u32, words: &Words, mut calls: Waiting) -> Result<(), String> {
        let Some(part) = self.parts.get_mut(&index) else { return Ok(()) };
        let Some(slot) = part.slot else { return Ok(()) };
        if self.wants_handle_pins {
            let handle_pin = one_waiter(pinned_as(part.access));
            calls.readers += handle_pin.readers;
            calls.writers += handle_pin.writers;
        }
        words.set_mapped(slot, calls)?;
        part.handle_pinned = self.wants_handle_pins;
        Ok(())
    }

    /// The daemon wants parts back. An error means that something is mapped that should not be.
    pub(super) fn revoke(
        &mut self,
        indexes: &[u32],
        reason: RevokeReason,
        words: &Words,
    ) -> Result<Vec<(u32, UnmapOutcome)>, String> {
        let (mut left, mut revoking) = (Vec::with_capacity(indexes.len()), Vec::with_capacity(indexes.len()));
        for index in indexes.iter().copied() {
            match self.mark_revoking(index, reason, words) {
                Some(at_once) => left.push((index, at_once)),
                None => revoking.push(index),
            }
        }
        left.extend(self.unmap_unpinned(&revoking, words)?);
        Ok(left)
    }

    /// What becomes of the part, if nothing has to be unmapped for that.
    fn mark_revoking(&mut self, index: u32, reason: RevokeReason, words: &Words) -> Option<UnmapOutcome> {
        let Some(part) = self.parts.get_mut(&index) else { return Some(UnmapOutcome::NotMapped) };
        let comes_back = reason == RevokeReason::Evicted;
        if !comes_back {
            self.revoked = Some(reason);
        }
        let Some(slot) = part.slot else {
            if matches!(part.place, Place::HandedOver) && !self.yielded {
                return Some(UnmapOutcome::NotMapped);
            }
            self.parts.remove(&index);
            return Some(UnmapOutcome::Unmapped { written: false });
        };
        if !comes_back && part.handle_pinned {
            words.unpin(slot);
            part.handle_pinned = false;
        }
        if part.revoking.is_none() || !comes_back {
            part.revoking = Some(reason);
        }
        None
    }

    /// Unmaps those of the parts that are wanted back and used by nobody.
    pub(super) fn unmap_unpinned(
        &mut self,
        indexes: &[u32],
        words: &Words,
    ) -> Result<Vec<(u32, UnmapOutcome)>, String> {
        let (mut left, mut going) = (Vec::with_capacity(indexes.len()), Vec::new());
        for index in indexes.iter().copied() {
            let slot = self.parts.get(&index).and_then(|part| part.slot.filter(|_| part.revoking.is_some()));
            match slot.map(|slot| words.begin_revoked(slot)).transpose()? {
                None => left.push((index, UnmapOutcome::NotMapped)),
                Some(Unmappable::Pinned) => left.push((index, UnmapOutcome::Pinned)),
                Some(Unmappable::Now(unmapping)) => going.push((index, unmapping)),
            }
        }
        self.unmap_parts(going.iter().map(|(index, _)| *index))?;
        for (index, unmapping) in going {
            self.parts.remove(&index);
            left.push((index, UnmapOutcome::Unmapped { written: unmapping.finish() }));
        }
        Ok(left)
    }

    /// Lets go of all parts, and says which they were, and which were written. No guard of the program's is left, but a
    /// thread that pins a set, or by words that were another allocation's, may have a pin that it is about to give back:
    /// such a part stays until the daemon has asked for it.
    pub(super) fn unmap_all(&mut self, words: &Words) -> Result<Vec<(u32, bool)>, String> {
        self.release_handle_pins(words);
        let mut going = Vec::with_capacity(self.parts.len());
        for (index, part) in &self.parts {
            match part.slot.map(|slot| words.begin_unmap(slot)).transpose()? {
                Some(Unmappable::Pinned) => {}
                Some(Unmappable::Now(unmapping)) => going.push((*index, Some(unmapping))),
                None => going.push((*index, None)),
            }
        }
        self.unmap_parts(going.iter().map(|(index, _)| *index))?;
        let mut gone = Vec::with_capacity(going.len());
        for (index, unmapping) in going {
            self.parts.remove(&index);
            gone.push((index, unmapping.is_some_and(|unmapping| unmapping.finish())));
        }
        Ok(gone)
    }

    /// The handle's own pins where they are not yet and can be had at once.
    pub(super) fn take_handle_pins(&mut self, words: &Words) -> Result<(), PinRefused> {
        self.wants_handle_pins = true;
        let mut outcome = Ok(());
        for part in self.parts.values_mut().filter(|part| !part.handle_pinned && part.revoking.is_none()) {
            let Some(slot) = part.slot else { continue };
            match words.pin(slot, one_waiter(pinned_as(part.access))) {
                Ok(()) => part.handle_pinned = true,
                Err(refused) => outcome = Err(refused),
            }
        }
        outcome
    }

    /// Pins that a call has taken for these parts become the handle's own. Those that it has already are given back, and
    /// so are those that the daemon wants for good. True if the worker has waited for one.
    pub(super) fn adopt_handle_pins(&mut self, indexes: &[u32], words: &Words) -> bool {
        let mut wake = false;
        for index in indexes {
            let Some(slot) = self.slots.get(index) else { continue };
            match self.parts.get_mut(index) {
                Some(part)
                    if self.wants_handle_pins && !part.handle_pinned && !part.is_revoked_for_good() =>
                {
                    part.handle_pinned = true
                }
                _ => wake |= words.unpin(*slot),
            }
        }
        wake
    }

    /// The handle's own pins go. True if the worker has waited for one.
    pub(super) fn release_handle_pins(&mut self, words: &Words) -> bool {
        let mut wake = false;
        for part in self.parts.values_mut().filter(|part| part.handle_pinned) {
            part.handle_pinned = false;
            wake |= part.slot.is_some_and(|slot| words.unpin(slot));
        }
        wake
    }

    /// The channel has ended: nothing moves any more, and what is mapped stays usable.
    pub(super) fn keep_mapped(&mut self, words: &Words) {
        for part in self.parts.values_mut() {
            part.revoking = None;
            if let Some(slot) = part.slot {
                words.forget_revoke(slot);
            }
        }
        if self.wants_handle_pins {
            // What can't be pinned is not mapped.
            let _ = self.take_handle_pins(words);
        }
    }

    /// How many parts are here with that access, and stay.
    pub(super) fn stable_count(&self, access: Option<Access>) -> usize {
        let stays = |part: &&super::region::Part| part.slot.is_none() || part.handle_pinned;
        let fits = |part: &&super::region::Part| access.is_none_or(|access| part.access == access);
        self.parts.values().filter(stays).filter(fits).count()
    }
}

impl super::region::Part {
    /// The daemon waits for it, and will not send it again unless it was sealed.
    pub(super) fn is_revoked_for_good(&self) -> bool {
        self.revoking.is_some_and(|reason| reason != RevokeReason::Evicted)
    }
}

/// What the handle may do there by itself: who may write at any time counts as writing.
pub(super) fn pinned_as(access: Access) -> vramd_words::Access {
    match access {
        Access::ReadWrite => vramd_words::Access::Write,
        Access::ReadOnly | Access::Unspecified => vramd_words::Access::Read,
    }
}
