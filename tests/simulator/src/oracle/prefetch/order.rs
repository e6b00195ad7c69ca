//! The order in which requests begin: none while a client waits for room on its device, in a tenant by priority,
//! deadline and age, and between tenants by class, then by the earliest deadline that can be met, then by the fewest
//! bytes fetched for the weight of the tenant.
//!
//! The daemon says which requests cannot be ready by their deadlines: that depends on the speed that it measures. The
//! oracle checks that no request begins before one of its tenant that can, if its own deadline is over.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use broker_core::{
    Broker, Cause, MoveView, PartRef, PrefetchView, Tier, Time, WaitView, invariants::PREFETCH_ORDER,
};

use super::{FetchedShare, PrefetchId, RequestFacts, Told};
use crate::oracle::{Oracle, facts::Tenant, line::needs::WaiterNeeds};

/// The place of a request among those of its tenant.
pub(super) fn place(
    id: PrefetchId,
    request: &RequestFacts,
) -> (Reverse<u8>, bool, Option<Time>, Time, PrefetchId) {
    let deadline = request.deadline_to_meet();
    (Reverse(request.spec.priority), deadline.is_none(), deadline, request.since, id)
}

impl Oracle {
    /// Records requests that were taken in this event. A tenant without queued requests begins with what that one has
    /// which has the least.
    pub(super) fn record_entered_queues(&mut self, listed: &BTreeMap<PrefetchId, PrefetchView>) {
        let is_taken =
            |id: &PrefetchId, it: &RequestFacts| listed.contains_key(id) || it.told == Told::Accepted;
        // A request that has ended may have been taken, or not.
        let new = self.facts.prefetches.requests.iter().filter(|(_, it)| it.told_before == Told::Nothing);
        let new: Vec<_> =
            new.filter_map(|(id, it)| Some((it.device?, it.tenant, is_taken(id, it)))).collect();
        for (device, tenant, certainly) in new {
            let facts = &self.facts.prefetches;
            let queued = facts.requests.values().filter(|it| it.was_queued() && it.device == Some(device));
            let mut active: BTreeSet<Tenant> = queued.map(|it| it.tenant).collect();
            active.extend(facts.sequences.waiting_tenants(device));
            if active.contains(&tenant) {
                continue;
            }
            active.retain(|of| self.class_of(*of) == self.class_of(tenant));
            let shares: Vec<FetchedShare> = active.iter().map(|of| self.fetched_share(device, *of)).collect();
            let least = FetchedShare {
                min: shares.iter().map(|it| it.min).min().unwrap_or_default(),
                max: shares.iter().map(|it| it.max).min().unwrap_or_default(),
            };
            let share = self.facts.prefetches.fetched.entry((device, tenant)).or_default();
            share.max = share.max.max(least.max);
            if certainly {
                share.min = share.min.max(least.min);
            }
        }
    }

    /// Learns which requests cannot be ready by their deadlines. Once so, it stays so.
    pub(super) fn learn_missed_deadlines(&mut self, listed: &BTreeMap<PrefetchId, PrefetchView>) {
        let mut wrong = None;
        for (id, request) in &mut self.facts.prefetches.requests {
            let Some(view) = listed.get(id) else { continue };
            let missed_before = std::mem::replace(&mut request.misses_deadline, view.misses_deadline);
            request.misses_since_now = view.misses_deadline && !missed_before;
            let is_possible = !view.misses_deadline || request.deadline.is_some();
            if !is_possible || missed_before && !view.misses_deadline {
                wrong = Some((*id, request.clone()));
            }
        }
        self.expect(PREFETCH_ORDER, wrong.is_none(), || {
            format!("{wrong:?} cannot miss its deadline, or could not meet it before")
        });
    }

