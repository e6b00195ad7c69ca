//! One session's slots that have a part, with their state at the last harvest.

use broker_core::{PartRef, PartUse, Slot};
use vramd_types::SessionId;

use crate::channel::{Use, WordTable};

#[derive(Debug)]
pub(super) struct SessionSlots {
    session: SessionId,
    /// Indexed by slot. The core gives out low slots first.
    slots: Vec<Option<SlotState>>,
}

#[derive(Clone, Copy, Debug)]
struct SlotState {
    part: PartRef,
    seen: Use,
}

impl SessionSlots {
    pub(super) fn new(session: SessionId) -> Self {
        Self { session, slots: Vec::new() }
    }

    /// Assigns a slot to a part. If the part had the slot before, its state stays.
    pub(super) fn set_part(&mut self, Slot(slot): Slot, part: PartRef, uses: u32) {
        let slot = slot as usize;
        if slot >= self.slots.len() {
            self.slots.resize(slot + 1, None);
        }
        if self.slots[slot].is_none_or(|watched| watched.part != part) {
            self.slots[slot] = Some(SlotState { part, seen: Use { uses, pinned: false, written: false } });
        }
    }

    /// Treats the part as seen pinned at the last harvest.
    pub(super) fn mark_pinned(&mut self, Slot(slot): Slot) {
        if let Some(Some(watched)) = self.slots.get_mut(slot as usize) {
            watched.seen.pinned = true;
        }
    }

    pub(super) fn remove(&mut self, Slot(slot): Slot) {
        if let Some(slot) = self.slots.get_mut(slot as usize) {
            *slot = None;
        }
    }

