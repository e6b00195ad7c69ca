//! Choosing what leaves a device: what is on its way out already, then cached extents, the oldest first, then parts that
//! nobody uses, in the order of the policy.
//!
//! One look at a device serves all who wait there, each going on where the last one found enough. What it tries is tried on a
//! draft of the books, and taken back if it was not enough.

use std::collections::{BTreeMap, BTreeSet};

use vramd_types::{Bytes, DeviceIndex, ExtentId};

use crate::{
    broker::Broker,
    command::PartRevocation,
    event::{PartRef, Tier},
    handler::line::make_room::{Footprint, Need, RoomPlan},
    ledger::{Place, Shortage, TrialBalance},
    pool::Age,
    tenancy::{Arrival, TenantId},
};

/// What could leave a device, and what of it was chosen.
struct VictimChooser<'a> {
    broker: &'a Broker,
    trial: TrialBalance<'a>,
    /// As far as it was looked at, in the order in which it goes.
    candidates: Vec<Candidate>,
    others: Box<dyn Iterator<Item = Candidate> + 'a>,
    /// Those before that are chosen.
    next: usize,
    /// Places of what was chosen, in that order.
    chosen: Vec<usize>,
    /// Cached extents that somebody who waits will have.
    kept: BTreeSet<Age>,
}

struct Candidate {
    kind: CandidateKind,
    tenant: TenantId,
    size: Bytes,
    /// When who needs it came.
    chosen: Option<Arrival>,
}

#[derive(Clone, Copy)]
enum CandidateKind {
    Leaving(ExtentId),
    Cached(Age),
    Part(PartRef),
}

/// Who needs room.
#[derive(Clone, Copy)]
struct Beneficiary {
    arrived: Arrival,
    tenant: Option<TenantId>,
}

impl<'a> VictimChooser<'a> {
    fn on_device(broker: &'a Broker, device: DeviceIndex) -> Option<Self> {
        Self::among(broker, device, broker.residents.order(device))
    }

    /// Of its parts only these.
    fn among(
        broker: &'a Broker,
        device: DeviceIndex,
        parts: impl Iterator<Item = PartRef> + 'a,
    ) -> Option<Self> {
        let candidate = |kind, tenant, size| Candidate { kind, tenant, size, chosen: None };
        let going = broker.awaited_room.iter().filter(move |(_, was)| was.device == device);
        let going = going.map(move |(id, was)| candidate(CandidateKind::Leaving(id), was.tenant, was.size));
        let cached = broker.pool.cache().iter().filter(move |(_, entry)| entry.device == device);
        let cached = cached.map(move |(age, it)| candidate(CandidateKind::Cached(age), it.tenant, it.size));
        let parts = parts.filter(|part| broker.is_movable_now(*part));
        let parts = parts.filter_map(move |part| {
            let Footprint { tenant, size, .. } = broker.footprint_of(part)?;
            Some(candidate(CandidateKind::Part(part), tenant, size))
        });
        Some(Self {
            broker,
            trial: broker.ledger.trial(Place::device(device))?,
            candidates: Vec::new(),
            others: Box::new(going.chain(cached).chain(parts)),
            next: 0,
            chosen: Vec::new(),
            kept: BTreeSet::new(),
        })
    }

    /// Chooses what has to go so that a tenant is admitted to so many bytes more: all of it, or nothing.
    fn choose_for_need(&mut self, need: &Need) -> Result<(), Shortage> {
        let Footprint { tenant, size, .. } = need.footprint;
        let before = self.chosen.len();
        let kept: Vec<Age> = need.own_cached.iter().copied().filter(|age| self.kept.insert(*age)).collect();
        let result = self.choose_until_admitted(need);
        match result {
            Ok(()) => self.trial.promise(tenant, size),
            Err(_) => {
                self.undo_choices(before);
                kept.iter().for_each(|age| _ = self.kept.remove(age));
            }
        }
        result
    }

    fn choose_until_admitted(&mut self, need: &Need) -> Result<(), Shortage> {
        let Footprint { tenant, size, .. } = need.footprint;
        let (broker, by) = (self.broker, Beneficiary { arrived: need.arrived, tenant: Some(tenant) });
        let admitted = self.trial.admit(tenant, size);
        if admitted.is_ok() || planted!(broker, FullThoughCached) {
            return admitted;
        }
        if matches!(admitted, Err(Shortage::Limit { .. })) {
            let within =
                |trial: &TrialBalance| !matches!(trial.admit(tenant, size), Err(Shortage::Limit { .. }));
            self.choose(by, within, |_, of| of == tenant);
        }
        let helps = |trial: &TrialBalance, of| {
            let more = if of == tenant { size } else { Bytes::ZERO };
            broker.reduces_commitment(trial, of, more)
        };
        self.choose(by, |trial| trial.admit(tenant, size).is_ok(), helps);
        self.trial.admit(tenant, size)
    }

