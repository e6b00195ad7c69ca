//! A slot serves one part until the daemon gives up its word, and only then another.

use broker_core::{ChannelId, MapPart, RevokedPart, Slot, invariants::SLOT_USE};
use vramd_types::SessionId;

use crate::oracle::Oracle;

impl Oracle {
    pub(crate) fn check_sent_slot(&mut self, id: SessionId, sent: &MapPart) {
        let max = self.limits.words_per_session_max;
        let Some(session) = self.facts.sessions.get_mut(&id) else { return };
        let Some(slot) = sent.slot else {
            let pins = session.pins;
            return self
                .expect(SLOT_USE, !pins, || format!("{:?} is sent to {id} without a slot", sent.part));
        };
        let other = session.slots.iter().find(|(other, part)| **other != slot && **part == sent.part);
        let other = other.map(|(other, _)| *other);
        let serves = *session.slots.entry(slot).or_insert(sent.part);
        let fits = session.pins && slot.0 < max && serves == sent.part && other.is_none();
        self.expect(SLOT_USE, fits, || {
            format!("{:?} is sent to {id} in {slot:?}, which serves {serves:?}, and has {other:?}", sent.part)
        });
    }

    pub(crate) fn check_revoked_slot(&mut self, id: SessionId, told: &RevokedPart) {
        let Some(session) = self.facts.sessions.get(&id) else { return };
        let fits = match told.slot {
            Some(slot) => session.slots.get(&slot) == Some(&told.part),
            None => !session.pins,
        };
        self.expect(SLOT_USE, fits, || format!("{told:?} is revoked from {id} with a wrong slot"));
    }

    /// Checks that the daemon collected the words of parts that were evicted within the event: written marks
    /// from before must not count for later writes.
    pub(crate) fn expect_words_collected(&mut self) {
        let left = std::mem::take(&mut self.step.to_collect);
        self.expect(SLOT_USE, left.is_empty(), || {
            format!("evicted parts whose words were not collected: {left:?}")
        });
    }

    pub(crate) fn check_forgotten_word(&mut self, channel: ChannelId, slot: Slot) {
        let Some(id) = self.facts.on_channel.get(&channel).copied() else { return };
        let Some(session) = self.facts.sessions.get_mut(&id) else { return };
        // A slot that was never sent is given up too: no client has seen it.
        let Some(part) = session.slots.get(&slot).copied() else { return };
        // An evicted part keeps its slot: only its written mark is collected.
        if self.step.to_collect.remove(&(id, part)) {
            return;
        }
        session.slots.remove(&slot);
        session.away.remove(&part);
        let held = session.mappings.contains_key(&part);
        self.expect(SLOT_USE, !held, || format!("the word of {part:?} is given up, and {id} maps it"));
    }
}
