//! The table's part for pins that take more than an instruction: pin calls, handle pins, and copies.

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
    copy::Window,
    pin_calls::{FollowUp, part_refs, refusal},
    region::Region,
    region_words::pinned_as,
    table::TableState,
};
use crate::{
    cuda::Context,
    error::{Error, Result},
    pins::one_waiter,
    rpc::trace_of_caller,
};

/// A condition that a caller waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Until {
    /// This many parts of a claimed allocation are mapped with that access, and stay.
    Arrived { id: AllocationId, parts: usize, access: Access },
    /// A call has all its pins.
    Pinned { call: u64 },
    /// The daemon has answered a prefetch request; with `settled`, its parts are there or will not come.
    Prefetched { number: u64, settled: bool },
    /// The daemon has answered a declared sequence.
    Declared { number: u64 },
    /// The daemon has answered a working set.
    SetTaken { number: u64 },
    /// The daemon has granted or refused a turn.
    TurnGranted { number: u64 },
    /// The daemon has asked for a turn back.
    TurnEnding { number: u64 },
}

/// The start of a pin of a set.
#[derive(Debug)]
pub(crate) enum PinStart {
    /// All of it is pinned.
    Pinned,
    /// The daemon is to be asked by this frame, and the call waits for its answer.
    Call { call: u64, frame: v1::Pin },
}

/// The caller of a pin that the daemon has to be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Caller {
    /// The program. Its pins are refused while the session's memory is away.
    Program,
    /// [`crate::Client::attach_all`].
    AttachAll,
}

/// The milliseconds that are left, rounded up, so that the daemon gives up no sooner; zero would mean no limit.
pub(crate) fn millis_until(deadline: Instant) -> u64 {
    let left = deadline.saturating_duration_since(Instant::now()).as_millis();
    u64::try_from(left).unwrap_or(u64::MAX).saturating_add(1)
}

/// While it lives, the table keeps allocations that arrive without a handle.
#[derive(Debug)]
pub(crate) struct ExpectedArrivals<'a>(&'a Table);

