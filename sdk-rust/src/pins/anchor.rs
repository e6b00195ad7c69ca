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
    mapping::{Base, PinTarget},
    process::fork::ProcessBound,
    session::{ReleaseKind, Session, release_queue::Release},
};

#[derive(Debug)]
pub(crate) struct Anchor {
    session: ProcessBound<Session>,
    id: AllocationId,
    words: WordsView,
    /// The words are not there any more: those that are there are another's.
    slots_lost: Arc<AtomicBool>,
    /// Once it is known which parts there are.
    layout: OnceLock<Layout>,
    pub(super) views: Views,
    /// Guards that wait for streams to come past them.
    stream_guards: Arc<AtomicUsize>,
    /// What is left to do when the last of handle and guards is gone.
    release_kind: Mutex<Option<ReleaseKind>>,
}

/// Where an allocation lies, and its words: as far as that is known, which it is once parts have come for the first time.
#[derive(Debug)]
pub(crate) struct Layout {
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
            slots_lost: session.table().slots_lost(id),
            layout: OnceLock::new(),
            views: Views::default(),
            stream_guards: Arc::default(),
            release_kind: Mutex::default(),
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

    pub(crate) fn set_layout(&self, layout: Layout) {
        // The first counts: neither the address nor the words of an allocation move.
        let _ = self.layout.set(layout);
    }

    /// Finds out where the words of these parts are, those that have come meanwhile.
    pub(crate) fn refresh_slots(&self, parts: Range<u32>) {
        if parts.clone().all(|part| self.slot(part).is_some()) {
            return;
        }
        let Some(layout) = self.layout() else { return };
        for (part, slot) in self.session.table().slots(self.id, parts) {
            if let Some(known) = layout.slots.get(part as usize) {
                known.store(slot, Ordering::Relaxed);
            }
        }
    }

    /// Where it lies, once any of it has come.
    pub(crate) fn base(&self) -> Option<Base> {
        let known = &self.layout()?.base;
        match known.get() {
            Some(base) => Some(*base),
            None => self.session.table().base(self.id).map(|base| *known.get_or_init(|| base)),
        }
    }

    pub(crate) fn layout(&self) -> Option<&Layout> {
        self.layout.get()
    }

    pub(crate) fn stream_guards(&self) -> &Arc<AtomicUsize> {
        &self.stream_guards
    }

    /// Of the guards of this allocation, those that streams will end.
    pub(crate) fn stream_guard_count(&self) -> usize {
        self.stream_guards.load(Ordering::Acquire)
    }

    /// To be done once nobody uses it any more.
    pub(crate) fn release_when_unused(&self, release_kind: ReleaseKind) {
        *self.release_kind.lock().unwrap_or_else(PoisonError::into_inner) = Some(release_kind);
    }

    /// As frames and calls name parts.
    pub(crate) fn targets(&self, parts: &Range<u32>, access: Access) -> Vec<PinTarget> {
        let wanted = |index| PinTarget { id: self.id, index, slot: self.slot(index), access };
        parts.clone().map(wanted).collect()
    }

    /// Looked at after a pin: it came after whoever has the word now had it mapped, and that after this was set.
    #[inline]
    pub(super) fn has_lost_slots(&self) -> bool {
        self.slots_lost.load(Ordering::Acquire)
    }

    /// Pins at once, or nothing.
    #[inline]
    pub(super) fn pin(&self, parts: &Range<u32>, access: Access) -> Result<(), PinRefused> {
        if parts.len() == 1 {
            let slot = self.slot(parts.start).and_then(|slot| self.words.slot(slot));
            let slot = slot.ok_or(PinRefused::NeedsFrame)?;
            slot.pin(access)?;
            if self.has_lost_slots() {
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
        if self.has_lost_slots() {
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
        base + self.layout().map_or(0, |layout| layout.bytes(parts).start)
    }

    /// How often the content of these was given up.
    pub(super) fn drop_count_of(&self, parts: &Range<u32>) -> u64 {
        self.session.table().drop_count(self.id, parts.clone())
    }

    /// How many they are, of those that were asked for.
    pub(super) fn len_of(&self, parts: &Range<u32>) -> u64 {
        let bytes = self.layout().map_or(0..0, |layout| layout.bytes(parts));
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
        Err(self.no_such_parts(&range, all.len()))
    }

    #[inline]
    pub(crate) fn all_parts(&self) -> Range<u32> {
        let count = self.layout.get().map_or(0, |layout| layout.slots.len());
        0..u32::try_from(count).unwrap_or(u32::MAX)
    }

    #[cold]
    fn no_such_parts(&self, range: &Range<u32>, count: usize) -> Error {
        let problem = format!("parts {range:?} are none of the {count} that {} has here", self.id);
        Error::refused(Reason::RequestInvalid, &[("field", &"parts"), ("problem", &problem)])
    }

    #[inline]
    fn slot(&self, part: u32) -> Option<u32> {
        // What it is says where to look, and nothing of what is there: the word does.
        let slot = self.layout.get()?.slots.get(part as usize)?.load(Ordering::Relaxed);
        (slot != UNKNOWN).then_some(slot)
    }
}

impl Layout {
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
        if let Some(release_kind) = self.release_kind.get_mut().unwrap_or_else(PoisonError::into_inner).take()
        {
            self.session.releases().queue(Release {
                session: self.session.clone(),
                id: self.id,
                release_kind,
            });
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
