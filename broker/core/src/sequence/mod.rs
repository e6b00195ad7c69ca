//! Declared sequences: the order in which clients will use parts. See `handler/sequence` for the steps.
//!
//! ```text
//!   steps   0   1   2 │ 3   4   5 │ 6   7   8   9     counted over all passes
//!           passed    ▲ the window            ▲
//!                     │ 3 is begun            └ a part that is needed here leaves before one that is needed at 6
//! ```
//!
//! The window has the steps that the daemon brings ahead of the one that the program has begun. It makes a prefetch
//! request for each of them. A part is needed at the nearest step that uses it: the one that is begun, or a later one.
//! In a loop, that is at most one pass ahead. The table answers this by a binary search in the sorted uses.

mod kept;
mod need;
mod table;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use vramd_types::{AllocationId, Bytes, DeviceIndex, PartIndex, SessionId};

use crate::{
    error::Refusal,
    event::PartRef,
    limits::{SEQUENCE_AHEAD_MAX, SEQUENCE_AHEAD_MIN},
    tenancy::TenantId,
    time::Time,
};
pub(crate) use need::Need;
pub(crate) use table::Sequences;

/// A sequence, by its session and the number that the client gave it.
pub(crate) type SequenceId = (SessionId, u64);

/// One new measurement of the time of a step counts as one of so many.
const SMOOTHING: u32 = 4;

/// Parts of an allocation in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartRange {
    pub allocation: AllocationId,
    pub first: PartIndex,
    pub count: u32,
}

/// The content of a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SequenceSpec {
    /// The parts that the program uses in each step of a pass, all of them on one device.
    pub steps: Vec<Vec<PartRange>>,
    /// How often the program goes through all steps; 0 means without end.
    pub passes: u64,
}

/// How a sequence stands, as its client is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SequenceState {
    /// The daemon has taken it, or works another distance ahead.
    Window(SequenceWindow),
    /// The daemon could not take it, or its session lost memory of it.
    Refused(Refusal),
    Ended {
        by_operator: bool,
    },
}

/// How far ahead of a sequence the daemon works.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SequenceWindow {
    /// Steps after the one that is begun.
    pub steps: u32,
    /// All parts of these steps.
    pub bytes: Bytes,
    /// Whether the daemon would work further ahead if the device had more room for the tenant.
    pub shortened: bool,
    /// Bytes of a pass that stay on the device from one pass to the next. The others are copied in each pass.
    pub kept: Bytes,
}

/// A step of a sequence of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequencePlace {
    /// The client's number for the sequence.
    pub sequence: u64,
    /// Counted over all passes, from 0.
    pub step: u64,
}

/// The parts of a step.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) parts: Vec<PartRef>,
    pub(crate) bytes: Bytes,
}

/// A sequence that has not ended.
#[derive(Debug)]
pub(crate) struct Sequence {
    /// The tenant of the session.
    pub(crate) tenant: TenantId,
    pub(crate) device: DeviceIndex,
    /// The steps of one pass. There is at least one.
    steps: Vec<Step>,
    /// Each part with each step of a pass that uses it, sorted.
    uses: Vec<(PartRef, u32)>,
    passes: u64,
    /// The step that is begun, and since when.
    begun: Option<(u64, Time)>,
    /// How long a step takes, as measured.
    step_time: Option<Duration>,
    pub(crate) window: SequenceWindow,
    /// Parts that stay on the device, sorted, and the pass at whose begin they were chosen.
    pub(crate) kept: Vec<PartRef>,
    kept_since: Option<u64>,
    /// The steps ahead for which there is a request, with its number.
    pub(crate) requests: BTreeMap<u64, u64>,
}

impl Sequence {
    pub(crate) fn new(tenant: TenantId, device: DeviceIndex, steps: Vec<Step>, passes: u64) -> Self {
        let each = (0..).zip(&steps);
        let uses = each.flat_map(|(at, step): (u32, _)| step.parts.iter().map(move |part| (*part, at)));
        let mut uses: Vec<_> = uses.collect();
        uses.sort_unstable();
        Self {
            tenant,
            device,
            steps,
            uses,
            passes,
            begun: None,
            step_time: None,
            window: SequenceWindow::default(),
            kept: Vec::new(),
            kept_since: None,
            requests: BTreeMap::new(),
        }
    }

    /// The steps of a pass.
    pub(crate) fn pass_len(&self) -> u64 {
        u64::try_from(self.steps.len()).unwrap_or(u64::MAX).max(1)
    }

    /// All uses of parts in a pass.
    pub(crate) const fn use_count(&self) -> usize {
        self.uses.len()
    }

    /// The number of steps of all passes.
    pub(crate) fn step_count(&self) -> u64 {
        match self.passes {
            0 => u64::MAX,
            passes => passes.saturating_mul(self.pass_len()),
        }
    }

    pub(crate) fn step(&self, step: u64) -> Option<&Step> {
        let at = step.checked_rem(self.pass_len())?;
        self.steps.get(usize::try_from(at).ok()?)
    }

