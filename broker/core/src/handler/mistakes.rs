//! The helpers of planted bugs that one line cannot hold.

use vramd_types::{AllocationId, Bytes, DeviceIndex, ExtentId, GRANULARITY, PartIndex, SessionId};

use crate::{
    broker::Broker,
    command::{Command, DaemonFrame, ManagedOrder},
    event::{CallId, Kind, PartRef, PartSpan, RequestKey, Tier},
    eviction::AdviceChange,
    handler::mapping::frames::InitialMaps,
    ledger::{Charge, Ledger, Place, Quota, Reservation},
    line::{AllocationPlan, Waiter},
    moves::{Backing, Migration, Moves},
    ops::{QuotaChange, Requester},
    pool::{Extent, ExtentState, Pool},
    pressure::PressureBounds,
    residency::{
        AllocationEvent, AllocationState, AllocationTable, EndedOrder, FdBudget, MapEvent, MapState, Mapping,
        Stage,
    },
    sequence::SequenceId,
    tenancy::{Method, OpId, Outcome, PinCall, PinId, RequestLog, TenantId},
    time::Time,
    view::StoredQuota,
};

/// The managed bytes that plans request in a place, for `ManagedUnasked`.
pub(crate) fn managed_on(plans: &[AllocationPlan], place: Place) -> Bytes {
    let managed = plans.iter().filter(|plan| plan.spec.kind == Kind::Managed);
    let there = managed.filter(|plan| Place::device(plan.device) == place);
    there.fold(Bytes::ZERO, |sum, plan| sum.saturating_add(plan.span))
}

impl Broker {
    /// The session whose turn waits on the device and was requested last, for `TurnStarved`.
    pub(crate) fn last_turn_waiting(&self, device: DeviceIndex) -> Option<SessionId> {
        let waiting = self.sessions.turns.on(device).filter(|(_, turn)| turn.is_waiting());
        waiting.max_by_key(|(_, turn)| turn.arrival).map(|(session, _)| session)
    }

    /// Takes the answer to orders as one to the orders that wait behind them, for `ManagedAnswerOfNewest`.
    pub(crate) fn take_answer_for_newest(&mut self, ended: &[EndedOrder]) {
        for order in ended.iter().filter(|order| order.problem.is_none()) {
            if let Some(newest) = self.allocations.managed.view(order.allocation).and_then(|it| it.under_way)
            {
                self.allocations.managed.set_ordered(order.allocation, newest);
            }
        }
    }

    /// Sends an order for memory that is being freed, if it has one, for `ManagedOrderOfFreed`.
    pub(crate) fn send_order_of_freed(&mut self, allocation: AllocationId) {
        let to = self.allocations.managed.view(allocation).and_then(|it| it.under_way);
        let owner = self.allocations.get(allocation).and_then(|it| it.owner);
        let channel = owner.and_then(|owner| self.sessions.get(owner)).map(|session| session.channel);
        if let Some((to, channel)) = to.zip(channel) {
            let orders = vec![ManagedOrder { allocation, to }];
            let frame = DaemonFrame::ManagedOrders { number: u64::MAX, orders };
            self.push_command(Command::Send { channel, frame });
        }
    }

    /// Returns the backing of another part of that size, for `WrittenBackToAnother`.
    pub(crate) fn backing_of_another(&self, part: PartRef) -> Option<ExtentId> {
        let footprint = self.footprint_of(part);
        self.moves.backings.iter().find_map(|(other, backing)| match backing {
            Backing::Extent { extent, .. } if other != part && self.footprint_of(other) == footprint => {
                Some(*extent)
            }
            _ => None,
        })
    }

    /// Another session with a sequence of that number, for `SequenceOfOtherSession`.
    pub(crate) fn another_with_sequence(&self, session: SessionId, number: u64) -> SessionId {
        let others = self.moves.sequences.iter().map(|(id, _)| id);
        others.filter(|id| id.0 != session && id.1 == number).map(|id| id.0).next().unwrap_or(session)
    }

    /// Another allocation that the session maps, for `LearntElsewhere`.
    pub(crate) fn another_mapped_by(&self, session: SessionId, id: AllocationId) -> AllocationId {
        let mut maps =
            self.sessions.get(session).into_iter().flat_map(|session| session.maps.keys().copied());
        maps.find(|other| *other != id).unwrap_or(id)
    }

    /// Treats all parts of a sequence as streamed ones, for `SequenceKeptStreamed`.
    pub(crate) fn stream_kept(&mut self, id: SequenceId) {
        if let Some(sequence) = self.moves.sequences.get_mut(id) {
            sequence.kept.clear();
        }
    }

