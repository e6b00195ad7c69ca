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

use super::{PrefetchId, RequestFacts, Told};
use crate::oracle::{Oracle, facts::Tenant, line::needs::WaiterNeeds};

/// The place of a request among those of its tenant.
fn place(id: PrefetchId, request: &RequestFacts) -> (Reverse<u8>, bool, Option<Time>, Time, PrefetchId) {
    let deadline = request.deadline_to_meet();
    (Reverse(request.spec.priority), deadline.is_none(), deadline, request.since, id)
}

impl Oracle {
    /// Records requests that were taken in this event. A tenant without queued requests begins with what that one has
    /// which has the least.
    pub(super) fn record_entered_queues(&mut self, listed: &BTreeMap<PrefetchId, PrefetchView>) {
        let facts = &self.facts.prefetches;
        let is_taken = |id: &PrefetchId, it: &RequestFacts| {
            it.told_before == Told::Nothing && (listed.contains_key(id) || it.told == Told::Accepted)
        };
        let new = facts.requests.iter().filter(|(id, it)| is_taken(id, it));
        let new: Vec<_> = new.filter_map(|(_, it)| Some((it.device?, it.tenant))).collect();
        for (device, tenant) in new {
            let facts = &self.facts.prefetches;
            let queued = facts.requests.values().filter(|it| it.was_queued() && it.device == Some(device));
            let active: BTreeSet<Tenant> = queued.map(|it| it.tenant).collect();
            if active.contains(&tenant) {
                continue;
            }
            let active: BTreeSet<Tenant> =
                active.into_iter().filter(|of| self.class_of(*of) == self.class_of(tenant)).collect();
            let facts = &mut self.facts.prefetches;
            let fetched_for = |of: Tenant| facts.fetched.get(&(device, of)).copied().unwrap_or(Some(0));
            let least = active.iter().map(|of| fetched_for(*of)).min().unwrap_or(Some(0));
            let is_known = active.iter().all(|of| fetched_for(*of).is_some());
            let own = fetched_for(tenant).zip(least).map(|(own, least)| own.max(least));
            facts.fetched.insert((device, tenant), own.filter(|_| is_known));
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
        self.count_fetched(&begun, moves);
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

    /// Whether the first request of a tenant goes before that of another tenant. `None` if the oracle does not know.
    fn goes_before(
        &self,
        one: (PrefetchId, &RequestFacts),
        other: (PrefetchId, &RequestFacts),
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
        let fetched = |it: &RequestFacts| {
            // Bytes that were fetched for sequences count too.
            if self.facts.prefetches.sequences.is_any() {
                return None;
            }
            let of = (it.device?, it.tenant);
            self.facts.prefetches.fetched.get(&of).copied().unwrap_or(Some(0))
        };
        let key = |id: PrefetchId, it: &RequestFacts| Some((fetched(it)?, it.since, id));
        Some(key(one.0, one.1)? < key(other.0, other.1)?)
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
        // Another request of the tenant may have been first until it let this one pass.
        let until_now = self.facts.prefetches.requests.values().filter(|it| it.misses_since_now);
        until_now.for_each(|it| _ = heads.remove(&it.tenant));
        heads.retain(|tenant, _| !self.facts.prefetches.sequences.has_queued(*tenant));
        let is_passed = |(of, it): &(PrefetchId, &RequestFacts)| {
            it.was_queued()
                && !has_begun_another(it.tenant)
                && !self.may_be_paused(it)
                && self.goes_before((*of, it), (id, request)) == Some(true)
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
        // A waiter in the line may have had a part fetched before.
        let is_own = |part: &PartRef| {
            moves.iter().any(|it| it.part == *part && it.cause == Cause::Prefetch && it.to == Tier::Device)
        };
        let first_of = |it: &RequestFacts| {
            self.step.fetched.iter().position(|part| it.spec.parts.contains(part) && is_own(part))
        };
        // Of its tenant. The turns of later ones depend on those before.
        let is_first = |of: PrefetchId, it: &RequestFacts| {
            let own =
                begun.iter().filter(|(_, other)| (other.tenant, other.device) == (it.tenant, it.device));
            own.map(|(id, other)| place(*id, other)).min() == Some(place(of, it))
        };
        let is_passed = |(of, it): &&(PrefetchId, RequestFacts)| {
            let shares = it.spec.parts.iter().any(|part| request.spec.parts.contains(part));
            let began_later = first_of(it).zip(first_of(request)).is_some_and(|(its, own)| its > own);
            it.device == request.device
                && it.tenant != request.tenant
                && it.was_queued()
                && !shares
                && began_later
                && is_first(*of, it)
                && is_first(id, request)
                && !self.may_be_paused(it)
                && self.goes_before((*of, it), (id, request)) == Some(true)
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
        let is_unsure = self.step.quotas_changed
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
        // Other memory that was taken in this event may have been there for the request, or not.
        let of_device = self.step.taken.iter().filter(|((_, on), _)| *on == device);
        if of_device.map(|(_, bytes)| bytes).sum::<u64>() > fetched {
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
        self.step.committed[device] + u128::from(all) <= u128::from(self.capacity(device))
            && needed.iter().all(is_within_limit)
    }

    /// Counts the bytes that are fetched for requests that began.
    fn count_fetched(&mut self, begun: &[(PrefetchId, RequestFacts)], moves: &[MoveView]) {
        let is_new = |it: &&MoveView| {
            it.cause == Cause::Prefetch && it.to == Tier::Device && it.since == self.facts.now
        };
        let moving: BTreeMap<PartRef, u64> =
            moves.iter().filter(is_new).map(|it| (it.part, it.bytes.get())).collect();
        for (_, request) in begun {
            let Some(device) = request.device else { continue };
            let weight = u128::from(self.standing_of(&self.facts.tenants[request.tenant]).weight.get());
            // Fine enough for the largest weight.
            let divided = |bytes: u64| u128::from(bytes) * 10_000 / weight;
            let mut bytes = Some(0_u128);
            for part in &request.spec.parts {
                let is_shared = begun.iter().filter(|(_, it)| it.spec.parts.contains(part)).count() > 1;
                let was_fetched = self.step.fetched.contains(part) || moving.contains_key(part);
                bytes = match moving.get(part) {
                    _ if is_shared && was_fetched => None,
                    Some(size) => bytes.map(|sum| sum + divided(*size)),
                    None if was_fetched => {
                        bytes.zip(self.size_of(*part)).map(|(sum, size)| sum + divided(size))
                    }
                    None => bytes,
                };
            }
            let before = self.facts.prefetches.fetched.get(&(device, request.tenant)).copied();
            let sum = before.unwrap_or(Some(0)).zip(bytes).map(|(before, more)| before + more);
            self.facts.prefetches.fetched.insert((device, request.tenant), sum);
        }
    }
}
