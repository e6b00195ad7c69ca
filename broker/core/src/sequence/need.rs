//! How soon parts are needed, and the order that follows.

use vramd_types::DeviceIndex;

use super::{Sequence, SequenceId, Sequences};
use crate::{event::PartRef, tenancy::TenantId};

/// How soon a part is needed by the sequences of its tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Need {
    /// Steps after the one that is begun; 0 if that one needs it.
    pub(crate) steps: u64,
    /// Whether it is needed in the step that is begun, or in the window.
    pub(crate) is_ahead: bool,
    /// Whether it stays on the device from pass to pass.
    pub(crate) is_kept: bool,
}

impl Need {
    /// No further step of the sequence needs the part.
    pub(crate) const NEVER: Self = Self { steps: u64::MAX, is_ahead: false, is_kept: false };

    /// The need of a part that two sequences name.
    pub(crate) const fn nearer(self, other: Self) -> Self {
        let steps = if self.steps < other.steps { self.steps } else { other.steps };
        let (is_ahead, is_kept) = (self.is_ahead || other.is_ahead, self.is_kept || other.is_kept);
        Self { steps, is_ahead, is_kept }
    }
}

/// The sequences of a tenant on one device, for a walk from the farthest step to the nearest.
#[derive(Clone)]
struct Walk<'a> {
    of_tenant: Vec<(SequenceId, &'a Sequence)>,
    which: Which,
}

/// Which of the parts that sequences need again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    /// Beyond the windows, and copied anew in each pass.
    Streamed,
    /// Beyond the windows, and kept from pass to pass.
    Kept,
    Ahead,
}

impl Which {
    const fn of(need: Need) -> Self {
        match need {
            Need { is_ahead: true, .. } => Self::Ahead,
            Need { is_kept: true, .. } => Self::Kept,
            Need { .. } => Self::Streamed,
        }
    }
}

impl Sequences {
    /// Parts that the sequences of a tenant on a device name, each once: only those that are needed in a window, or only
    /// those beyond. First come parts that are never needed again, then streamed and then kept ones, each time first the
    /// one that is needed last.
    pub(crate) fn by_need(
        &self,
        (tenant, device): (TenantId, DeviceIndex),
        is_ahead: bool,
    ) -> impl Iterator<Item = PartRef> {
        let of_tenant: Vec<_> = self.of_tenant(tenant).filter(|(_, it)| it.device == device).collect();
        let longest = of_tenant.iter().map(|(_, sequence)| sequence.pass_len()).max().unwrap_or_default();
        let may_end = of_tenant.iter().any(|(_, sequence)| {
            sequence.now_at().saturating_add(sequence.pass_len()) > sequence.step_count()
        });
        let over = Walk { of_tenant: of_tenant.clone(), which: Which::Streamed };
        let never = (0..longest).rev().filter(move |_| may_end && !is_ahead);
        let never = never.flat_map(move |steps| over.parts_at(steps, true));
        let in_turn: &[Which] = if is_ahead { &[Which::Ahead] } else { &[Which::Streamed, Which::Kept] };
        let again = in_turn.iter().flat_map(move |which| {
            let walk = Walk { of_tenant: of_tenant.clone(), which: *which };
            (0..longest).rev().flat_map(move |steps| walk.parts_at(steps, false))
        });
        never.chain(again)
    }
}

impl<'a> Walk<'a> {
    /// The parts that are needed after so many steps; or those of this step that are never needed again.
    fn parts_at(&self, steps: u64, is_over: bool) -> Vec<PartRef> {
        let mut found = Vec::new();
        for (id, sequence) in &self.of_tenant {
            let at = sequence.now_at().saturating_add(steps);
            let need = sequence.need_at(at);
            if steps >= sequence.pass_len() || (need == Need::NEVER) != is_over {
                continue;
            }
            let parts = sequence.step(at).into_iter().flat_map(|step| step.parts.iter().copied());
            let parts = parts.filter(|part| sequence.next_use(*part) == Some(at));
            found.extend(parts.filter(|part| self.is_first(*id, need, *part)));
        }
        found
    }

    /// Whether the need of a part is that of this sequence, and not that of one before it.
    fn is_first(&self, id: SequenceId, own: Need, part: PartRef) -> bool {
        let needs = || self.of_tenant.iter().filter_map(|(id, it)| Some((*id, it.need_of(part)?)));
        let combined = needs().map(|(_, need)| need).reduce(Need::nearer).unwrap_or(own);
        let first = needs().find(|(_, need)| need.steps == combined.steps).map(|(id, _)| id);
        first == Some(id) && Which::of(combined) == self.which
    }
}
