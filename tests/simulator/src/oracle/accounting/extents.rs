//! An extent is created once and released once, while no session maps it and the driver does not read it. It
//! belongs to one tenant for life, and to one part until it is reused.

use broker_core::{
    Broker, ClientRequest, DigestSpan, Kind, MapPart, PartRef, Tier,
    invariants::{CACHE_REUSE, COPIES, EXTENT_TENANT, EXTENT_USE},
};
use vramd_types::{AllocationId, ExtentId, SessionId};

use crate::oracle::{
    Oracle,
    facts::{Asked, ExtentFacts, ExtentPhase, Tenant},
};

/// An extent that is to be created.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ordered {
    pub(crate) id: ExtentId,
    pub(crate) device: usize,
    pub(crate) tier: Tier,
    pub(crate) size: u64,
    pub(crate) kind: Kind,
}

impl Oracle {
    /// Records the creation of memory: for a batch, at once or when there is room, or for a part that moves
    /// there. The tenant of the requesting session pays, or that of the part.
    pub(crate) fn record_create(&mut self, ordered: Ordered, broker: &Broker) {
        let Ordered { id, device, tier, size, kind } = ordered;
        let part_of_extent = broker.part_of_extent(id);
        self.record_extent_id(id);
        self.step.ordered_count += 1;
        let moves = part_of_extent.filter(|part| self.facts.allocations.contains_key(&part.allocation));
        let new = part_of_extent.filter(|_| moves.is_none());
        let lazy = new.is_some_and(|part| Self::may_begin_below(part, broker));
        if moves.is_some() {
            self.reserve_batch_backing();
        }
        let stays = Self::is_written_back(id, broker);
        let owner = match moves {
            Some(part) if stays => self.payer_of(part),
            Some(part) => self.record_move_start(id, part),
            None => self.record_new_memory(id),
        };
        if let Some(part) = moves.filter(|_| tier == Tier::Device) {
            self.step.fetched.push(part);
            self.check_arrival(part);
        }
        let leaves = |part: &PartRef| self.may_lie_on_device(*part);
        if let Some(part) = moves.filter(|part| tier != Tier::Device && !stays && leaves(part)) {
            self.record_departure(part, true, broker);
        }
        let place =
            self.facts.place(device, tier).filter(|_| moves.is_some() || tier == Tier::Device || lazy);
        let Some((owner, place)) = owner.zip(place) else {
            return self.expect(EXTENT_USE, false, || {
                format!("{id} is created without a tenant or without a place")
            });
        };
        self.step.changed_accounts.push((owner, place));
        if moves.is_none() && tier != Tier::Device {
            self.check_made_below((id, tier), owner, device, size);
        }
        if let Some(part) = moves.filter(|_| tier != Tier::Device) {
            self.check_memory_below(part, id, tier, broker);
        }
        let had_backing = moves.is_some_and(|part| self.facts.backings.contains_key(&part));
        let is_paid = tier != Tier::Device && moves.is_some_and(|part| self.record_backing_made(part, place));
        if !is_paid {
            self.facts.balance(owner, place).reserved += size;
            self.step.admitted.push((owner, place));
        }
        let extent = ExtentFacts {
            place,
            size,
            owner,
            phase: ExtentPhase::Creating,
            part: moves,
            detached: moves.is_some(),
            copied: false,
            sent_to: Vec::new(),
            mappers: Default::default(),
            being_read: false,
            written_back: false,
            unacknowledged: false,
            reused: false,
            unwritten: tier == Tier::Disk,
            debts: Vec::new(),
            in_file: false,
        };
        self.facts.extents.insert(id, extent);
        *self.step.taken.entry((owner, place)).or_default() += size;
        if let Some(part) = moves.filter(|_| tier == Tier::Device) {
            self.record_charge_with(part, place);
        }
        if let Some(part) = moves.filter(|_| stays) {
            // Its first backing, without which it could not leave.
            if !had_backing {
                self.facts.backed.insert(part, self.facts.now);
            }
            self.keep_as_backing(part, id);
        }
        if moves.is_none() && tier == Tier::Device && self.step.retried_tenant.is_none() {
            let in_use = self.charged_in_use(owner, place);
            self.step.made_at_once.insert((owner, place), in_use);
        }
        if let Some(part) = new.filter(|_| kind == Kind::Movable && tier == Tier::Device) {
            self.record_new_part(part, (owner, device, size), broker);
        }
    }

