//! What a handle and its guards share, and the pins themselves.

use std::{
    ops::Range,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
    },
};

use rustix::time::{ClockId, clock_gettime};
use vramd_types::{AllocationId, Bytes, Reason};
use vramd_words::{Access, PinRefused, Unpinned, pin_set};

use super::{WordsView, views::Views};
use crate::{
    error::{Error, Result},
    mapping::{Base, Wanted},
    process::fork::ProcessBound,
    session::{Parting, Session, release_queue::Part},
};

#[derive(Debug)]
pub(crate) struct Anchor {
    session: ProcessBound<Session>,
    id: AllocationId,
    words: WordsView,
    /// The words are not there any more: those that are there are another's.
    lost: Arc<AtomicBool>,
    /// Once it is known which parts there are.
    placed: OnceLock<Placed>,
    pub(super) views: Views,
    /// Guards that wait for streams to come past them.
    after_streams: Arc<AtomicUsize>,
    /// What is left to do when the last of handle and guards is gone.
    parting: Mutex<Option<Parting>>,
}

/// Where an allocation lies, and its words: as far as that is known, which it is once parts have come for the first time.
#[derive(Debug)]
pub(crate) struct Placed {
    base: OnceLock<Base>,
    /// Of each part in their order.
    slots: Box<[AtomicU32]>,
    /// Where each part ends.
    ends: Box<[u64]>,
    /// What was asked for.
    size: Bytes,
}

/// No table has so many slots: what is not known can't be pinned, as what is not mapped.
const UNKNOWN: u32 = u32::MAX;

impl Anchor {
    pub(crate) fn new(session: &ProcessBound<Session>, id: AllocationId) -> Self {
        Self {
            session: session.clone(),
            id,
            words: session.table().view(),
            lost: session.table().slots_lost(id),
            placed: OnceLock::new(),
            views: Views::default(),
            after_streams: Arc::default(),
            parting: Mutex::default(),
        }
    }

    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    pub(crate) fn id(&self) -> AllocationId {
        self.id
    }

    pub(crate) fn views(&self) -> &Views {
        &self.views
    }

    pub(crate) fn place(&self, placed: Placed) {
        // The first counts: neither the address nor the words of an allocation move.
        let _ = self.placed.set(placed);
    }

    /// Finds out where the words of these parts are, those that have come meanwhile.
    pub(crate) fn learn(&self, parts: Range<u32>) {
        if parts.clone().all(|part| self.slot(part).is_some()) {
            return;
        }
        let Some(placed) = self.placed() else { return };
        for (part, slot) in self.session.table().slots(self.id, parts) {
            if let Some(known) = placed.slots.get(part as usize) {
                known.store(slot, Ordering::Relaxed);
            }
        }
    }

    /// Where it lies, once any of it has come.
    pub(crate) fn base(&self) -> Option<Base> {
        let known = &self.placed()?.base;
        match known.get() {
            Some(base) => Some(*base),
            None => self.session.table().base(self.id).map(|base| *known.get_or_init(|| base)),
        }
    }

    pub(crate) fn placed(&self) -> Option<&Placed> {
        self.placed.get()
    }

    pub(crate) fn after_streams(&self) -> &Arc<AtomicUsize> {
        &self.after_streams
    }

    /// Of the guards of this allocation, those that streams will end.
    pub(crate) fn waiting_for_streams(&self) -> usize {
        self.after_streams.load(Ordering::Acquire)
    }

    /// To be done once nobody uses it any more.
    pub(crate) fn part_at_last(&self, parting: Parting) {
        *self.parting.lock().unwrap_or_else(PoisonError::into_inner) = Some(parting);
    }

    /// As frames and calls name parts.
    pub(crate) fn wanted(&self, parts: &Range<u32>, access: Access) -> Vec<Wanted> {
        let wanted = |index| Wanted { id: self.id, index, slot: self.slot(index), access };
        parts.clone().map(wanted).collect()
    }

    /// Looked at after a pin: it came after whoever has the word now had it mapped, and that after this was set.
    #[inline]
    pub(super) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Pins at once, or nothing.
    #[inline]
    pub(super) fn pin(&self, parts: &Range<u32>, access: Access) -> Result<(), PinRefused> {
        if parts.len() == 1 {
            let slot = self.slot(parts.start).and_then(|slot| self.words.slot(slot));
            let slot = slot.ok_or(PinRefused::NeedsFrame)?;
            slot.pin(access)?;
            if self.is_lost() {
                self.unpin(parts);
                return Err(PinRefused::NeedsFrame);
            }
            slot.touch_by(tick);
            return Ok(());
        }
        self.pin_all(parts, access)
    }

