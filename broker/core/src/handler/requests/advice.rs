//! `Advise` and `AdviseParts`: what an owner or an operator says about the use of an allocation.
//!
//! A device accesses an advised part in place: it is mapped where it lies in host memory, at the same
//! addresses. Memory that is read once, or here and there, then costs no room on the device and no copy. A part
//! that lies in host memory stays there. A part on its device leaves as it would have, and does not come back.

use vramd_types::{AllocationId, SessionId};

use crate::{
    broker::Broker,
    command::Notice,
    error::Refusal,
    event::{Advice, Adviser, Kind, PartRef, PartSpan, Retention, Target, Tier},
    eviction::{AdviceChange, GivenAdvice, PartAdvice},
    follow_up::Fact,
    handler::{Start, Started},
    limits::NEEDED_WITHIN_MAX,
    residency::{Allocation, AllocationState},
    tenancy::{Outcome, TenantId},
};

impl Broker {
    pub(crate) fn advise(
        &mut self,
        session: SessionId,
        tenant: TenantId,
        id: AllocationId,
        advice: Advice,
    ) -> Start {
        self.check_owner(session, tenant, id)?;
        let not_found = || Refusal::AllocationNotFound { allocation: id.to_string() };
        let allocation = self.allocations.get(id).ok_or_else(not_found)?;
        if allocation.state == AllocationState::Freeing {
            return Err(not_found());
        }
        let kind = allocation.kind;
        let is_withdrawal = match advice {
            Advice::SetAccessedBy => false,
            Advice::UnsetAccessedBy => true,
            Advice::Retain { change, .. } => change.is_withdrawal(),
        };
        if !is_withdrawal && self.is_advice_forbidden(allocation.tenant) {
            return Err(Refusal::AdviceForbidden { tenant: self.tenants.name(allocation.tenant).to_owned() });
        }
        if let (Kind::Managed, Some(to)) = (kind, preferred_location(advice)) {
            self.order_managed(id, to)?;
            return Ok(Started::Done(Outcome::Advised(id)));
        }
        check_takes_advice(kind)?;
        match advice {
            Advice::SetAccessedBy => self.advise_access(id, advice, true),
            Advice::UnsetAccessedBy => self.advise_access(id, advice, false),
            Advice::Retain { parts, change } => self.advise_retention(id, parts, change),
        }
    }

    /// Has parts in host memory mapped where they lie, or no longer.
    fn advise_access(&mut self, id: AllocationId, advice: Advice, in_place: bool) -> Start {
        let not_found = || Refusal::AllocationNotFound { allocation: id.to_string() };
        let allocation = self.allocations.get(id).ok_or_else(not_found)?;
        // It would be dropped before it lay anywhere else.
        if allocation.discardable {
            return Err(Refusal::KindUnsupported { kind: "advised discardable" });
        }
        let parts = PartSpan::new(0, allocation.part_count());
        self.check_agrees(id, parts, in_place, |given| given.each().collect())?;
        let device = self.config.devices.get(usize::from(allocation.device.0));
        if in_place && !device.is_some_and(|device| device.maps_host) {
            return Err(Refusal::TierUnsupported { tier: Tier::Host });
        }
        if allocation.in_place == in_place {
            return Ok(Started::Done(Outcome::Advised(id)));
        }
        self.allocations.set_in_place(id, in_place);
        self.note_allocation(id, |allocation, tenant| Notice::Advised { allocation, tenant, advice });
        self.reconsider_all_in_place(id);
        for part in self.every_part_of(id) {
            match in_place {
                true => self.map_in_place(part),
                // The daemon may have chosen that it is read there all the same.
                false if self.stays_in_place(part) => {}
                false => self.schedule_in_place_unmap(part),
            }
        }
        if in_place {
            // Prefetch requests need no room for them any longer.
            self.follow_ups.push(Fact::PrefetchRetryDue);
        } else {
            // The parts would have to fit on their device together with what else the calls wait for.
            self.refuse_infeasible_pins();
        }
        Ok(Started::Done(Outcome::Advised(id)))
    }

    /// Changes which parts of the owner's tenant leave a device first. Parts that are leaving already go on.
    fn advise_retention(&mut self, id: AllocationId, parts: Option<PartSpan>, change: Retention) -> Start {
        let not_found = || Refusal::AllocationNotFound { allocation: id.to_string() };
        let allocation = self.allocations.get(id).ok_or_else(not_found)?;
        let part_count = allocation.part_count();
        let span = Self::span_of(allocation, parts)?;
        self.check_retention(allocation, change)?;
        let (tenant, in_place, now) = (allocation.tenant, allocation.in_place, self.shell.now);
        self.check_agrees(id, span, in_place, |given| vec![given.owner.with(change, now)])?;
        planted!(self, AdviceLeaks => span = PartSpan { count: span.count.saturating_add(1), ..span });
        let by_owner = AdviceChange::ByOwner(change);
        let is_changed = self.usage.advice.change((id, tenant), part_count, span, (by_owner, now));
        planted!(self, OverrideLost => self.clear_override((id, tenant), part_count, span));
        if is_changed {
            if by_owner.is_of_pattern() {
                self.moves.prefetches.learnt.begin_anew(id);
            }
            self.reconsider_all_in_place(id);
            let advice = Advice::Retain { parts, change };
            self.note_allocation(id, |allocation, tenant| Notice::Advised { allocation, tenant, advice });
        }
        Ok(Started::Done(Outcome::Advised(id)))
    }

