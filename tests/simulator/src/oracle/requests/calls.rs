//! Every call is answered once: with what was requested, or refused for a possible reason.

use broker_core::{
    Advice, Adviser, AllocationSpec, AllocationState, AllocationView, Broker, CallId, ClientRequest, Kind,
    Lifetime, OperatorRequest, Refusal, Released, Reply, Retention, Target, Tier, invariants::CALLS,
};
use vramd_types::{AllocationId, GRANULARITY, SessionId};

use crate::oracle::{
    Oracle, Outcome,
    facts::{AllocationFacts, Asked, Call},
    requests::{names::full_name, reasons::possible_reasons},
};

impl Oracle {
    pub(crate) fn record_call(&mut self, id: CallId, call: Call) {
        self.step.by_client = matches!(call.asked, Asked::Client { .. });
        self.step.expected = self.expected_refusal(&call);
        if self.step.expected.is_none() {
            self.step.expected = self.recall(&call);
        }
        if let (None, Asked::Client { session, request: ClientRequest::Detach(ids), .. }) =
            (&self.step.expected, &call.asked)
            && self.step.repeat.is_new()
        {
            ids.iter().for_each(|allocation| self.stop_owing(*session, *allocation));
        }
        if let Asked::Client { request: ClientRequest::Seal(id), .. } = &call.asked
            && let Some(allocation) = self.facts.allocations.get_mut(id)
        {
            allocation.seal_requested = true;
        }
        let call =
            Call { joined: self.step.repeat == crate::oracle::requests::repeats::Expected::Running, ..call };
        self.record_other_wants(&call);
        self.step.call = Some((id, call.clone()));
        let new = self.facts.calls.insert(id, call).is_none();
        self.expect(CALLS, new, || format!("{id:?} is made twice: the simulated world is broken"));
    }

    pub(crate) fn check_reply(&mut self, id: CallId, outcome: &Outcome, broker: &Broker) {
        let Some(call) = self.facts.calls.remove(&id) else {
            return self.expect(CALLS, false, || format!("{id:?} is answered twice, or was never made"));
        };
        if self.step.call.as_ref().is_some_and(|(current, _)| *current == id) {
            self.step.answer = Some(outcome.clone());
            let lacked_room = matches!(outcome, Err(Refusal::DeviceFull { .. } | Refusal::NoRoom { .. }));
            self.step.refused_batch = self.needs_of_batch(id, &call).filter(|_| lacked_room && !call.joined);
        }
        self.end_revocation(id);
        self.remember(id, &call, outcome);
        match (&call.asked, outcome) {
            (asked, Err(refusal)) => {
                if matches!(asked, Asked::Client { request: ClientRequest::Detach(_), .. }) {
                    self.restore_owed();
                }
                self.check_refusal(id, &call, refusal, broker);
            }
            (Asked::Client { session, request, .. }, Ok(reply)) => {
                self.check_client_reply(id, *session, request, reply, broker);
            }
            (Asked::Operator { .. }, Ok(reply)) => self.check_operator_reply(id, &call, reply, broker),
        }
    }