    /// Adds what helps, until it is enough.
    fn choose(
        &mut self,
        by: Beneficiary,
        enough: impl Fn(&TrialBalance) -> bool,
        helps: impl Fn(&TrialBalance, TenantId) -> bool,
    ) {
        while self.candidates.get(self.next).is_some_and(|candidate| candidate.chosen.is_some()) {
            self.next = self.next.saturating_add(1);
        }
        for at in self.next.. {
            if enough(&self.trial) || !self.load_candidates(at) {
                return;
            }
            let Some(Candidate { kind, tenant, size, chosen }) = self.candidates.get(at) else { return };
            let (tenant, size) = (*tenant, *size);
            if chosen.is_none() && helps(&self.trial, tenant) && self.can_go(*kind, tenant, by) {
                self.trial.spare(tenant, size);
                self.chosen.push(at);
                self.mark(at, Some(by.arrived));
            }
        }
    }

    /// Whether there are candidates up to that place.
    fn load_candidates(&mut self, at: usize) -> bool {
        while self.candidates.len() <= at {
            let Some(next) = self.others.next() else { return false };
            self.candidates.push(next);
        }
        true
    }

    fn can_go(&self, kind: CandidateKind, tenant: TenantId, by: Beneficiary) -> bool {
        match kind {
            CandidateKind::Leaving(_) => true,
            CandidateKind::Cached(age) => !self.kept.contains(&age),
            CandidateKind::Part(part) => {
                let is_own = by.tenant == Some(tenant);
                (is_own || self.is_above_guarantee(tenant)) && self.broker.is_unused(part, by.arrived)
            }
        }
    }

    /// Whether a tenant has more than its guarantee there without all that kind: what is only promised to it is not there.
    fn is_above_guarantee(&self, tenant: TenantId) -> bool {
        let account = self.trial.actual(tenant);
        if account.guarantee.is_zero() || planted!(self.broker, EvictedBelowGuarantee) {
            return true;
        }
        let also = |it: &&Candidate| {
            it.tenant == tenant && it.chosen.is_none() && matches!(it.kind, CandidateKind::Leaving(_))
        };
        let leaving = self.candidates.iter().filter(also).map(|candidate| candidate.size);
        let leaving = leaving.fold(self.trial.subtracted_from(tenant), Bytes::saturating_add);
        account.charged().saturating_sub(leaving) > account.guarantee
    }

    fn mark(&mut self, at: usize, chosen: Option<Arrival>) {
        if let Some(candidate) = self.candidates.get_mut(at) {
            candidate.chosen = chosen;
        }
    }

    /// Nothing is chosen that was not before.
    fn undo_choices(&mut self, before: usize) {
        for at in self.chosen.split_off(before.min(self.chosen.len())) {
            if let Some(Candidate { tenant, size, .. }) = self.candidates.get(at) {
                self.trial.restore(*tenant, *size);
            }
            self.mark(at, None);
            self.next = self.next.min(at);
        }
    }

    /// What was given up for those who came before is not there to be had.
    fn without_released(&self, need: &Need) -> Need {
        if need.own_cached.is_empty() {
            return need.clone();
        }
        let given_up = self.plan().given_up;
        let (lost, kept): (Vec<Age>, Vec<Age>) =
            need.own_cached.iter().partition(|age| given_up.contains(age));
        let size = need.footprint.size.saturating_add(self.broker.cached_sizes(&lost));
        Need { footprint: Footprint { size, ..need.footprint }, own_cached: kept, ..*need }
    }

    fn plan(&self) -> RoomPlan {
        let mut choice = RoomPlan::default();
        for candidate in self.chosen.iter().filter_map(|at| self.candidates.get(*at)) {
            match (candidate.kind, candidate.chosen) {
                (CandidateKind::Leaving(extent), _) => choice.awaited.push(extent),
                (CandidateKind::Cached(age), _) => _ = choice.given_up.insert(age),
                (CandidateKind::Part(part), Some(arrived)) => choice.victims.push((part, arrived)),
                (CandidateKind::Part(_), None) => {}
            }
        }
        choice
    }
}

