//! All regions of a session, and those who wait for one to change.
//!
//! Frames of the daemon and calls of the program both end up here; whoever changes a region while the channel stands
//! holds the channel's turn (`channel::Link`), so that frames leave in the order of the changes they tell of.

use std::{
    collections::{BTreeMap, BTreeSet},
    os::fd::OwnedFd,
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use tokio::{sync::watch, time::timeout_at};
use vramd_proto::v1::{Access, Map, MapPart, PartRef, Revoke, RevokeReason, UnmapReason, UnmappedPart};
use vramd_types::{AllocationId, Reason};

use super::{
    changed::Changed,
    copy::Window,
    region::{Mode, RawPart, Region},
    space::{Base, has_descriptor, is_of_cuda},
};
use crate::{
    cuda::{Gpus, Imported},
    error::{Error, Result},
};

#[derive(Debug)]
pub(crate) struct Table {
    mode: Mode,
    gpus: Gpus,
    state: Mutex<State>,
    changed: Changed,
    ended: watch::Sender<bool>,
    /// How often the daemon has wanted something back.
    revokes: Arc<AtomicU64>,
}

#[derive(Debug, Default)]
struct State {
    regions: BTreeMap<AllocationId, Region>,
    ending: Option<Ending>,
    draining: bool,
}

/// How a session came to its end.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Ending {
    /// By the daemon, with its reason.
    Refused(Error),
    /// Without a word.
    Closed,
}

impl Ending {
    pub(crate) fn error(&self) -> Error {
        match self {
            Self::Refused(error) => error.clone(),
            Self::Closed => Error::BrokerGone { problem: "the daemon has ended the channel".to_owned() },
        }
    }
}

/// What the daemon is to be told.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Answer {
    pub(crate) mapped: Vec<PartRef>,
    pub(crate) unmapped: Vec<UnmappedPart>,
}

impl Table {
    pub(crate) fn new(mode: Mode, gpus: Gpus) -> Self {
        Self {
            mode,
            gpus,
            state: Mutex::default(),
            changed: Changed::default(),
            ended: watch::Sender::new(false),
            revokes: Arc::default(),
        }
    }

    /// Whether [`Self::prepare`] may have something to do.
    pub(crate) fn has_unknown_devices(&self) -> bool {
        self.mode == Mode::Map && self.gpus.has_unknown()
    }

    /// Makes the devices ready of which a packet brings memory.
    pub(crate) fn prepare(&self, map: &Map) {
        for part in &map.parts {
            self.gpus.prepare(part.device, is_of_cuda(part.handle_type()));
        }
    }

    /// Maps what one packet brought. Parts of a packet whose descriptors did not all arrive are failures, all of them:
    /// nobody can tell which descriptors are missing.
    pub(crate) fn map(&self, map: Map, fds: Vec<OwnedFd>, fds_lost: bool) -> Answer {
        let mut state = self.lock();
        let mut answer = Answer::default();
        if state.ending.is_some() {
            return answer;
        }
        let expected = map.parts.iter().filter(|part| has_descriptor(part.handle_type())).count();
        let problem = if fds_lost {
            Some("the process may not open as many descriptors as came (RLIMIT_NOFILE)".to_owned())
        } else {
            (fds.len() != expected).then(|| format!("{} descriptors came for {expected} parts", fds.len()))
        };
        let mut fds = fds.into_iter();
        let mut outcomes = Vec::new();
        let mut spent = Vec::new();
        for part in map.parts {
            let Some(part_ref) = part.part else { continue };
            let region = state.regions.entry(AllocationId::from_raw(part_ref.allocation_id)).or_default();
            let outcome = match &problem {
                Some(problem) => Err(problem.clone()),
                None => self.accept(region, &part, &mut fds).map(|imported| spent.extend(imported)),
            };
            outcomes.push((part_ref, outcome));
        }
        state.grant(&mut outcomes);
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
        self.changed.notify_all();
        drop(state);
        // Who waits for the memory in another thread is on its way; the handles that it was mapped by go behind its back.
        drop(spent);
        answer
    }

    fn accept(
        &self,
        region: &mut Region,
        part: &MapPart,
        fds: &mut impl Iterator<Item = OwnedFd>,
    ) -> Result<Option<Imported>, String> {
        let fd = if has_descriptor(part.handle_type()) { fds.next() } else { None };
        region.accept(self.mode, &self.gpus, part, fd)
    }

