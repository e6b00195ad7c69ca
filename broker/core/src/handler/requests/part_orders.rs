//! `RevokeMappings`, `MoveParts`, `WriteBackParts`: operators' orders for the parts of one allocation; and `Evict`, which
//! is its owner's.
//!
//! Each part has its own outcome. The daemon starts a bounded number at a time, so that nothing else waits for
//! all parts of a large order.

use std::collections::BTreeSet;

use vramd_types::{AllocationId, PartIndex, SessionId};

use crate::{
    broker::Broker,
    command::{PartMove, PartRevocation},
    error::Refusal,
    event::{Kind, PartRef, Target, Tier},
    handler::{Start, Started},
    ledger::Place,
    limits::{MOMENT, PARTS_STARTED_PER_EVENT},
    ops::{MoveGoal, OpKind, PerPart},
    residency::AllocationState,
    shell::Timer,
    tenancy::{OpId, Outcome, TenantId},
};

impl Broker {
    pub(crate) fn revoke_mappings(&self, target: &Target, parts: Vec<PartIndex>, wait: bool) -> Start {
        let id = self.find_movable(target, "revocable fixed")?;
        let parts = PerPart::new(id, self.parts_of(target, parts)?);
        Ok(Started::Waiting(OpKind::Revoke { parts, wait }))
    }

    pub(crate) fn move_parts(&mut self, target: &Target, parts: Vec<PartIndex>, goal: MoveGoal) -> Start {
        let (id, allocation) = self.find_any(target)?;
        if let (Kind::Managed, MoveGoal::In(tier)) = (allocation.kind, goal) {
            if !parts.is_empty() {
                let problem = "managed memory has no parts: it moves as a whole";
                return Err(Refusal::RequestInvalid { field: "part_indexes", problem });
            }
            self.order_managed(id, tier)?;
            return Ok(Started::Done(Outcome::PartsMoved { allocation: id, parts: Box::default() }));
        }
        let tier = match goal {
            MoveGoal::In(tier) => tier,
            MoveGoal::WrittenBack => {
                self.ledger.below(allocation.device).next().map_or(Tier::Host, |it| it.tier)
            }
        };
        // A file-backed part goes back to its file.
        let is_file = tier == Tier::Disk && self.has_file(id);
        if self.ledger.balances(Place { device: allocation.device, tier }).is_none() && !is_file {
            return Err(Refusal::TierUnsupported { tier });
        }
        if goal == MoveGoal::WrittenBack && allocation.discardable {
            return Err(Refusal::KindUnsupported { kind: "backed discardable" });
        }
        let id = self.find_movable(target, "movable fixed")?;
        let parts = PerPart::new(id, self.parts_of(target, parts)?);
        Ok(Started::Waiting(OpKind::Move { parts, goal }))
    }

    /// Moves an allocation down at its owner's request, as an operator's order does.
    pub(crate) fn evict(
        &mut self,
        session: SessionId,
        tenant: TenantId,
        id: AllocationId,
        tier: Tier,
    ) -> Start {
        let owned = self.check_owner(session, tenant, id);
        planted!(self, EvictedByOthers => owned = Ok(()));
        owned?;
        if tier == Tier::Device {
            let problem = "is the device: name a tier below it";
            return Err(Refusal::RequestInvalid { field: "tier", problem });
        }
        self.move_parts(&Target::Id(id), Vec::new(), MoveGoal::In(tier))
    }

    /// Finds an allocation that can be moved; `kind` names the refusal otherwise.
    pub(crate) fn find_movable(&self, target: &Target, kind: &'static str) -> Result<AllocationId, Refusal> {
        let (id, allocation) = self.find_any(target)?;
        match allocation.kind {
            Kind::Fixed => Err(Refusal::KindUnsupported { kind }),
            Kind::Managed => Err(Refusal::KindUnsupported { kind: "moved managed" }),
            Kind::Movable => Ok(id),
        }
    }

    /// The parts that an operator names, or all, if the allocation can be revoked or moved.
    pub(crate) fn parts_of(
        &self,
        target: &Target,
        parts: Vec<PartIndex>,
    ) -> Result<BTreeSet<PartIndex>, Refusal> {
        let (_, allocation) = self.find_settled(target)?;
        let problem = |problem| Refusal::RequestInvalid { field: "part_indexes", problem };
        let all: Vec<_> = if parts.is_empty() { allocation.indices().collect() } else { parts };
        if all.iter().any(|part| allocation.part(*part).is_none()) {
            return Err(problem("the allocation has no such part"));
        }
        let mut named = BTreeSet::new();
        if !all.into_iter().all(|part| named.insert(part)) {
            return Err(problem("a part is named twice"));
        }
        Ok(named)
    }

    /// Starts the next parts of an order.
    pub(crate) fn begin_parts(&mut self, op: OpId) {
        match self.requests.ops.get_mut(op).map(|op| &mut op.kind) {
            Some(OpKind::Revoke { parts, wait }) => {
                let wait = *wait;
                for part in parts.begin(PARTS_STARTED_PER_EVENT) {
                    if let Some(outcome) = self.begin_revocation(op, part, wait) {
                        self.part_revoked(op, part, outcome);
                    }
                }
            }
            Some(OpKind::Move { parts, goal }) => {
                let goal = *goal;
                for part in parts.begin(PARTS_STARTED_PER_EVENT) {
                    if let Some(outcome) = self.begin_move(op, part, goal) {
                        self.part_moved(op, part, outcome);
                    }
                }
            }
            _ => return,
        }
        if self.requests.ops.get(op).is_some_and(|op| op.kind.has_more_parts()) {
            self.arm(self.shell.now.after(MOMENT), Timer::Parts(op));
        }
        self.finish_parts(op);
    }

    /// `None`: the operation is told when it is over.
    fn begin_revocation(&mut self, op: OpId, part: PartRef, wait: bool) -> Option<PartRevocation> {
        if self.is_stable(part.allocation) {
            return self.revoke_part(Some(op), part, wait, self.pins.after_all());
        }
        // The allocation was freed or is being sealed meanwhile: its mappings end anyway, or do not.
        let by = self.mappers(part, |_| true);
        Some(if by.is_empty() { PartRevocation::Revoked } else { PartRevocation::Pinned { by } })
    }

    /// `None`: the operation is told when it is over.
    fn begin_move(&mut self, op: OpId, part: PartRef, goal: MoveGoal) -> Option<PartMove> {
        match self.allocations.get(part.allocation).map(|allocation| allocation.state) {
            Some(AllocationState::Open | AllocationState::Sealed) => {}
            Some(AllocationState::Freeing) | None => return Some(PartMove::Freed),
            Some(_) => {
                let refusal = Box::new(Refusal::Raced { allocation: part.allocation });
                return Some(PartMove::Refused { refusal });
            }
        }
        let outcome = match goal {
            MoveGoal::In(Tier::Device) => self.fetch_for_operator(op, part),
            MoveGoal::In(to_tier @ (Tier::Host | Tier::Disk)) => self.evict_for_operator(op, part, to_tier),
            MoveGoal::WrittenBack => self.write_back_part(Some(op), part),
        };
        self.after_moves();
        outcome
    }
}