    /// Checks the requests that began in this event.
    pub(super) fn check_prefetch_order(&mut self, broker: &Broker, moves: &[MoveView]) {
        let requests = &self.facts.prefetches.requests;
        let begun =
            requests.iter().filter(|(_, it)| it.told_before <= Told::Deferred && it.told > Told::Deferred);
        let begun: Vec<_> = begun.map(|(id, it)| (*id, it.clone())).collect();
        // A request that was ended at once may have begun, or not.
        let begun: Vec<_> = begun.into_iter().filter(|(_, it)| it.has_begun()).collect();
        if begun.is_empty() {
            return;
        }
        let is_new = |it: &&MoveView| {
            it.cause == Cause::Prefetch && it.to == Tier::Device && it.since == self.facts.now
        };
        let fetched = moves.iter().filter(is_new).map(|it| it.bytes.get()).sum();
        for (id, request) in &begun {
            self.check_not_before_demand(*id, request, broker);
            self.check_not_paused(*id, request);
            self.check_turn_in_tenant(*id, request);
            self.check_not_late_first(*id, request);
            self.check_turn_of_tenant(*id, request, &begun, fetched);
            self.check_sequence((*id, request), &begun, moves);
        }
    }

    fn check_not_before_demand(&mut self, id: PrefetchId, request: &RequestFacts, broker: &Broker) {
        let line = broker.waits();
        let first = request.device.and_then(|device| self.first_that_stood(device, &line)).cloned();
        self.expect(PREFETCH_ORDER, first.is_none(), || {
            format!("{id:?} begins although {first:?} waits for its device: {request:?}")
        });
    }

    /// The needs of the first waiter that waited before this event for room on the device, and still does.
    pub(super) fn first_that_stood(&self, device: usize, line: &[WaitView]) -> Option<&WaiterNeeds> {
        if self.facts.places[device].surveys_left > 0 {
            return None;
        }
        let stood = line.iter().filter(|wait| self.facts.waits.contains_key(&wait.id));
        // A part that could not be fetched waits for the next survey, and for no room.
        let rests = |part: Option<PartRef>| part.is_some_and(|part| self.facts.failed_parts.contains(&part));
        let needs = stood.filter_map(|wait| self.facts.needs.get(&wait.id));
        needs.filter(|needs| !rests(needs.part)).find(|needs| needs.bytes.contains_key(&device))
    }

    /// Checks that no earlier request of its tenant still waits.
    fn check_turn_in_tenant(&mut self, id: PrefetchId, request: &RequestFacts) {
        let is_passed = |(of, other): &(&PrefetchId, &RequestFacts)| {
            other.was_queued()
                && other.is_queued()
                && (other.device, other.tenant) == (request.device, request.tenant)
                && place(**of, other) < place(id, request)
        };
        let passed = self.facts.prefetches.requests.iter().find(is_passed);
        let passed = passed.map(|(of, other)| (*of, other.clone()));
        self.expect(PREFETCH_ORDER, passed.is_none(), || {
            format!("{id:?} begins before {passed:?}, which goes first: {request:?}")
        });
    }

    /// Checks that a request whose deadline is over does not begin while one of its tenant waits that can be in time.
    fn check_not_late_first(&mut self, id: PrefetchId, request: &RequestFacts) {
        if request.deadline.is_none_or(|deadline| deadline >= self.facts.now) {
            return;
        }
        let is_passed = |(_, other): &(&PrefetchId, &RequestFacts)| {
            other.was_queued()
                && other.is_queued()
                && (other.device, other.tenant) == (request.device, request.tenant)
                && other.spec.priority == request.spec.priority
                && other.deadline_to_meet().is_some_and(|deadline| deadline >= self.facts.now)
        };
        let passed = self.facts.prefetches.requests.iter().find(is_passed);
        let passed = passed.map(|(of, other)| (*of, other.clone()));
        self.expect(PREFETCH_ORDER, passed.is_none(), || {
            format!("{id:?} is late and begins before {passed:?}, which may be in time: {request:?}")
        });
    }

