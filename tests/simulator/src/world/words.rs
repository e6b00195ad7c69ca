//! The word table of a session: the real one, with the daemon's and the client's views of the same memory.

use std::{collections::BTreeSet, sync::Arc};

use broker_core::{ChannelId, Completion, Event, MapPart, PartRef, RevokedPart, Slot, Time, WordsOutcome};
use vramd_types::SessionId;
use vramd_words::{
    Access, AtomicU64, Client, Daemon, Evict, Fence, HEADER_WORDS, Header, SLOT_WORDS, SetRefused, State,
    Unpinned, Waiting, Word, Worker, WriteBack, bytes_for, open, pin_set,
};

use super::{World, driver::soon, harvest::Harvest, process::Channel, queue::Action};

type Memory = Arc<[AtomicU64]>;

const MAJOR: u32 = 1;
const REVOKE: u64 = 1 << 26;

#[derive(Debug)]
pub(super) struct Words {
    memory: Memory,
    pub(super) daemon: Daemon<Memory>,
    client: Client<Memory>,
    worker: Worker<Memory>,
    /// Slots whose words have REVOKE set, as the daemon remembers.
    revoked_slots: BTreeSet<Slot>,
    pub(super) harvest: Harvest,
}

impl Words {
    /// `None` where there are no slots.
    pub(super) fn new(slots: u32, session: SessionId) -> Option<Self> {
        let count = usize::try_from(bytes_for(slots) / 8).ok().filter(|_| slots > 0)?;
        let memory: Memory = (0..count).map(|_| AtomicU64::new(0)).collect();
        let header = Header { major: MAJOR, minor: 0, features: 0, slots };
        let daemon = Daemon::create(memory.clone(), header).expect("it is large enough");
        let (client, worker) = open(memory.clone(), MAJOR).expect("the header is good");
        let harvest = Harvest::new(session);
        Some(Self { memory, daemon, client, worker, revoked_slots: BTreeSet::new(), harvest })
    }

    /// Sets REVOKE in the words that a frame revokes. Returns whether the client left each of them valid.
    pub(super) fn set_revoke(&mut self, parts: &[RevokedPart]) -> bool {
        let mut honest = true;
        for slot in parts.iter().filter_map(|told| told.slot) {
            let Some(word) = self.daemon.slot(slot.0).filter(|_| !self.revoked_slots.contains(&slot)) else {
                continue;
            };
            match word.revoke_to_fence() {
                Ok(Fence::Revoked { .. }) => _ = self.revoked_slots.insert(slot),
                Ok(Fence::Leaving) => {}
                Err(_) => honest = false,
            }
        }
        honest
    }

    /// Tracks a word that will be mapped anew.
    pub(super) fn track_map(&mut self, part: &MapPart) {
        if let Some(slot) = part.slot {
            self.revoked_slots.remove(&slot);
            if let Some(word) = self.daemon.slot(slot.0) {
                self.harvest.track_map(part, slot, word.last_use());
            }
        }
    }

    fn state(&self, slot: Slot) -> Option<State> {
        self.daemon.slot(slot.0)?.state().ok()
    }

    fn raw(&self, slot: Slot) -> Option<&AtomicU64> {
        self.memory.get(HEADER_WORDS + SLOT_WORDS * usize::try_from(slot.0).ok()?)
    }
}

impl Channel {
    pub(super) fn is_pinned(&self, part: PartRef) -> bool {
        let state = self.slots.get(&part).and_then(|slot| self.words.as_ref()?.state(*slot));
        matches!(state, Some(State::Resident { pins } | State::Revoking { pins }) if pins > 0)
    }

    /// Learns the slot of a part that was sent.
    pub(super) fn learn_slot(&mut self, part: &MapPart) {
        let Some(slot) = part.slot else { return };
        // The slot may have served another part that was freed or sealed while it was away.
        self.slots.retain(|_, of| *of != slot);
        self.slots.insert(part.part, slot);
    }

    pub(super) fn map_word(&mut self, part: &MapPart) {
        self.learn_slot(part);
        let (Some(words), Some(slot)) = (&self.words, part.slot) else { return };
        let mapped = words.worker.slot(slot.0).map(|word| word.set_mapped(Waiting::default()));
        assert!(self.lied || mapped == Some(Ok(())), "the daemon sent {part:?}: {mapped:?}");
    }

    /// Ends the mapping in the word. Returns whether the part was written.
    pub(super) fn unmap_word(&mut self, part: PartRef) -> bool {
        self.to_unmap.remove(&part);
        let Some((words, slot)) = self.words.as_ref().zip(self.slots.get(&part)) else { return false };
        match words.worker.slot(slot.0).map(|word| word.begin_unmap()) {
            Some(Ok(unmapping)) => unmapping.finish(),
            other => {
                assert!(self.lied, "{part:?} cannot be unmapped: {other:?}");
                false
            }
        }
    }