    pub(crate) fn has_part(&self, part: PartRef) -> bool {
        self.use_at_or_after(part, 0).is_some()
    }

    /// The first of its parts in an allocation.
    pub(crate) fn first_part_of(&self, allocation: AllocationId) -> Option<PartRef> {
        let first = PartRef { allocation, part: PartIndex(0) };
        let at = self.uses.partition_point(|used| *used < (first, 0));
        self.uses.get(at).map(|(part, _)| *part).filter(|part| part.allocation == allocation)
    }

    pub(crate) fn allocations(&self) -> BTreeSet<AllocationId> {
        self.uses.iter().map(|(part, _)| part.allocation).collect()
    }

    /// The step that is begun.
    pub(crate) fn begun(&self) -> Option<u64> {
        self.begun.map(|(step, _)| step)
    }

    /// The step from which on parts are needed.
    pub(crate) fn now_at(&self) -> u64 {
        self.begun().unwrap_or_default()
    }

    /// The first step that is not begun.
    pub(crate) fn first_ahead(&self) -> u64 {
        self.begun().map_or(0, |step| step.saturating_add(1))
    }

    /// The step after the window.
    pub(crate) fn window_end(&self) -> u64 {
        self.first_ahead().saturating_add(self.window.steps.into())
    }

    /// The step at which a part is needed next. It may lie after the last pass.
    pub(crate) fn next_use(&self, part: PartRef) -> Option<u64> {
        let (now, pass_len) = (self.now_at(), self.pass_len());
        let within = now.checked_rem(pass_len)?;
        let pass_begin = now.saturating_sub(within);
        if let Some(step) = self.use_at_or_after(part, within) {
            return Some(pass_begin.saturating_add(step));
        }
        let step = self.use_at_or_after(part, 0)?;
        Some(pass_begin.saturating_add(pass_len).saturating_add(step))
    }

    /// When the sequence needs a part next; `None` if it never names it.
    pub(crate) fn need_of(&self, part: PartRef) -> Option<Need> {
        let need = self.next_use(part).map(|step| self.need_at(step))?;
        Some(Need { is_kept: need != Need::NEVER && self.is_kept(part), ..need })
    }

    /// The need of a part whose next use is at this step.
    pub(crate) fn need_at(&self, step: u64) -> Need {
        match step < self.step_count() {
            true => Need {
                steps: step.saturating_sub(self.now_at()),
                is_ahead: step < self.window_end(),
                is_kept: false,
            },
            false => Need::NEVER,
        }
    }

    fn use_at_or_after(&self, part: PartRef, within: u64) -> Option<u64> {
        let from = u32::try_from(within).ok()?;
        let at = self.uses.partition_point(|used| *used < (part, from));
        self.uses.get(at).filter(|(found, _)| *found == part).map(|(_, step)| u64::from(*step))
    }

    /// Begins a step. A time is measured only if no step was skipped.
    pub(crate) fn begin_step(&mut self, step: u64, now: Time) {
        if let Some((before, since)) = self.begun
            && before.saturating_add(1) == step
        {
            let took = now.since(since);
            let weighted =
                |mean: Duration| mean.saturating_mul(SMOOTHING - 1).saturating_add(took) / SMOOTHING;
            self.step_time = Some(self.step_time.map_or(took, weighted));
        }
        self.begun = Some((step, now));
    }

    /// How many steps ahead the daemon works. `copy_time` is that of an average step; `None` if it is not known.
    pub(crate) fn distance(&self, copy_time: Option<Duration>) -> u64 {
        let wanted = steps_to_hide(copy_time, self.step_time);
        wanted.map_or(SEQUENCE_AHEAD_MIN, |steps| steps.clamp(SEQUENCE_AHEAD_MIN, SEQUENCE_AHEAD_MAX))
    }

    /// The bytes of an average step.
    pub(crate) fn mean_bytes(&self) -> Bytes {
        let sum = self.steps.iter().map(|step| step.bytes).fold(Bytes::ZERO, Bytes::saturating_add);
        Bytes::new(sum.get() / self.pass_len())
    }
}

/// How many steps ahead hide the time of a copy behind that of a step, if both are known.
pub(crate) fn steps_to_hide(copy: Option<Duration>, step: Option<Duration>) -> Option<u64> {
    // A fifth more, since times vary.
    let copy = copy?.as_micros().saturating_mul(6) / 5;
    let steps = copy.div_ceil(step?.as_micros().max(1));
    Some(u64::try_from(steps).unwrap_or(u64::MAX))
}

/// A sequence that has not ended, as seen from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SequenceView {
    pub session: SessionId,
    /// The client's number.
    pub number: u64,
    pub tenant: Arc<str>,
    /// The UUID.
    pub device: String,
    /// The step that is begun, counted over all passes.
    pub begun: Option<u64>,
    pub window: SequenceWindow,
}
