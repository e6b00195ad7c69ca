//! Extents: the daemon reserves their bytes and orders them from the driver, for a new allocation or for a part
//! that moves. The answer settles the reservation, or cancels it.

use vramd_types::{Bytes, ExtentId};

use crate::{
    broker::Broker,
    command::{Command, Notice},
    error::Refusal,
    event::{CreateError, Kind, PartRef, Tier},
    follow_up::Fact,
    invariants,
    ledger::{Place, Reservation, Shortage},
    pool::{Extent, ExtentState},
    residency::AllocationState,
    tenancy::{OpKind, TenantId},
};

/// An extent to create, and the part that it is for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExtentOrder {
    pub(crate) place: Place,
    pub(crate) size: Bytes,
    pub(crate) part: PartRef,
    pub(crate) kind: Kind,
    pub(crate) zeroed: bool,
}

impl Broker {
    /// Reserves the bytes of one part and orders an extent for it.
    pub(crate) fn order_extent(&mut self, tenant: TenantId, order: ExtentOrder) -> Result<ExtentId, Refusal> {
        let ExtentOrder { place, size, .. } = order;
        let another = match place.tier {
            Tier::Device => planted!(self, WrongTenantCharged),
            Tier::Host | Tier::Disk => planted!(self, HostChargedToAnother),
        };
        let charged = match place.tier {
            Tier::Host if planted!(self, HostChargeForgotten) => Bytes::ZERO,
            _ => size,
        };
        let payer = match another {
            true => self.tenants.iter().next().map_or(tenant, |(_, first)| first),
            false => tenant,
        };
        let reserved = self.ledger.reserve(payer, place, charged);
        let reservation =
            reserved.map_err(|shortage| self.shortage_refusal(tenant, place, shortage, size))?;
        self.order_from_reservation(reservation, order)
    }

    /// Orders an extent in bytes that are reserved.
    pub(crate) fn order_from_reservation(
        &mut self,
        reservation: Reservation,
        order: ExtentOrder,
    ) -> Result<ExtentId, Refusal> {
        let ExtentOrder { place, size, part, kind, zeroed } = order;
        let extent = match self.next_extent_id() {
            Ok(extent) => extent,
            Err(exhausted) => {
                self.ledger.cancel(reservation);
                return Err(exhausted);
            }
        };
        let made = Extent::new(place, size, part, ExtentState::Creating(reservation));
        self.pool.insert(extent, Extent { unwritten: place.tier == Tier::Disk, ..made });
        let Place { device, tier } = place;
        self.push_command(Command::CreateExtent { extent, device, tier, size, kind, zeroed });
        Ok(extent)
    }

    /// The next id of an extent.
    pub(crate) fn next_extent_id(&mut self) -> Result<ExtentId, Refusal> {
        let exhausted = Refusal::InvariantBroken { invariant: invariants::IDS };
        self.pool.ids.next_raw().map(ExtentId::from_raw).ok_or(exhausted)
    }

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
            self.untrack_detached(part.allocation, id);
        }
        let Some(allocation) = self.allocations.get(part.allocation) else { return };
        let op = allocation.op;
        let freeing = allocation.state == AllocationState::Freeing;
        if allocation.part(part.part).is_some_and(|entry| entry.extent != id) {
            return self.on_detached_made(part, id, failure.as_ref());
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
            self.finish_if_complete(op);
        }
    }

    fn on_creation_failed(&mut self, id: ExtentId, place: Place, size: Bytes, error: CreateError) -> Refusal {
        let uuid = self.uuid(place.device).to_owned();
        let problem = match &error {
            CreateError::OutOfMemory => "out of memory".to_owned(),
            CreateError::OutOfHostMemory(problem)
            | CreateError::OutOfDisk(problem)
            | CreateError::Failed(problem) => problem.clone(),
        };
        self.push_notice(Notice::CreateFailed { extent: id, problem });
        match error {
            CreateError::OutOfMemory | CreateError::OutOfHostMemory(_) | CreateError::OutOfDisk(_) => {
                if place.tier == Self::tier() {
                    self.on_out_of_memory(place.device, size);
                }
                Refusal::DeviceFull { device: uuid, tier: place.tier, free: Bytes::ZERO, requested: size }
            }
            CreateError::Failed(problem) => Refusal::DriverFailed { device: uuid, problem },
        }
    }

    pub(crate) fn shortage_refusal(
        &self,
        tenant: TenantId,
        place: Place,
        shortage: Shortage,
        requested: Bytes,
    ) -> Refusal {
        let (tier, uuid) = (place.tier, self.uuid(place.device).to_owned());
        match shortage {
            Shortage::Limit { limit, charged } => {
                let tenant = self.tenants.name(tenant).to_owned();
                Refusal::QuotaLimit { tenant, device: uuid, tier, limit, charged, requested }
            }
            Shortage::Room { free } => Refusal::DeviceFull { device: uuid, tier, free, requested },
        }
    }
}
