//! Pins that take more than an instruction: of calls that wait, of handles, and of copies.

use std::{
    ops::Range,
    os::fd::{AsFd as _, BorrowedFd},
    pin::pin,
    sync::{Arc, PoisonError, atomic::AtomicBool},
    time::Instant,
};

use rustix::io::{read, write};
use tokio::time::timeout_at;
use vramd_proto::v1::{self, Access};
use vramd_types::AllocationId;

use super::{
    PinTarget, Report, Table,
    calls::{FollowUp, part_refs, refusal},
    copy::Window,
    region::Region,
    region_words::pinned_as,
    table::State,
};
use crate::{
    cuda::Context,
    error::{Error, Result},
    pins::one_waiter,
};

/// What somebody waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Until {
    /// So many parts of a claimed allocation are here with that access, and stay.
    Arrived { id: AllocationId, parts: usize, access: Access },
    /// A call has all its pins.
    Pinned { call: u64 },
}

/// What came of asking for a set.
#[derive(Debug)]
pub(crate) enum PinStart {
    /// All of it is pinned.
    Pinned,
    /// The daemon is to be asked, and the call then waits.
    Call { call: u64, frame: v1::Pin },
}

/// What is left until then, so that the daemon gives up no sooner; zero would be for as long as it takes.
fn millis_until(deadline: Instant) -> u64 {
    let left = deadline.saturating_duration_since(Instant::now()).as_millis();
    u64::try_from(left).unwrap_or(u64::MAX).saturating_add(1)
}

/// Of the thread that waits for a set.
fn trace_of_caller() -> Option<v1::TraceContext> {
    #[cfg(feature = "trace-context")]
    {
        crate::rpc::trace::TraceHeaders::of_caller().into_message()
    }
    #[cfg(not(feature = "trace-context"))]
    {
        None
    }
}

/// While it lives, allocations that come without a handle are kept for one.
#[derive(Debug)]
pub(crate) struct ExpectedArrivals<'a>(&'a Table);

