//! The table of all regions of a session, and the callers that wait for a change.
//!
//! Frames of the daemon and calls of the program both end up here. Code that changes a region while the channel
//! stands holds the channel's lock (`channel::Link`), so that frames leave in the order of the changes that they
//! report.

use std::{
    collections::{BTreeMap, BTreeSet},
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::sync::watch;
use vramd_proto::v1::{Access, Map, MapPart, PartRef, Revoke, RevokeReason, UnmapReason, UnmappedPart};
use vramd_types::{AllocationId, Reason};
use vramd_words::Waiting;

use super::{
    changed::Changed,
    pin_calls::Calls,
    prefetches::Prefetches,
    presence::{Label, Presence},
    region::{Mode, RawPart, Region},
    region_words::UnmapOutcome,
    sequences::Sequences,
    space::{Base, Space, has_descriptor, is_of_cuda},
    turns::Turns,
};
use crate::{
    cuda::{Context, Gpus, Imported},
    error::{Error, Result},
    pins::{Words, WordsView},
    session::{managed_orders::ManagedOrders, pressure::Pressures},
};

#[derive(Debug)]
pub(crate) struct Table {
    pub(super) mode: Mode,
    pub(super) gpus: Gpus,
    pub(crate) pressures: Pressures,
    /// The managed memory that orders of the daemon may move.
    pub(crate) managed: ManagedOrders,
    pub(super) view: WordsView,
    /// Readable once the last pin of a part that is being revoked has ended.
    pub(super) wake: Arc<OwnedFd>,
    pub(super) state: Mutex<TableState>,
    pub(super) changed: Changed,
    ended: watch::Sender<bool>,
    /// The number of revokes so far.
    revokes: Arc<AtomicU64>,
}

#[derive(Debug)]
pub(super) struct TableState {
    pub(super) regions: BTreeMap<AllocationId, Region>,
    pub(super) words: Words,
    /// The pin calls that wait.
    pub(super) calls: Calls,
    pub(super) prefetches: Prefetches,
    pub(super) sequences: Sequences,
    pub(super) turns: Turns,
    /// Parts that are being revoked and still pinned.
    pub(super) revoking: BTreeSet<(AllocationId, u32)>,
    /// The number of calls that may bring an allocation without a handle.
    pub(super) expected_arrivals: usize,
    pub(super) presence: Presence,
    pub(super) ending: Option<Ending>,
    draining: bool,
}

/// How a session ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Ending {
    /// The daemon ended it, with its reason.
    Refused(Error),
    /// The channel ended without a reason.
    Closed,
}

impl Ending {
    pub(crate) fn error(&self) -> Error {
        match self {
            Self::Refused(error) => error.clone(),
            Self::Closed => Error::broker_gone("the daemon ended the channel"),
        }
    }
}

/// Changes to be reported to the daemon.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Report {
    pub(crate) mapped: Vec<PartRef>,
    pub(crate) unmapped: Vec<UnmappedPart>,
    /// Pin calls that have ended.
    pub(crate) ended: Vec<u64>,
}

impl Table {
    pub(crate) fn new(mode: Mode, gpus: Gpus, words: Words, pressures: Pressures) -> Self {
        let (view, wake) = (words.view(), words.wake());
        let state = TableState {
            regions: BTreeMap::new(),
            words,
            calls: Calls::default(),
            prefetches: Prefetches::default(),
            sequences: Sequences::default(),
            turns: Turns::default(),
            revoking: BTreeSet::new(),
            expected_arrivals: 0,
            presence: Presence::default(),
            ending: None,
            draining: false,
        };
        let (state, changed, ended) = (Mutex::new(state), Changed::default(), watch::Sender::new(false));
        let managed = ManagedOrders::default();
        Self { mode, gpus, pressures, managed, view, wake, state, changed, ended, revokes: Arc::default() }
    }

