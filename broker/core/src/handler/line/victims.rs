//! The choice of what leaves a device: first extents that are leaving already, then cached extents, the oldest
//! first, then unused parts in the order of the eviction policy.
//!
//! One walk over the candidates of a device serves all its waiters: each goes on where the last one found
//! enough. Choices are made on a draft of the ledger and undone for a waiter that they do not help. A part is a
//! victim only if
//!
//! - no session uses it ([`Broker::is_unused`]), it has backing, it is not moving, and no operator holds it;
//! - its tenant is above its guarantee, or waits for the room itself.
//!
//! Nothing here changes state: the result is a [`RoomPlan`], which `line/make_room.rs` executes. The price is
//! the number of candidates up to the last one chosen.

use std::collections::{BTreeMap, BTreeSet};

use vramd_types::{Bytes, DeviceIndex, ExtentId};

use crate::{
    broker::Broker,
    command::PartRevocation,
    event::{PartRef, Tier},
    ledger::{Place, Shortage, TrialBalance},
    line::{Footprint, Need, RoomPlan, Unmet},
    pool::Age,
    tenancy::{Arrival, TenantId},
};

/// For how many candidates there is room at first.
const CANDIDATES: usize = 16;

/// The candidates of one device, and the choice so far.
struct VictimChooser<'a> {
    broker: &'a Broker,
    trial: TrialBalance<'a>,
    /// In the order in which they leave, as far as loaded.
    candidates: Vec<Candidate>,
    others: Box<dyn Iterator<Item = Candidate> + 'a>,
    /// All candidates before this one are chosen.
    next: usize,
    /// Indices of the chosen candidates, in the order of choice.
    chosen: Vec<usize>,
    /// Cached extents that a waiter is going to reuse.
    reused: BTreeSet<Age>,
}

struct Candidate {
    kind: CandidateKind,
    tenant: TenantId,
    size: Bytes,
    /// If chosen: the arrival of the waiter that needs it.
    chosen: Option<Arrival>,
}

#[derive(Clone, Copy)]
enum CandidateKind {
    Leaving(ExtentId),
    Cached(Age),
    Part(PartRef),
}

/// The waiter, or the rule, that needs room.
#[derive(Clone, Copy)]
struct Beneficiary {
    arrived: Arrival,
    tenant: Option<TenantId>,
}

impl<'a> VictimChooser<'a> {
    fn on_device(broker: &'a Broker, device: DeviceIndex) -> Option<Self> {
        Self::among(broker, device, broker.usage.residents.order(device))
    }

