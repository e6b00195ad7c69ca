//! Anchors: the state that a handle and its guards share, and the pins themselves.

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

use super::{Sharers, WordsView, views::Views};
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
    /// Set once the slots that this anchor knows belong to other parts.
    slots_lost: Arc<AtomicBool>,
    /// Set once the parts are known.
    layout: OnceLock<Layout>,
    pub(super) views: Views,
    sharers: Arc<Sharers>,
    /// The number of guards that end after streams.
    stream_guards: Arc<AtomicUsize>,
    /// How to release the allocation when the last of handle and guards is gone.
    release_kind: Mutex<Option<ReleaseKind>>,
}

/// The address, slots and parts of an allocation, as far as they are known: parts must have arrived once.
#[derive(Debug)]
pub(crate) struct Layout {
    base: OnceLock<Base>,
    /// The slot of each part, in order.
    slots: Box<[AtomicU32]>,
    /// The end of each part, in bytes.
    ends: Box<[u64]>,
    /// The requested bytes.
    size: Bytes,
}

/// Stands for an unknown slot: no table has that many. A part with an unknown slot cannot be pinned, like one that is
/// not mapped.
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
            sharers: Arc::default(),
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
        // Only the first layout counts: neither the address nor the slots of an allocation move.
        let _ = self.layout.set(layout);
    }

    /// Looks up the slots of these parts, if they have arrived meanwhile.
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

    /// Forgets the slots of these parts: the session has unmapped them, so no guard pins any. Their words become other
    /// parts', and a thread that has read a slot before finds out after its pin ([`Self::pin`]).
    pub(crate) fn forget_slots(&self, parts: &[u32]) {
        let Some(layout) = self.layout() else { return };
        for slot in parts.iter().filter_map(|part| layout.slots.get(*part as usize)) {
            slot.store(UNKNOWN, Ordering::Relaxed);
        }
    }

    /// The address, once a part has arrived.
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

    /// How many guards of this allocation end after streams.
    pub(crate) fn stream_guard_count(&self) -> usize {
        self.stream_guards.load(Ordering::Acquire)
    }

    pub(crate) fn sharers(&self) -> &Arc<Sharers> {
        &self.sharers
    }

    /// Releases the allocation once the last user of this anchor is gone: frees it if any of them would.
    pub(crate) fn release_when_unused(&self, release_kind: ReleaseKind) {
        let mut due = self.release_kind.lock().unwrap_or_else(PoisonError::into_inner);
        *due = Some(release_kind.or(due.take()));
    }

    /// Takes over the release that dropped handles have left to the others.
    pub(crate) fn take_release_kind(&self) -> Option<ReleaseKind> {
        self.release_kind.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The parts as pin calls name them.
    pub(crate) fn targets(&self, parts: &Range<u32>, access: Access) -> Vec<PinTarget> {
        let wanted = |index| PinTarget { id: self.id, index, slot: self.slot(index), access };
        parts.clone().map(wanted).collect()
    }

    /// Whether the slots are another part's. Checked after a pin, as is the slot itself: the flag was set before the slot's new part was
    /// mapped, and so before a pin of it could succeed.
    #[inline]
    pub(super) fn has_lost_slots(&self) -> bool {
        self.slots_lost.load(Ordering::Acquire)
    }

    /// Pins all parts at once, or none.
    #[inline]
    pub(super) fn pin(&self, parts: &Range<u32>, access: Access) -> Result<(), PinRefused> {
        if parts.len() == 1 {
            let number = self.slot(parts.start).ok_or(PinRefused::NeedsFrame)?;
            let slot = self.words.slot(number).ok_or(PinRefused::NeedsFrame)?;
            slot.pin(access)?;
            if self.has_lost_slots() || self.slot(parts.start) != Some(number) {
                self.unpin_slots([number]);
                return Err(PinRefused::NeedsFrame);
            }
            slot.record_use_with(tick);
            return Ok(());
        }
        self.pin_all(parts, access)
    }

    fn pin_all(&self, parts: &Range<u32>, access: Access) -> Result<(), PinRefused> {
        let numbers: Vec<_> =
            parts.clone().map(|part| self.slot(part)).collect::<Option<_>>().ok_or(PinRefused::NeedsFrame)?;
        let slot = |number: &u32| Some((self.words.slot(*number)?, access));
        let slots: Vec<_> = numbers.iter().map(slot).collect::<Option<_>>().ok_or(PinRefused::NeedsFrame)?;
        if let Err(refused) = pin_set(&slots) {
            self.session.table().wake_if(refused.unpinned == Unpinned::WakeWorker);
            return Err(refused.reason);
        }
        if self.has_lost_slots()
            || !parts.clone().zip(&numbers).all(|(part, it)| self.slot(part) == Some(*it))
        {
            self.unpin_slots(numbers);
            return Err(PinRefused::NeedsFrame);
        }
        let tick = tick();
        slots.iter().for_each(|(slot, _)| slot.record_use(tick));
        Ok(())
    }

    /// Unpins. It never blocks, and makes no system call unless the worker waits for it.
    #[inline]
    pub(super) fn unpin(&self, parts: &Range<u32>) {
        self.unpin_slots(parts.clone().filter_map(|index| self.slot(index)));
    }

    #[inline]
    fn unpin_slots(&self, slots: impl IntoIterator<Item = u32>) {
        let mut wake = false;
        for slot in slots {
            // A failed unpin means that the program wrote to the words past this library, and lost this pin.
            wake |= matches!(self.words.slot(slot).map(|slot| slot.unpin()), Some(Ok(Unpinned::WakeWorker)));
        }
        self.session.table().wake_if(wake);
    }

    /// The address where the bytes of these parts begin.
    pub(super) fn address_of(&self, parts: &Range<u32>) -> u64 {
        let base = self.base().map_or(0, |base| base.address);
        base + self.layout().map_or(0, |layout| layout.bytes(parts).start)
    }

    /// The drop count of these parts.
    pub(super) fn drop_count_of(&self, parts: &Range<u32>) -> u64 {
        self.session.table().drop_count(self.id, parts.clone())
    }

    /// The requested bytes among these parts.
    pub(super) fn len_of(&self, parts: &Range<u32>) -> u64 {
        let bytes = self.layout().map_or(0..0, |layout| layout.bytes(parts));
        bytes.end - bytes.start
    }

    /// All parts, or a range that exists.
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
        let problem = format!("parts {range:?} are not a range of the {count} parts of {}", self.id);
        Error::refused(Reason::RequestInvalid, &[("field", &"parts"), ("problem", &problem)])
    }

    #[inline]
    fn slot(&self, part: u32) -> Option<u32> {
        // The slot only says where to look; the word says whether the part is mapped.
        let slot = self.layout.get()?.slots.get(part as usize)?.load(Ordering::Relaxed);
        (slot != UNKNOWN).then_some(slot)
    }
}

