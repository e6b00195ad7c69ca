//! Memory without a handle pin: the daemon sends its owner only what it pins, so parts may begin below a full
//! device. The bytes that a batch takes below come before any backing of the same batch.

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
    /// Checks that a new part begins below its device only while others wait, or where the device would not
    /// admit it. The oracle does not know which room a batch of the line finds.
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

    /// Whether the part may begin below its device. A discardable part never lies there.
    pub(crate) fn may_begin_below(part: PartRef, broker: &Broker) -> bool {
        broker.is_unpinned(part.allocation) && !Self::is_discardable(part, broker)
    }

    /// Records a new part on its device. With a handle pin its backing is reserved once the whole batch is
    /// ordered; a discardable part needs none.
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

    /// Reserves the backings of a batch, once all of it is ordered.
    pub(crate) fn reserve_batch_backing(&mut self) {
        for (part, (owner, device, size)) in std::mem::take(&mut self.step.to_back) {
            self.reserve_backing(part, (owner, false), device, size);
        }
    }

    /// Checks that an attach without a handle pin could ever pin: the session has pins, and the allocation is
    /// not fixed.
    pub(crate) fn check_unpinned_attach(&mut self, by: SessionId, id: AllocationId, unpinned: bool) {
        let can =
            self.has_pins(by) && self.facts.allocations.get(&id).is_some_and(|it| it.kind != Kind::Fixed);
        self.expect(CALLS, can || !unpinned, || {
            format!("{by} attaches {id} without a handle pin, and could never pin it")
        });
    }

    /// Whether an attach without a handle pin is invalid: the session has no pins, or the allocation is
    /// fixed. Any other attach is valid.
    pub(crate) fn is_invalid_unpinned(&self, call: &Call, broker: &Broker) -> bool {
        match &call.asked {
            Asked::Client { request: ClientRequest::Attach(_), .. } => false,
            Asked::Client { session, request: ClientRequest::AttachUnpinned(target), .. } => {
                !self.has_pins(*session) || self.is_fixed(*session, target, broker)
            }
            Asked::Client { .. } | Asked::Operator { .. } => true,
        }
    }

    /// A name without a tenant is one of the session's own tenant.
    fn is_fixed(&self, by: SessionId, target: &Target, broker: &Broker) -> bool {
        let Some(session) = self.facts.sessions.get(&by) else { return false };
        let own = self.facts.tenants.get(session.tenant).cloned().unwrap_or_default();
        let shown = match target {
            Target::Name(name) if !name.contains('/') => broker.show(&Target::Name(format!("{own}/{name}"))),
            Target::Name(_) | Target::Id(_) => broker.show(target),
        };
        shown.is_ok_and(|view| view.kind == Kind::Fixed)
    }

    /// Learns which extents the parts of memory without a handle pin lie in: the daemon sends nothing that
    /// says so.
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