    fn check_client_reply(
        &mut self,
        id: CallId,
        by: SessionId,
        asked: &ClientRequest,
        reply: &Reply,
        broker: &Broker,
    ) {
        self.check_batch_size(asked);
        let tenant = self.facts.sessions.get(&by).map(|session| session.tenant);
        let name = tenant.map(|tenant| self.facts.tenants[tenant].clone()).unwrap_or_default();
        let fits = match (asked, reply) {
            (ClientRequest::AllocateBatch { items: specs, .. }, Reply::Allocated(views)) => {
                let fits = specs.len() == views.len()
                    && specs.iter().zip(views).all(|(spec, view)| matches_request(spec, view, &name));
                for (spec, view) in specs.iter().zip(views) {
                    self.record_allocation(by, spec, view, broker);
                }
                self.check_names(specs, views, broker);
                fits
            }
            (ClientRequest::FreeBatch(ids), Reply::Released(items)) => {
                for (allocation, result) in items {
                    if let (Ok(_), Some(facts)) = (result, self.facts.allocations.get_mut(allocation)) {
                        let owned = facts.owner == by || Some(facts.tenant) == tenant;
                        facts.freed = true;
                        self.expect(CALLS, owned, || {
                            format!("{by} frees {allocation}, which another tenant owns")
                        });
                    }
                }
                self.check_released(by, items);
                ids.iter().eq(items.iter().map(|(id, _)| id))
            }
            (ClientRequest::Detach(ids), Reply::Released(items)) => {
                self.check_released(by, items);
                ids.iter().eq(items.iter().map(|(id, _)| id))
            }
            (
                ClientRequest::Attach(target) | ClientRequest::AttachUnpinned(target),
                Reply::Attached(view),
            ) => {
                self.check_visible(&name, view);
                if self.step.repeat.is_new() {
                    self.check_attach(by, view, matches!(asked, ClientRequest::AttachUnpinned(_)));
                }
                match target {
                    Target::Id(id) => *id == view.id,
                    Target::Name(text) => {
                        let full = full_name(text, &name);
                        let bearer = self.facts.names.get(&full).copied();
                        !self.step.repeat.is_new()
                            || bearer.is_none_or(|it| it == view.id) && view.name == full
                    }
                }
            }
            (ClientRequest::Seal(id), Reply::Sealed(view)) => {
                self.expect_not_managed(view.id, "sealed");
                *id == view.id && self.check_seal_reply(view, broker)
            }
            (ClientRequest::Advise(id, advice), Reply::Advised(view)) => {
                let holds = !self.step.repeat.is_new()
                    || match advice {
                        Advice::SetAccessedBy => view.accessed_by_device,
                        Advice::UnsetAccessedBy => !view.accessed_by_device,
                        Advice::Retain { .. } if self.is_managed(*id) => {
                            self.check_managed_place(view);
                            true
                        }
                        Advice::Retain { parts, change } => {
                            self.is_advice_shown(view)
                                && self.stands(*id, *parts, (Adviser::Owner, Some(*change)))
                        }
                    };
                let is_allowed = !self.step.repeat.is_new()
                    || !Self::gives_advice(*advice)
                    || !self.is_advice_forbidden(*id);
                *id == view.id && holds && is_allowed
            }
            (ClientRequest::Evict(asked, tier), Reply::PartsMoved { allocation, parts }) => {
                if self.step.repeat.is_new() {
                    let at_once = self.step.call.as_ref().is_some_and(|(current, _)| *current == id);
                    self.check_owner_eviction(by, (*allocation, *tier), parts, at_once, broker);
                }
                asked == allocation && *tier != Tier::Device
            }
            (ClientRequest::CancelBatch(_), Reply::WaitCancelled) => true,
            (ClientRequest::Load { spec, file }, Reply::Sealed(view)) => {
                self.check_loaded(by, (spec, file), view, broker);
                matches_request(spec, view, &name) && self.check_seal_reply(view, broker)
            }
            _ => false,
        };
        self.expect(CALLS, fits, || format!("{id:?} requested {asked:?} and is answered {reply:?}"));
    }

    /// Checks a release, unless it only repeats an earlier one. Of several items, the first may be mapped again
    /// before the last is done.
    fn check_released(&mut self, by: SessionId, items: &[(AllocationId, Result<Released, Refusal>)]) {
        if let [(id, Ok(_))] = items
            && self.step.repeat.is_new()
        {
            self.expect_released_unmapped(by, *id);
        }
    }

    /// Whether the reply shows a sealed allocation, or one that is being freed already.
    fn check_seal_reply(&mut self, view: &AllocationView, broker: &Broker) -> bool {
        if self.step.call.is_none() {
            self.check_name(view, broker);
        }
        let over = view.state == AllocationState::Freeing;
        view.digest.is_some() && (over || view.state == AllocationState::Sealed)
    }