    /// Records new memory. Returns the tenant whose batch it is for.
    pub(crate) fn record_new_memory(&mut self, id: impl std::fmt::Display) -> Option<Tenant> {
        self.expect_not_draining(id);
        self.step.created_count += 1;
        let session = match &self.step.call {
            Some((_, call)) => match &call.asked {
                Asked::Client { session, request: ClientRequest::AllocateBatch { .. }, .. }
                | Asked::Client { session, request: ClientRequest::Load { .. }, .. } => Some(*session),
                _ => None,
            },
            None => None,
        };
        let asked_by = session.and_then(|session| self.facts.sessions.get(&session)).map(|it| it.tenant);
        self.step.retried_tenant.or(asked_by)
    }

    pub(crate) fn check_sent_extent(&mut self, session: SessionId, tenant: usize, sent: &MapPart) {
        let (id, part) = (sent.extent, sent.part);
        let allocation = self.facts.allocations.get(&part.allocation);
        let owner = allocation.map(|allocation| allocation.tenant);
        let was_lost = self.facts.drop_counts.contains_key(&part);
        let takes_old = allocation.is_some_and(|allocation| allocation.uninitialized) || was_lost;
        let Some(extent) = self.facts.extents.get_mut(&id) else {
            return self
                .expect(EXTENT_USE, false, || format!("{id} is sent to {session} and does not exist"));
        };
        extent.mappers.insert(session);
        if !extent.sent_to.contains(&tenant) {
            extent.sent_to.push(tenant);
        }
        let first = *extent.part.get_or_insert(part);
        let (live, same) = (extent.phase == ExtentPhase::Live, first == part);
        let copied = extent.copied;
        let zero = !extent.reused;
        let (own, fits) = (extent.owner, extent.size == sent.size.get());
        self.expect(EXTENT_USE, live, || format!("{id} is sent to {session} and is not live"));
        self.expect(COPIES, !copied, || format!("{id} is sent to {session} while it is copied"));
        self.expect(CACHE_REUSE, zero || takes_old, || {
            format!("{id} has old content, and {part:?} must be zero")
        });
        self.expect(EXTENT_USE, fits, || format!("{id} is sent with a wrong size"));
        self.expect(EXTENT_TENANT, same, || format!("{id} backs {first:?} and is sent as {part:?}"));
        self.expect(EXTENT_TENANT, owner == Some(own), || format!("{id} is of another tenant than {part:?}"));
        if let Some(allocation) = self.facts.allocations.get_mut(&part.allocation) {
            let known = *allocation.parts.entry(part.part.0).or_insert(id);
            self.expect(EXTENT_TENANT, known == id, || {
                format!("{part:?} lay in {known} and is sent as {id}")
            });
        }
    }

    pub(crate) fn check_release(&mut self, id: ExtentId) {
        let Some(extent) = self.facts.extents.get_mut(&id) else {
            return self.expect(EXTENT_USE, false, || format!("{id} is released and does not exist"));
        };
        self.step.released.insert(id);
        let before = std::mem::replace(&mut extent.phase, ExtentPhase::Releasing);
        let live = matches!(before, ExtentPhase::Live | ExtentPhase::Cached);
        let (mapper, read) = (extent.mappers.first().copied(), extent.being_read);
        let copied = extent.copied || extent.written_back;
        let (account, size) = ((extent.owner, extent.place), extent.size);
        if before == ExtentPhase::Cached {
            extent.phase = ExtentPhase::GivenUp;
            *self.facts.cached_leaving.entry(account).or_default() += size;
            self.remove_from_cache(id);
            self.step.changed_accounts.push(account);
        }
        self.expect_not_backing(id);
        self.facts.moves.remove(&id);
        self.expect(COPIES, !copied, || format!("{id} is released while it is copied"));
        self.expect(EXTENT_USE, live, || format!("{id} is released and was not live"));
        self.expect(EXTENT_USE, mapper.is_none(), || format!("{id} is released and mapped by {mapper:?}"));
        self.expect(EXTENT_USE, !read, || format!("{id} is released and being read"));
    }

    pub(crate) fn record_digest_read(&mut self, allocation: AllocationId, spans: &[DigestSpan]) {
        let ids: Vec<_> = spans.iter().map(|span| span.extent).collect();
        for id in &ids {
            let extent = self.facts.extents.get_mut(id);
            let live = extent.is_some_and(|extent| {
                extent.being_read = true;
                extent.phase == ExtentPhase::Live
            });
            self.expect(EXTENT_USE, live, || format!("{id} is read and is not live"));
        }
        self.facts.digesting.insert(allocation, ids);
    }
}