    /// Adds the parts that were used since the last harvest, whose pins changed, or that were written. The daemon's own
    /// clearing of the written bit is no use. The error describes a word that no honest client writes.
    pub(super) fn harvest(&mut self, words: &WordTable, touched: &mut Vec<PartUse>) -> Result<(), String> {
        for (slot, watched) in (0..).zip(&mut self.slots) {
            let Some(SlotState { part, seen }) = watched else { continue };
            let now = words.use_of(Slot(slot))?;
            let is_used = (now.uses, now.pinned) != (seen.uses, seen.pinned);
            if is_used || (now.written && !seen.written) {
                let Use { pinned, written, .. } = now;
                touched.push(PartUse { session: self.session, part: *part, pinned, written });
            }
            *seen = now;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use broker_driver::Export;
    use vramd_types::{AllocationId, PartIndex};

    use super::*;

    const SLOTS: u32 = 100_000;
    const MAPPED: u64 = 1 << 25;
    const REVOKE: u64 = 1 << 26;
    const WRITTEN: u64 = 1 << 24;

    /// A table whose slots are all mapped, with its client's end.
    struct Shared {
        words: WordTable,
        slots: SessionSlots,
    }

    fn part(part: u32) -> PartRef {
        PartRef { allocation: AllocationId::from_shown(7), part: PartIndex(part) }
    }

    fn mapped(count: u32) -> Shared {
        let shared = Shared {
            words: WordTable::create(count).unwrap(),
            slots: SessionSlots::new(SessionId::from_shown(3)),
        };
        shared.write(0, &[MAPPED, 0].repeat(count as usize));
        let Shared { words, mut slots } = shared;
        (0..count).for_each(|slot| slots.set_part(Slot(slot), part(slot), 0));
        Shared { words, slots }
    }

    impl Shared {
        fn write(&self, slot: u64, words: &[u64]) {
            let Some(Export::Memfd(table)) = self.words.export() else { panic!() };
            let bytes: Vec<_> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            assert_eq!(rustix::io::pwrite(&*table, &bytes, 64 + 16 * slot), Ok(bytes.len()));
        }

        /// Writes the words of a client that has used the part `uses` times and has `pins` pins now.
        fn used(&self, slot: u64, uses: u64, pins: u64) {
            self.write(slot, &[MAPPED | pins, uses << 32 | 77]);
        }

        fn harvest(&mut self) -> Vec<(u32, bool)> {
            let mut touched = Vec::new();
            self.slots.harvest(&self.words, &mut touched).unwrap();
            touched.into_iter().map(|it| (it.part.part.0, it.pinned)).collect()
        }
    }

    #[test]
    fn only_used_parts_and_changed_pins_are_reported() {
        let mut shared = mapped(4);
        assert_eq!(shared.harvest(), []);
        shared.used(1, 0, 2);
        shared.used(2, 1, 0);
        assert_eq!(shared.harvest(), [(1, true), (2, false)]);
        assert_eq!(shared.harvest(), [], "it is pinned as it was");
        shared.used(1, 1, 1);
        assert_eq!(shared.harvest(), [(1, true)]);
        shared.write(1, &[MAPPED | REVOKE | 1]);
        assert_eq!(shared.harvest(), [], "that it is wanted back is no use");
        shared.write(1, &[0]);
        assert_eq!(shared.harvest(), [(1, false)]);
    }

    #[test]
    fn a_write_is_reported_once_and_again_after_it_was_cleared() {
        let mut shared = mapped(1);
        let written = |shared: &mut Shared| {
            let mut touched = Vec::new();
            shared.slots.harvest(&shared.words, &mut touched).unwrap();
            touched.into_iter().map(|it| it.written).collect::<Vec<_>>()
        };
        shared.write(0, &[MAPPED | WRITTEN]);
        assert_eq!((written(&mut shared), written(&mut shared)), (vec![true], vec![]));
        shared.used(0, 1, 0);
        assert_eq!(written(&mut shared), [false], "it was read since");
        shared.write(0, &[MAPPED | WRITTEN]);
        assert_eq!(written(&mut shared), [true]);
        shared.write(0, &[MAPPED]);
        assert_eq!(written(&mut shared), [false; 0], "that it was cleared is no use");
        shared.write(0, &[MAPPED | WRITTEN]);
        assert_eq!(written(&mut shared), [true]);
    }

    #[test]
    fn a_slot_reports_the_part_that_has_it() {
        let mut shared = mapped(2);
        shared.used(0, 1, 0);
        assert_eq!(shared.harvest(), [(0, false)]);
        // The part returns, and then another takes its place after the words were used.
        shared.used(0, 2, 0);
        shared.slots.set_part(Slot(0), part(0), 2);
        assert_eq!(shared.harvest(), [(0, false)]);
        shared.slots.remove(Slot(0));
        shared.used(0, 3, 1);
        assert_eq!(shared.harvest(), []);
        shared.used(0, 4, 0);
        shared.slots.set_part(Slot(0), part(5), shared.words.uses(Slot(0)).unwrap());
        assert_eq!(shared.harvest(), []);
        shared.used(0, 5, 0);
        assert_eq!(shared.harvest(), [(5, false)]);
        shared.slots.remove(Slot(77));
    }

    #[test]
    fn impossible_words_are_reported() {
        let mut shared = mapped(2);
        shared.write(1, &[1 << 40]);
        let problem = shared.slots.harvest(&shared.words, &mut Vec::new()).unwrap_err();
        assert!(problem.contains("no honest client"), "{problem}");
        shared.slots.remove(Slot(1));
        assert_eq!(shared.harvest(), []);
        shared.slots.set_part(Slot(2), part(2), 0);
        assert!(shared.slots.harvest(&shared.words, &mut Vec::new()).is_err(), "there is no such slot");
    }

    #[test]
    fn a_hundred_thousand_slots_are_harvested_within_100_ms() {
        let mut shared = mapped(SLOTS);
        let mut best = Duration::MAX;
        for round in 1..=20 {
            (0..SLOTS).step_by(100).for_each(|slot| shared.used(slot.into(), round, 0));
            let mut touched = Vec::new();
            let began = processor_time();
            shared.slots.harvest(&shared.words, &mut touched).unwrap();
            best = best.min(processor_time() - began);
            assert_eq!(touched.len(), 1000);
        }
        eprintln!("{SLOTS} slots, a hundredth of them used: {best:?}");
        // The bound holds without optimisation, and a busy machine changes nothing.
        assert!(best < Duration::from_millis(100), "{best:?}");
    }

    /// Returns how long a processor has run this thread.
    fn processor_time() -> Duration {
        rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime).try_into().unwrap()
    }
}
