//! Extents are made once and released once, by nobody mapped and by nobody read, and belong to one tenant for life and
//! to one part until they are recycled.

use broker_core::{
    Broker, ClientRequest, DigestSpan, Kind, MapPart, PartRef, Tier,
    invariants::{COPIES, EXTENT_TENANT, EXTENT_USE, RECYCLED},
};
use vramd_types::{AllocationId, ExtentId, SessionId};

use crate::oracle::{
    Oracle,
    facts::{Asked, ExtentFacts, ExtentPhase, Tenant},
};

/// An extent that is to be made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ordered {
    pub(crate) id: ExtentId,
    pub(crate) device: usize,
    pub(crate) tier: Tier,
    pub(crate) size: u64,
    pub(crate) kind: Kind,
}

impl Oracle {
    /// Memory is made for a batch of a session, at once or when there is room, or for a part to move there. Who asked for
    /// the batch pays, or whose the part is.
    pub(crate) fn extent_ordered(&mut self, ordered: Ordered, broker: &Broker) {
        let Ordered { id, device, tier, size, kind } = ordered;
        let made_for = broker.made_for(id);
        self.is_new_extent(id);
        self.step.ordered += 1;
        let moves = made_for.filter(|part| self.facts.allocations.contains_key(&part.allocation));
        let new = made_for.filter(|_| moves.is_none());
        let lazy = new.is_some_and(|part| Self::is_lazy(part, broker));
        if moves.is_some() {
            self.batch_is_ordered();
        }
        let stays = Self::is_written_back(id, broker);
        let owner = match moves {
            Some(part) if stays => self.gets_memory_below(part),
            Some(part) => self.part_begins_to_move(id, part),
            None => self.memory_is_made(id),
        };
        if let Some(part) = moves.filter(|_| tier == Tier::Device) {
            self.may_come(part);
        }
        let leaves = |part: &PartRef| self.lies_above_or_unknown(*part);
        if let Some(part) = moves.filter(|part| tier != Tier::Device && !stays && leaves(part)) {
            self.leaves_its_device(part, true, broker);
        }
        let place =
            self.facts.place(device, tier).filter(|_| moves.is_some() || tier == Tier::Device || lazy);
        let Some((owner, place)) = owner.zip(place) else {
            return self.expect(EXTENT_USE, false, || format!("{id} is made for nobody, or nowhere"));
        };
        self.step.touched.push((owner, place));
        if moves.is_none() && tier != Tier::Device {
            self.is_rightly_below((id, tier), owner, device, size);
        }
        if let Some(part) = moves.filter(|_| tier != Tier::Device) {
            self.needs_memory_below(part, id, tier, broker);
        }
        let is_paid = tier != Tier::Device && moves.is_some_and(|part| self.backing_is_made(part, place));
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
            stray: moves.is_some(),
            copied: false,
            sent_to: Vec::new(),
            mappers: Default::default(),
            being_read: false,
            written_back: false,
            unacknowledged: false,
            recycled: false,
            unwritten: tier == Tier::Disk,
            debts: Vec::new(),
            in_file: false,
        };
        self.facts.extents.insert(id, extent);
        if let Some(part) = moves.filter(|_| stays) {
            self.keeps(part, id);
        }
        if moves.is_none() && tier == Tier::Device && self.step.room_for.is_none() {
            let in_use = self.held_in_use(owner, place);
            self.step.made_at_once.insert((owner, place), in_use);
        }
        if let Some(part) = new.filter(|_| kind == Kind::Movable && tier == Tier::Device) {
            self.lies_above(part, (owner, device, size), broker);
        }
    }

    /// Whose batch it is that new memory is made for.
    pub(crate) fn memory_is_made(&mut self, id: ExtentId) -> Option<Tenant> {
        self.takes_new(id);
        self.step.created += 1;
        let session = match &self.step.call {
            Some((_, call)) => match &call.asked {
                Asked::Client { session, request: ClientRequest::AllocateBatch { .. }, .. }
                | Asked::Client { session, request: ClientRequest::Load { .. }, .. } => Some(*session),
                _ => None,
            },
            None => None,
        };
        let asked_by = session.and_then(|session| self.facts.sessions.get(&session)).map(|it| it.tenant);
        self.step.room_for.or(asked_by)
    }

    pub(crate) fn extent_sent(&mut self, session: SessionId, tenant: usize, sent: &MapPart) {
        let (id, part) = (sent.extent, sent.part);
        let allocation = self.facts.allocations.get(&part.allocation);
        let owner = allocation.map(|allocation| allocation.tenant);
        let was_lost = self.facts.losses.contains_key(&part);
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
        let zero = !extent.recycled;
        let (its, fits) = (extent.owner, extent.size == sent.size.get());
        self.expect(EXTENT_USE, live, || format!("{id} is sent to {session} and is not there"));
        self.expect(COPIES, !copied, || format!("{id} is sent to {session} while it is copied"));
        self.expect(RECYCLED, zero || takes_old, || {
            format!("{id} has old content, and {part:?} wants zeros")
        });
        self.expect(EXTENT_USE, fits, || format!("{id} is sent with a size that it has not"));
        self.expect(EXTENT_TENANT, same, || format!("{id} backs {first:?} and is sent as {part:?}"));
        self.expect(EXTENT_TENANT, owner == Some(its), || format!("{id} is of another tenant than {part:?}"));
        if let Some(allocation) = self.facts.allocations.get_mut(&part.allocation) {
            let known = *allocation.parts.entry(part.part.0).or_insert(id);
            self.expect(EXTENT_TENANT, known == id, || format!("{part:?} was {known} and is {id}"));
        }
    }

    pub(crate) fn extent_released(&mut self, id: ExtentId) {
        let Some(extent) = self.facts.extents.get_mut(&id) else {
            return self.expect(EXTENT_USE, false, || format!("{id} is released and does not exist"));
        };
        let before = std::mem::replace(&mut extent.phase, ExtentPhase::Releasing);
        let live = matches!(before, ExtentPhase::Live | ExtentPhase::Cached);
        let (mapper, read) = (extent.mappers.first().copied(), extent.being_read);
        let copied = extent.copied || extent.written_back;
        let (account, size) = ((extent.owner, extent.place), extent.size);
        if before == ExtentPhase::Cached {
            extent.phase = ExtentPhase::GivenUp;
            *self.facts.going.entry(account).or_default() += size;
            self.not_cached(id);
            self.step.touched.push(account);
        }
        self.is_not_backing(id);
        self.facts.moves.remove(&id);
        self.expect(COPIES, !copied, || format!("{id} is released while it is copied"));
        self.expect(EXTENT_USE, live, || format!("{id} is released and was not there"));
        self.expect(EXTENT_USE, mapper.is_none(), || format!("{id} is released and mapped by {mapper:?}"));
        self.expect(EXTENT_USE, !read, || format!("{id} is released and being read"));
    }

    pub(crate) fn extents_read(&mut self, allocation: AllocationId, spans: &[DigestSpan]) {
        let ids: Vec<_> = spans.iter().map(|span| span.extent).collect();
        for id in &ids {
            let extent = self.facts.extents.get_mut(id);
            let live = extent.is_some_and(|extent| {
                extent.being_read = true;
                extent.phase == ExtentPhase::Live
            });
            self.expect(EXTENT_USE, live, || format!("{id} is read and is not there"));
        }
        self.facts.digesting.insert(allocation, ids);
    }
}