impl Table {
    /// Waits until the condition holds, or never can.
    pub(crate) fn wait(&self, until: Until, deadline: Instant) -> Result<()> {
        let mut state = self.lock();
        while !state.check(until)? {
            let patience = deadline.saturating_duration_since(Instant::now());
            if patience.is_zero() {
                return Err(Error::deadline());
            }
            state = self.changed.wait_timeout(state, patience).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }

    /// Like [`Self::wait`], for a task.
    pub(crate) async fn wait_async(&self, until: Until, deadline: Instant) -> Result<()> {
        loop {
            let mut changed = pin!(self.changed.notified());
            // Before the check, so that no change after it is missed.
            changed.as_mut().enable();
            if self.check(until)? {
                return Ok(());
            }
            if timeout_at(deadline.into(), changed).await.is_err() {
                return if self.check(until)? { Ok(()) } else { Err(Error::deadline()) };
            }
        }
    }

    /// Whether the condition holds now; an error if it never can.
    pub(crate) fn check(&self, until: Until) -> Result<bool> {
        self.lock().check(until)
    }

    /// Begins a call for a set that could not be pinned at once. After the end of the channel no part arrives or
    /// leaves any more: mapped parts are pinned here and now.
    pub(crate) fn begin_pin(
        &self,
        parts: &[PinTarget],
        deadline: Instant,
        caller: Caller,
    ) -> Result<PinStart> {
        let mut state = self.lock();
        if caller == Caller::Program {
            state.check_here()?;
        }
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
                    wait_ms: Some(millis_until(deadline)),
                },
            });
        }
        if state.ending.is_some() {
            // The daemon may have revoked this before it knew of the end.
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

    /// Handles the daemon's answer to a pin call. An error means that there is no such call.
    pub(crate) fn finish_pin(&self, answer: v1::PinAnswer) -> Result<Report, String> {
        let mut state = self.lock();
        if !state.calls.was_made(answer.call_id) {
            return Err(format!("the daemon answered pin call {}, which was never made", answer.call_id));
        }
        let TableState { calls, words, .. } = &mut *state;
        let follow_up = calls.finish(answer.call_id, answer.refused.map(Error::from), words);
        let answer = state.run_follow_up(follow_up)?;
        self.changed.notify_all();
        Ok(answer)
    }

    /// Ends a call whose caller has stopped waiting. An error means that something is mapped that should not be.
    pub(crate) fn cancel_pin(&self, call: u64) -> Result<Report, String> {
        let mut state = self.lock();
        let TableState { calls, words, .. } = &mut *state;
        let follow_up = calls.cancel_pin(call, words);
        let answer = state.run_follow_up(follow_up)?;
        self.changed.notify_all();
        Ok(answer)
    }

    /// Takes the handle's pins that can be had at once, and returns the parts that are left.
    pub(crate) fn take_handle_pins(&self, id: AllocationId, parts: usize) -> Result<Vec<PinTarget>> {
        let mut state = self.lock();
        let TableState { regions, words, .. } = &mut *state;
        let region = regions.get_mut(&id).ok_or_else(|| not_mapped(id))?;
        match region.take_handle_pins(words) {
            Ok(()) | Err(vramd_words::PinRefused::NeedsFrame) => Ok(region.without_handle_pin(id, parts)),
            Err(why) => Err(refusal(why, id)),
        }
    }

    /// Turns a call's pins into the handle's.
    pub(crate) fn adopt_pins(&self, id: AllocationId, parts: &[PinTarget]) {
        let mut state = self.lock();
        let TableState { regions, words, .. } = &mut *state;
        let indexes: Vec<_> = parts.iter().map(|part| part.index).collect();
        let wake = regions.get_mut(&id).is_some_and(|region| region.adopt_handle_pins(&indexes, words));
        self.wake_if(wake);
    }

    /// Releases the handle's pins.
    pub(crate) fn release_handle_pins(&self, id: AllocationId) {
        let mut state = self.lock();
        let TableState { regions, words, .. } = &mut *state;
        let Some(region) = regions.get_mut(&id) else { return };
        region.wants_handle_pins = false;
        let wake = region.release_handle_pins(words);
        self.wake_if(wake);
    }

    /// Lets parts that arrive from now on be pinned by the handle, and forgets earlier failures to map.
    pub(crate) fn request_handle_pins(&self, id: AllocationId) {
        if let Some(region) = self.lock().regions.get_mut(&id) {
            region.wants_handle_pins = true;
            (region.failure, region.lost) = (None, None);
        }
    }

    pub(crate) fn has_handle_pins(&self, id: AllocationId) -> bool {
        self.lock().regions.get(&id).is_some_and(|region| region.wants_handle_pins)
    }

    /// How many parts are mapped with that access and stay while the handle pins them.
    pub(crate) fn stable_count(&self, id: AllocationId, access: Option<Access>) -> usize {
        self.lock().regions.get(&id).map_or(0, |region| region.stable_count(access))
    }

    /// Whether parts arrived and were revoked before the handle could pin them: they arrive again when they are
    /// requested.
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

    /// The slots of the parts that have arrived, now or before.
    pub(crate) fn slots(&self, id: AllocationId, parts: Range<u32>) -> Vec<(u32, u32)> {
        let slots = |region: &Region| region.slots.range(parts).map(|(part, slot)| (*part, *slot)).collect();
        self.lock().regions.get(&id).map(slots).unwrap_or_default()
    }

    /// The drop count of these parts, as of their last arrival.
    pub(crate) fn drop_count(&self, id: AllocationId, parts: Range<u32>) -> u64 {
        let drops = |region: &Region| region.drop_counts.range(parts).map(|(_, count)| *count).sum();
        self.lock().regions.get(&id).map(drops).unwrap_or_default()
    }

    /// Forgets the slots of parts that are away, after a seal that does not wait for them.
    pub(crate) fn forget_slots(&self, id: AllocationId, sealed: bool) {
        let mut state = self.lock();
        let TableState { regions, words, .. } = &mut *state;
        if let Some(region) = regions.get_mut(&id) {
            region.writes = !sealed;
            region.forget_slots(id, words);
        }
    }

    /// Begins without handle pins; `writes` says whether parts that arrive are writable.
    pub(crate) fn begin_unpinned(&self, id: AllocationId, writes: bool) {
        if let Some(region) = self.lock().regions.get_mut(&id) {
            region.writes = writes;
        }
        self.release_handle_pins(id);
    }

    /// Whether the daemon sends parts that are pinned while they are away.
    pub(crate) fn is_asked_for_pins(&self) -> bool {
        self.lock().words.is_shared()
    }

    /// The flag that is set once the answer of `slots` is no longer true.
    pub(crate) fn slots_lost(&self, id: AllocationId) -> Arc<AtomicBool> {
        self.lock().regions.get(&id).map(|region| Arc::clone(&region.slots_lost)).unwrap_or_default()
    }

    /// Whether all its mapped parts are writable.
    pub(crate) fn is_writable(&self, id: AllocationId) -> bool {
        let state = self.lock();
        state
            .regions
            .get(&id)
            .is_some_and(|region| region.mapped_count(Some(Access::ReadWrite)) == region.mapped_count(None))
    }

    /// The context in which events of streams are recorded; `None` for memory without streams.
    pub(crate) fn context(&self, id: AllocationId) -> Option<std::sync::Arc<Context>> {
        self.lock().regions.get(&id)?.context()
    }

    /// The window for copies; the caller has pinned the parts that they touch.
    pub(crate) fn window(&self, id: AllocationId) -> Option<Window> {
        self.lock().regions.get(&id)?.window()
    }

    /// Copies to or from a whole allocation, all of whose parts must be mapped with that access. They are pinned
    /// meanwhile, so a revoke waits. A long copy is many calls, and none begins once the daemon revokes the
    /// allocation for good.
    pub(crate) fn copy_pinned(
        &self,
        id: AllocationId,
        parts: usize,
        access: Option<Access>,
        copy: impl FnOnce(&Window) -> Result<(), String>,
    ) -> Result<()> {
        let (window, slots) = {
            let mut state = self.lock();
            let TableState { regions, words, .. } = &mut *state;
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

    /// Keeps arriving allocations that have no handle yet, for calls that will make one.
    pub(crate) fn expect_arrivals(&self) -> Result<ExpectedArrivals<'_>> {
        let mut state = self.lock();
        state.check_here()?;
        state.expected_arrivals += 1;
        Ok(ExpectedArrivals(self))
    }

    /// Wakes the worker: the last pin of a part that is being revoked has ended.
    pub(crate) fn wake(&self) {
        // This fails only if so many wakes are pending that the descriptor is readable anyway.
        let _ = write(&*self.wake, &1u64.to_ne_bytes());
    }

    pub(crate) fn wake_if(&self, wake: bool) {
        if wake {
            self.wake();
        }
    }

    /// The descriptor that is readable once the worker may have something to unmap.
    pub(crate) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    pub(crate) fn clear_wake(&self) {
        // No wake may be pending.
        let _ = read(&*self.wake, &mut [0; 8]);
    }
}

impl TableState {
    fn check(&mut self, until: Until) -> Result<bool> {
        match until {
            Until::Arrived { id, parts, access } => self.check_arrived(id, parts, access),
            Until::Pinned { call } => match (self.calls.take_outcome(call), &self.ending) {
                (Some(outcome), _) => outcome.map(|()| true),
                (None, Some(ending)) => Err(ending.error()),
                (None, None) => Ok(false),
            },
            Until::Prefetched { number, settled } => {
                self.prefetches.check(number, settled, self.ending.as_ref())
            }
            Until::Declared { number } => self.sequences.check(number, self.ending.as_ref()),
            Until::SetTaken { number } => self.turns.check_set(number, self.ending.as_ref()),
            Until::TurnGranted { number } => self.turns.check_granted(number, self.ending.as_ref()),
            Until::TurnEnding { number } => self.turns.check_ending(number, self.ending.as_ref()),
        }
    }

    fn run_follow_up(&mut self, FollowUp { ended, wake }: FollowUp) -> Result<Report, String> {
        let mut answer = if wake { self.unmap_unpinned()? } else { Report::default() };
        answer.ended.extend(ended);
        Ok(answer)
    }
}

impl TableState {
    /// Fills in the slot of a part, if it is known.
    fn resolve_slot(&self, part: PinTarget) -> PinTarget {
        let known = || self.regions.get(&part.id)?.slots.get(&part.index).copied();
        PinTarget { slot: part.slot.or_else(known), ..part }
    }
}

impl Region {
    /// The parts, of `parts`, that the handle has no pin of.
    fn without_handle_pin(&self, id: AllocationId, parts: usize) -> Vec<PinTarget> {
        let access = if self.writes { vramd_words::Access::Write } else { vramd_words::Access::Read };
        let count = u32::try_from(parts).unwrap_or(u32::MAX);
        let missing = (0..count).filter(|index| self.parts.get(index).is_none_or(|part| !part.handle_pinned));
        missing.map(|index| PinTarget { id, index, slot: self.slots.get(&index).copied(), access }).collect()
    }

    /// The slots of all parts, if all are mapped with that access and none is revoked for good.
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
        // `detach_all` may wait for the last of these calls.
        self.0.changed.notify_all();
        if state.expected_arrivals > 0 {
            return;
        }
        // For allocations whose call gave up before they arrived: no handle pins them.
        let TableState { regions, words, .. } = &mut *state;
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