    /// Records memory that a session was given.
    fn record_allocation(
        &mut self,
        by: SessionId,
        spec: &AllocationSpec,
        view: &AllocationView,
        broker: &Broker,
    ) {
        if self.facts.allocations.get(&view.id).is_some_and(|known| known.owner == by) {
            return;
        }
        self.record_allocation_id(view.id);
        self.check_managed_reply(view);
        let allocation = self.new_allocation_facts(by, spec, view);
        self.facts.allocations.insert(view.id, allocation);
        self.learn_name(view.id, broker);
        self.check_placement(by, spec, view);
        self.learn_unpinned_extents(view.id, broker);
        for part in self.facts.parts_of(view.id) {
            self.facts.backed.insert(part, self.facts.now);
        }
        self.owe(by, view.id, false);
    }

    /// Facts of new memory, from request and reply.
    pub(crate) fn new_allocation_facts(
        &mut self,
        by: SessionId,
        spec: &AllocationSpec,
        view: &AllocationView,
    ) -> AllocationFacts {
        AllocationFacts {
            tenant: self.facts.tenant(&view.tenant),
            owner: by,
            name: view.name.clone(),
            replace: spec.replace,
            kind: view.kind,
            device: self.device_of(view).unwrap_or_default(),
            lifetime: view.lifetime,
            readers: view.readers.clone(),
            size: view.size.get(),
            uninitialized: spec.uninitialized,
            in_place: false,
            advice: Default::default(),
            pattern_uses: Default::default(),
            discardable: spec.discardable,
            loaded: false,
            unpinned: spec.unpinned,
            part_count: view.parts.len(),
            sealed: false,
            freed: false,
            leaving: false,
            left_unseen: false,
            seal_requested: false,
            parts: Default::default(),
        }
    }

    fn check_attach(&mut self, by: SessionId, view: &AllocationView, unpinned: bool) {
        self.expect_not_draining(format_args!("{by} attaches"));
        let Some(facts) = self.facts.allocations.get(&view.id) else {
            return self
                .expect(CALLS, false, || format!("{by} attaches {}, which no client was told of", view.id));
        };
        let open = facts.sealed || facts.kind == broker_core::Kind::Fixed || facts.owner == by;
        let freed = facts.freed;
        self.expect(CALLS, open, || {
            format!("{by} attaches {}, which another session owns and has not sealed", view.id)
        });
        self.expect(CALLS, !freed, || format!("{by} attaches {}, which was freed", view.id));
        self.expect_not_managed(view.id, "attached");
        self.check_device_visible(by, view);
        self.check_unpinned_attach(by, view.id, unpinned);
        let before = self.facts.sessions.get(&by).map(|session| session.owed.clone()).unwrap_or_default();
        let lacks = self.owe(by, view.id, unpinned);
        if !unpinned {
            let new: Vec<_> = lacks.into_iter().filter(|part| !before.contains(part)).collect();
            self.check_attach_feasibility(view.id, &new);
        }
    }

