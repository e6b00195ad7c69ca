//! Feasibility: whether the devices could ever hold everything that a request needs at once.
//!
//! The daemon refuses an infeasible request at once. It would wait for nothing, and keep others waiting behind
//! it.

use std::collections::BTreeMap;

use vramd_types::{Bytes, DeviceIndex};

use crate::{
    broker::Broker,
    error::Refusal,
    event::PartRef,
    ledger::{Place, Shortage},
    line::Waiter,
    tenancy::{OpId, TenantId},
};

impl Broker {
    /// Checks that all these parts, except those accessed in place, fit on their devices at once if other
    /// tenants give up what they can be made to.
    pub(crate) fn check_feasible(
        &self,
        asker: TenantId,
        parts: impl Iterator<Item = PartRef>,
    ) -> Result<(), Refusal> {
        let mut by_device: BTreeMap<DeviceIndex, BTreeMap<TenantId, Bytes>> = BTreeMap::new();
        for part in parts.filter(|part| !self.stays_in_place(*part)) {
            let Some(footprint) = self.footprint_of(part) else { continue };
            let sum = by_device.entry(footprint.device).or_default().entry(footprint.tenant).or_default();
            *sum = sum.saturating_add(footprint.size);
        }
        by_device
            .into_iter()
            .try_for_each(|(device, requested)| self.check_feasible_on(asker, device, &requested))
    }

    /// `asked` has the bytes of each tenant that is charged.
    fn check_feasible_on(
        &self,
        asker: TenantId,
        device: DeviceIndex,
        requested: &BTreeMap<TenantId, Bytes>,
    ) -> Result<(), Refusal> {
        let Some(balances) = self.ledger.balances(Place::device(device)) else { return Ok(()) };
        let sum = requested.values().copied().fold(Bytes::ZERO, Bytes::saturating_add);
        let place = Place::device(device);
        let fits_in = |free: Bytes| match sum <= free {
            true => Ok(()),
            false => Err(self.shortage_refusal(asker, place, Shortage::Room { free }, sum)),
        };
        fits_in(balances.surveyed_capacity())?;
        for (tenant, requested) in requested {
            let account = self.ledger.account(*tenant, place);
            let Some(account) = account.filter(|account| *requested > account.limit) else { continue };
            // A tenant sees only its own figures, never those of a tenant whose memory it reads.
            if *tenant != asker {
                let (device, tier) = (self.uuid(device).to_owned(), place.tier);
                return Err(Refusal::SetTooLarge { device, tier, requested: *requested });
            }
            let limit = Shortage::Limit { limit: account.limit, charged: account.charged() };
            return Err(self.shortage_refusal(asker, place, limit, *requested));
        }
        planted!(self, GuaranteeAwaited => return Ok(()));
        fits_in(balances.max_available_to(requested))
    }

    /// Refuses waiters that changed limits or guarantees have made infeasible.
    pub(crate) fn refuse_infeasible(&mut self) {
        self.refuse_infeasible_pins();
        for op in self.waiting_batches() {
            self.refuse_impossible_batch(op);
        }
    }

    /// The same for pin calls alone: what they wait for together may have grown.
    pub(crate) fn refuse_infeasible_pins(&mut self) {
        let judged = self.pins.iter().filter(|(_, call)| call.is_waiting()).filter_map(|(id, call)| {
            let tenant = self.sessions.get(id.0)?.tenant;
            Some((id, self.check_feasible(tenant, call.parts.iter().copied()).err()?))
        });
        for (id, why) in judged.collect::<Vec<_>>() {
            self.refuse_pin(id, why);
        }
    }

    /// Refuses waiting batches that find no room in a tier that shrank.
    pub(crate) fn refuse_batches_without_room_below(&mut self) {
        for op in self.waiting_batches() {
            self.refuse_without_room_below(op);
        }
    }

    fn waiting_batches(&self) -> Vec<OpId> {
        let batches = self.line.iter().filter_map(|(_, entry)| match entry.waiter {
            Waiter::Batch(op) => Some(op),
            Waiter::Part(_) => None,
        });
        batches.collect()
    }
}
