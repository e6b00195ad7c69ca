//! Admission of a batch, before anything is created: whether each item is possible, and the room that all items
//! need together.
//!
//! Limits of counts are checked here; limits and guarantees in bytes are checked by the ledger, which
//! [`Broker::check_batch_room`] asks. Nothing here changes state.

use vramd_types::{DeviceIndex, GRANULARITY, SessionId, name};

use crate::{
    broker::Broker,
    error::Refusal,
    event::{AllocationSpec, Kind, Lifetime, Peer},
    handler::allocation::attach::{FIXED_STAYS, NEVER_PINNED},
    limits::{PART_SIZE_MAX, PARTS_PER_ALLOCATION_MAX},
    line::{AllocationPlan, parts_of},
    residency::{AllocationState, Readers},
    tenancy::TenantId,
};

impl Broker {
    pub(crate) fn plan_item(
        &self,
        session: SessionId,
        tenant: TenantId,
        spec: AllocationSpec,
    ) -> Result<AllocationPlan, Refusal> {
        let size_invalid = Refusal::SizeInvalid { field: "size_bytes", size: spec.size };
        let span =
            spec.size.checked_round_up(GRANULARITY).filter(|span| !span.is_zero()).ok_or(size_invalid)?;
        let device = self.choose_device(session, spec.device.as_deref())?;
        let has_pins = self.sessions.get(session).is_some_and(|session| session.words.is_some());
        self.check_kind(device, has_pins, &spec)?;
        // A legacy export is one block, so fixed memory has one part.
        let usual = if spec.kind == Kind::Fixed { span } else { self.config.part_size };
        let part_size = spec.part_size.unwrap_or(usual);
        let too_large = part_size > PART_SIZE_MAX && spec.kind != Kind::Fixed;
        if part_size.is_zero() || !part_size.is_multiple_of(GRANULARITY) || too_large {
            return Err(Refusal::PartSizeInvalid { size: part_size });
        }
        let part_count = span.get().div_ceil(part_size.get());
        self.check_name(tenant, &spec)?;
        let readers_max = self.config.limits.readers_max;
        planted!(self, ReadersTooManyServed => readers_max = usize::MAX);
        if spec.readers.len() > readers_max {
            return Err(Refusal::BatchTooLarge { items_max: readers_max, items: spec.readers.len() });
        }
        if let Some(bad) =
            spec.readers.iter().find(|name| *name != Readers::EVERYBODY && !name::is_valid(name))
        {
            return Err(Refusal::NameInvalid { field: "readers", name: bad.clone() });
        }
        let part_count = match spec.kind {
            Kind::Managed => 0,
            Kind::Movable | Kind::Fixed => usize::try_from(part_count).unwrap_or(usize::MAX),
        };
        Ok(AllocationPlan { device, part_size, span, part_count, spec, file: None })
    }

    /// Checks that the driver of the device supports the kind, and that the other fields fit the kind.
    fn check_kind(&self, device: DeviceIndex, has_pins: bool, spec: &AllocationSpec) -> Result<(), Refusal> {
        let makes_fixed =
            self.config.devices.get(usize::from(device.0)).is_some_and(|device| device.makes_fixed);
        let problem = |field, problem| Err(Refusal::RequestInvalid { field, problem });
        match spec.kind {
            Kind::Movable if spec.unpinned && !has_pins => problem("unheld", NEVER_PINNED),
            Kind::Movable if spec.discardable && is_to_be_sealed(spec) => problem(
                "discardable",
                "discardable memory is never sealed, so it cannot be persistent, take a name or have readers",
            ),
            Kind::Movable => Ok(()),
            Kind::Fixed if spec.discardable => {
                problem("discardable", "fixed memory never leaves its device, so it is never dropped")
            }
            Kind::Fixed if spec.unpinned => problem("unheld", FIXED_STAYS),
            Kind::Managed => check_managed(spec),
            Kind::Fixed if !makes_fixed => Err(Refusal::KindUnsupported { kind: "fixed" }),
            Kind::Fixed if spec.lifetime == Lifetime::Persistent => {
                problem("lifetime", "fixed memory is never sealed, so it ends with its session")
            }
            Kind::Fixed if !spec.readers.is_empty() => {
                problem("readers", "fixed memory cannot be shared with other tenants")
            }
            Kind::Fixed if spec.replace => {
                problem("replace", "fixed memory is never sealed, so it cannot replace another allocation")
            }
            Kind::Fixed if spec.part_size.is_some() => {
                problem("part_size_bytes", "fixed memory has one part")
            }
            Kind::Fixed => Ok(()),
        }
    }

    /// The UUID of the device that an allocation of the calling process's session would lie on.
    pub fn device_for(
        &self,
        session: SessionId,
        peer: Peer,
        requested: Option<&str>,
    ) -> Result<String, Refusal> {
        self.authenticate(session, peer)?;
        Ok(self.uuid(self.choose_device(session, requested)?).to_owned())
    }

    /// The requested device, if the session sees it, or the first one that it sees.
    fn choose_device(&self, session: SessionId, requested: Option<&str>) -> Result<DeviceIndex, Refusal> {
        let visible = self.sessions.get(session).map(|session| &*session.devices).unwrap_or_default();
        let Some(text) = requested else {
            let first = visible.first().copied();
            return first.ok_or_else(|| Refusal::DeviceNotVisible { device: "0".to_owned() });
        };
        let device =
            self.find_device(text).ok_or_else(|| Refusal::DeviceUnknown { device: text.to_owned() })?;
        planted!(self, DeviceNotVisibleServed => return Ok(device));
        if !visible.contains(&device) {
            return Err(Refusal::DeviceNotVisible { device: self.uuid(device).to_owned() });
        }
        Ok(device)
    }

