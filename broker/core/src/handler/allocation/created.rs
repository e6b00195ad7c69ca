//! Extents that the driver has created, or could not. Each settles its reservation or cancels it; the last one of a
//! batch ends the request, and one that no part lies in goes to its move.

use vramd_types::{Bytes, ExtentId};

use crate::{
    broker::Broker,
    command::Notice,
    event::CreateError,
    follow_up::Fact,
    invariants,
    ledger::Place,
    ops::OpKind,
    pool::{ExtentError, ExtentState},
    residency::AllocationState,
};

impl Broker {
    pub(crate) fn on_created(&mut self, id: ExtentId, result: Result<(), CreateError>) {
        let Some(extent) = self.pool.get_mut(id) else {
            return self.report_violation(invariants::EXTENTS, format!("{id} was created and is not known"));
        };
        let Some(reservation) = extent.take_reservation() else {
            return self.report_violation(invariants::EXTENTS, format!("{id} was created twice"));
        };
        let (place, size, part) = (extent.place, extent.size, extent.part);
        let failure = match result {
            Ok(()) => {
                extent.state = ExtentState::Live(self.ledger.settle(reservation));
                None
            }
            Err(error) => {
                self.pool.take(id);
                self.ledger.cancel(reservation);
                self.follow_ups.push(Fact::CreationFailed);
                Some(self.on_creation_failed(id, place, size, error))
            }
        };
        let failed = failure.is_some();
        let Some((part, allocation)) =
            part.and_then(|part| Some((part, self.allocations.get_mut(part.allocation)?)))
        else {
            return self.report_violation(invariants::EXTENTS, format!("{id} backs nothing"));
        };
        if failed {
            allocation.extents_left = allocation.extents_left.saturating_sub(1);
            self.moves.detached.remove(part, id);
        }
        let Some(allocation) = self.allocations.get(part.allocation) else { return };
        let op = allocation.op;
        let freeing = allocation.state == AllocationState::Freeing;
        if allocation.part(part.part).is_some_and(|entry| entry.extent != id) {
            self.on_detached_made(part, id, failure.as_ref());
            if !self.remove_if_gone(part.allocation) {
                // For a freed allocation this may have been the last unknown extent.
                self.notify_watchers(part.allocation);
            }
            return;
        }
        if failed {
            self.untrack_on_host(part);
        }
        if freeing {
            self.release_freed_part(part);
            self.remove_if_gone(part.allocation);
        }
        if let Some(op) = op
            && let Some(OpKind::Allocate { extents_left, failure: first, .. }) =
                self.requests.ops.get_mut(op).map(|op| &mut op.kind)
        {
            *extents_left = extents_left.saturating_sub(1);
            *first = first.take().or(failure);
            self.finish_allocation(op);
        }
    }

    pub(crate) fn on_creation_failed(
        &mut self,
        id: ExtentId,
        place: Place,
        size: Bytes,
        error: CreateError,
    ) -> ExtentError {
        let problem = match &error {
            CreateError::OutOfMemory => "out of memory".to_owned(),
            CreateError::OutOfHostMemory(problem)
            | CreateError::OutOfDisk(problem)
            | CreateError::Failed(problem) => problem.clone(),
        };
        self.push_notice(Notice::CreateFailed { extent: id, problem });
        match error {
            CreateError::OutOfHostMemory(problem) | CreateError::OutOfDisk(problem)
                if place.tier != Self::tier() =>
            {
                ExtentError::OutOfRoom { place, requested: size, problem }
            }
            CreateError::OutOfMemory | CreateError::OutOfHostMemory(_) | CreateError::OutOfDisk(_) => {
                if place.tier == Self::tier() {
                    self.on_out_of_memory(place.device, size);
                }
                ExtentError::OutOfMemory { place, requested: size }
            }
            CreateError::Failed(problem) => ExtentError::DriverFailed { device: place.device, problem },
        }
    }
}