    /// The same with these parts only.
    fn among(
        broker: &'a Broker,
        device: DeviceIndex,
        parts: impl Iterator<Item = PartRef> + 'a,
    ) -> Option<Self> {
        let candidate = |kind, tenant, size| Candidate { kind, tenant, size, chosen: None };
        let leaving = broker.line.room.iter().filter(move |(_, was)| was.device == device);
        let leaving =
            leaving.map(move |(id, was)| candidate(CandidateKind::Leaving(id), was.tenant, was.size));
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
            candidates: Vec::with_capacity(CANDIDATES),
            others: Box::new(leaving.chain(cached).chain(parts)),
            next: 0,
            chosen: Vec::with_capacity(CANDIDATES),
            reused: BTreeSet::new(),
        })
    }

    /// Chooses what has to leave so that a tenant is admitted to its need: all of it, or nothing.
    fn choose_for_need(&mut self, need: &Need) -> Result<(), Shortage> {
        let Footprint { tenant, size, .. } = need.footprint;
        let before = self.chosen.len();
        let reused: Vec<Age> =
            need.own_cached.iter().copied().filter(|age| self.reused.insert(*age)).collect();
        let result = self.choose_until_admitted(need);
        planted!(self.broker, EvictedInVain => return result);
        match result {
            Ok(()) => self.trial.promise(tenant, size),
            Err(_) => {
                self.undo_choices(before);
                reused.iter().for_each(|age| _ = self.reused.remove(age));
            }
        }
        result
    }

    fn choose_until_admitted(&mut self, need: &Need) -> Result<(), Shortage> {
        let Footprint { tenant, size, .. } = need.footprint;
        let (broker, by) = (self.broker, Beneficiary { arrived: need.arrived, tenant: Some(tenant) });
        let admitted = self.trial.admit(tenant, size);
        planted!(broker, RefusedThoughCached => return admitted);
        if admitted.is_ok() {
            return admitted;
        }
        let is_at_limit = matches!(admitted, Err(Shortage::Limit { .. }));
        if is_at_limit {
            let within =
                |trial: &TrialBalance| !matches!(trial.admit(tenant, size), Err(Shortage::Limit { .. }));
            self.choose(by, within, |_, of| of == tenant);
        }
        let helps = |trial: &TrialBalance, of| {
            let more = if of == tenant { size } else { Bytes::ZERO };
            broker.reduces_commitment(trial, of, more)
        };
        let enough = |trial: &TrialBalance| trial.admit(tenant, size).is_ok();
        // Without a choice for its limit it is still not admitted.
        if (is_at_limit && enough(&self.trial)) || self.choose_more(by, enough, helps) {
            return Ok(());
        }
        self.trial.admit(tenant, size)
    }

    /// Adds candidates that help, until it is enough. Returns whether it is.
    fn choose(
        &mut self,
        by: Beneficiary,
        enough: impl Fn(&TrialBalance) -> bool,
        helps: impl Fn(&TrialBalance, TenantId) -> bool,
    ) -> bool {
        enough(&self.trial) || self.choose_more(by, enough, helps)
    }

    /// The same, if it is known not to be enough yet.
    fn choose_more(
        &mut self,
        by: Beneficiary,
        enough: impl Fn(&TrialBalance) -> bool,
        helps: impl Fn(&TrialBalance, TenantId) -> bool,
    ) -> bool {
        while self.candidates.get(self.next).is_some_and(|candidate| candidate.chosen.is_some()) {
            self.next = self.next.saturating_add(1);
        }
        for at in self.next.. {
            if !self.load_candidates(at) {
                return false;
            }
            let Some(Candidate { kind, tenant, size, chosen }) = self.candidates.get(at) else {
                return false;
            };
            planted!(self.broker, LeavingUncounted => if matches!(kind, CandidateKind::Leaving(_)) { continue });
            let (tenant, size) = (*tenant, *size);
            if chosen.is_none() && helps(&self.trial, tenant) && self.can_go(*kind, tenant, by) {
                self.trial.spare(tenant, size);
                self.chosen.push(at);
                self.mark(at, Some(by.arrived));
                if enough(&self.trial) {
                    return true;
                }
            }
        }
        false
    }

    /// Loads candidates up to that index. Returns whether it exists.
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
            CandidateKind::Cached(age) => !self.reused.contains(&age),
            CandidateKind::Part(part) => {
                let is_own = by.tenant == Some(tenant);
                (is_own || self.is_above_guarantee(tenant)) && self.broker.is_unused(part, by.arrived)
            }
        }
    }

    /// Whether a tenant keeps more than its guarantee after everything that leaves. A reservation does not
    /// count: its bytes are not there.
    fn is_above_guarantee(&self, tenant: TenantId) -> bool {
        let account = self.trial.actual(tenant);
        planted!(self.broker, EvictedBelowGuarantee => return true);
        if account.guarantee.is_zero() {
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

    /// Undoes all choices after the first `before`.
    fn undo_choices(&mut self, before: usize) {
        for at in self.chosen.split_off(before.min(self.chosen.len())) {
            if let Some(Candidate { tenant, size, .. }) = self.candidates.get(at) {
                self.trial.restore(*tenant, *size);
            }
            self.mark(at, None);
            self.next = self.next.min(at);
        }
    }

    /// The need without the cached extents that were released for earlier waiters.
    fn without_released(&self, need: &Need) -> Need {
        if need.own_cached.is_empty() {
            return need.clone();
        }
        let given_up = self.plan().given_up;
        let (lost, reused): (Vec<Age>, Vec<Age>) =
            need.own_cached.iter().partition(|age| given_up.contains(age));
        let size = need.footprint.size.saturating_add(self.broker.cached_sizes(&lost));
        Need { footprint: Footprint { size, ..need.footprint }, own_cached: reused, ..*need }
    }

    fn plan(&self) -> RoomPlan {
        let mut plan = RoomPlan { awaited: Vec::with_capacity(self.chosen.len()), ..RoomPlan::default() };
        for candidate in self.chosen.iter().filter_map(|at| self.candidates.get(*at)) {
            match (candidate.kind, candidate.chosen) {
                (CandidateKind::Leaving(extent), _) => plan.awaited.push(extent),
                (CandidateKind::Cached(age), _) => _ = plan.given_up.insert(age),
                (CandidateKind::Part(part), Some(arrived)) => plan.victims.push((part, arrived)),
                (CandidateKind::Part(_), None) => {}
            }
        }
        plan
    }
}

impl Broker {
    /// Plans what leaves a device so that its waiters find room, in their order. Also returns for which of them
    /// it will be enough. No later waiter overtakes one without room, except within its guarantee or where that one
    /// lets others pass.
    pub(crate) fn plan_room<'n>(
        &self,
        device: DeviceIndex,
        needs: impl Iterator<Item = &'n Need>,
    ) -> (RoomPlan, Vec<Result<(), Unmet>>) {
        let Some(mut chooser) = VictimChooser::on_device(self, device) else { return Default::default() };
        let (mut results, mut full) = (Vec::with_capacity(needs.size_hint().0), None);
        let mut at_limit: BTreeMap<TenantId, Shortage> = BTreeMap::new();
        for need in needs {
            let need = chooser.without_released(need);
            let tenant = need.footprint.tenant;
            if let Some(shortage) = need.hopeless {
                let holds = matches!(shortage, Shortage::Room { .. }) && !need.lets_pass;
                full = full.or_else(|| holds.then_some(shortage));
                results.push(Err(Unmet { shortage, is_behind: false }));
                continue;
            }
            let behind = full.filter(|_| !self.is_guaranteed(&need));
            // A shortage of its own limit keeps only waiters of the tenant waiting.
            if let Some(shortage) = at_limit.get(&tenant).copied().or(behind) {
                results.push(Err(Unmet { shortage, is_behind: true }));
                continue;
            }
            let result = chooser.choose_for_need(&need);
            match result {
                Ok(()) => {}
                Err(Shortage::Room { .. }) if need.lets_pass => {}
                Err(shortage @ Shortage::Room { .. }) => full = Some(shortage),
                Err(shortage @ Shortage::Limit { .. }) => _ = at_limit.insert(tenant, shortage),
            }
            results.push(result.map_err(|shortage| Unmet { shortage, is_behind: false }));
        }
        (chooser.plan(), results)
    }

    /// Plans what has to leave so that a guarantee is backed. `None` if nothing helps.
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
            // A smaller guarantee counts only once it is on disk.
            let floor = if of == tenant { guarantee.max(account.guarantee) } else { account.guarantee };
            account.charged() > floor
        };
        let mut chooser = VictimChooser::on_device(self, place.device)?;
        let by = Beneficiary { arrived: self.pins.after_all(), tenant: None };
        chooser.choose(by, backed, helps).then(|| chooser.plan())
    }

    /// Plans what has to leave so that a tenant is within its limit, as far as possible.
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

    /// Plans what makes up for memory that other programs took, as far as possible.
    pub(crate) fn choose_for_shortfall(&self, device: DeviceIndex) -> RoomPlan {
        let Some(mut chooser) = VictimChooser::on_device(self, device) else { return RoomPlan::default() };
        let by = Beneficiary { arrived: self.pins.after_all(), tenant: None };
        let helps = |trial: &TrialBalance, of| self.reduces_commitment(trial, of, Bytes::ZERO);
        chooser.choose(by, |trial| trial.shortfall().is_zero(), helps);
        chooser.plan()
    }

    /// Plans which cold parts leave so that no more than `held_max` stays charged, as far as possible.
    /// Guaranteed bytes stay.
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

    /// Whether the committed sum falls if the tenant has less there. Guaranteed bytes stay committed.
    fn reduces_commitment(&self, trial: &TrialBalance, tenant: TenantId, more: Bytes) -> bool {
        let account = trial.account(tenant);
        let floor = account.guarantee;
        planted!(self, EvictedBelowGuarantee => floor = Bytes::ZERO);
        account.charged().saturating_add(more) > floor
    }

    /// Whether a part can leave its device once no session uses it.
    fn is_movable_now(&self, part: PartRef) -> bool {
        let is_held = self.moves.is_held(part);
        planted!(self, EvictedThoughHeld => is_held = false);
        self.is_stable(part.allocation)
            && !self.moves.migrations.contains(part)
            && !self.mapping.revocations.contains_key(&part)
            && self.moves.backings.contains(&part)
            // A part that a call still waits for may just have arrived. If it left again at once, this could go
            // on for ever.
            && self.pins.missing(part).next().is_none()
            && !is_held
    }

    /// Whether no session uses the part, as far as the daemon knows, by a call that arrived before `arrived`.
    pub(crate) fn is_unused(&self, part: PartRef, arrived: Arrival) -> bool {
        matches!(self.why_not_revocable(part, false, arrived), None | Some(PartRevocation::Revoked))
    }
}