    fn check_name(&self, tenant: TenantId, spec: &AllocationSpec) -> Result<(), Refusal> {
        let Some(name) = &spec.name else {
            return match (spec.lifetime, spec.replace) {
                (Lifetime::Persistent, _) => Err(Refusal::NameMissing),
                (_, true) => Err(Refusal::RequestInvalid {
                    field: "replace",
                    problem: "only an allocation with a name can replace another",
                }),
                _ => Ok(()),
            };
        };
        if !name::is_valid(name) {
            return Err(Refusal::NameInvalid { field: "name", name: name.clone() });
        }
        self.check_name_free(tenant, name, spec.replace)
    }

    /// Checks that the name is free, or that its bearer may be replaced.
    pub(crate) fn check_name_free(&self, tenant: TenantId, name: &str, replace: bool) -> Result<(), Refusal> {
        let find_by_name =
            self.allocations.find_by_name(tenant, name).and_then(|id| self.allocations.get(id));
        planted!(self, NameTakenTwice => return Ok(()));
        match find_by_name {
            Some(find_by_name) if !(replace && find_by_name.state == AllocationState::Sealed) => {
                Err(Refusal::NameTaken { name: format!("{}/{name}", self.tenants.name(tenant)) })
            }
            _ => Ok(()),
        }
    }

    /// Refuses a batch that uses a name twice.
    pub(crate) fn check_names(&self, plans: &[AllocationPlan]) -> Result<(), Refusal> {
        planted!(self, NameTwiceInBatch => return Ok(()));
        let mut names: Vec<_> = plans.iter().filter_map(|plan| plan.spec.name.as_deref()).collect();
        names.sort_unstable();
        match names.windows(2).find_map(|pair| (pair.first() == pair.last()).then(|| pair.first()).flatten())
        {
            Some(twice) => Err(Refusal::NameTaken { name: (*twice).to_owned() }),
            None => Ok(()),
        }
    }

    fn check_counts(&self, tenant: TenantId, plans: &[AllocationPlan]) -> Result<(), Refusal> {
        planted!(self, CountsIgnored => return Ok(()));
        let limits = &self.config.limits;
        let (allocations, parts) = self.allocations.count_of(tenant);
        let new_parts = parts_of(plans);
        let too_many =
            |limit| Refusal::AllocationsTooMany { tenant: self.tenants.name(tenant).to_owned(), limit };
        if plans.iter().any(|plan| plan.part_count > PARTS_PER_ALLOCATION_MAX) {
            return Err(too_many(PARTS_PER_ALLOCATION_MAX));
        }
        if allocations.saturating_add(plans.len()) > limits.allocations_per_tenant_max {
            return Err(too_many(limits.allocations_per_tenant_max));
        }
        // Cached extents do not count: the batch reuses them, or they are released.
        let extents = self.pool.len().saturating_sub(self.pool.cache().len()).saturating_add(new_parts);
        if extents > limits.extents_max {
            return Err(too_many(limits.extents_max));
        }
        if parts.saturating_add(new_parts) > limits.parts_per_tenant_max {
            return Err(too_many(limits.parts_per_tenant_max));
        }
        Ok(())
    }

    /// Whether the session's word table has slots for this many more parts, if it has one.
    pub(crate) fn check_slots(&self, id: SessionId, parts: usize) -> Result<(), Refusal> {
        let words = self.sessions.get(id).and_then(|session| session.words.as_ref());
        match words {
            Some(words) if !words.slots.has_room_for(parts) => {
                Err(Refusal::SlotsExhausted { session: id, limit: words.slots.max() })
            }
            _ => Ok(()),
        }
    }

    /// Checks that have to be repeated when a batch has waited.
    pub(crate) fn recheck_plans(
        &self,
        session: SessionId,
        tenant: TenantId,
        plans: &[AllocationPlan],
    ) -> Result<(), Refusal> {
        let is_draining = self.node.draining;
        planted!(self, DrainIgnored => is_draining = false);
        if is_draining {
            return Err(Refusal::Draining);
        }
        for plan in plans {
            if let Some(name) = &plan.spec.name {
                self.check_name_free(tenant, name, plan.spec.replace)?;
            }
        }
        self.check_counts(tenant, plans)?;
        self.check_slots(session, parts_of(plans))
    }
}

/// Checks that managed memory requests nothing that only memory of the daemon can have.
fn check_managed(spec: &AllocationSpec) -> Result<(), Refusal> {
    let fields = [
        ("name", spec.name.is_some()),
        ("lifetime", spec.lifetime == Lifetime::Persistent),
        ("readers", !spec.readers.is_empty()),
        ("replace", spec.replace),
        ("part_size_bytes", spec.part_size.is_some()),
        ("unheld", spec.unpinned),
        ("discardable", spec.discardable),
    ];
    let problem = "managed memory lies in the client's own process: it has a size and a device alone";
    match fields.into_iter().find(|(_, is_set)| *is_set) {
        Some((field, _)) => Err(Refusal::RequestInvalid { field, problem }),
        None => Ok(()),
    }
}

/// Whether it requests what only sealed memory can have.
const fn is_to_be_sealed(spec: &AllocationSpec) -> bool {
    matches!(spec.lifetime, Lifetime::Persistent) || spec.replace || !spec.readers.is_empty()
}