    /// Whether the SDK maps parts; otherwise it hands them over to the program.
    pub(crate) fn maps_itself(&self) -> bool {
        self.mode == Mode::Map
    }

    /// Whether [`Self::prepare`] may have devices to prepare.
    pub(crate) fn has_unknown_devices(&self) -> bool {
        self.mode == Mode::Map && self.gpus.has_unknown()
    }

    /// The context of a device of the daemon, retained while the session lives.
    pub(crate) fn context_of_device(&self, index: u32) -> std::result::Result<Arc<Context>, String> {
        self.gpus.context(index)
    }

    /// Prepares the devices whose memory a packet brings.
    pub(crate) fn prepare(&self, map: &Map) {
        for part in &map.parts {
            self.gpus.prepare(part.device, is_of_cuda(part.handle_type()));
        }
    }

    /// Maps the parts of one packet. If not all its descriptors arrived, all its parts fail: the SDK cannot tell
    /// which descriptors are missing. An error means that the daemon takes something for unmapped that is not: the
    /// channel cannot go on.
    pub(crate) fn map(&self, map: Map, fds: Vec<OwnedFd>, fds_lost: bool) -> Result<Report, String> {
        let mut state = self.lock();
        let mut answer = Report::default();
        if state.ending.is_some() {
            return Ok(answer);
        }
        let expected = map.parts.iter().filter(|part| has_descriptor(part.handle_type())).count();
        let problem = if state.presence.is_away() {
            Some("the session's memory is away".to_owned())
        } else if fds_lost {
            Some("not all descriptors could be received: raise RLIMIT_NOFILE".to_owned())
        } else {
            (fds.len() != expected).then(|| format!("{} descriptors arrived for {expected} parts", fds.len()))
        };
        let mut fds = fds.into_iter();
        let mut outcomes = Vec::new();
        let mut imports = Vec::new();
        for part in map.parts {
            let Some(part_ref) = part.part else { continue };
            // Also for parts that fail, so that a later claim gets the failure.
            state.region(part_ref);
            let outcome = match &problem {
                Some(problem) => Err(problem.clone()),
                None => self
                    .accept(&mut state, part_ref, &part, &mut fds)?
                    .map(|imported| imports.extend(imported)),
            };
            outcomes.push((part_ref, outcome));
        }
        state.mark_lost_slots();
        state.grant(&mut outcomes)?;
        for (part_ref, outcome) in outcomes {
            match outcome {
                Ok(()) => answer.mapped.push(part_ref),
                Err(problem) => answer.unmapped.push(UnmappedPart {
                    part: Some(part_ref),
                    reason: UnmapReason::MapFailed.into(),
                    detail: problem,
                    ..UnmappedPart::default()
                }),
            }
        }
        answer.ended = state.calls.take_complete();
        self.changed.notify_all();
        drop(state);
        // Threads that wait for the memory run already; the imports are released behind them.
        drop(imports);
        Ok(answer)
    }

    fn accept(
        &self,
        state: &mut TableState,
        part_ref: PartRef,
        part: &MapPart,
        fds: &mut impl Iterator<Item = OwnedFd>,
    ) -> Result<Result<Option<Imported>, String>, String> {
        let fd = if has_descriptor(part.handle_type()) { fds.next() } else { None };
        let (region, words) = state.region(part_ref);
        if self.mode == Mode::Map && region.parts.contains_key(&part_ref.part_index) {
            return Err(format!("the daemon sent {part_ref:?} again, which is mapped"));
        }
        Ok(region.accept(self.mode, &self.gpus, words, part, fd))
    }

