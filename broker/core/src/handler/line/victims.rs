//! The choice of what leaves a device: first extents that are leaving already, then cached extents, the oldest
//! first, then unused parts, of the lowest class of tenants first, and in a class in the order of the eviction policy.
//!
//! One walk over the candidates of a device serves all its waiters: each goes on where the last one found
//! enough. Choices are made on a draft of the ledger and undone for a waiter that they do not help. A part is a
//! victim only if
//!
//! - no session uses it ([`Broker::is_unused`]), it has backing, it is not moving, and no operator holds it;
//! - its tenant is above its guarantee, or waits for the room itself.
//!
//! Once a session was silent, the candidates are ordered by doubt first (`tenancy/trust.rs`): what no session in
//! doubt has to unmap comes before what one has to, even if that is leaving already. A plan then also names parts of
//! other sessions in doubt, to be unmapped at once: those that answer are the next victims, and a second silence
//! costs no second deadline.
//!
//! Nothing here changes state: the result is a [`RoomPlan`], which `line/make_room.rs` executes. The price is
//! the number of candidates up to the last one chosen.

use std::collections::{BTreeMap, BTreeSet};

use vramd_types::{Bytes, DeviceIndex, ExtentId, SessionId};

use crate::{
    broker::Broker,
    command::PartRevocation,
    event::{PartRef, Tier},
    ledger::{Place, Shortage, TrialBalance},
    limits::ASKED_AHEAD_MAX,
    line::{Footprint, Need, RoomPlan, Unmet},
    pool::Age,
    prefetch::Prefetch,
    tenancy::{Arrival, Doubt, Session, TenantId},
};

/// For how many candidates there is room at first.
const CANDIDATES: usize = 16;

/// The candidates of one device, and the choice so far.
struct VictimChooser<'a> {
    broker: &'a Broker,
    device: DeviceIndex,
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

impl CandidateKind {
    const fn leaving(self) -> Option<ExtentId> {
        match self {
            Self::Leaving(extent) => Some(extent),
            Self::Cached(_) | Self::Part(_) => None,
        }
    }
}

/// The waiter, or the rule, that needs room.
#[derive(Clone, Copy)]
struct Beneficiary {
    arrived: Arrival,
    tenant: Option<TenantId>,
}