    fn check_operator_reply(&mut self, id: CallId, call: &Call, reply: &Reply, broker: &Broker) {
        let Asked::Operator { request: asked, .. } = &call.asked else { return };
        let at_once = self.step.call.as_ref().is_some_and(|(current, _)| *current == id);
        let first = self.step.repeat.is_new();
        let is_repeated = call.joined || (at_once && !first);
        let is_target = |target: &Target, id: AllocationId| match target {
            Target::Id(asked) => *asked == id,
            Target::Name(_) => is_repeated || call.named.is_none_or(|named| named == id),
        };
        let fits = match (asked, reply) {
            (OperatorRequest::SetQuota { tenant, guarantee, limit, .. }, Reply::QuotaSet(view)) => {
                let same = guarantee.is_none_or(|it| it == view.guarantee)
                    && limit.is_none_or(|it| it == view.limit);
                let stored = self.shows_stored(view);
                *tenant == view.tenant && (same && stored || !first)
            }
            (OperatorRequest::DeleteQuota { tenant, device, tier }, Reply::QuotaDeleted) => {
                is_repeated || !self.is_stored(tenant, device, *tier)
            }
            (OperatorRequest::SetTenant { tenant, class, weight, advice }, Reply::TenantChanged(view)) => {
                let is_set = class.is_none_or(|class| class == view.standing.class)
                    && weight.is_none_or(|weight| weight == view.standing.weight.get())
                    && advice.is_none_or(|advice| advice == view.standing.advice);
                *tenant == view.tenant && self.shows_standing(view) && (is_set || !first)
            }
            (OperatorRequest::ResetTenant { tenant }, Reply::TenantChanged(view)) => {
                *tenant == view.tenant && self.shows_standing(view)
            }
            (OperatorRequest::EndSession { session, .. }, Reply::SessionEnded { gone, .. }) => {
                let facts = self.facts.sessions.get(session);
                !gone || facts.is_none_or(|session| session.gone || session.mappings.is_empty())
            }
            (OperatorRequest::FreeAllocation(target), Reply::AllocationFreed { allocation, .. }) => {
                if first {
                    self.expect_owner_unmapped(*allocation);
                }
                if let Some(facts) = self.facts.allocations.get_mut(allocation) {
                    facts.freed = true;
                }
                is_target(target, *allocation)
            }
            (
                OperatorRequest::RevokeMappings { target, .. },
                Reply::MappingsRevoked { allocation, parts },
            ) => {
                if first {
                    self.check_revocation_reply(id, *allocation, parts);
                }
                is_target(target, *allocation)
            }
            (
                OperatorRequest::MoveParts { target, parts: asked, tier },
                Reply::PartsMoved { allocation, parts },
            ) => {
                if first {
                    self.check_move_reply(*allocation, Some(*tier), parts, at_once, broker);
                }
                let its = asked.is_empty() || parts.iter().all(|(part, _)| asked.contains(part));
                its && is_target(target, *allocation)
            }
            (
                OperatorRequest::WriteBackParts { target, parts: asked },
                Reply::PartsMoved { allocation, parts },
            ) => {
                if first {
                    self.check_write_back_reply(*allocation, parts, at_once, broker);
                }
                let its = asked.is_empty() || parts.iter().all(|(part, _)| asked.contains(part));
                its && is_target(target, *allocation)
            }
            (
                OperatorRequest::HoldParts { target, parts: asked, hold },
                Reply::PartsHeld { allocation, parts },
            ) => {
                if first {
                    self.check_hold_reply(*allocation, parts, *hold, broker);
                }
                let its = asked.is_empty() || parts.iter().all(|part| asked.contains(part));
                its && is_target(target, *allocation)
            }
            (OperatorRequest::AdviseParts { target, parts, change }, Reply::Advised(view)) => {
                let stands = self.stands(view.id, *parts, (Adviser::Operator, *change));
                is_target(target, view.id) && (!first || (self.is_advice_shown(view) && stands))
            }
            (OperatorRequest::CancelWait { wait }, Reply::WaitCancelled) => {
                if first {
                    self.record_cancelled_wait(*wait);
                }
                true
            }
            (OperatorRequest::CancelPrefetch { .. }, Reply::PrefetchCancelled) => true,
            (OperatorRequest::YieldTurn { .. }, Reply::TurnAsked) => true,
            (OperatorRequest::ChangeSettings(change), Reply::SettingsChanged(told)) => {
                self.matches_settings(change, told)
            }
            (OperatorRequest::Drain { draining }, Reply::Drained { draining: is, .. }) => {
                draining == is || !first
            }
            _ => false,
        };
        self.expect(CALLS, fits, || format!("{id:?} requested {asked:?} and is answered {reply:?}"));
    }

    /// Checks that the owner of memory that an operator freed has unmapped it, or does not answer.
    fn expect_owner_unmapped(&mut self, allocation: AllocationId) {
        let Some(facts) = self.facts.allocations.get(&allocation) else { return };
        let owner = facts.owner;
        let keeps = self.facts.sessions.get(&owner).is_some_and(|session| {
            let maps = session.mappings.keys().any(|part| part.allocation == allocation);
            maps && !session.silent && self.facts.is_heard(session)
        });
        self.expect(CALLS, !keeps, || {
            format!("{allocation} is freed before its owner {owner} has unmapped it")
        });
    }

