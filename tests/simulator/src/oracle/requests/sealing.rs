//! Memory is hashed while no session maps it, and its digest is of what the driver read.

use broker_core::{AllocationState, Broker, DigestSpan, Target, invariants::SEALED};
use vramd_types::AllocationId;

use crate::oracle::Oracle;
use crate::world::digest_of;

impl Oracle {
    pub(crate) fn check_digest(&mut self, id: AllocationId, spans: &[DigestSpan]) {
        for span in spans {
            let mapped =
                self.facts.extents.get(&span.extent).is_some_and(|extent| !extent.mappers.is_empty());
            self.expect(SEALED, !mapped, || format!("{id} is hashed while {} is mapped", span.extent));
        }
        let read: u64 = spans.iter().map(|span| span.bytes.get()).sum();
        let size = self.facts.allocations.get(&id).map(|allocation| allocation.size);
        let size = size.or_else(|| self.facts.loading.get(&id).map(|load| load.bytes));
        self.expect(SEALED, size == Some(read), || format!("{read} bytes of {id} are hashed, not {size:?}"));
        // No session keeps any of it: its owner is sent all of it anew.
        for session in self.facts.sessions.values_mut() {
            session.away.retain(|part| part.allocation != id);
        }
        self.record_digest_read(id, spans);
        self.facts.digests.insert(id, digest_of(spans));
    }

    /// Records that the driver has finished reading.
    pub(crate) fn record_digest(&mut self, id: AllocationId) {
        for extent in self.facts.digesting.remove(&id).unwrap_or_default() {
            if let Some(extent) = self.facts.extents.get_mut(&extent) {
                extent.being_read = false;
            }
        }
        // No session has mapped any of it while the driver read.
        self.facts.in_place_to_unmap.retain(|part| part.allocation != id);
        self.owe_again(id);
        self.step.digested = Some(id);
        self.step.hashed = Some(id);
    }

    /// Learns whether the allocation is sealed now. Called once the broker has handled the digest, before it
    /// sends anything for it.
    pub(crate) fn learn_sealed(&mut self, broker: &Broker) {
        let Some(id) = self.step.digested.take() else { return };
        let Ok(view) = broker.show(&Target::Id(id)) else { return };
        if view.state != AllocationState::Sealed {
            return;
        }
        if let Some(allocation) = self.facts.allocations.get_mut(&id) {
            allocation.sealed = true;
        }
        let read = self.facts.digests.get(&id).copied();
        self.expect(SEALED, view.digest == read, || format!("{id} has a digest of something else"));
    }
}
