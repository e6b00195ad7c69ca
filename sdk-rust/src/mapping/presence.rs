//! The table's part for a session whose memory is away as a whole: nothing is mapped, and nothing comes until the program
//! says so.
//!
//! ```text
//!         begin_leaving        leave             begin_returning            stay
//!  Here ───────────────► Leaving ─────► Away ────────────────────► Returning ─────────► Here
//!   ▲       stay         │    │          ▲          leave           │   ▲
//!   ╰────────────────────╯    │          ╰──────────────────────────╯   │
//!                             ╰─────────────── turn_back ───────────────╯
//! ```
//!
//! Everywhere but in `Here` the program's calls that bring memory are refused. They are checked under the table's lock,
//! so a call has either begun before `Leaving`, which then waits for it ([`Obstacles::is_brief`]), or is refused.

use std::{collections::BTreeSet, sync::atomic::Ordering};

use vramd_types::{AllocationId, Reason};

use super::{
    PinTarget, Report, Table,
    region::Mode,
    table::{TableState, done},
};
use crate::{
    cuda::Gpus,
    error::{Error, Result},
    handles::info::{AllocationInfo, AllocationKind},
};

#[derive(Debug, Default)]
pub(super) struct Presence {
    phase: Phase,
    /// Calls other than those of `expected_arrivals` and `calls` that may bring memory.
    bringing: usize,
    /// Allocations that this session has unmapped of its own will: it attaches them before it pins them again.
    to_attach: BTreeSet<AllocationId>,
    /// A part that the daemon may still take for mapped: it has not answered since that was reported.
    unheard: Option<PinTarget>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Here,
    /// Calls are refused, and what is mapped stays so far.
    Leaving,
    Away,
    /// Only the thread that brings the memory back may pin.
    Returning,
}

/// The facts of an allocation that errors name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Label {
    name: Option<String>,
    is_fixed: bool,
}

/// While it lives, a call may bring memory.
#[derive(Debug)]
pub(crate) struct Bringing<'a>(&'a Table);

/// The reasons why the memory of a session cannot leave.
#[derive(Debug, Default)]
pub(crate) struct Obstacles {
    /// Allocations with guards, each with its number of pins.
    pub(crate) pinned: Vec<(AllocationId, u64)>,
    /// Everything else that is in the way, one sentence each.
    pub(crate) others: Vec<String>,
    /// Calls of other threads that bring memory, and may end at any moment.
    pub(crate) is_brief: bool,
}

impl Label {
    pub(crate) fn of(info: &AllocationInfo) -> Self {
        Self { name: info.name.clone(), is_fixed: info.kind == AllocationKind::Fixed }
    }
}

impl Presence {
    /// Whether nothing may be mapped.
    pub(super) fn is_away(&self) -> bool {
        self.phase == Phase::Away
    }
}

impl TableState {
    /// Refuses a call that brings memory, unless the session's memory is here. After the end of the session the call finds
    /// out about that.
    pub(super) fn check_here(&self) -> Result<()> {
        let is_refused = self.presence.phase != Phase::Here && self.ending.is_none();
        if is_refused { Err(Error::Away) } else { Ok(()) }
    }
}

impl Table {
    /// Refuses while the session's memory is away.
    pub(crate) fn check_here(&self) -> Result<()> {
        self.lock().check_here()
    }

    /// Whether the session's memory is neither away nor on its way.
    pub(crate) fn is_here(&self) -> bool {
        self.lock().presence.phase == Phase::Here
    }