impl Layout {
    pub(crate) fn new(ends: Box<[u64]>, size: Bytes) -> Self {
        let slots = ends.iter().map(|_| AtomicU32::new(UNKNOWN)).collect();
        Self { base: OnceLock::new(), slots, ends, size }
    }

    /// The parts in which bytes lie.
    pub(crate) fn parts(&self, bytes: &Range<u64>) -> Range<u32> {
        let number = |part: usize| u32::try_from(part).unwrap_or(u32::MAX);
        let first = self.ends.partition_point(|end| *end <= bytes.start);
        let last = self.ends.partition_point(|end| *end < bytes.end);
        number(first)..number(last + 1)
    }

    /// The byte range of a range of parts, among the requested bytes.
    pub(crate) fn bytes(&self, parts: &Range<u32>) -> Range<u64> {
        let end_of = |part: u32| self.ends.get(part as usize).copied().unwrap_or(0).min(self.size.get());
        let start = parts.start.checked_sub(1).map_or(0, end_of);
        start..end_of(parts.end.saturating_sub(1)).max(start)
    }
}

impl Drop for Anchor {
    fn drop(&mut self) {
        // A forked child never gets here: it drops no anchor.
        self.session.anchors().forget(self.id, &self.sharers);
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

/// The milliseconds of a coarse clock, which is read without a system call.
#[inline]
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a tick wraps")]
fn tick() -> u32 {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    (now.tv_sec as u32).wrapping_mul(1000).wrapping_add((now.tv_nsec / 1_000_000) as u32)
}