    fn fetched_share(&self, device: usize, tenant: Tenant) -> FetchedShare {
        self.facts.prefetches.fetched.get(&(device, tenant)).copied().unwrap_or_default()
    }

    /// Whether the first request of a tenant goes before that of another tenant, each with the bytes fetched for its
    /// tenant. `None` if the oracle does not know.
    fn goes_before(
        &self,
        one: (PrefetchId, &RequestFacts, FetchedShare),
        other: (PrefetchId, &RequestFacts, FetchedShare),
    ) -> Option<bool> {
        let (first, second) = (self.class_of(one.1.tenant), self.class_of(other.1.tenant));
        if first != second {
            return Some(first > second);
        }
        let (first, second) = (one.1.deadline_to_meet(), other.1.deadline_to_meet());
        let key = |of: Option<Time>| (of.is_none(), of);
        if first != second {
            return Some(key(first) < key(second));
        }
        let (first, second) = (one.2, other.2);
        if first.max < second.min || second.max < first.min {
            return Some(first.max < second.min);
        }
        let is_known = [first, second].iter().all(|it| it.min == it.max);
        is_known.then(|| (one.1.since, one.0) < (other.1.since, other.0))
    }

    /// Whether the oracle does not know which request of the tenant was first in all of this event: the daemon's own for
    /// sequences may have been, or one that ended or let others pass.
    fn may_have_changed_first(&self, tenant: Tenant, device: Option<usize>) -> bool {
        let changed = |it: &RequestFacts| it.misses_since_now || (it.was_queued() && it.told == Told::End);
        let mut of = self.facts.prefetches.requests.values();
        of.any(|it| (it.tenant, it.device) == (tenant, device) && changed(it))
            || device.is_some_and(|device| self.facts.prefetches.sequences.has_any(tenant, device))
    }

    /// Checks that no other tenant's first request still waits which goes first and certainly had room.
    fn check_turn_of_tenant(
        &mut self,
        id: PrefetchId,
        request: &RequestFacts,
        begun: &[(PrefetchId, RequestFacts)],
        fetched: u64,
    ) {
        let has_begun_another =
            |tenant: Tenant| begun.iter().any(|(of, it)| *of != id && it.tenant == tenant);
        if has_begun_another(request.tenant) {
            return;
        }
        let queued = self.facts.prefetches.requests.iter();
        let queued = queued.filter(|(_, it)| it.is_queued() && it.device == request.device);
        let mut heads: BTreeMap<Tenant, (PrefetchId, &RequestFacts)> = BTreeMap::new();
        for (of, it) in queued {
            let head = heads.entry(it.tenant).or_insert((*of, it));
            if place(*of, it) < place(head.0, head.1) {
                *head = (*of, it);
            }
        }
        heads.remove(&request.tenant);
        heads.retain(|tenant, _| !self.may_have_changed_first(*tenant, request.device));
        let share = |it: &RequestFacts| {
            it.device.map(|device| self.fetched_share(device, it.tenant)).unwrap_or_default()
        };
        let is_passed = |(of, it): &(PrefetchId, &RequestFacts)| {
            it.was_queued()
                && !has_begun_another(it.tenant)
                && !self.may_be_paused(it)
                && self.goes_before((*of, it, share(it)), (id, request, share(request))) == Some(true)
                && self.surely_had_room(it, fetched)
        };
        let passed = heads.into_values().find(is_passed).map(|(of, it)| (of, it.clone()));
        self.expect(PREFETCH_ORDER, passed.is_none(), || {
            format!("{id:?} begins, and {passed:?} goes first and had room: {request:?}")
        });
    }