    /// Handles a revoke frame. Parts that are not mapped were unmapped before, and that report is on its way. Pinned
    /// parts are unmapped when their last pin ends, by [`Self::unmap_unpinned`]. An error means that something is
    /// mapped that should not be: the channel cannot go on.
    pub(crate) fn revoke(&self, revoke: &Revoke) -> Result<Report, String> {
        let mut state = self.lock();
        if revoke.reason() == RevokeReason::Lost {
            revoke.parts.iter().for_each(|part| state.mark_content_lost(part));
            self.changed.notify_all();
            return Ok(Report::default());
        }
        self.revokes.fetch_add(1, Ordering::Release);
        let mut answer = Report::default();
        for of_one in revoke.parts.chunk_by(|one, next| one.allocation_id == next.allocation_id) {
            let Some(id) = of_one.first().map(|part| AllocationId::from_raw(part.allocation_id)) else {
                continue;
            };
            let indexes: Vec<u32> = of_one.iter().map(|part| part.part_index).collect();
            let TableState { regions, words, .. } = &mut *state;
            let Some(region) = regions.get_mut(&id) else { continue };
            let left = region.revoke(&indexes, revoke.reason(), words)?;
            state.record_outcomes(id, left, &mut answer);
        }
        self.changed.notify_all();
        Ok(answer)
    }

    /// Unmaps the parts that are being revoked and have no pin left.
    pub(crate) fn unmap_unpinned(&self) -> Result<Report, String> {
        let mut state = self.lock();
        let answer = state.unmap_unpinned()?;
        self.changed.notify_all();
        Ok(answer)
    }

    /// Unmaps an allocation at the program's request. With `forget` its address is given up as well, once nothing is
    /// mapped there. The caller makes sure that no guard of it is left.
    pub(crate) fn unmap(&self, id: AllocationId, forget: bool) -> Result<Report, String> {
        let mut state = self.lock();
        let TableState { regions, words, revoking, .. } = &mut *state;
        let mut answer = Report::default();
        if let Some(region) = regions.get_mut(&id) {
            region.wants_handle_pins = false;
            let gone = region.unmap_all(words)?;
            revoking.retain(|(other, index)| *other != id || region.parts.contains_key(index));
            answer.unmapped = gone.into_iter().map(|(index, written)| done(id, index, written)).collect();
            if forget {
                // The handle still exists if the daemon has refused to release the allocation.
                region.slots_lost.store(true, Ordering::Release);
                region.forgotten = true;
            }
            state.release_address(id);
        }
        self.changed.notify_all();
        Ok(answer)
    }

    /// Makes the caller the owner of an allocation, whether parts have arrived or not.
    pub(crate) fn claim(&self, id: AllocationId, label: Label) -> Result<()> {
        let mut state = self.lock();
        let TableState { regions, words, .. } = &mut *state;
        let region = regions.entry(id).or_default();
        if region.claimed {
            return Err(Error::refused(Reason::StillMapped, &[("allocation", &id)]));
        }
        region.claimed = true;
        region.label = label;
        // Pins the parts that arrived before the claim, unless they are being revoked: `is_away` reports those.
        let _ = region.take_handle_pins(words);
        Ok(())
    }

    /// The view of the pin words for any thread.
    pub(crate) fn view(&self) -> WordsView {
        self.view.clone()
    }

    /// The address that an allocation keeps as long as it is claimed.
    pub(crate) fn base(&self, id: AllocationId) -> Option<Base> {
        self.lock().regions.get(&id)?.base()
    }

    /// Takes the addresses of an allocation of which nothing is mapped.
    pub(crate) fn take_space(&self, id: AllocationId) -> Option<Space> {
        self.lock().regions.get_mut(&id)?.take_space()
    }

    /// Has the parts of an allocation arrive at these addresses.
    pub(crate) fn put_space(&self, id: AllocationId, space: Space) {
        if let Some(region) = self.lock().regions.get_mut(&id) {
            region.put_space(space);
        }
    }

    /// How many parts of an allocation are mapped with that access; with any access, if none is named.
    pub(crate) fn mapped_count(&self, id: AllocationId, access: Option<Access>) -> usize {
        self.lock().regions.get(&id).map_or(0, |region| region.mapped_count(access))
    }