    /// Lets go of what the daemon wants back. Parts that are not here had been let go before: that answer is on its
    /// way. Copies that are under way end first. An error means that something is mapped that should not be: the channel
    /// cannot go on.
    pub(crate) fn revoke(&self, revoke: &Revoke) -> Result<Answer, String> {
        let mut state = self.lock();
        self.revokes.fetch_add(1, Ordering::Release);
        let mut answer = Answer::default();
        let ids: BTreeSet<_> =
            revoke.parts.iter().map(|part| AllocationId::from_raw(part.allocation_id)).collect();
        // All of them take no more copies from here on, before any is waited for.
        for id in &ids {
            if let Some(region) = state.regions.get_mut(id) {
                region.revoking = true;
            }
        }
        let copied =
            |state: &State| ids.iter().any(|id| state.regions.get(id).is_some_and(|it| it.copies > 0));
        while copied(&state) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        for part in &revoke.parts {
            let Some(region) = state.regions.get_mut(&AllocationId::from_raw(part.allocation_id)) else {
                continue;
            };
            region.revoking = false;
            if region.revoke(part.part_index, revoke.reason())? {
                answer.unmapped.push(done(*part));
            }
        }
        self.changed.notify_all();
        Ok(answer)
    }

    /// Lets go of an allocation of the program's own will. With `forget` its address is given up as well.
    pub(crate) fn let_go(&self, id: AllocationId, forget: bool) -> Result<Answer, String> {
        let mut state = self.lock();
        let mut answer = Answer::default();
        if let Some(region) = state.regions.get_mut(&id) {
            let part = |part_index| done(PartRef { allocation_id: id.get(), part_index });
            answer.unmapped = region.let_go()?.into_iter().map(part).collect();
            if forget {
                state.regions.remove(&id);
            }
        }
        self.changed.notify_all();
        Ok(answer)
    }

    /// Makes the caller the one who answers for an allocation, mapped already or not yet.
    pub(crate) fn claim(&self, id: AllocationId) -> Result<()> {
        let mut state = self.lock();
        let region = state.regions.entry(id).or_default();
        if region.claimed {
            return Err(Error::refused(Reason::StillMapped, &[("allocation", &id)]));
        }
        region.claimed = true;
        Ok(())
    }