    /// Checks that of two requests that began in this event that one began first which goes first.
    fn check_sequence(
        &mut self,
        (id, request): (PrefetchId, &RequestFacts),
        begun: &[(PrefetchId, RequestFacts)],
        moves: &[MoveView],
    ) {
        if !self.step.released.is_empty() || !self.step.left_device.is_empty() || self.step.prefetch_stopped {
            return;
        }
        let first_of = |it: &RequestFacts| {
            let is_own = |part: &PartRef| it.spec.parts.contains(part) && self.is_for_one(*part, moves);
            self.step.fetched.iter().position(is_own)
        };
        let Some((at, device)) = first_of(request).zip(request.device) else { return };
        let of_tenant = |tenant: Tenant| {
            begun.iter().filter(move |(_, it)| (it.tenant, it.device) == (tenant, Some(device)))
        };
        // The bytes fetched for a tenant by the time that the request began.
        let share_then = |tenant: Tenant| {
            let mut share = self.fetched_share(device, tenant);
            for (_, it) in of_tenant(tenant) {
                let first = first_of(it);
                if first.is_none_or(|first| first < at) {
                    let more = self.share_of(it, moves);
                    share.max = share.max.saturating_add(more.max);
                    share.min = share.min.saturating_add(if first.is_some() { more.min } else { 0 });
                }
            }
            share
        };
        let own = share_then(request.tenant);
        let is_passed = |(of, it): &&(PrefetchId, RequestFacts)| {
            let shares = it.spec.parts.iter().any(|part| request.spec.parts.contains(part));
            let share = share_then(it.tenant);
            // Each of these may have been the first of its tenant when the request began.
            let mut firsts = of_tenant(it.tenant).filter(|(before, other)| {
                place(*before, other) <= place(*of, it) && first_of(other).is_none_or(|first| first > at)
            });
            it.device == request.device
                && it.tenant != request.tenant
                && !shares
                && first_of(it).is_some_and(|first| first > at)
                && !self.may_be_paused(it)
                && !self.may_have_changed_first(it.tenant, it.device)
                && firsts.all(|(before, other)| {
                    let goes_before = self.goes_before((*before, other, share), (id, request, own));
                    other.was_queued() && goes_before == Some(true)
                })
        };
        let passed = begun.iter().find(is_passed).cloned();
        self.expect(PREFETCH_ORDER, passed.is_none(), || {
            format!("{id:?} begins before {passed:?}, which goes first: {request:?}")
        });
    }

    /// Whether the request certainly could have begun in this event: nothing that it names moves, and there was room
    /// for all that is off its device, without anything that leaves. `fetched`: bytes that began to move for requests.
    fn surely_had_room(&self, request: &RequestFacts, fetched: u64) -> bool {
        let Some(device) = request.device else { return false };
        // Other memory that was taken in this event may have been there for the request, or not.
        let of_device = self.step.taken.iter().filter(|((_, on), _)| *on == device);
        of_device.map(|(_, bytes)| bytes).sum::<u64>() <= fetched
            && self.surely_fits(request, self.step.committed[device])
    }

    /// Whether nothing that the request names moves, and there is room beside the committed bytes of its device for all
    /// that is off it.
    pub(super) fn surely_fits(&self, request: &RequestFacts, committed: u128) -> bool {
        let Some(device) = request.device else { return false };
        let is_unsure = self.step.quotas_changed
            || self.step.quotas_staged
            || self.step.settings_changed
            || self.facts.extents_ran_out
            || self.facts.places[device].surveys_left > 0;
        // A part that clients wait for is left to its waiter.
        let is_awaited = |part: &PartRef| {
            self.has_waiting_pin(*part) || self.facts.sessions.values().any(|it| it.owed.contains(part))
        };
        let is_at_rest = |part: &PartRef| {
            !self.may_move(*part)
                && !is_awaited(part)
                && !self.facts.departing.contains(part)
                && !self.is_being_evicted(*part)
                && !self.facts.failed_parts.contains(part)
                && self.tier_of(*part).is_some()
        };
        if is_unsure || !request.spec.parts.iter().all(is_at_rest) {
            return false;
        }
        let mut needed: BTreeMap<Tenant, u64> = BTreeMap::new();
        for part in request.spec.parts.iter().filter(|part| self.is_off_device(**part)) {
            let tenant = self.facts.allocations.get(&part.allocation).map(|it| it.tenant);
            let Some((tenant, size)) = tenant.zip(self.size_of(*part)) else { return false };
            *needed.entry(tenant).or_default() += size;
        }
        let all: u64 = needed.values().sum();
        let is_within_limit = |(tenant, bytes): (&Tenant, &u64)| {
            self.facts.charged(*tenant, device).saturating_add(*bytes) <= self.quota_now(*tenant, device).1
        };
        committed + u128::from(all) <= u128::from(self.capacity(device)) && needed.iter().all(is_within_limit)
    }