    /// Whether the daemon is revoking an allocation or has revoked it.
    pub(crate) fn is_revoked(&self, id: AllocationId) -> bool {
        self.lock().regions.get(&id).is_some_and(|region| region.revoked.is_some())
    }

    pub(crate) fn hand_over(&self, id: AllocationId) -> Vec<RawPart> {
        self.lock().regions.get_mut(&id).map(Region::hand_over).unwrap_or_default()
    }

    /// Sets whether handed-over parts may be returned when the daemon revokes them.
    pub(crate) fn set_yielded(&self, id: AllocationId, yielded: bool) {
        if let Some(region) = self.lock().regions.get_mut(&id) {
            region.yielded = yielded;
        }
    }

    pub(crate) fn set_draining(&self, draining: bool) {
        self.lock().draining = draining;
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.lock().draining
    }

    /// Ends the session: mappings stand, and waiting callers are woken. The first ending counts.
    pub(crate) fn end(&self, ending: Ending) {
        let mut state = self.lock();
        let TableState { regions, words, revoking, .. } = &mut *state;
        regions.values_mut().for_each(|region| region.keep_mapped(words));
        revoking.clear();
        state.ending.get_or_insert(ending);
        drop(state);
        self.changed.notify_all();
        self.pressures.end();
        self.ended.send_replace(true);
    }

    /// Unmaps everything, after the end of the session and of all its handles.
    pub(crate) fn unmap_all(&self) -> Report {
        let mut answer = Report::default();
        let mut state = self.lock();
        let TableState { regions, words, revoking, .. } = &mut *state;
        revoking.clear();
        for (id, mut region) in std::mem::take(regions) {
            // A region that fails to unmap is not reported as unmapped.
            let gone = region.unmap_all(words).unwrap_or_default();
            answer.unmapped.extend(gone.into_iter().map(|(index, written)| done(id, index, written)));
        }
        drop(state);
        self.gpus.release();
        answer
    }

    pub(crate) fn ending(&self) -> Option<Ending> {
        self.lock().ending.clone()
    }

    pub(crate) fn ended(&self) -> watch::Receiver<bool> {
        self.ended.subscribe()
    }

    /// The counter of revokes; each is counted before its parts are unmapped.
    pub(crate) fn revokes(&self) -> &Arc<AtomicU64> {
        &self.revokes
    }