    /// Counts a call that may bring memory, or refuses it.
    pub(crate) fn begin_bringing(&self) -> Result<Bringing<'_>> {
        let mut state = self.lock();
        state.check_here()?;
        state.presence.bringing += 1;
        Ok(Bringing(self))
    }

    /// Refuses calls that bring memory from now on.
    pub(crate) fn begin_leaving(&self) -> Result<()> {
        let mut state = self.lock();
        if let Some(ending) = &state.ending {
            return Err(ending.error());
        }
        state.check_here()?;
        if self.mode != Mode::Map || !state.words.is_shared() {
            let problem = "the program maps memory itself, or the daemon maps it without being asked";
            let facts: [(&str, &dyn ToString); 2] = [("field", &"session"), ("problem", &problem)];
            return Err(Error::refused_because(Reason::RequestInvalid, problem.to_owned(), &facts));
        }
        state.presence.phase = Phase::Leaving;
        // Pools look again whether their chunks are mapped.
        self.revokes().fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Allows calls again: the memory stays.
    pub(crate) fn stay(&self) {
        self.lock().presence.phase = Phase::Here;
        self.changed.notify_all();
    }

    /// Returns the reasons why the memory cannot leave.
    pub(crate) fn obstacles(&self) -> Obstacles {
        let state = self.lock();
        let mut found = Obstacles::default();
        for (id, region) in &state.regions {
            let pins = region.guard_pins(&state.words);
            if pins > 0 {
                found.pinned.push((*id, pins));
            }
            if region.label.is_fixed && !region.parts.is_empty() {
                found.others.push(format!("{} is fixed memory, which stays mapped", region.label.say(*id)));
            }
        }
        let running = state.sequences.running();
        found
            .others
            .extend(running.map(|number| format!("the declared sequence {number} is running: end it")));
        if state.turns.has_turn() {
            found.others.push("the session has a turn, or waits for one: yield first".to_owned());
        }
        let awaited: BTreeSet<_> = state.calls.waiting().map(|part| part.id).collect();
        let label =
            |id: &AllocationId| state.regions.get(id).map_or_else(|| id.to_string(), |it| it.label.say(*id));
        let awaited = awaited.iter().map(|id| format!("a call waits for {}", label(id)));
        let before = found.others.len();
        found.others.extend(awaited);
        if state.expected_arrivals + state.presence.bringing > 0 {
            found.others.push("a call of another thread allocates, attaches or seals memory".to_owned());
        }
        found.is_brief = found.others.len() > before;
        found
    }

    /// The name of an allocation for errors.
    pub(crate) fn say(&self, id: AllocationId) -> String {
        self.lock().regions.get(&id).map_or_else(|| id.to_string(), |region| region.label.say(id))
    }

    /// Unmaps all parts that no guard pins, and reports them. Nothing is mapped from now on, unless some are still pinned.
    /// An error means that something is mapped that should not be: the channel cannot go on.
    pub(crate) fn leave(&self) -> Result<Left, String> {
        let mut state = self.lock();
        if state.ending.is_some() {
            // No daemon has the bytes any more: what is mapped is all that there is.
            return Ok(Left { is_whole: false, ..Left::default() });
        }
        let TableState { regions, words, revoking, presence, .. } = &mut *state;
        let mut left = Left::default();
        for (id, region) in regions.iter_mut() {
            let gone = region.leave(*id, words)?;
            revoking.retain(|(other, index)| other != id || region.parts.contains_key(index));
            left.is_whole &= region.parts.is_empty();
            if let Some((index, _)) = gone.first() {
                left.allocations.push((*id, gone.iter().map(|(index, _)| *index).collect()));
                presence.to_attach.insert(*id);
                let access = vramd_words::Access::Read;
                presence.unheard = Some(PinTarget { id: *id, index: *index, slot: None, access });
            }
            left.report.unmapped.extend(gone.into_iter().map(|(index, written)| done(*id, index, written)));
        }
        if left.is_whole {
            presence.phase = Phase::Away;
        }
        self.changed.notify_all();
        Ok(left)
    }

    /// Allows the calling thread alone to bring memory. Returns false if the memory is here.
    pub(crate) fn begin_returning(&self) -> Result<bool> {
        let mut state = self.lock();
        match (state.presence.phase, &state.ending) {
            // Some may not have come back when the memory could not leave.
            (Phase::Here, _) if state.presence.to_attach.is_empty() => return Ok(false),
            (_, Some(ending)) => return Err(ending.error()),
            (Phase::Leaving | Phase::Returning, None) => return Err(Error::Away),
            (Phase::Here | Phase::Away, None) => {}
        }
        state.presence.phase = Phase::Returning;
        for region in state.regions.values_mut() {
            // Parts that the daemon sent meanwhile were refused.
            (region.failure, region.lost) = (None, None);
        }
        Ok(true)
    }

    /// Allows the calling thread alone to bring memory: what has left so far comes back.
    pub(crate) fn turn_back(&self) {
        self.lock().presence.phase = Phase::Returning;
    }

    /// The allocations of the program that have to be attached again.
    pub(crate) fn to_attach(&self) -> Vec<AllocationId> {
        let mut state = self.lock();
        let TableState { regions, presence, .. } = &mut *state;
        presence
            .to_attach
            .retain(|id| regions.get(id).is_some_and(|region| region.claimed && !region.forgotten));
        presence.to_attach.iter().copied().collect()
    }

    /// Takes the part whose unmapping the daemon may not have heard of.
    pub(crate) fn take_unheard(&self) -> Option<PinTarget> {
        self.lock().presence.unheard.take()
    }

    pub(crate) fn record_attached(&self, id: AllocationId) {
        self.lock().presence.to_attach.remove(&id);
    }

    /// The prefetch requests that may still bring something.
    pub(crate) fn pending_prefetches(&self) -> Vec<u64> {
        self.lock().prefetches.pending()
    }

    pub(crate) fn gpus(&self) -> &Gpus {
        &self.gpus
    }
}

/// The outcome of [`Table::leave`].
#[derive(Debug)]
pub(crate) struct Left {
    pub(crate) report: Report,
    /// The allocations of which parts were unmapped, with these parts.
    pub(crate) allocations: Vec<(AllocationId, Vec<u32>)>,
    /// Nothing is mapped any more.
    pub(crate) is_whole: bool,
}

impl Default for Left {
    fn default() -> Self {
        Self { report: Report::default(), allocations: Vec::new(), is_whole: true }
    }
}

impl Label {
    fn say(&self, id: AllocationId) -> String {
        self.name.as_ref().map_or_else(|| id.to_string(), |name| format!("{id} (`{name}`)"))
    }
}

impl Drop for Bringing<'_> {
    fn drop(&mut self) {
        self.0.lock().presence.bringing -= 1;
        self.0.changed.notify_all();
    }
}