    fn check_refusal(&mut self, id: CallId, call: &Call, refusal: &Refusal, broker: &Broker) {
        let refusal = refusal.cause();
        let at_once = self.step.call.as_ref().is_some_and(|(current, _)| *current == id);
        let tenant = match &call.asked {
            Asked::Client { session, .. } => self.facts.sessions.get(session).map(|session| session.tenant),
            Asked::Operator { .. } => None,
        };
        if let Asked::Operator { request: OperatorRequest::CancelPrefetch { session, number }, .. } =
            &call.asked
        {
            self.keep_prefetch((*session, *number));
        }
        if at_once && matches!(refusal, Refusal::QueueFull { .. }) {
            self.undo_operator_request();
        }
        if let Some(ClientRequest::Load { .. }) = Self::request_of(call) {
            self.check_failed_load(id, broker);
        }
        self.step.too_many_refused |= matches!(refusal, Refusal::AllocationsTooMany { .. });
        let possible = possible_reasons(&call.asked).contains(&refusal.reason());
        self.expect(CALLS, possible, || format!("{id:?} cannot be refused with {refusal:?}: {call:?}"));
        let holds = match refusal {
            Refusal::Draining => self.facts.draining,
            Refusal::QueueFull { limit } => {
                let loads = matches!(Self::request_of(call), Some(ClientRequest::Load { .. }));
                self.is_queue_full(tenant, &call.asked) || (loads && self.loads_under_way(tenant) >= *limit)
            }
            Refusal::DriverFailed { .. } => self.step.failure_reported || !at_once,
            Refusal::StoreFailed { .. } => self.step.failure_reported,
            Refusal::RequestIdReused { .. } => self.step.expected.is_some(),
            Refusal::NameTaken { .. } => self.is_name_taken(call, tenant, broker),
            Refusal::AllocationNotFound { .. } if at_once => !self.exists_for_caller(call, tenant, broker),
            Refusal::RequestInvalid { .. } => self.is_invalid_unpinned(call, broker),
            Refusal::AdviceForbidden { tenant } => match Self::request_of(call) {
                Some(ClientRequest::Advise(id, advice)) => {
                    let is_forbidden = self.standing_of(tenant).advice.is_forbidden();
                    Self::gives_advice(*advice) && is_forbidden && self.is_advice_forbidden(*id)
                }
                _ => false,
            },
            Refusal::InvariantBroken { .. } => false,
            Refusal::WaitCancelled { .. } => self.is_cancelling(),
            Refusal::PrefetchNotFound { session, number } => {
                broker.prefetches().iter().all(|it| (it.session, it.number) != (*session, *number))
            }
            Refusal::TurnNotFound { session, set } => broker
                .working_sets()
                .iter()
                .all(|it| (it.session, &*it.name) != (*session, set.as_str()) || !it.phase.is_granted()),
            Refusal::WaitNotFound { wait } => broker.waits().iter().all(|it| it.id != *wait),
            _ => true,
        };
        self.expect(CALLS, holds, || format!("{id:?} is refused with {refusal:?}, which does not hold"));
        if let Some(ClientRequest::Seal(sealed)) = Self::request_of(call).filter(|_| at_once) {
            self.expect_open_after(*sealed, refusal, broker);
        }
        if let (Some(tenant), Some(ClientRequest::AllocateBatch { items, wait })) =
            (tenant, Self::request_of(call))
        {
            match at_once {
                true => self.check_refusal_for_room(tenant, items, refusal, broker),
                false => self.check_refusal_time(id, call, items, *wait, refusal),
            }
        }
        if at_once && self.step.repeat.is_new() {
            self.check_refused_order(call, refusal);
        }
        if let Asked::Operator { request: OperatorRequest::ChangeSettings(change), .. } = &call.asked {
            self.check_settings_refusal(change, refusal);
        }
        self.check_refused_guarantee(refusal);
    }