impl Broker {
    /// Chooses what kind a device so that those who wait find room, in their order; and says for whom there will be.
    /// Nobody overtakes who finds none, but for what is guaranteed to its tenant.
    pub(crate) fn plan_room<'n>(
        &self,
        device: DeviceIndex,
        needs: impl Iterator<Item = &'n Need>,
    ) -> (RoomPlan, Vec<Result<(), Shortage>>) {
        let Some(mut chooser) = VictimChooser::on_device(self, device) else { return Default::default() };
        let (mut results, mut full) = (Vec::new(), None);
        let mut at_limit: BTreeMap<TenantId, Shortage> = BTreeMap::new();
        for need in needs {
            let need = chooser.without_released(need);
            let Footprint { tenant, size, .. } = need.footprint;
            if let Some(shortage) = need.hopeless {
                full = full.or_else(|| Some(shortage).filter(|it| matches!(it, Shortage::Room { .. })));
                results.push(Err(shortage));
                continue;
            }
            let behind = full.filter(|_| !self.is_within_guarantee(tenant, device, size));
            // What its tenant waits for keeps it waiting too, and nobody else.
            if let Some(shortage) = at_limit.get(&tenant).copied().or(behind) {
                results.push(Err(shortage));
                continue;
            }
            let result = chooser.choose_for_need(&need);
            match result {
                Ok(()) => {}
                Err(shortage @ Shortage::Room { .. }) => full = Some(shortage),
                Err(shortage @ Shortage::Limit { .. }) => _ = at_limit.insert(tenant, shortage),
            }
            results.push(result);
        }
        (chooser.plan(), results)
    }

    /// Chooses what has to go so that a guarantee is backed; nothing if nothing helps.
    pub(crate) fn choose_for_guarantee(
        &self,
        tenant: TenantId,
        place: Place,
        guarantee: Bytes,
    ) -> Option<RoomPlan> {
        if place.tier != Tier::Device {
            return self.ledger.overcommitment(tenant, place, guarantee).is_none().then(RoomPlan::default);
        }
        let backed = |trial: &TrialBalance| trial.overcommitment(tenant, guarantee).is_none();
        let helps = |trial: &TrialBalance, of| {
            let account = trial.account(of);
            // What is to be guaranteed less is guaranteed until that is on disk.
            let floor = if of == tenant { guarantee.max(account.guarantee) } else { account.guarantee };
            account.charged() > floor
        };
        let mut chooser = VictimChooser::on_device(self, place.device)?;
        chooser.choose(Beneficiary { arrived: self.pins.after_all(), tenant: None }, backed, helps);
        backed(&chooser.trial).then(|| chooser.plan())
    }

    /// Chooses of a tenant's own what has to go so that it is within its limit, as far as it can.
    pub(crate) fn choose_for_limit(&self, tenant: TenantId, device: DeviceIndex) -> RoomPlan {
        let Some(mut chooser) = VictimChooser::on_device(self, device) else { return RoomPlan::default() };
        let by = Beneficiary { arrived: self.pins.after_all(), tenant: Some(tenant) };
        let within = |trial: &TrialBalance| {
            let account = trial.account(tenant);
            account.charged() <= account.limit
        };
        chooser.choose(by, within, |_, of| of == tenant);
        chooser.plan()
    }

    /// Chooses what makes up for memory of the device that others took, as far as it can.
    pub(crate) fn choose_for_shortfall(&self, device: DeviceIndex) -> RoomPlan {
        let Some(mut chooser) = VictimChooser::on_device(self, device) else { return RoomPlan::default() };
        let by = Beneficiary { arrived: self.pins.after_all(), tenant: None };
        let helps = |trial: &TrialBalance, of| self.reduces_commitment(trial, of, Bytes::ZERO);
        chooser.choose(by, |trial| trial.shortfall().is_zero(), helps);
        chooser.plan()
    }

    /// Chooses of parts that nobody has used for long what has to go so that no more than so much is held there, as far as it
    /// can. What is guaranteed stays.
    pub(crate) fn choose_for_pressure(
        &self,
        device: DeviceIndex,
        cold: &[PartRef],
        held_max: Bytes,
    ) -> RoomPlan {
        let cold = cold.iter().copied();
        let Some(mut chooser) = VictimChooser::among(self, device, cold) else { return RoomPlan::default() };
        let by = Beneficiary { arrived: self.pins.after_all(), tenant: None };
        let helps = |trial: &TrialBalance, of| self.reduces_commitment(trial, of, Bytes::ZERO);
        chooser.choose(by, |trial| trial.charged() <= held_max, helps);
        chooser.plan()
    }

    /// Whether less would be committed with less of what the tenant has there: what is guaranteed stays committed.
    fn reduces_commitment(&self, trial: &TrialBalance, tenant: TenantId, more: Bytes) -> bool {
        let account = trial.account(tenant);
        let floor = if planted!(self, EvictedBelowGuarantee) { Bytes::ZERO } else { account.guarantee };
        account.charged().saturating_add(more) > floor
    }

    /// Whether a part can leave its device, if it is used by nobody.
    fn is_movable_now(&self, part: PartRef) -> bool {
        self.is_stable(part.allocation)
            && !self.migrations.contains_key(&part)
            && !self.revocations.contains_key(&part)
            && self.backings.contains(&part)
            // It may just have come for who has not been sent it yet: if it left again at once, this could go on for ever.
            && self.pins.missing(part).next().is_none()
            && (!self.operator_holds.contains(&part) || planted!(self, EvictedThoughHeld))
    }

    /// Whether nobody uses a part, as far as is known, who came before.
    pub(crate) fn is_unused(&self, part: PartRef, arrived: Arrival) -> bool {
        matches!(self.why_not_revocable(part, false, arrived), None | Some(PartRevocation::Revoked))
    }
}