impl Table {
    /// Waits until it is so, or never will be.
    pub(crate) fn wait(&self, until: Until, deadline: Instant) -> Result<()> {
        let mut state = self.lock();
        while !state.check(until)? {
            let patience = deadline.saturating_duration_since(Instant::now());
            if patience.is_zero() {
                return Err(Error::Deadline);
            }
            state = self.changed.wait_timeout(state, patience).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }

    /// The same for a task.
    pub(crate) async fn wait_async(&self, until: Until, deadline: Instant) -> Result<()> {
        loop {
            let mut changed = pin!(self.changed.notified());
            // Before the look, so that no change is missed after it.
            changed.as_mut().enable();
            if self.check(until)? {
                return Ok(());
            }
            if timeout_at(deadline.into(), changed).await.is_err() {
                return if self.check(until)? { Ok(()) } else { Err(Error::Deadline) };
            }
        }
    }

    /// Whether it is so now; an error if it never will be.
    pub(crate) fn check(&self, until: Until) -> Result<bool> {
        self.lock().check(until)
    }

    /// Begins a call for a set that could not be pinned at once. After the end of the channel nothing comes any more, and
    /// nothing goes: what is mapped is pinned here and now.
    pub(crate) fn begin_pin(&self, parts: &[PinTarget], deadline: Instant) -> Result<PinStart> {
        let mut state = self.lock();
        let parts: Vec<_> = parts.iter().map(|part| state.resolve_slot(*part)).collect();
        if state.ending.is_none() && state.words.is_shared() {
            let write = parts.iter().any(|part| part.access == vramd_words::Access::Write);
            let refs = part_refs(&parts);
            let call = state.calls.open(parts);
            return Ok(PinStart::Call {
                call,
                frame: v1::Pin {
                    call_id: call,
                    parts: refs,
                    write,
                    trace: trace_of_caller(),
                    wait_ms: millis_until(deadline),
                },
            });
        }
        if state.ending.is_some() {
            // The daemon may not have known that it has ended when it revoked this.
            parts.iter().filter_map(|part| part.slot).for_each(|slot| state.words.forget_revoke(slot));
        }
        for (taken, part) in parts.iter().enumerate() {
            if let Err(why) = part.pin(&state.words) {
                let wake = parts[..taken].iter().fold(false, |wake, part| part.unpin(&state.words) | wake);
                self.wake_if(wake);
                return Err(match (&state.ending, why) {
                    (Some(ending), vramd_words::PinRefused::NeedsFrame) => ending.error(),
                    (None, vramd_words::PinRefused::NeedsFrame) => {
                        Error::NotMapped { allocation: part.id.to_string() }
                    }
                    (_, why) => refusal(why, part.id),
                });
            }
        }
        Ok(PinStart::Pinned)
    }

    /// The daemon has answered a call. An error means that there is none.
    pub(crate) fn finish_pin(&self, answer: v1::PinAnswer) -> Result<Report, String> {
        let mut state = self.lock();
        if !state.calls.was_made(answer.call_id) {
            return Err(format!("an answer to a call {} that was never made", answer.call_id));
        }
        let State { calls, words, .. } = &mut *state;
        let follow_up = calls.finish(answer.call_id, answer.refused.map(Error::from), words);
        let answer = state.run_follow_up(follow_up)?;
        self.changed.notify_all();
        Ok(answer)
    }

    /// Who has made a call waits no longer. An error means that something is mapped that should not be.
    pub(crate) fn cancel_pin(&self, call: u64) -> Result<Report, String> {
        let mut state = self.lock();
        let State { calls, words, .. } = &mut *state;
        let follow_up = calls.cancel_pin(call, words);
        let answer = state.run_follow_up(follow_up)?;
        self.changed.notify_all();
        Ok(answer)
    }

    /// Holds an allocation as far as that can be done at once: the parts that are left.
    pub(crate) fn take_handle_pins(&self, id: AllocationId, parts: usize) -> Result<Vec<PinTarget>> {
        let mut state = self.lock();
        let State { regions, words, .. } = &mut *state;
        let region = regions.get_mut(&id).ok_or_else(|| not_mapped(id))?;
        match region.take_handle_pins(words) {
            Ok(()) | Err(vramd_words::PinRefused::NeedsFrame) => Ok(region.without_handle_pin(id, parts)),
            Err(why) => Err(refusal(why, id)),
        }
    }

    /// Pins that a call has taken are the handle's own from now on.
    pub(crate) fn adopt_pins(&self, id: AllocationId, parts: &[PinTarget]) {
        let mut state = self.lock();
        let State { regions, words, .. } = &mut *state;
        let indexes: Vec<_> = parts.iter().map(|part| part.index).collect();
        let wake = regions.get_mut(&id).is_some_and(|region| region.adopt_handle_pins(&indexes, words));
        self.wake_if(wake);
    }

    /// The handle holds nothing of it any more.
    pub(crate) fn release_handle_pins(&self, id: AllocationId) {
        let mut state = self.lock();
        let State { regions, words, .. } = &mut *state;
        let Some(region) = regions.get_mut(&id) else { return };
        region.wants_handle_pins = false;
        let wake = region.release_handle_pins(words);
        self.wake_if(wake);
    }

    /// Parts that come from now on are the handle's to hold. What could not be mapped before concerns nobody any more.
    pub(crate) fn request_handle_pins(&self, id: AllocationId) {
        if let Some(region) = self.lock().regions.get_mut(&id) {
            region.wants_handle_pins = true;
            (region.failure, region.lost) = (None, None);
        }
    }

    pub(crate) fn has_handle_pins(&self, id: AllocationId) -> bool {
        self.lock().regions.get(&id).is_some_and(|region| region.wants_handle_pins)
    }

    /// How many parts are here with that access, and stay as long as the handle holds them.
    pub(crate) fn stable_count(&self, id: AllocationId, access: Option<Access>) -> usize {
        self.lock().regions.get(&id).map_or(0, |region| region.stable_count(access))
    }

    /// Whether parts that had come were taken back again before a handle could hold them: they come if they are asked
    /// for.
    pub(crate) fn is_away(&self, id: AllocationId, parts: usize) -> bool {
        let state = self.lock();
        state.words.is_shared()
            && state.regions.get(&id).is_some_and(|region| {
                region.slots.len() == parts
                    && region.failure.is_none()
                    && region.revoked.is_none()
                    && !region.without_handle_pin(id, parts).is_empty()
            })
    }

    /// Where the words of those parts are that have come, now or before.
    pub(crate) fn slots(&self, id: AllocationId, parts: Range<u32>) -> Vec<(u32, u32)> {
        let slots = |region: &Region| region.slots.range(parts).map(|(part, slot)| (*part, *slot)).collect();
        self.lock().regions.get(&id).map(slots).unwrap_or_default()
    }

    /// How often the content of these parts was given up before they came last.
    pub(crate) fn drop_count(&self, id: AllocationId, parts: Range<u32>) -> u64 {
        let drops = |region: &Region| region.drop_counts.range(parts).map(|(_, count)| *count).sum();
        self.lock().regions.get(&id).map(drops).unwrap_or_default()
    }

    /// It was to be sealed, and nobody waits until it is back: what is not here has no words any more.
    pub(crate) fn forget_slots(&self, id: AllocationId, sealed: bool) {
        let mut state = self.lock();
        let State { regions, words, .. } = &mut *state;
        if let Some(region) = regions.get_mut(&id) {
            region.writes = !sealed;
            region.forget_slots(id, words);
        }
    }

    /// Nothing of it has to be here, and whether what comes is to be written.
    pub(crate) fn begin_unpinned(&self, id: AllocationId, writes: bool) {
        if let Some(region) = self.lock().regions.get_mut(&id) {
            region.writes = writes;
        }
        self.release_handle_pins(id);
    }

    /// Whether the daemon sends what is pinned and not here.
    pub(crate) fn is_asked_for_pins(&self) -> bool {
        self.lock().words.is_shared()
    }

    /// Set once what `slots` has said is not so any more.
    pub(crate) fn slots_lost(&self, id: AllocationId) -> Arc<AtomicBool> {
        self.lock().regions.get(&id).map(|region| Arc::clone(&region.slots_lost)).unwrap_or_default()
    }

    /// Whether all of it that is here may be written.
    pub(crate) fn is_writable(&self, id: AllocationId) -> bool {
        let state = self.lock();
        state
            .regions
            .get(&id)
            .is_some_and(|region| region.mapped_count(Some(Access::ReadWrite)) == region.mapped_count(None))
    }

    /// Where events of its streams are recorded; `None` for memory that has no streams.
    pub(crate) fn context(&self, id: AllocationId) -> Option<std::sync::Arc<Context>> {
        self.lock().regions.get(&id)?.context()
    }

    /// For copies by somebody who has pinned what they touch.
    pub(crate) fn window(&self, id: AllocationId) -> Option<Window> {
        self.lock().regions.get(&id)?.window()
    }

    /// Copies to or from a whole allocation, all of whose parts must be here with that access. They are pinned meanwhile,
    /// so a revoke waits, and a long copy is many calls: none of them begins once the daemon wants it for good.
    pub(crate) fn copy_pinned(
        &self,
        id: AllocationId,
        parts: usize,
        access: Option<Access>,
        copy: impl FnOnce(&Window) -> Result<(), String>,
    ) -> Result<()> {
        let (window, slots) = {
            let mut state = self.lock();
            let State { regions, words, .. } = &mut *state;
            let region = regions.get_mut(&id).ok_or_else(|| not_mapped(id))?;
            let calls = one_waiter(access.map_or(vramd_words::Access::Read, pinned_as));
            let pinned = region.slots_to_copy(parts, access).ok_or_else(|| not_mapped(id))?;
            let window = region.window().ok_or_else(|| not_mapped(id))?;
            for (taken, slot) in pinned.iter().enumerate() {
                if words.pin(*slot, calls).is_err() {
                    let wake = pinned[..taken].iter().fold(false, |wake, slot| words.unpin(*slot) | wake);
                    self.wake_if(wake);
                    return Err(not_mapped(id));
                }
            }
            (window, pinned)
        };
        let outcome = copy(&window);
        let unpin = |slot| {
            matches!(
                self.view.slot(slot).map(|word| word.unpin()),
                Some(Ok(vramd_words::Unpinned::WakeWorker))
            )
        };
        let wake = slots.into_iter().fold(false, |wake, slot| unpin(slot) | wake);
        self.wake_if(wake);
        outcome.map_err(|problem| Error::CopyFailed { allocation: id.to_string(), problem })
    }

    /// For calls that may bring what has no handle yet.
    pub(crate) fn expect_arrivals(&self) -> ExpectedArrivals<'_> {
        self.lock().expected_arrivals += 1;
        ExpectedArrivals(self)
    }