    /// Whether such advice does more than to withdraw earlier advice.
    fn gives_advice(advice: Advice) -> bool {
        match advice {
            Advice::SetAccessedBy => true,
            Advice::UnsetAccessedBy => false,
            Advice::Retain { change, .. } => match change {
                Retention::Needed(is_needed) => !is_needed,
                Retention::Importance(importance) => importance.is_some(),
                Retention::Class(class) => class.is_some(),
                Retention::Location(location) => location.is_some(),
                Retention::ReadMostly(is_read_mostly) => is_read_mostly,
                Retention::Pattern(pattern) => pattern.is_some(),
                Retention::NeededWithin(_) | Retention::Preset(_) => true,
            },
        }
    }

    /// Whether the queue is full without the call that was just refused.
    fn is_queue_full(&self, tenant: Option<usize>, asked: &Asked) -> bool {
        let (max, tenant_max) =
            (self.limits.pending_requests_max, self.limits.pending_requests_per_tenant_max);
        let [by_clients, by_operators] = self.waiting_calls();
        match asked {
            Asked::Operator { .. } => by_operators >= max,
            Asked::Client { .. } => {
                let of_tenant = self.facts.calls.values().filter(|call| match &call.asked {
                    Asked::Client { session, .. } => {
                        tenant.is_some() && self.facts.sessions.get(session).map(|it| it.tenant) == tenant
                    }
                    Asked::Operator { .. } => false,
                });
                let own = of_tenant.count();
                own >= tenant_max || (by_clients >= max && own * 16 >= tenant_max)
            }
        }
    }

    /// The numbers of calls that clients and operators wait for.
    fn waiting_calls(&self) -> [usize; 2] {
        let is_of_client = |call: &&Call| matches!(call.asked, Asked::Client { .. });
        let by_clients = self.facts.calls.values().filter(is_of_client).count();
        [by_clients, self.facts.calls.len() - by_clients]
    }

    /// Whether the allocation that an attach or a seal did not find exists, and the caller may know of it.
    fn exists_for_caller(&self, call: &Call, tenant: Option<usize>, broker: &Broker) -> bool {
        let id = match Self::request_of(call) {
            Some(ClientRequest::Attach(target) | ClientRequest::AttachUnpinned(target)) => match target {
                Target::Id(id) => *id,
                Target::Name(_) => return false,
            },
            Some(ClientRequest::Seal(id)) => *id,
            _ => return false,
        };
        let (Some(facts), Some(tenant)) = (self.facts.allocations.get(&id), tenant) else { return false };
        let there = broker.show(&Target::Id(id)).is_ok_and(|view| view.state != AllocationState::Freeing);
        self.may_know(tenant, facts) && there
    }

    /// Checks that no more calls wait than may.
    pub(crate) fn check_queue_length(&mut self) {
        let (max, tenant_max) =
            (self.limits.pending_requests_max, self.limits.pending_requests_per_tenant_max);
        if self.facts.calls.len() <= max {
            return;
        }
        let [by_clients, by_operators] = self.waiting_calls();
        let own = self.facts.tenants.len() * tenant_max.div_ceil(16);
        self.expect(CALLS, by_clients <= max + own && by_operators <= max, || {
            format!(
                "{by_clients} calls of clients and {by_operators} of operators wait, at most {max} and some"
            )
        });
    }
}

/// Whether a view shows what was requested, and belongs to the caller.
fn matches_request(spec: &AllocationSpec, view: &AllocationView, tenant: &str) -> bool {
    let name = spec.name.as_ref().map(|name| format!("{tenant}/{name}")).unwrap_or_default();
    let rounded = spec.size.checked_round_up(GRANULARITY);
    let parts = view.parts.iter().map(|part| part.size);
    view.tenant == tenant
        && view.size == spec.size
        && !view.size.is_zero()
        && view.name == name
        && (view.kind, view.lifetime) == (spec.kind, spec.lifetime)
        && (view.lifetime == Lifetime::Session || !name.is_empty())
        && (view.kind == Kind::Managed || vramd_types::Bytes::checked_sum(parts) == rounded)
}