    /// Changes which parts of the owner's tenant leave a device first, whatever the owner says about these parts; or
    /// lets the owner's advice count again.
    pub(crate) fn advise_for_operator(
        &mut self,
        target: &Target,
        parts: Option<PartSpan>,
        change: Option<Retention>,
    ) -> Start {
        let (id, allocation) = self.find_settled(target)?;
        check_takes_advice(allocation.kind)?;
        let part_count = allocation.part_count();
        let parts = Self::span_of(allocation, parts)?;
        let (tenant, in_place, now) = (allocation.tenant, allocation.in_place, self.shell.now);
        if let Some(change) = change {
            self.check_retention(allocation, change)?;
            let changed = |given: GivenAdvice| vec![given.by(Adviser::Operator).with(change, now)];
            self.check_agrees(id, parts, in_place, changed)?;
        }
        let by_operator = change.map_or(AdviceChange::Cleared, AdviceChange::ByOperator);
        let span = parts;
        planted!(self, OverrideLeaks => span = PartSpan { count: span.count.saturating_add(1), ..span });
        if self.usage.advice.change((id, tenant), part_count, span, (by_operator, now)) {
            self.reconsider_all_in_place(id);
            self.note_allocation(id, |allocation, tenant| Notice::OperatorAdvised {
                allocation,
                tenant,
                parts,
                change,
            });
        }
        Ok(Started::Done(Outcome::Advised(id)))
    }

    /// The parts that advice is for: those that are named, or all.
    fn span_of(allocation: &Allocation, parts: Option<PartSpan>) -> Result<PartSpan, Refusal> {
        let part_count = allocation.part_count();
        let span = parts.unwrap_or_else(|| PartSpan::new(0, part_count));
        let is_there = |end| end <= part_count && span.count > 0;
        match span.first.0.checked_add(span.count).is_some_and(is_there) {
            true => Ok(span),
            false => {
                let problem = "the allocation has no such parts, or there are none";
                Err(Refusal::RequestInvalid { field: "parts", problem })
            }
        }
    }

    /// Checks that such advice has a meaning for the allocation.
    fn check_retention(&self, allocation: &Allocation, change: Retention) -> Result<(), Refusal> {
        match change {
            Retention::Importance(Some(101..)) => {
                return Err(Refusal::RequestInvalid { field: "importance_percent", problem: "is above 100" });
            }
            Retention::NeededWithin(delay) if delay.is_zero() || delay > NEEDED_WITHIN_MAX => {
                let problem = "is zero, or more than a day";
                return Err(Refusal::RequestInvalid { field: "needed_within_ms", problem });
            }
            _ => {}
        }
        let after = PartAdvice::default().with(change, self.shell.now);
        // A discardable part lies on its device or nowhere, and is never copied.
        let is_below = matches!(after.location, Some(Tier::Host | Tier::Disk));
        if allocation.discardable && (is_below || after.is_read_mostly) {
            return Err(Refusal::KindUnsupported { kind: "advised discardable" });
        }
        match after.location {
            Some(tier)
                if is_below && !self.ledger.below(allocation.device).any(|place| place.tier == tier) =>
            {
                Err(Refusal::TierUnsupported { tier })
            }
            _ => Ok(()),
        }
    }

    /// Checks that the advice for parts does not contradict itself. `checked` says which advice, after a change.
    fn check_agrees(
        &self,
        id: AllocationId,
        parts: PartSpan,
        in_place: bool,
        checked: impl Fn(GivenAdvice) -> Vec<PartAdvice>,
    ) -> Result<(), Refusal> {
        let standing = self.usage.advice.within(id, parts).into_iter();
        match standing.flat_map(checked).find_map(|advice| advice.contradiction(in_place)) {
            Some(problem) => Err(Refusal::AdviceContradicts { allocation: id, problem }),
            None => Ok(()),
        }
    }

    /// Sends the part where it lies to sessions that wait for it.
    fn map_in_place(&mut self, part: PartRef) {
        self.mapping.in_place_to_unmap.remove(&part);
        if !self.moves.migrations.contains(part) && self.is_in_place(part) {
            self.serve_part_waiters(part);
        }
    }
}

/// The location that advice prefers for all of an allocation. For managed memory it is an order.
const fn preferred_location(advice: Advice) -> Option<Tier> {
    match advice {
        Advice::Retain { parts: None, change: Retention::Location(location) } => location,
        _ => None,
    }
}

/// Whether memory of the kind takes advice: the daemon places it, and it may leave its device.
const fn check_takes_advice(kind: Kind) -> Result<(), Refusal> {
    match kind {
        Kind::Movable => Ok(()),
        Kind::Fixed => Err(Refusal::KindUnsupported { kind: "advised fixed" }),
        Kind::Managed => Err(Refusal::KindUnsupported { kind: "advised managed" }),
    }
}