    /// Clears what operators advise about a span of parts, for `OverrideLost`.
    pub(crate) fn clear_override(&mut self, of: (AllocationId, TenantId), part_count: u32, span: PartSpan) {
        let change = (AdviceChange::Cleared, self.shell.now);
        self.usage.advice.change(of, part_count, span, change);
    }

    /// Whether one tenant alone has queued prefetch requests, for `PrefetchTriedOnce`.
    pub(crate) fn has_one_prefetching_tenant(&self) -> bool {
        let queues = &self.moves.prefetches.queues;
        queues.devices().into_iter().map(|device| queues.tenants(device).len()).sum::<usize>() == 1
    }

    /// Whether the part comes to its device, for `FetchNotRaised`.
    pub(crate) fn is_fetched(&self, part: PartRef) -> bool {
        self.moves.migrations.get(part).is_some_and(|migration| migration.to_tier == Tier::Device)
    }

    /// Whether the backing of the part still counts as clean, for `FailedWriteBackTakenForClean`.
    pub(crate) fn is_clean_below(&self, part: PartRef) -> bool {
        matches!(self.moves.backings.get(&part), Some(Backing::Extent { clean: true, .. }))
    }

    /// Takes the part for clean, for `UnwrittenTakenForClean`.
    pub(crate) fn take_for_clean(&mut self, part: PartRef) {
        self.moves.backings.set_clean(&part, true);
    }

    /// Charges the tenant for memory that does not exist, for `HandOverChargedTwice`.
    pub(crate) fn charge_if(&mut self, is_handed_over: bool, tenant: TenantId, place: Place, bytes: Bytes) {
        if is_handed_over && let Ok(again) = self.ledger.reserve(tenant, place, bytes) {
            let _charge = self.ledger.settle(again);
        }
    }

    /// Forgets the backing of the part, without a release, if it is a file, for `FileLeaked`.
    pub(crate) fn forget_file(&mut self, part: PartRef) {
        if matches!(self.moves.backings.get(&part), Some(Backing::File { .. })) {
            self.moves.backings.remove(&part);
        }
    }

    /// Releases the file of the part, and reserves other backing, for `FileForgotten`.
    pub(crate) fn replace_file(&mut self, part: PartRef, extent: ExtentId) {
        self.release_extent(extent);
        self.reserve_backing_anew(part);
    }

    /// Whether the call still waits, for `EndedPinAnswered`.
    pub(crate) fn is_waiting(&self, id: PinId) -> bool {
        self.pins.get(id).is_some_and(PinCall::is_waiting)
    }

    /// Answers a call as if the part were mapped, for `PinGrantedElsewhere`.
    pub(crate) fn grant_pin(&mut self, id: PinId, part: PartRef, times: (Time, Option<Time>)) {
        if self.pins.mark_mapped(id, part) {
            self.cancel_pin_timers(id, times);
            self.answer_pin(id, None);
        }
    }

    /// Returns an event after which an offered part is not sent again, for `UnmappableLost`.
    pub(crate) fn unmapped_if_offered(&self, id: SessionId, part: PartRef, event: MapEvent) -> MapEvent {
        match self.map_state(id, part) {
            Some(MapState::Offered) => MapEvent::Unmapped,
            _ => event,
        }
    }

    /// The mappers without those that the daemon waits to hear from, for `MappersFromWords`.
    pub(crate) fn mappers_that_answered(
        &self,
        part: PartRef,
        which: impl Fn(&Mapping) -> bool,
    ) -> Vec<SessionId> {
        let maps = |mapping: &&Mapping| {
            mapping.state != MapState::Away && !mapping.state.is_in_flight() && which(mapping)
        };
        self.mappings(part).iter().filter(maps).map(|mapping| mapping.session).collect()
    }

    /// Applies a quota that could not be stored, for `UnstoredQuotaApplied`.
    pub(crate) fn apply_unstored(&mut self, change: &QuotaChange, quota: Option<Quota>) {
        self.ledger.set_quota(change.tenant, change.device.clone(), change.tier, quota);
    }

    /// Orders parts by their last use, whatever the class of their tenants, for `PressureClassIgnored` and
    /// `VictimClassIgnored`.
    pub(crate) fn by_last_use(&self, mut parts: Vec<PartRef>) -> Vec<PartRef> {
        parts.sort_by_key(|part| {
            self.usage.residents.last_use(*part).max(self.usage.idle_on_host.last_use(*part))
        });
        parts
    }

    /// Drops the rows of absent devices, for `AbsentQuotaLost`.
    pub(crate) fn without_absent(&self, mut rows: Vec<StoredQuota>) -> Vec<StoredQuota> {
        rows.retain(|row| row.device == "*" || self.find_device(&row.device).is_some());
        rows
    }