    /// Waits until so many parts of a claimed allocation are here with that access, or never will be.
    pub(crate) fn wait_held(
        &self,
        id: AllocationId,
        parts: usize,
        access: Access,
        deadline: Instant,
    ) -> Result<()> {
        let mut state = self.lock();
        while !state.is_held(id, parts, access)? {
            let patience = deadline.saturating_duration_since(Instant::now());
            if patience.is_zero() {
                return Err(Error::Deadline);
            }
            state = self.changed.wait_timeout(state, patience).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }

    /// The same for a task.
    pub(crate) async fn wait_held_async(
        &self,
        id: AllocationId,
        parts: usize,
        access: Access,
        deadline: Instant,
    ) -> Result<()> {
        loop {
            let mut changed = pin!(self.changed.notified());
            // Before the look, so that no change is missed after it.
            changed.as_mut().enable();
            if self.is_held(id, parts, access)? {
                return Ok(());
            }
            if timeout_at(deadline.into(), changed).await.is_err() {
                return if self.is_held(id, parts, access)? { Ok(()) } else { Err(Error::Deadline) };
            }
        }
    }

    /// Whether they are here now; an error if they never will be.
    pub(crate) fn is_held(&self, id: AllocationId, parts: usize, access: Access) -> Result<bool> {
        self.lock().is_held(id, parts, access)
    }

    /// Copies to or from a whole allocation, all of whose parts must be here with that access. It stays mapped
    /// meanwhile, and a revoke waits, so a long copy is many calls.
    pub(crate) fn copying(
        &self,
        id: AllocationId,
        parts: usize,
        access: Option<Access>,
        copy: impl FnOnce(&Window) -> Result<(), String>,
    ) -> Result<()> {
        let gone = || Error::NotMapped { allocation: id.to_string() };
        let window = {
            let mut state = self.lock();
            let region = state.regions.get_mut(&id).ok_or_else(gone)?;
            let window = region.window(parts, access).ok_or_else(gone)?;
            region.copies += 1;
            window
        };
        let outcome = copy(&window);
        if let Some(region) = self.lock().regions.get_mut(&id) {
            region.copies -= 1;
        }
        self.changed.notify_all();
        outcome.map_err(|problem| Error::CopyFailed { allocation: id.to_string(), problem })
    }

    /// The address that an allocation keeps as long as it is claimed.
    pub(crate) fn base(&self, id: AllocationId) -> Option<Base> {
        self.lock().regions.get(&id)?.base()
    }

    /// How many parts of an allocation are here with that access; with any, if none is named.
    pub(crate) fn held(&self, id: AllocationId, access: Option<Access>) -> usize {
        self.lock().regions.get(&id).map_or(0, |region| region.held(access))
    }

    /// Whether the daemon wants an allocation back, or has it back.
    pub(crate) fn is_revoked(&self, id: AllocationId) -> bool {
        self.lock().regions.get(&id).is_some_and(|region| region.revoked.is_some())
    }

    pub(crate) fn hand_over(&self, id: AllocationId) -> Vec<RawPart> {
        self.lock().regions.get_mut(&id).map(Region::hand_over).unwrap_or_default()
    }

    /// Parts that were handed over may from now on be given back when the daemon asks.
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

    /// The session is over: what is mapped stands, who waits is woken. The first ending counts.
    pub(crate) fn end(&self, ending: Ending) {
        self.lock().ending.get_or_insert(ending);
        self.changed.notify_all();
        self.ended.send_replace(true);
    }

    /// Lets go of everything, after the end of the session and of all its handles.
    pub(crate) fn clear(&self) -> Answer {
        let mut answer = Answer::default();
        for (id, mut region) in std::mem::take(&mut self.lock().regions) {
            let part = |part_index| done(PartRef { allocation_id: id.get(), part_index });
            // What fails to go is not said to be gone.
            answer.unmapped.extend(region.let_go().unwrap_or_default().into_iter().map(part));
        }
        self.gpus.let_go();
        answer
    }

    pub(crate) fn ending(&self) -> Option<Ending> {
        self.lock().ending.clone()
    }

    pub(crate) fn ended(&self) -> watch::Receiver<bool> {
        self.ended.subscribe()
    }

    /// Counts what the daemon has wanted back, each before it goes.
    pub(crate) fn revokes(&self) -> &Arc<AtomicU64> {
        &self.revokes
    }

    /// Whether the session has ended and nothing of it is mapped any more.
    pub(crate) fn is_over(&self) -> bool {
        let state = self.lock();
        state.ending.is_some() && state.regions.values().all(|region| region.held(None) == 0)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_held(&mut self, id: AllocationId, parts: usize, access: Access) -> Result<bool> {
        let gone = || Error::AllocationNotFound { allocation: id.to_string() };
        let region = self.regions.get_mut(&id).ok_or_else(gone)?;
        if region.held(Some(access)) >= parts {
            return Ok(true);
        }
        if let Some(problem) = region.failure.take() {
            return Err(Error::MapFailed { allocation: id.to_string(), problem });
        }
        if region.revoked.is_some_and(|reason| reason != RevokeReason::Sealing) {
            return Err(Error::refused(Reason::Raced, &[("allocation", &id)]));
        }
        self.ending.as_ref().map_or(Ok(false), |ending| Err(ending.error()))
    }

    /// Opens what a packet has mapped; parts that cannot be opened become failures.
    fn grant(&mut self, outcomes: &mut [(PartRef, Result<(), String>)]) {
        let ids: BTreeSet<_> = outcomes.iter().map(|(part, _)| part.allocation_id).collect();
        for id in ids {
            let Some(region) = self.regions.get_mut(&AllocationId::from_raw(id)) else { continue };
            let refused: BTreeMap<_, _> = region.grant().into_iter().collect();
            for (part, outcome) in outcomes.iter_mut().filter(|(part, _)| part.allocation_id == id) {
                if let Some(problem) = refused.get(&part.part_index) {
                    *outcome = Err(problem.clone());
                }
                if let Err(problem) = outcome {
                    region.failure = Some(problem.clone());
                }
            }
        }
    }
}

fn done(part: PartRef) -> UnmappedPart {
    UnmappedPart { part: Some(part), reason: UnmapReason::Done.into(), ..UnmappedPart::default() }
}