    /// Pins all of these, or none.
    pub(super) fn pin_words(&self, parts: &[PartRef], access: Access, now: Time) -> Result<(), Unpinned> {
        let Some(words) = &self.words else { return Err(Unpinned::Done) };
        let slot = |part| words.client.slot(self.slots.get(part)?.0);
        let set: Option<Vec<_>> = parts.iter().map(|part| Some((slot(part)?, access))).collect();
        let Some(set) = set else { return Err(Unpinned::Done) };
        pin_set(&set).map_err(|SetRefused { unpinned, .. }| unpinned)?;
        parts.iter().for_each(|part| self.touch_word(*part, now));
        Ok(())
    }

    fn touch_word(&self, part: PartRef, now: Time) {
        let word = self.words.as_ref().zip(self.slots.get(&part));
        if let Some(word) = word.and_then(|(words, slot)| words.client.slot(slot.0)) {
            word.record_use(u32::try_from(now.as_micros() / 1_000).unwrap_or(u32::MAX));
        }
    }

    /// Unpins all of these. Returns whether this was the last pin of a part that is revoked.
    pub(super) fn unpin_words(&self, parts: &[PartRef]) -> bool {
        let Some(words) = &self.words else { return false };
        let mut wakes = false;
        for slot in parts.iter().filter_map(|part| self.slots.get(part)) {
            let unpinned = words.client.slot(slot.0).map(|word| word.unpin());
            wakes |= unpinned == Some(Ok(Unpinned::WakeWorker));
        }
        wakes
    }

    pub(super) fn spoil_word(&mut self, part: PartRef, value: u64) {
        self.lied = true;
        if let Some(slot) = self.slots.get(&part)
            && let Some(word) = self.words.as_ref().and_then(|words| words.raw(*slot))
        {
            word.fetch_or(value, std::sync::atomic::Ordering::Relaxed);
        }
    }
}

impl World {
    /// Revokes all of these words, or none.
    pub(super) fn revoke_words(&mut self, part: PartRef, asked: &[(ChannelId, SessionId, Slot)]) {
        let (mut by, mut revoked, mut spoiled) = (Vec::new(), Vec::new(), Vec::new());
        for (channel, session, slot) in asked.iter().copied() {
            let words = self.channels.get(&channel).and_then(|channel| channel.words.as_ref());
            let Some(word) = words.and_then(|words| words.daemon.slot(slot.0)) else { continue };
            match word.revoke_to_evict() {
                Ok(Evict::Revoked) => revoked.push((channel, slot)),
                Ok(Evict::StillPinned) => by.push(session),
                Ok(Evict::Leaving) => {}
                Err(_) => {
                    by.push(session);
                    spoiled.push(channel);
                }
            }
        }
        for (channel, slot) in revoked {
            let Some(words) = self.channels.get_mut(&channel).and_then(|channel| channel.words.as_mut())
            else {
                continue;
            };
            match (by.is_empty(), words.raw(slot)) {
                (true, _) => _ = words.revoked_slots.insert(slot),
                (false, Some(word)) => _ = word.fetch_and(!REVOKE, std::sync::atomic::Ordering::Relaxed),
                (false, None) => {}
            }
        }
        let outcome = if by.is_empty() { WordsOutcome::Revoked } else { WordsOutcome::Pinned { by } };
        let done = Event::Completion(Completion::WordsRevoked { part, outcome });
        // The thread that reads words may be late, so that calls and fences arrive meanwhile.
        let late = self.scenario.fences.filter(|fences| self.links.chance(fences.late));
        let when = soon(&mut self.links, self.now, 1, late.map_or(40, |fences| fences.late_micros));
        self.queue.schedule(when, self.life, Action::Arrive(done));
        spoiled.into_iter().for_each(|channel| self.report_impossible_word(channel));
    }

    /// Clears WRITTEN in one step with the check for pins.
    pub(super) fn clear_written(&mut self, part: PartRef, channel: ChannelId, slot: Slot) {
        let words = self.channels.get(&channel).and_then(|channel| channel.words.as_ref());
        let word = words.and_then(|words| words.daemon.slot(slot.0));
        let begun = word.map(|word| word.begin_write_back());
        let cleared = begun == Some(Ok(WriteBack::Begun));
        let done = Event::Completion(Completion::WrittenCleared { part, cleared });
        let when = soon(&mut self.links, self.now, 1, 40);
        self.queue.schedule(when, self.life, Action::Arrive(done));
        if matches!(begun, Some(Err(_))) {
            self.report_impossible_word(channel);
        }
    }

    pub(super) fn forget_word(&mut self, id: ChannelId, slot: Slot) {
        let Some(words) = self.channels.get_mut(&id).and_then(|channel| channel.words.as_mut()) else {
            return;
        };
        words.revoked_slots.remove(&slot);
        if words.daemon.slot(slot.0).is_some_and(|word| word.collect_written().is_err()) {
            self.report_impossible_word(id);
        }
    }

    /// Reports an impossible word. No honest client makes one, so an honest one here means a bug of ours.
    pub(super) fn report_impossible_word(&mut self, channel: ChannelId) {
        let lied = self.channels.get(&channel).is_none_or(|channel| channel.lied);
        assert!(lied, "a word of {channel:?}, which is honest, is impossible");
        let event = Event::Malformed { channel, problem: format!("{:?}", Word::FORKED) };
        let when = soon(&mut self.links, self.now, 1, 40);
        self.queue.schedule(when, self.life, Action::Arrive(event));
    }
}