    /// Gives all tenants the same quota in a tier, for `OtherQuotaChanged`.
    pub(crate) fn changed_for_all(
        &self,
        mut rows: Vec<StoredQuota>,
        tier: Tier,
        quota: Option<Quota>,
    ) -> Vec<StoredQuota> {
        if let Some(Quota { guarantee, limit }) = quota {
            let of_tier = rows.iter_mut().filter(|row| row.tier == tier);
            of_tier.for_each(|row| (row.guarantee, row.limit) = (guarantee, limit));
        }
        rows
    }

    /// Returns another sealed allocation of the tenant, if there is any, for `OtherReplaced`.
    pub(crate) fn another_sealed(&self, tenant: TenantId, id: Option<AllocationId>) -> Option<AllocationId> {
        let mut others = self.allocations.of_tenant(tenant, None);
        others
            .find(|(other, it)| Some(*other) != id && it.state.is_sealed())
            .map_or(id, |(other, _)| Some(other))
    }

    /// Forgets the oldest requests, for `RequestsHalved` and `RequestsShort`.
    pub(crate) fn forget_requests_beyond(&mut self, requester: Requester, most: usize) {
        self.change_request_log(requester, |log| log.forget_beyond(most));
    }

    /// Drops the last of several calls, for `JoinedCallUnanswered`.
    pub(crate) fn without_last(&self, mut calls: Vec<CallId>) -> Vec<CallId> {
        if calls.len() > 1 {
            calls.pop();
        }
        calls
    }

    /// Returns a call of another operation instead, for `AnswerToWrongCall`.
    pub(crate) fn calls_of_another(&self, calls: Vec<CallId>) -> Vec<CallId> {
        let other = self.requests.ops.iter().find_map(|(_, other)| other.calls.first().copied());
        other.map_or(calls, |other| vec![other])
    }

    /// Adds up spans without a check, for `BatchSumOverflows`.
    pub(crate) fn wrapping_sum(&self, plans: &[&AllocationPlan]) -> Option<Bytes> {
        let sizes = plans.iter().map(|plan| plan.span.get());
        Some(Bytes::new(sizes.fold(0, u64::wrapping_add)))
    }

    /// Discharges the extent that the part has left, for `HandOverUncharged`.
    pub(crate) fn discharge_live(&mut self, part: PartRef, id: ExtentId) {
        if let Some(allocation) = self.allocations.get(part.allocation)
            && let (tenant, place) = (allocation.tenant, Place::device(allocation.device))
            && let Ok(nothing) = self.ledger.reserve(tenant, place, Bytes::ZERO)
        {
            let nothing = self.ledger.settle(nothing);
            self.pool.pay_with(id, nothing).into_iter().for_each(|charge| self.ledger.discharge(charge));
        }
    }

    /// Returns the first tenant instead, for `WrongTenantCharged` and `HostChargedToAnother`.
    pub(crate) fn payer_if(&self, is_another: bool, tenant: TenantId) -> TenantId {
        let first = self.tenants.iter().next().filter(|_| is_another);
        first.map_or(tenant, |(_, first)| first)
    }

    /// Returns no bytes for a part in host memory, for `HostChargeForgotten`.
    pub(crate) fn charge_outside_host(&self, place: Place, size: Bytes) -> Bytes {
        if place.tier == Tier::Host { Bytes::ZERO } else { size }
    }

    /// Reserves bytes on disk for a file, for `FileCharged`.
    pub(crate) fn charge_file(&mut self, nothing: Reservation, size: Bytes) -> Reservation {
        self.ledger.reserve(nothing.tenant(), nothing.place(), size).unwrap_or(nothing)
    }

    /// Seals a loaded allocation at once, for `UnreadSealed`.
    pub(crate) fn seal_unread(&mut self, op: OpId, id: AllocationId) -> bool {
        self.advance_allocation(id, AllocationEvent::Unmapped);
        self.advance_allocation(id, AllocationEvent::Digested);
        self.finish(op, Ok(Outcome::Sealed(id)));
        true
    }

    /// Sends a loaded allocation to its owner, for `LoadedSentToOwner`.
    pub(crate) fn send_to_owner(&mut self, owner: Option<SessionId>, id: AllocationId) {
        if let Some(owner) = owner {
            self.queue_maps(owner, id, InitialMaps::All);
        }
    }
}

impl Broker {
    /// Whether the waiter is a batch that needs room on several devices, for `SplitBatchStays`.
    pub(crate) fn is_split(&self, waiter: Waiter) -> bool {
        match waiter {
            Waiter::Batch(op) => self.batch_needs(op, self.pins.after_all()).len() > 1,
            Waiter::Part(_) => false,
        }
    }
}