    /// The last pin of something that the daemon wants back has ended: the worker is to see.
    pub(crate) fn wake(&self) {
        // It fails only where so many are unheard that it is readable anyway.
        let _ = write(&*self.wake, &1u64.to_ne_bytes());
    }

    pub(crate) fn wake_if(&self, wake: bool) {
        if wake {
            self.wake();
        }
    }

    /// Readable once the worker is to see what it can let go.
    pub(crate) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    pub(crate) fn clear_wake(&self) {
        // There may be none.
        let _ = read(&*self.wake, &mut [0; 8]);
    }
}

impl State {
    fn check(&mut self, until: Until) -> Result<bool> {
        match until {
            Until::Arrived { id, parts, access } => self.check_arrived(id, parts, access),
            Until::Pinned { call } => match (self.calls.take_outcome(call), &self.ending) {
                (Some(outcome), _) => outcome.map(|()| true),
                (None, Some(ending)) => Err(ending.error()),
                (None, None) => Ok(false),
            },
        }
    }

    fn run_follow_up(&mut self, FollowUp { ended, wake }: FollowUp) -> Result<Report, String> {
        let mut answer = if wake { self.unmap_unpinned()? } else { Report::default() };
        answer.ended.extend(ended);
        Ok(answer)
    }
}

impl State {
    /// Knows where the words of the part are, if anybody does.
    fn resolve_slot(&self, part: PinTarget) -> PinTarget {
        let known = || self.regions.get(&part.id)?.slots.get(&part.index).copied();
        PinTarget { slot: part.slot.or_else(known), ..part }
    }
}