    /// Whether the session has ended and maps nothing any more.
    pub(crate) fn is_unmapped(&self) -> bool {
        let state = self.lock();
        state.ending.is_some() && state.regions.values().all(|region| region.mapped_count(None) == 0)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, TableState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TableState {
    /// The region of an arriving part, known or new; and the words.
    fn region(&mut self, part: PartRef) -> (&mut Region, &mut Words) {
        let wants_handle_pins = self.expected_arrivals > 0;
        let id = AllocationId::from_raw(part.allocation_id);
        let region = self.regions.entry(id).or_insert_with(|| Region::with_handle_pins(wants_handle_pins));
        (region, &mut self.words)
    }

    /// Fails the wait for a part whose content is lost, even before its handle exists.
    fn mark_content_lost(&mut self, part: &PartRef) {
        let id = AllocationId::from_raw(part.allocation_id);
        if self.expected_arrivals > 0 || self.regions.contains_key(&id) {
            self.region(*part).0.lost = Some(part.part_index);
        }
    }

    pub(super) fn check_arrived(&mut self, id: AllocationId, parts: usize, access: Access) -> Result<bool> {
        let gone = || Error::refused(Reason::AllocationNotFound, &[("allocation", &id)]);
        let region = self.regions.get_mut(&id).ok_or_else(gone)?;
        if region.stable_count(Some(access)) >= parts {
            return Ok(true);
        }
        if let Some(problem) = region.failure.take() {
            return Err(Error::refused(Reason::MapFailed, &[("allocation", &id), ("problem", &problem)]));
        }
        if let Some(part) = region.lost.take() {
            return Err(Error::refused(Reason::ContentLost, &[("allocation", &id), ("part_index", &part)]));
        }
        if region.revoked.is_some_and(|reason| reason != RevokeReason::Sealing) {
            return Err(Error::refused(Reason::Raced, &[("allocation", &id)]));
        }
        self.ending.as_ref().map_or(Ok(false), |ending| Err(ending.error()))
    }

    /// Flags regions that lost a slot to another part. This must happen before the word of that part says that it is
    /// mapped.
    fn mark_lost_slots(&mut self) {
        for id in self.words.take_reassigned() {
            // A region that was forgotten has been flagged already.
            if let Some(region) = self.regions.get(&id) {
                region.slots_lost.store(true, Ordering::Release);
            }
        }
    }

    /// Grants access to the parts of a packet; parts that fail become failures.
    fn grant(&mut self, outcomes: &mut [(PartRef, Result<(), String>)]) -> Result<(), String> {
        let raw_ids: BTreeSet<_> = outcomes.iter().map(|(part, _)| part.allocation_id).collect();
        for raw_id in raw_ids {
            let id = AllocationId::from_raw(raw_id);
            let Some(region) = self.regions.get_mut(&id) else { continue };
            let refused: BTreeMap<_, _> = region.grant().into_iter().collect();
            for (part, outcome) in outcomes.iter_mut().filter(|(part, _)| part.allocation_id == raw_id) {
                if let Some(problem) = refused.get(&part.part_index) {
                    *outcome = Err(problem.clone());
                }
                let waiting = self.calls.waiting_for(id, part.part_index);
                match outcome {
                    // A waiting pin call gets the failure from the daemon, which keeps the part for the next call.
                    Err(_) if waiting != Waiting::default() => {}
                    Err(problem) => region.failure = Some(problem.clone()),
                    Ok(()) => {
                        region.set_mapped(part.part_index, &self.words, waiting)?;
                        let slot = region.slots.get(&part.part_index).copied();
                        self.calls.grant(id, part.part_index, slot);
                    }
                }
            }
        }
        Ok(())
    }

    /// Unmaps the parts that are being revoked and have no pin left.
    pub(super) fn unmap_unpinned(&mut self) -> Result<Report, String> {
        let mut answer = Report::default();
        let revoking: Vec<_> = std::mem::take(&mut self.revoking).into_iter().collect();
        for of_one in revoking.chunk_by(|(one, _), (next, _)| one == next) {
            let Some((id, _)) = of_one.first().copied() else { continue };
            let indexes: Vec<u32> = of_one.iter().map(|(_, index)| *index).collect();
            let Some(region) = self.regions.get_mut(&id) else { continue };
            let left = region.unmap_unpinned(&indexes, &self.words)?;
            self.record_outcomes(id, left, &mut answer);
        }
        Ok(answer)
    }

    /// Gives up the address of an allocation without a handle, if nothing is mapped there.
    fn release_address(&mut self, id: AllocationId) {
        if self.regions.get(&id).is_some_and(|region| region.forgotten && region.parts.is_empty())
            && let Some(region) = self.regions.remove(&id)
        {
            region.slots.into_values().for_each(|slot| self.words.give_back(slot));
        }
    }

    fn record_outcomes(&mut self, id: AllocationId, left: Vec<(u32, UnmapOutcome)>, answer: &mut Report) {
        for (index, left) in left {
            match left {
                UnmapOutcome::Unmapped { written } => {
                    self.revoking.remove(&(id, index));
                    answer.unmapped.push(done(id, index, written));
                }
                UnmapOutcome::Pinned => drop(self.revoking.insert((id, index))),
                UnmapOutcome::NotMapped => {}
            }
        }
        self.release_address(id);
    }
}

pub(super) fn done(id: AllocationId, part_index: u32, written: bool) -> UnmappedPart {
    let part = Some(PartRef { allocation_id: id.get(), part_index });
    UnmappedPart { part, reason: UnmapReason::Done.into(), written, ..UnmappedPart::default() }
}