    fn pin_all(&self, parts: &Range<u32>, access: Access) -> Result<(), PinRefused> {
        let slot = |index| Some((self.words.slot(self.slot(index)?)?, access));
        let slots: Vec<_> = parts.clone().map(slot).collect::<Option<_>>().ok_or(PinRefused::NeedsFrame)?;
        if let Err(refused) = pin_set(&slots) {
            self.session.table().wake_if(refused.then == Unpinned::WakeWorker);
            return Err(refused.why);
        }
        if self.is_lost() {
            self.unpin(parts);
            return Err(PinRefused::NeedsFrame);
        }
        let tick = tick();
        slots.iter().for_each(|(slot, _)| slot.touch(tick));
        Ok(())
    }

    /// Never blocks; no system call unless somebody waits for it.
    #[inline]
    pub(super) fn unpin(&self, parts: &Range<u32>) {
        let mut wake = false;
        for slot in parts.clone().filter_map(|index| self.slot(index)) {
            // An unpin too many is somebody's who wrote to the words past this library; ours was lost with it.
            wake |= matches!(self.words.slot(slot).map(|slot| slot.unpin()), Some(Ok(Unpinned::WakeWorker)));
        }
        self.session.table().wake_if(wake);
    }

    /// Where the bytes of these parts begin.
    pub(super) fn address_of(&self, parts: &Range<u32>) -> u64 {
        let base = self.base().map_or(0, |base| base.address);
        base + self.placed().map_or(0, |placed| placed.bytes(parts).start)
    }

    /// How often the content of these was given up.
    pub(super) fn losses_of(&self, parts: &Range<u32>) -> u64 {
        self.session.table().losses(self.id, parts.clone())
    }

    /// How many they are, of those that were asked for.
    pub(super) fn len_of(&self, parts: &Range<u32>) -> u64 {
        let bytes = self.placed().map_or(0..0, |placed| placed.bytes(parts));
        bytes.end - bytes.start
    }

    /// All of them, or a range that there is.
    #[inline]
    pub(crate) fn parts(&self, range: Option<Range<u32>>) -> Result<Range<u32>> {
        let all = self.all_parts();
        let range = range.unwrap_or_else(|| all.clone());
        if range.start < range.end && range.end <= all.end {
            return Ok(range);
        }
        Err(self.none_of(&range, all.len()))
    }

    #[inline]
    pub(crate) fn all_parts(&self) -> Range<u32> {
        let count = self.placed.get().map_or(0, |placed| placed.slots.len());
        0..u32::try_from(count).unwrap_or(u32::MAX)
    }

    #[cold]
    fn none_of(&self, range: &Range<u32>, count: usize) -> Error {
        let problem = format!("parts {range:?} are none of the {count} that {} has here", self.id);
        Error::refused(Reason::RequestInvalid, &[("field", &"parts"), ("problem", &problem)])
    }

    #[inline]
    fn slot(&self, part: u32) -> Option<u32> {
        // What it is says where to look, and nothing of what is there: the word does.
        let slot = self.placed.get()?.slots.get(part as usize)?.load(Ordering::Relaxed);
        (slot != UNKNOWN).then_some(slot)
    }
}

impl Placed {
    pub(crate) fn new(ends: Box<[u64]>, size: Bytes) -> Self {
        let slots = ends.iter().map(|_| AtomicU32::new(UNKNOWN)).collect();
        Self { base: OnceLock::new(), slots, ends, size }
    }

    /// The parts that bytes lie in.
    pub(crate) fn parts(&self, bytes: &Range<u64>) -> Range<u32> {
        let number = |part: usize| u32::try_from(part).unwrap_or(u32::MAX);
        let first = self.ends.partition_point(|end| *end <= bytes.start);
        let last = self.ends.partition_point(|end| *end < bytes.end);
        number(first)..number(last + 1)
    }

    /// Offset and length of a range of parts, among the bytes that were asked for.
    pub(crate) fn bytes(&self, parts: &Range<u32>) -> Range<u64> {
        let end_of = |part: u32| self.ends.get(part as usize).copied().unwrap_or(0).min(self.size.get());
        let start = parts.start.checked_sub(1).map_or(0, end_of);
        start..end_of(parts.end.saturating_sub(1)).max(start)
    }
}

impl Drop for Anchor {
    fn drop(&mut self) {
        // Never in a forked child: nobody drops one there.
        if let Some(parting) = self.parting.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            self.session.releases().queue(Part { session: self.session.clone(), id: self.id, parting });
        }
    }
}

/// Milliseconds of a coarse clock, which is read without the kernel.
#[inline]
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a tick wraps")]
fn tick() -> u32 {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    (now.tv_sec as u32).wrapping_mul(1000).wrapping_add((now.tv_nsec / 1_000_000) as u32)
}