impl FdBudget {
    /// Turns the queue of each tenant around, for `LastStarvedFirst`.
    pub(crate) fn turn_around(&mut self) {
        self.lines_mut().for_each(|line| line.make_contiguous().reverse());
    }
}

impl Migration {
    /// Takes the mappers of the part for gone already, for `CopiedWhileMappedInPlace`.
    pub(crate) fn unmapped_in(self, tier: Tier) -> Self {
        Self { is_unmapped: self.from_tier == tier, ..self }
    }
}

impl AllocationState {
    /// Takes open memory for sealed memory, for `UnsealedShared`.
    pub(crate) fn sealed_if_open(self) -> Self {
        if self == Self::Open { Self::Sealed } else { self }
    }

    /// For `NonReaderServed`.
    pub(crate) fn is_sealed(self) -> bool {
        self == Self::Sealed
    }

    /// For `FreedNotListed`.
    pub(crate) fn is_freeing(self) -> bool {
        self == Self::Freeing
    }
}

impl Stage {
    /// For `FenceLetsPinsIn`.
    pub(crate) fn is_fence(&self) -> bool {
        matches!(self, Self::Fence { .. })
    }
}

impl PressureBounds {
    /// For `LevelWithoutHysteresis`.
    pub(crate) fn without_hysteresis(self) -> Self {
        Self { fall_percent: 0, ..self }
    }
}

impl Ledger {
    /// For `LimitOffByOnePart`.
    pub(crate) fn without_one_part(&self, charged: Bytes) -> Bytes {
        charged.saturating_sub(GRANULARITY)
    }
}

impl AllocationTable {
    /// Gives an allocation its name, whichever has it, for `NameNotFreed` and `NameLedAstray`.
    pub(crate) fn restore_name(&mut self, id: AllocationId) {
        if let Some(allocation) = self.get(id)
            && let Some(name) = allocation.name.clone()
        {
            self.bind(allocation.tenant, &name, id);
        }
    }
}

impl Moves {
    /// Returns the memory of the backing of a part, or the given one, for `BackingHashed`.
    pub(crate) fn backing_or(&self, allocation: AllocationId, part: PartIndex, extent: ExtentId) -> ExtentId {
        match self.backings.get(&PartRef { allocation, part }) {
            Some(Backing::Extent { extent, .. }) => *extent,
            _ => extent,
        }
    }

    /// Returns an extent that the part has left and that still exists, or the given one, for
    /// `SentFromOldExtent`.
    pub(crate) fn extent_left_by(&self, part: PartRef, pool: &Pool, extent: ExtentId) -> ExtentId {
        let mut left = self.detached.of(part.allocation);
        left.find(|id| pool.extent_of_part(part, *id).is_some()).unwrap_or(extent)
    }
}

impl Pool {
    /// Returns a live extent of another tenant, or the given one, for `ExtentOfAnotherTenant`.
    pub(crate) fn of_another_tenant(&self, tenant: TenantId, extent: ExtentId) -> ExtentId {
        let strange = |extent: &Extent| match &extent.state {
            ExtentState::Live(charge) => charge.tenant() != tenant,
            _ => false,
        };
        self.iter().find(|(_, extent)| strange(extent)).map_or(extent, |(id, _)| id)
    }

    /// Returns the tenant of the oldest cached extent of that size, or the given one, for
    /// `CachedToAnotherTenant`.
    pub(crate) fn tenant_with_cached(&self, device: DeviceIndex, size: Bytes, tenant: TenantId) -> TenantId {
        let mut cached = self.cache().iter().map(|(_, it)| it);
        cached.find(|it| (it.device, it.size) == (device, size)).map_or(tenant, |it| it.tenant)
    }

    /// Replaces the charge of a live extent and returns the old one.
    fn pay_with(&mut self, id: ExtentId, charge: Charge) -> Option<Charge> {
        match &mut self.get_mut(id)?.state {
            ExtentState::Live(paid) => Some(std::mem::replace(paid, charge)),
            _ => None,
        }
    }
}

impl RequestLog {
    /// Returns the key with the fingerprint that its id had first, for `ReusedRequestIdServed`.
    pub(crate) fn key_used_first(&self, method: Method, key: Option<RequestKey>) -> Option<RequestKey> {
        let key = key?;
        let fingerprint = self.find((method, key.id)).map_or(key.fingerprint, |entry| entry.fingerprint);
        Some(RequestKey { fingerprint, ..key })
    }
}

impl Time {
    pub(crate) const NEVER: Self = Self::from_micros(u64::MAX);
}
