//! No waiter waits for what can never be: more than a device has, than its tenant's limit, or than the
//! guarantees of other tenants leave.

use std::collections::BTreeMap;

use broker_core::{ClientRequest, PartRef, WaitView, WaiterView, invariants::LINE_ORDER};
use vramd_types::AllocationId;

use crate::oracle::{
    Oracle,
    facts::{Asked, Tenant},
};

impl Oracle {
    /// Checks the pin calls of this event, and all of them when a quota has changed.
    pub(crate) fn check_pin_feasibility(&mut self) {
        let (now, all) = (self.facts.clock, self.step.limits_changed);
        let served = self.facts.sessions.iter().filter(|(_, session)| self.is_reachable(session));
        let calls =
            served.flat_map(|(id, session)| session.pin_calls.iter().map(move |(at, call)| (*id, *at, call)));
        let judged = calls.filter(|(.., call)| !call.answered && (all || call.arrived == now));
        let judged: Vec<_> = judged.map(|(id, at, call)| ((id, at), call.parts.clone())).collect();
        for (call, parts) in judged {
            let can = self.fit_together(&parts);
            self.expect(LINE_ORDER, can, || {
                format!("{call:?} waits for parts that can never fit: {parts:?}")
            });
        }
    }

    /// Checks the batches of this event, on each of their devices. Memory without a handle pin may begin
    /// below.
    pub(crate) fn check_batch_feasibility(&mut self, line: &[WaitView]) {
        let now = self.facts.clock;
        let arrived = self.facts.calls.values().filter(|call| call.arrived == now && !call.joined);
        let batches = arrived.filter_map(|call| match &call.asked {
            Asked::Client { session, request: ClientRequest::AllocateBatch { items, .. }, .. } => {
                Some((*session, items.clone()))
            }
            _ => None,
        });
        for (by, items) in batches.collect::<Vec<_>>() {
            // Batches that were in the line before are others of the session.
            let waits = |it: &WaitView| {
                let own = matches!(it.waiter, WaiterView::Batch { session, items: count } if session == by && count == items.len());
                own && !self.facts.waits.contains_key(&it.id)
            };
            let Some(session) = self.facts.sessions.get(&by).filter(|_| line.iter().any(waits)) else {
                continue;
            };
            let (tenant, asked) = (session.tenant, self.requested_on_devices(by, &items));
            // A batch for which there is room now may exceed what there will ever be again, where a capacity
            // has shrunk below the guarantees. Cached extents that it reuses are such room.
            let fits = |(device, bytes): (usize, u64)| {
                self.fits_on(device, &BTreeMap::from([(tenant, bytes)]))
                    || self.would_admit(tenant, device, bytes.saturating_sub(self.cached(tenant, device)))
            };
            let can = asked.into_iter().all(fits);
            self.expect(LINE_ORDER, can, || format!("a batch of {by} waits but can never fit: {items:?}"));
        }
    }

    /// Checks that a session is granted an attach only if all parts that it will be sent can lie on the
    /// device together.
    pub(crate) fn check_attach_feasibility(&mut self, id: AllocationId, new: &[PartRef]) {
        if self.facts.parts_of(id).any(|part| self.is_off_device(part)) {
            let can = self.fit_together(new);
            self.expect(LINE_ORDER, can, || {
                format!("{id} is attached, but {new:?} can never fit on its device")
            });
        }
    }

    fn fit_together(&self, parts: &[PartRef]) -> bool {
        let mut asked: BTreeMap<usize, BTreeMap<Tenant, u64>> = BTreeMap::new();
        for part in parts.iter().filter(|part| !self.may_stay_in_place(**part)) {
            let allocation = self.facts.allocations.get(&part.allocation);
            if let Some((allocation, size)) = allocation.zip(self.size_of(*part)) {
                *asked.entry(allocation.device).or_default().entry(allocation.tenant).or_default() += size;
            }
        }
        asked.into_iter().all(|(device, of)| self.fits_on(device, &of))
    }

    fn fits_on(&self, device: usize, asked: &BTreeMap<Tenant, u64>) -> bool {
        self.has_room_on(device, asked) && self.is_within_limits_on(device, asked)
    }

    /// The guarantee and the limit that are in force.
    fn quota_judged(&self, tenant: Tenant, device: usize) -> (u64, u64) {
        // A change that began to be stored in this event is judged once it is stored.
        match self.step.quotas_changed {
            true => self.quota_in(&self.facts.quotas_in_force, tenant, device),
            false => self.quota_now(tenant, device),
        }
    }

    pub(crate) fn is_within_limits_on(&self, device: usize, asked: &BTreeMap<Tenant, u64>) -> bool {
        asked.iter().all(|(tenant, bytes)| *bytes <= self.quota_judged(*tenant, device).1)
    }

    pub(crate) fn has_room_on(&self, device: usize, asked: &BTreeMap<Tenant, u64>) -> bool {
        let capacity = u128::from(self.capacity_without_shortage(device));
        let (mut with, mut is_own) = (0, true);
        for tenant in 0..self.facts.tenants.len() {
            let (guarantee, _) = self.quota_judged(tenant, device);
            let asked = asked.get(&tenant).copied().unwrap_or_default();
            is_own &= asked <= guarantee;
            with += u128::from(guarantee.max(asked));
        }
        // Guarantees beyond the present capacity still belong to their tenants first.
        asked.values().map(|asked| u128::from(*asked)).sum::<u128>() <= capacity
            && (with <= capacity || is_own)
    }
}
