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
    handler::line::make_room::{Choice, Need, Piece},
    ledger::{Place, Shortage, TrialBalance},
    pool::Age,
    tenancy::{Arrival, TenantId},
};

/// What could leave a device, and what of it was chosen.
struct Chooser<'a> {
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
    leaves: Leaves,
    tenant: TenantId,
    size: Bytes,
    /// When who needs it came.
    chosen: Option<Arrival>,
}

#[derive(Clone, Copy)]
enum Leaves {
    Already(ExtentId),
    Cached(Age),
    Part(PartRef),
}

/// Who needs room.
#[derive(Clone, Copy)]
struct Needing {
    arrived: Arrival,
    tenant: Option<TenantId>,
}

impl<'a> Chooser<'a> {
    fn on(broker: &'a Broker, device: DeviceIndex) -> Option<Self> {
        Self::among(broker, device, broker.residents.order(device))
    }

    /// Of its parts only these.
    fn among(
        broker: &'a Broker,
        device: DeviceIndex,
        parts: impl Iterator<Item = PartRef> + 'a,
    ) -> Option<Self> {
        let candidate = |leaves, tenant, size| Candidate { leaves, tenant, size, chosen: None };
        let going = broker.awaited_room.iter().filter(move |(_, was)| was.device == device);
        let going = going.map(move |(id, was)| candidate(Leaves::Already(id), was.tenant, was.size));
        let cached = broker.pool.cache().iter().filter(move |(_, entry)| entry.device == device);
        let cached = cached.map(move |(age, it)| candidate(Leaves::Cached(age), it.tenant, it.size));
        let parts = parts.filter(|part| broker.could_leave(*part));
        let parts = parts.filter_map(move |part| {
            let Piece { tenant, size, .. } = broker.piece_of(part)?;
            Some(candidate(Leaves::Part(part), tenant, size))
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
    fn serve(&mut self, need: &Need) -> Result<(), Shortage> {
        let Piece { tenant, size, .. } = need.piece;
        let before = self.chosen.len();
        let kept: Vec<Age> = need.kept.iter().copied().filter(|age| self.kept.insert(*age)).collect();
        let result = self.choose_for(need);
        match result {
            Ok(()) => self.trial.promise(tenant, size),
            Err(_) => {
                self.take_back(before);
                kept.iter().for_each(|age| _ = self.kept.remove(age));
            }
        }
        result
    }

    fn choose_for(&mut self, need: &Need) -> Result<(), Shortage> {
        let Piece { tenant, size, .. } = need.piece;
        let (broker, by) = (self.broker, Needing { arrived: need.arrived, tenant: Some(tenant) });
        let admitted = self.trial.admit(tenant, size);
        if admitted.is_ok() || planted!(broker, FullThoughCached) {
            return admitted;
        }
        if matches!(admitted, Err(Shortage::Limit { .. })) {
            let within =
                |trial: &TrialBalance| !matches!(trial.admit(tenant, size), Err(Shortage::Limit { .. }));
            self.choose(by, within, |_, of| of == tenant);
        }
        let weighs = |trial: &TrialBalance, of| {
            let more = if of == tenant { size } else { Bytes::ZERO };
            broker.weighs(trial, of, more)
        };
        self.choose(by, |trial| trial.admit(tenant, size).is_ok(), weighs);
        self.trial.admit(tenant, size)
    }

    /// Adds what helps, until it is enough.
    fn choose(
        &mut self,
        by: Needing,
        enough: impl Fn(&TrialBalance) -> bool,
        helps: impl Fn(&TrialBalance, TenantId) -> bool,
    ) {
        while self.candidates.get(self.next).is_some_and(|candidate| candidate.chosen.is_some()) {
            self.next = self.next.saturating_add(1);
        }
        for at in self.next.. {
            if enough(&self.trial) || !self.reaches(at) {
                return;
            }
            let Some(Candidate { leaves, tenant, size, chosen }) = self.candidates.get(at) else { return };
            let (tenant, size) = (*tenant, *size);
            if chosen.is_none() && helps(&self.trial, tenant) && self.may_go(*leaves, tenant, by) {
                self.trial.spare(tenant, size);
                self.chosen.push(at);
                self.mark(at, Some(by.arrived));
            }
        }
    }

    /// Whether there are candidates up to that place.
    fn reaches(&mut self, at: usize) -> bool {
        while self.candidates.len() <= at {
            let Some(next) = self.others.next() else { return false };
            self.candidates.push(next);
        }
        true
    }

    fn may_go(&self, leaves: Leaves, tenant: TenantId, by: Needing) -> bool {
        match leaves {
            Leaves::Already(_) => true,
            Leaves::Cached(age) => !self.kept.contains(&age),
            Leaves::Part(part) => {
                let is_own = by.tenant == Some(tenant);
                (is_own || self.is_above_guarantee(tenant)) && self.broker.is_unused(part, by.arrived)
            }
        }
    }

    /// Whether a tenant has more than its guarantee there without all that leaves: what is only promised to it is not there.
    fn is_above_guarantee(&self, tenant: TenantId) -> bool {
        let account = self.trial.actual(tenant);
        if account.guarantee.is_zero() || planted!(self.broker, EvictedBelowGuarantee) {
            return true;
        }
        let also = |it: &&Candidate| {
            it.tenant == tenant && it.chosen.is_none() && matches!(it.leaves, Leaves::Already(_))
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
    fn take_back(&mut self, before: usize) {
        for at in self.chosen.split_off(before.min(self.chosen.len())) {
            if let Some(Candidate { tenant, size, .. }) = self.candidates.get(at) {
                self.trial.restore(*tenant, *size);
            }
            self.mark(at, None);
            self.next = self.next.min(at);
        }
    }

    /// What was given up for those who came before is not there to be had.
    fn without_given_up(&self, need: &Need) -> Need {
        if need.kept.is_empty() {
            return need.clone();
        }
        let given_up = self.choice().given_up;
        let (lost, kept): (Vec<Age>, Vec<Age>) = need.kept.iter().partition(|age| given_up.contains(age));
        let size = need.piece.size.saturating_add(self.broker.sizes_of(&lost));
        Need { piece: Piece { size, ..need.piece }, kept, ..*need }
    }

    fn choice(&self) -> Choice {
        let mut choice = Choice::default();
        for candidate in self.chosen.iter().filter_map(|at| self.candidates.get(*at)) {
            match (candidate.leaves, candidate.chosen) {
                (Leaves::Already(extent), _) => choice.awaited.push(extent),
                (Leaves::Cached(age), _) => _ = choice.given_up.insert(age),
                (Leaves::Part(part), Some(arrived)) => choice.victims.push((part, arrived)),
                (Leaves::Part(_), None) => {}
            }
        }
        choice
    }
}

impl Broker {
    /// Chooses what leaves a device so that those who wait find room, in their order; and says for whom there will be.
    /// Nobody overtakes who finds none, but for what is guaranteed to its tenant.
    pub(crate) fn plan_room<'n>(
        &self,
        device: DeviceIndex,
        needs: impl Iterator<Item = &'n Need>,
    ) -> (Choice, Vec<Result<(), Shortage>>) {
        let Some(mut chooser) = Chooser::on(self, device) else { return Default::default() };
        let (mut results, mut full) = (Vec::new(), None);
        let mut at_limit: BTreeMap<TenantId, Shortage> = BTreeMap::new();
        for need in needs {
            let need = chooser.without_given_up(need);
            let Piece { tenant, size, .. } = need.piece;
            if let Some(shortage) = need.hopeless {
                full = full.or_else(|| Some(shortage).filter(|it| matches!(it, Shortage::Room { .. })));
                results.push(Err(shortage));
                continue;
            }
            let behind = full.filter(|_| !self.is_guaranteed(tenant, device, size));
            // What its tenant waits for keeps it waiting too, and nobody else.
            if let Some(shortage) = at_limit.get(&tenant).copied().or(behind) {
                results.push(Err(shortage));
                continue;
            }
            let result = chooser.serve(&need);
            match result {
                Ok(()) => {}
                Err(shortage @ Shortage::Room { .. }) => full = Some(shortage),
                Err(shortage @ Shortage::Limit { .. }) => _ = at_limit.insert(tenant, shortage),
            }
            results.push(result);
        }
        (chooser.choice(), results)
    }

    /// Chooses what has to go so that a guarantee is backed; nothing if nothing helps.
    pub(crate) fn choose_for_guarantee(
        &self,
        tenant: TenantId,
        place: Place,
        guarantee: Bytes,
    ) -> Option<Choice> {
        if place.tier != Tier::Device {
            return self.ledger.overcommitment(tenant, place, guarantee).is_none().then(Choice::default);
        }
        let backed = |trial: &TrialBalance| trial.overcommitment(tenant, guarantee).is_none();
        let weighs = |trial: &TrialBalance, of| {
            let account = trial.account(of);
            // What is to be guaranteed less is guaranteed until that is on disk.
            let floor = if of == tenant { guarantee.max(account.guarantee) } else { account.guarantee };
            account.charged() > floor
        };
        let mut chooser = Chooser::on(self, place.device)?;
        chooser.choose(Needing { arrived: self.pins.after_all(), tenant: None }, backed, weighs);
        backed(&chooser.trial).then(|| chooser.choice())
    }

    /// Chooses of a tenant's own what has to go so that it is within its limit, as far as it can.
    pub(crate) fn choose_for_limit(&self, tenant: TenantId, device: DeviceIndex) -> Choice {
        let Some(mut chooser) = Chooser::on(self, device) else { return Choice::default() };
        let by = Needing { arrived: self.pins.after_all(), tenant: Some(tenant) };
        let within = |trial: &TrialBalance| {
            let account = trial.account(tenant);
            account.charged() <= account.limit
        };
        chooser.choose(by, within, |_, of| of == tenant);
        chooser.choice()
    }

    /// Chooses what makes up for memory of the device that others took, as far as it can.
    pub(crate) fn choose_for_shortfall(&self, device: DeviceIndex) -> Choice {
        let Some(mut chooser) = Chooser::on(self, device) else { return Choice::default() };
        let by = Needing { arrived: self.pins.after_all(), tenant: None };
        let weighs = |trial: &TrialBalance, of| self.weighs(trial, of, Bytes::ZERO);
        chooser.choose(by, |trial| trial.shortfall().is_zero(), weighs);
        chooser.choice()
    }

    /// Chooses of parts that nobody has used for long what has to go so that no more than so much is held there, as far as it
    /// can. What is guaranteed stays.
    pub(crate) fn choose_for_pressure(&self, device: DeviceIndex, cold: &[PartRef], most: Bytes) -> Choice {
        let cold = cold.iter().copied();
        let Some(mut chooser) = Chooser::among(self, device, cold) else { return Choice::default() };
        let by = Needing { arrived: self.pins.after_all(), tenant: None };
        let weighs = |trial: &TrialBalance, of| self.weighs(trial, of, Bytes::ZERO);
        chooser.choose(by, |trial| trial.charged() <= most, weighs);
        chooser.choice()
    }

    /// Whether less would be committed with less of what the tenant has there: what is guaranteed stays committed.
    fn weighs(&self, trial: &TrialBalance, tenant: TenantId, more: Bytes) -> bool {
        let account = trial.account(tenant);
        let floor = if planted!(self, EvictedBelowGuarantee) { Bytes::ZERO } else { account.guarantee };
        account.charged().saturating_add(more) > floor
    }

    /// Whether a part can leave its device, if it is used by nobody.
    fn could_leave(&self, part: PartRef) -> bool {
        self.is_settled(part.allocation)
            && !self.migrations.contains_key(&part)
            && !self.revocations.contains_key(&part)
            && self.backings.contains(&part)
            // It may just have come for who has not been sent it yet: if it left again at once, this could go on for ever.
            && self.pins.missing(part).next().is_none()
            && (!self.operator_holds.contains(&part) || planted!(self, EvictedThoughHeld))
    }

    /// Whether nobody uses a part, as far as is known, who came before.
    pub(crate) fn is_unused(&self, part: PartRef, arrived: Arrival) -> bool {
        matches!(self.cannot_begin(part, false, arrived), None | Some(PartRevocation::Revoked))
    }
}