impl<'a> VictimChooser<'a> {
    fn on_device(broker: &'a Broker, device: DeviceIndex) -> Option<Self> {
        let is_advised = !broker.usage.advice.is_empty()
            || !broker.moves.sequences.is_empty()
            || !broker.sessions.turns.is_empty();
        planted!(broker, AdviceIgnored => is_advised = false);
        match is_advised {
            true => Self::among(broker, device, broker.advised_order(device)),
            false => Self::among(broker, device, broker.usage.residents.order(device)),
        }
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
        let all = leaving.chain(cached).chain(parts);
        let is_calm = broker.sessions.trust.is_calm();
        planted!(broker, DoubtIgnored => is_calm = true);
        Some(Self {
            broker,
            device,
            trial: broker.ledger.trial(Place::device(device))?,
            candidates: Vec::with_capacity(CANDIDATES),
            others: match is_calm {
                true => Box::new(all),
                false => Box::new(Doubt::order(all, |candidate| broker.doubt_about_leaving(candidate.kind))),
            },
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
        let chosen = self.chosen.iter().filter_map(|at| self.candidates.get(*at));
        let counted: BTreeSet<ExtentId> = chosen.filter_map(|candidate| candidate.kind.leaving()).collect();
        let also = |(id, was): &(ExtentId, Footprint)| {
            was.tenant == tenant && was.device == self.device && !counted.contains(id)
        };
        let leaving = self.broker.line.room.iter().filter(also).map(|(_, was)| was.size);
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
        plan.ahead = self.choose_ahead(&plan);
        plan
    }

    /// Chooses parts of other sessions in doubt, one for each: those that come before the victims in the order of
    /// the policy, so that doubt does not protect them, and all of them if a waiter counts on a session in doubt.
    fn choose_ahead(&self, plan: &RoomPlan) -> Vec<PartRef> {
        let (broker, mut ahead) = (self.broker, Vec::new());
        planted!(broker, AskedInSeries => return ahead);
        if broker.sessions.trust.is_calm() {
            return ahead;
        }
        let mut victims: BTreeSet<PartRef> = plan.victims.iter().map(|(part, _)| *part).collect();
        let mut chosen = self.chosen.iter().filter_map(|at| self.candidates.get(*at));
        let counts_on_doubt = chosen.any(|it| broker.doubt_about_leaving(it.kind) != Doubt::Nothing);
        let sessions = |part: PartRef| {
            let mappings = broker.mappings(part).iter().filter(|mapping| mapping.state.is_mapper());
            mappings.map(|mapping| mapping.session)
        };
        let mut asked: BTreeSet<SessionId> = victims.iter().flat_map(|part| sessions(*part)).collect();
        let by = Beneficiary { arrived: broker.pins.after_all(), tenant: None };
        for part in broker.advised_order(self.device) {
            if ahead.len() >= ASKED_AHEAD_MAX || (victims.is_empty() && !counts_on_doubt) {
                break;
            }
            let is_new = |id: SessionId| {
                let owes = broker.sessions.get(id).is_some_and(Session::owes_unmapped);
                !owes && broker.sessions.doubt(id) != Doubt::Nothing && !asked.contains(&id)
            };
            if victims.remove(&part) || !sessions(part).any(is_new) || !broker.is_movable_now(part) {
                continue;
            }
            let tenant = broker.footprint_of(part).map(|footprint| footprint.tenant);
            if tenant.is_some_and(|tenant| self.can_go(CandidateKind::Part(part), tenant, by)) {
                asked.extend(sessions(part));
                ahead.push(part);
            }
        }
        ahead
    }
}

impl Broker {
    /// Plans what leaves a device so that its waiters find room, in their order. Also returns for which of them
    /// it will be enough. No later waiter overtakes one without room, except within its guarantee or where that one
    /// lets others pass. A waiter may come with its shortage on another device.
    pub(crate) fn plan_room<'n>(
        &self,
        device: DeviceIndex,
        needs: impl Iterator<Item = (&'n Need, Option<Unmet>)>,
    ) -> (RoomPlan, Vec<Result<(), Unmet>>) {
        let Some(mut chooser) = VictimChooser::on_device(self, device) else { return Default::default() };
        let (mut results, mut full) = (Vec::with_capacity(needs.size_hint().0), None);
        let mut at_limit: BTreeMap<TenantId, Shortage> = BTreeMap::new();
        for (need, short_elsewhere) in needs {
            if let Some(unmet) = short_elsewhere {
                // A waiter that stands behind another there keeps none waiting here, as in the walk.
                let holds = unmet.is_own() && !need.lets_pass;
                full = full.or_else(|| holds.then_some(unmet.shortage));
                results.push(Err(unmet));
                continue;
            }
            let need = chooser.without_released(need);
            let tenant = need.footprint.tenant;
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
        // No client waits for this room.
        RoomPlan { ahead: Vec::new(), ..chooser.plan() }
    }

    /// Plans what leaves a device so that parts which clients ask for ahead find room, each by itself. Only memory that is
    /// worth less may leave: of the tenants of these parts, parts of no higher rank by advice; of other tenants, cold
    /// parts. No part leaves that another request brings.
    ///
    /// Parts of sequences have no rank. For a request of a sequence leave those that the tenant needs later than the
    /// request's own, and for others those that it needs beyond the windows.
    pub(crate) fn plan_for_prefetch(
        &self,
        device: DeviceIndex,
        (session, request): (SessionId, &Prefetch),
        needs: &[Need],
    ) -> (RoomPlan, Vec<Result<(), Shortage>>) {
        let asked = &request.parts;
        if needs.is_empty() {
            return Default::default();
        }
        let own: BTreeSet<TenantId> = needs.iter().map(|need| need.footprint.tenant).collect();
        let now = self.shell.now;
        let rank_of = |part: PartRef| self.advice_for(part).at(now).rank();
        let rank = asked.iter().map(|part| rank_of(*part)).max();
        let asked: BTreeSet<PartRef> = asked.iter().copied().collect();
        let cold_after = self.node.settings.pressure.cold_after;
        let cold_since = (!cold_after.is_zero()).then(|| now.before(cold_after));
        let needed_in = request.place.and_then(|place| {
            let sequence = self.moves.sequences.get((session, place.sequence))?;
            Some((request.tenant, sequence.need_at(place.step).steps))
        });
        let is_worth_less = |part: &PartRef| {
            let tenant = self.footprint_of(*part).map(|footprint| footprint.tenant);
            planted!(self, PrefetchEvictsHot => return !asked.contains(part));
            let Some(tenant) = tenant.filter(|tenant| own.contains(tenant)) else {
                return self.usage.residents.last_use(*part) < cold_since;
            };
            planted!(self, SequenceNearerEvicted => return true);
            match (self.moves.sequences.need_of(tenant, *part), needed_in) {
                (None, _) => Some(rank_of(*part)) <= rank,
                (Some(need), Some((of, steps))) if of == tenant => need.steps > steps,
                (Some(need), _) => !need.is_ahead,
            }
        };
        let order: Box<dyn Iterator<Item = PartRef>> = Box::new(self.advised_order(device));
        planted!(self, VictimClassIgnored => order = Box::new(self.by_last_use(order.collect()).into_iter()));
        let parts = order.filter(|part| {
            let is_kept = self.moves.prefetches.is_kept(*part);
            planted!(self, PrefetchedEvicted => is_kept = false);
            !asked.contains(part) && !is_kept && is_worth_less(part)
        });
        let Some(mut chooser) = VictimChooser::among(self, device, parts) else { return Default::default() };
        let results = needs.iter().map(|need| chooser.choose_for_need(need)).collect();
        (RoomPlan { ahead: Vec::new(), ..chooser.plan() }, results)
    }

    /// Whether the committed sum falls if the tenant has less there. Guaranteed bytes stay committed.
    fn reduces_commitment(&self, trial: &TrialBalance, tenant: TenantId, more: Bytes) -> bool {
        let account = trial.account(tenant);
        let floor = account.guarantee;
        planted!(self, EvictedBelowGuarantee => floor = Bytes::ZERO);
        account.charged().saturating_add(more) > floor
    }

    /// Whether there are waiters, and a session in doubt has to unmap something before room for them is there.
    pub(crate) fn is_room_in_doubt(&self) -> bool {
        let is_in_doubt = |extent| self.doubt_about_leaving(CandidateKind::Leaving(extent)) != Doubt::Nothing;
        !self.sessions.trust.is_calm()
            && !self.line.is_empty()
            && self.line.room.iter().any(|(extent, _)| is_in_doubt(extent))
    }

    /// The greatest doubt about the sessions that have to unmap a candidate before its room is there.
    fn doubt_about_leaving(&self, candidate: CandidateKind) -> Doubt {
        let part = match candidate {
            CandidateKind::Part(part) => Some(part),
            CandidateKind::Cached(_) => None,
            // A part that has left its extent may be mapped in another one.
            CandidateKind::Leaving(extent) => {
                let part = self.pool.get(extent).and_then(|extent| extent.part);
                let lies_in = |part: &PartRef| self.allocations.get(part.allocation)?.part(part.part);
                part.filter(|part| lies_in(part).is_some_and(|entry| entry.extent == extent))
            }
        };
        part.map_or(Doubt::Nothing, |part| self.doubt_about(part))
    }

    /// Whether a part can leave its device once no session uses it.
    fn is_movable_now(&self, part: PartRef) -> bool {
        let is_held = self.moves.is_held(part);
        planted!(self, EvictedThoughHeld => is_held = false);
        self.is_stable(part.allocation)
            && !self.moves.migrations.contains(part)
            && self.mapping.revocations.get(&part).is_none_or(|under_way| under_way.is_ahead)
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