    /// The requests that began in this event, and those that ended and may have begun before.
    fn maybe_begun(&self) -> impl Iterator<Item = &RequestFacts> {
        let requests = self.facts.prefetches.requests.values();
        requests.filter(|it| it.told_before <= Told::Deferred && it.told > Told::Deferred)
    }

    /// Whether a part that is fetched since this event certainly comes for the one request that began with it, and not
    /// for a waiter or a sequence.
    fn is_for_one(&self, part: PartRef, moves: &[MoveView]) -> bool {
        let is_its = |it: &MoveView| it.part == part && it.cause == Cause::Prefetch && it.to == Tier::Device;
        self.maybe_begun().filter(|it| it.spec.parts.contains(&part)).count() == 1
            && !self.facts.prefetches.sequences.is_named(part)
            && moves.iter().any(is_its)
    }

    /// The bytes that were fetched in this event for a request that began.
    fn share_of(&self, request: &RequestFacts, moves: &[MoveView]) -> FetchedShare {
        let mut share = FetchedShare::default();
        for part in request.spec.parts.iter().filter(|part| self.step.fetched.contains(part)) {
            let bytes = self.weighted(*part, request.tenant);
            let is_certain = request.has_begun() && self.is_for_one(*part, moves);
            share.min += if is_certain { bytes } else { 0 };
            share.max = share.max.saturating_add(bytes);
        }
        share
    }

    /// The bytes of a part divided by the weight of a tenant.
    fn weighted(&self, part: PartRef, tenant: Tenant) -> u128 {
        let weight = u128::from(self.standing_of(&self.facts.tenants[tenant]).weight.get());
        // Fine enough for the largest weight.
        self.size_of(part).map_or(u128::MAX, |bytes| u128::from(bytes) * 10_000 / weight)
    }

    /// Counts the bytes that were fetched in this event for requests of clients.
    pub(super) fn count_fetched(&mut self, moves: &[MoveView]) {
        let share_of = |it: &RequestFacts| Some(((it.device?, it.tenant), self.share_of(it, moves)));
        let shares: Vec<_> = self.maybe_begun().filter_map(share_of).collect();
        for (of, more) in shares {
            let share = self.facts.prefetches.fetched.entry(of).or_default();
            share.min = share.min.saturating_add(more.min);
            share.max = share.max.saturating_add(more.max);
        }
    }

    /// Counts the most that may have been fetched in this event for sequences. The oracle does not know when their tenants
    /// begin to ask, so they may always have as much as any other one.
    pub(super) fn count_fetched_for_sequences(&mut self) {
        let mut most: BTreeMap<usize, u128> = BTreeMap::new();
        for ((device, _), share) in &self.facts.prefetches.fetched {
            let most = most.entry(*device).or_default();
            *most = share.max.max(*most);
        }
        let named: Vec<_> = self.facts.prefetches.sequences.named().collect();
        for ((device, tenant), parts) in &named {
            let fetched = self.step.fetched.iter().filter(|part| parts.contains(part));
            let most = most.entry(*device).or_default();
            *most = fetched.map(|part| self.weighted(*part, *tenant)).fold(*most, u128::saturating_add);
        }
        for (of, _) in named {
            let most = most.get(&of.0).copied().unwrap_or_default();
            self.facts.prefetches.fetched.entry(of).or_default().max = most;
        }
    }
}