impl Region {
    /// Of so many parts those that the handle has no pin of.
    fn without_handle_pin(&self, id: AllocationId, parts: usize) -> Vec<PinTarget> {
        let access = if self.writes { vramd_words::Access::Write } else { vramd_words::Access::Read };
        let count = u32::try_from(parts).unwrap_or(u32::MAX);
        let missing = (0..count).filter(|index| self.parts.get(index).is_none_or(|part| !part.handle_pinned));
        missing.map(|index| PinTarget { id, index, slot: self.slots.get(&index).copied(), access }).collect()
    }

    /// The words of all of so many parts, if they are here with that access and the daemon does not want them for good.
    fn slots_to_copy(&self, parts: usize, access: Option<Access>) -> Option<Vec<u32>> {
        let good = |part: &&super::region::Part| !part.is_revoked_for_good();
        let slots: Vec<_> = self.parts.values().filter(good).filter_map(|part| part.slot).collect();
        (slots.len() == parts && self.mapped_count(access) == parts).then_some(slots)
    }
}

impl Drop for ExpectedArrivals<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.expected_arrivals -= 1;
        if state.expected_arrivals > 0 {
            return;
        }
        // Whose call gave up before they came: nobody holds them.
        let State { regions, words, .. } = &mut *state;
        let mut wake = false;
        for region in regions.values_mut().filter(|region| !region.claimed) {
            region.wants_handle_pins = false;
            wake |= region.release_handle_pins(words);
        }
        self.0.wake_if(wake);
    }
}

fn not_mapped(id: AllocationId) -> Error {
    Error::NotMapped { allocation: id.to_string() }
}
