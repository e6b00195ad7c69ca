//! The pin words of one allocation's parts, from mapped to unmapped, and the handle pins.
//!
//! While the handle has its handle pin, each mapped part has one pin of the handle's. So slices and pointers of the
//! handle stay valid without a guard. Only freeing or sealing the allocation, or ending the session, takes the memory
//! away: the handle's pins are released first, and only pins of guards remain.

use vramd_proto::v1::{Access, RevokeReason};
use vramd_types::AllocationId;
use vramd_words::{PinRefused, Waiting};

use super::region::{Place, Region};
use crate::pins::{Unmappable, Words, one_waiter};

/// The outcome of a revoke for one part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnmapOutcome {
    /// It is unmapped; the daemon is to hear that, and whether it was written.
    Unmapped { written: bool },
    /// A pin remains; the last unpin wakes the worker.
    Pinned,
    /// It is not mapped, or not the SDK's to unmap: nothing is reported.
    NotMapped,
}

impl Region {
    /// Marks a part as mapped in its word, with a pin for each waiting call and for the handle.
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

    /// Handles a revoke. An error means that something is mapped that should not be.
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

    /// Marks a part as being revoked. Returns the outcome if nothing has to be unmapped.
    fn mark_revoking(&mut self, index: u32, reason: RevokeReason, words: &Words) -> Option<UnmapOutcome> {
        let Some(part) = self.parts.get_mut(&index) else { return Some(UnmapOutcome::NotMapped) };
        let comes_back = reason == RevokeReason::Evicted;
        if !comes_back {
            self.revoked = Some(reason);
        }
        let Some(slot) = part.slot else {
            if matches!(part.place, Place::HandedOver(_)) && !self.yielded {
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

    /// Unmaps those parts that are being revoked and have no pin left.
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

    /// Unmaps all parts, and returns which they were and which were written. No guard is left, but a thread that pins
    /// a set, or that pins by a slot which is another allocation's now, may have a pin that it is about to give back.
    /// Such a part stays until the daemon revokes it.
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

    /// Unmaps all parts as [`Self::unmap_all`] does, and forgets their slots: the daemon gives them others when the session
    /// attaches the allocation again. The handle still wants its pins.
    pub(super) fn leave(&mut self, id: AllocationId, words: &mut Words) -> Result<Vec<(u32, bool)>, String> {
        let gone = self.unmap_all(words)?;
        for (index, _) in &gone {
            if let Some(slot) = self.slots.remove(index) {
                words.disown(slot, (id, *index));
            }
        }
        Ok(gone)
    }

    /// The pins of its mapped parts, without the handle's own.
    pub(super) fn guard_pins(&self, words: &Words) -> u64 {
        let of_part = |part: &super::region::Part| {
            let pins = part.slot.map_or(0, |slot| words.pins(slot));
            u64::from(pins.saturating_sub(u32::from(part.handle_pinned)))
        };
        self.parts.values().map(of_part).sum()
    }

    /// Takes the handle's pins that are missing and can be had at once.
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

    /// Turns a call's pins of these parts into the handle's. Pins that the handle has already are released, and so
    /// are pins of parts that are revoked for good. Returns true if the worker waits for one.
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

    /// Releases the handle's pins. Returns true if the worker waits for one.
    pub(super) fn release_handle_pins(&mut self, words: &Words) -> bool {
        let mut wake = false;
        for part in self.parts.values_mut().filter(|part| part.handle_pinned) {
            part.handle_pinned = false;
            wake |= part.slot.is_some_and(|slot| words.unpin(slot));
        }
        wake
    }

    /// Cancels all revokes after the end of the channel: nothing moves any more, and mapped memory stays usable.
    pub(super) fn keep_mapped(&mut self, words: &Words) {
        for part in self.parts.values_mut() {
            part.revoking = None;
            if let Some(slot) = part.slot {
                words.forget_revoke(slot);
            }
        }
        if self.wants_handle_pins {
            // A part that cannot be pinned is not mapped.
            let _ = self.take_handle_pins(words);
        }
    }

    /// How many parts are mapped with that access and stay, because the handle pins them.
    pub(super) fn stable_count(&self, access: Option<Access>) -> usize {
        let stays = |part: &&super::region::Part| part.slot.is_none() || part.handle_pinned;
        let fits = |part: &&super::region::Part| access.is_none_or(|access| part.access == access);
        self.parts.values().filter(stays).filter(fits).count()
    }
}

impl super::region::Part {
    /// Whether the daemon is revoking it and will not send it again, except after a seal.
    pub(super) fn is_revoked_for_good(&self) -> bool {
        self.revoking.is_some_and(|reason| reason != RevokeReason::Evicted)
    }
}

/// The access of a handle pin: a handle that may write at any time counts as writing.
pub(super) fn pinned_as(access: Access) -> vramd_words::Access {
    match access {
        Access::ReadWrite => vramd_words::Access::Write,
        Access::ReadOnly | Access::Unspecified => vramd_words::Access::Read,
    }
}
