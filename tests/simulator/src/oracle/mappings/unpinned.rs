//! Unheld memory: its owner is sent what it pins, so its parts may begin below their device where that is full. What a batch
//! asks below is its own before others of it have anything set aside there.

use broker_core::{
    Broker, ClientRequest, Kind, PartRef, Target, Tier,
    invariants::{CALLS, DEVICES},
};
use vramd_types::{AllocationId, ExtentId, SessionId};

use crate::oracle::{
    Oracle,
    facts::{Asked, Call, Tenant},
};

impl Oracle {
    /// Memory for a new part is made below its device: only while others wait there, or where it would not be admitted. What a
    /// batch of the line finds there is not known here.
    pub(crate) fn check_made_below(
        &mut self,
        (id, tier): (ExtentId, Tier),
        owner: Tenant,
        device: usize,
        size: u64,
    ) {
        let is_nearer = |place: &usize| self.facts.places[*place].tier < tier;
        let nearer: Vec<_> = self.facts.below(device).into_iter().filter(is_nearer).collect();
        for nearer in nearer {
            let admitted = self.would_admit(owner, nearer, size);
            self.expect(DEVICES, !admitted, || {
                format!("{id} is made in {tier}, with room in place {nearer}")
            });
        }
        let in_line = !self.facts.waits.is_empty() || self.step.retried_tenant.is_some();
        let rightly = in_line || !self.would_admit(owner, device, size);
        self.expect(DEVICES, rightly, || format!("{id} is made below device {device}, where there is room"));
    }

    /// Whether it may be made below its device. What is discardable never lies there.
    pub(crate) fn may_begin_below(part: PartRef, broker: &Broker) -> bool {
        broker.is_unpinned(part.allocation) && !Self::is_discardable(part, broker)
    }

    /// A new part lies on its device. What is held has bytes set aside once all of its batch is ordered; what is discardable
    /// needs none.
    pub(crate) fn record_new_part(
        &mut self,
        part: PartRef,
        (owner, device, size): (Tenant, usize, u64),
        broker: &Broker,
    ) {
        let discardable = Self::is_discardable(part, broker);
        match discardable || Self::may_begin_below(part, broker) {
            true => self.reserve_backing(part, (owner, discardable), device, size),
            false => self.step.to_back.push((part, (owner, device, size))),
        }
    }

    /// All of a batch is ordered.
    pub(crate) fn reserve_batch_backing(&mut self) {
        for (part, (owner, device, size)) in std::mem::take(&mut self.step.to_back) {
            self.reserve_backing(part, (owner, false), device, size);
        }
    }

    /// Who attaches it unheld has pins, and it is not mapped for life.
    pub(crate) fn check_unpinned_attach(&mut self, by: SessionId, id: AllocationId, unpinned: bool) {
        let can =
            self.has_pins(by) && self.facts.allocations.get(&id).is_some_and(|it| it.kind != Kind::Fixed);
        self.expect(CALLS, can || !unpinned, || format!("{by} attaches {id} unheld, and could never pin it"));
    }

    /// Of requests to attach, only one that is to be unheld is invalid: who has no pins, or what is fixed.
    pub(crate) fn is_invalid_unpinned(&self, call: &Call, broker: &Broker) -> bool {
        match &call.asked {
            Asked::Client { request: ClientRequest::Attach(_), .. } => false,
            Asked::Client { session, request: ClientRequest::AttachUnpinned(target), .. } => {
                !self.has_pins(*session) || self.is_fixed(*session, target, broker)
            }
            Asked::Client { .. } | Asked::Operator { .. } => true,
        }
    }

    /// A name without a tenant is of the session's own.
    fn is_fixed(&self, by: SessionId, target: &Target, broker: &Broker) -> bool {
        let Some(session) = self.facts.sessions.get(&by) else { return false };
        let own = self.facts.tenants.get(session.tenant).cloned().unwrap_or_default();
        let shown = match target {
            Target::Name(name) if !name.contains('/') => broker.show(&Target::Name(format!("{own}/{name}"))),
            Target::Name(_) | Target::Id(_) => broker.show(target),
        };
        shown.is_ok_and(|view| view.kind == Kind::Fixed)
    }

    /// In which extents the parts are: nothing is sent that would say so.
    pub(crate) fn learn_unpinned_extents(&mut self, id: AllocationId, broker: &Broker) {
        let Some(unpinned) = self.facts.allocations.get(&id).map(|it| it.unpinned) else { return };
        let is = broker.is_unpinned(id);
        self.expect(CALLS, is == unpinned, || {
            format!("{id}: requested as unpinned {unpinned}, made as unpinned {is}")
        });
        if !unpinned {
            return;
        }
        let made = |extent: &ExtentId| broker.part_of_extent(*extent).filter(|part| part.allocation == id);
        let made: Vec<_> = self.facts.extents.keys().filter_map(|it| Some((*it, made(it)?))).collect();
        for (extent, part) in made {
            if let Some(allocation) = self.facts.allocations.get_mut(&id) {
                allocation.parts.insert(part.part.0, extent);
            }
            if let Some(facts) = self.facts.extents.get_mut(&extent) {
                facts.part = Some(part);
            }
        }
    }
}
