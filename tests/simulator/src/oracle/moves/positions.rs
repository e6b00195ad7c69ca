//! Where parts lie, and what operators that moved them are told.

use broker_core::{
    Broker, PartMove, PartRef, Refusal, Target, Tier,
    invariants::{ADMISSION, CALLS, LIMIT},
};
use vramd_types::{AllocationId, PartIndex, SessionId};

use crate::oracle::{
    Oracle,
    facts::{BackingFacts, ExtentPhase},
};

impl Oracle {
    /// The tier that the part lies in, where its extent is known. While it moves, this is the tier that it
    /// comes from.
    pub(crate) fn tier_of(&self, part: PartRef) -> Option<Tier> {
        if let Some((_, tier)) = self.facts.dropped.get(&part) {
            return Some(*tier);
        }
        let extent = self.facts.allocations.get(&part.allocation)?.parts.get(&part.part.0)?;
        Some(self.facts.places[self.facts.extents.get(extent)?.place].tier)
    }

    /// Whether the part lies on its device, or may, as far as is known.
    pub(crate) fn may_lie_on_device(&self, part: PartRef) -> bool {
        self.tier_of(part).is_none_or(|tier| tier == Tier::Device)
    }

    /// Whether the part may be moving, or about to.
    pub(crate) fn may_move(&self, part: PartRef) -> bool {
        let is_made = |id| self.facts.extents.get(id).is_some_and(|it| it.phase == ExtentPhase::Creating);
        let below = self.facts.backings.get(&part);
        self.facts.moves.values().any(|moves| moves.part == part)
            || matches!(below, Some(BackingFacts::Kept(id)) if is_made(id))
    }

    /// Whether a session is being told to unmap the part for an eviction, or soon will be.
    pub(crate) fn is_being_evicted(&self, part: PartRef) -> bool {
        self.facts.words_pending.contains(&part) || self.facts.evicting.iter().any(|(_, of)| *of == part)
    }

    /// Checks what a client is told of memory that it evicted: it owns that memory, and all parts are answered.
    pub(crate) fn check_owner_eviction(
        &mut self,
        by: SessionId,
        (allocation, tier): (AllocationId, Tier),
        parts: &[(PartIndex, PartMove)],
        at_once: bool,
        broker: &Broker,
    ) {
        let tenant = self.facts.sessions.get(&by).map(|session| session.tenant);
        let facts = self.facts.allocations.get(&allocation);
        let is_own = facts.is_some_and(|facts| Some(facts.tenant) == tenant);
        let is_of_another = facts.is_some_and(|facts| {
            facts.owner != by && self.facts.sessions.get(&facts.owner).is_some_and(|owner| !owner.gone)
        });
        let part_count = facts.map_or(0, |facts| facts.part_count);
        self.expect(CALLS, is_own && !is_of_another, || {
            format!("{by} evicts {allocation}, which it does not own")
        });
        self.expect(CALLS, parts.len() == part_count, || {
            format!("{by} evicts {part_count} parts of {allocation} and is told of {}", parts.len())
        });
        self.check_move_reply(allocation, Some(tier), parts, at_once, broker);
    }

    /// Checks what an operator is told of each moved part. `towards` is the requested tier; `None` for a
    /// write-back. `at_once`: nothing else has happened since the request.
    pub(crate) fn check_move_reply(
        &mut self,
        allocation: AllocationId,
        towards: Option<Tier>,
        parts: &[(PartIndex, PartMove)],
        at_once: bool,
        broker: &Broker,
    ) {
        for (part, outcome) in parts {
            let part = PartRef { allocation, part: *part };
            let pinning = |by: &[_]| !by.is_empty() && by.iter().all(|id| self.has_pins(*id));
            let holds = match outcome {
                PartMove::Standing { by } => !by.is_empty() && by.iter().all(|id| !self.has_pins(*id)),
                PartMove::Pinned { by } | PartMove::Silent { by } => pinning(by),
                PartMove::Freed => {
                    let view = broker.show(&Target::Id(allocation));
                    !view.is_ok_and(|view| view.state != broker_core::AllocationState::Freeing)
                }
                PartMove::Held => {
                    crate::oracle::moves::operator_holds::is_shown_held(part, broker) || !at_once
                }
                PartMove::Failed { .. } => self.step.failure_reported || parts.len() > 1,
                // Of several parts, the first may have moved on before the last is there.
                PartMove::Moved if parts.len() == 1 => {
                    // A dropped part need not go anywhere.
                    let is_dropped = self.facts.dropped.contains_key(&part);
                    let there = towards.zip(self.tier_of(part)).is_none_or(|(towards, tier)| tier == towards);
                    there || (is_dropped && towards != Some(Tier::Device))
                }
                PartMove::Moved | PartMove::Wanted | PartMove::Refused { .. } => true,
            };
            self.expect(CALLS, holds, || format!("{part:?} is reported as {outcome:?}, which does not hold"));
            if let (PartMove::Refused { refusal }, true) = (outcome, at_once) {
                self.check_move_refusal(allocation, refusal);
            }
        }
    }

    /// Checks that a part that is refused to move has no room. Cached memory is not released for operators.
    fn check_move_refusal(&mut self, allocation: AllocationId, refusal: &Refusal) {
        let Some(tenant) = self.facts.allocations.get(&allocation).map(|it| it.tenant) else { return };
        match refusal {
            Refusal::QuotaLimit { device, tier, limit, requested: asked, .. } => {
                let Some(place) = self.facts.place_of(device, *tier) else { return };
                let expected = self.quota_now(tenant, place).1;
                let over = u128::from(self.facts.charged(tenant, place)) + u128::from(asked.get());
                self.expect(LIMIT, limit.get() == expected && over > u128::from(expected), || {
                    format!(
                        "a move to place {place} is refused for limit {limit}; {over} of {expected} would be charged"
                    )
                });
            }
            Refusal::DeviceFull { device, tier, requested: asked, .. } => {
                let Some(place) = self.facts.place_of(device, *tier) else { return };
                let (held, guarantee) = (self.facts.charged(tenant, place), self.quota_now(tenant, place).0);
                let before = self.committed_all()[place];
                let with = (u128::from(held) + u128::from(asked.get())).max(u128::from(guarantee));
                let after = before - u128::from(guarantee.max(held)) + with;
                let capacity = u128::from(self.capacity(place));
                self.expect(ADMISSION, after > capacity && after > before, || {
                    format!("a move is refused: {after} would be committed after {before}, of {capacity}")
                });
            }
            _ => {}
        }
    }
}
