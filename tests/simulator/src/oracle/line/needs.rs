//! The needs of the waiters of the line on each device. The core shows one device of a batch; the oracle knows the
//! request of the batch.

use std::collections::BTreeMap;

use broker_core::{AllocationSpec, CallId, ClientRequest, PartRef, Tier, Time, WaitView, WaiterView};
use vramd_types::{Bytes, GRANULARITY, SessionId};

use super::entries::{BatchKey, batch_key};
use crate::oracle::{
    Oracle,
    facts::{Asked, Tenant},
};

/// A waiter of the line, with its needs.
#[derive(Clone, Debug)]
pub(crate) struct WaiterNeeds {
    pub(crate) tenant: Tenant,
    /// Bytes by device, including cached extents that a batch would reuse. Every device, where the oracle cannot
    /// tell two batches apart.
    pub(crate) bytes: BTreeMap<usize, u64>,
    /// The most extents that a batch may need.
    pub(crate) extents: usize,
    /// The part, if the waiter is one.
    pub(crate) part: Option<PartRef>,
    /// The call of a batch, if it is known.
    pub(crate) call: Option<CallId>,
    pub(crate) key: BatchKey,
}

impl WaiterNeeds {
    /// Whether the bytes are known.
    pub(crate) const fn is_known(&self) -> bool {
        self.part.is_some() || self.call.is_some()
    }

    /// Whether both need room on a device.
    pub(crate) fn meets(&self, other: &Self) -> bool {
        self.bytes.keys().any(|device| other.bytes.contains_key(device))
    }
}

impl Oracle {
    /// Learns the needs of new waiters.
    pub(crate) fn learn_needs(&mut self, line: &[WaitView]) {
        for wait in line {
            if !self.facts.needs.contains_key(&wait.id) {
                let needs = self.read_needs(wait);
                self.facts.needs.insert(wait.id, needs);
            }
        }
    }

    /// Remembers the line for the next event.
    pub(crate) fn record_line(&mut self, line: Vec<WaitView>) {
        self.facts.line.clear();
        self.facts.line.extend(line.iter().map(|wait| wait.id));
        self.facts.waits = line.into_iter().map(|wait| (wait.id, wait)).collect();
        self.facts.needs.retain(|id, _| self.facts.waits.contains_key(id));
    }

    /// The number of waiters of the device that has most.
    pub fn longest_line(&self) -> usize {
        let devices = self.facts.places.iter().filter(|place| place.tier == Tier::Device).count();
        let waits = |device| self.facts.needs.values().filter(|it| it.bytes.contains_key(&device)).count();
        (0..devices).map(waits).max().unwrap_or_default()
    }

    fn read_needs(&mut self, wait: &WaitView) -> WaiterNeeds {
        let (tenant, key) = (self.facts.tenant(&wait.tenant), batch_key(wait));
        match wait.waiter {
            WaiterView::Part { part, .. } => {
                let device = self.facts.place_of(&wait.device, Tier::Device);
                let bytes = device.into_iter().map(|device| (device, wait.bytes.get())).collect();
                WaiterNeeds { tenant, bytes, extents: 1, part: Some(part), call: None, key }
            }
            WaiterView::Batch { session, items } => {
                let found = self.find_batch(session, items, wait.deadline);
                let call = found.map(|(call, _)| call);
                let (bytes, extents) = match found {
                    Some((_, items)) => (self.requested_on_devices(session, items), extents_of(items)),
                    None => (self.all_devices(), 0),
                };
                WaiterNeeds { tenant, bytes, extents, part: None, call, key }
            }
        }
    }

    fn all_devices(&self) -> BTreeMap<usize, u64> {
        let devices = self.facts.places.iter().enumerate().filter(|(_, place)| place.tier == Tier::Device);
        devices.map(|(device, _)| (device, 0)).collect()
    }

    /// The call of a waiting batch and its items. `None` if more than one call fits.
    fn find_batch(
        &self,
        by: SessionId,
        count: usize,
        deadline: Option<Time>,
    ) -> Option<(CallId, &[AllocationSpec])> {
        let mut fitting = self.facts.calls.iter().filter_map(|(id, call)| match &call.asked {
            Asked::Client { session, request: ClientRequest::AllocateBatch { items, wait }, .. }
                if *session == by
                    && items.len() == count
                    && !call.joined
                    && Some(call.at.after(*wait)) == deadline =>
            {
                Some((*id, items.as_slice()))
            }
            _ => None,
        });
        let found = fitting.next()?;
        fitting.next().is_none().then_some(found)
    }

    /// The bytes that a batch requests on each device. Memory without a handle pin begins below where there is a
    /// tier, unless it is discardable.
    pub(crate) fn requested_on_devices(
        &self,
        by: SessionId,
        items: &[AllocationSpec],
    ) -> BTreeMap<usize, u64> {
        let first = self.facts.sessions.get(&by).and_then(|session| session.devices.first().copied());
        let mut requested: BTreeMap<usize, u64> = BTreeMap::new();
        for item in items {
            let named = |text: &String| self.facts.device_named(text);
            let Some(device) = item.device.as_ref().map_or(first, named) else { continue };
            if item.unpinned && !item.discardable && !self.facts.below(device).is_empty() {
                continue;
            }
            let size = item.size.checked_round_up(GRANULARITY).map_or(u64::MAX, Bytes::get);
            let all = requested.entry(device).or_default();
            *all = all.saturating_add(size);
        }
        requested
    }
}

/// The most extents that these items may need: their parts are no smaller than a granule.
pub(crate) fn extents_of(items: &[AllocationSpec]) -> usize {
    let extents = items.iter().map(|item| item.size.get().div_ceil(GRANULARITY.get()));
    usize::try_from(extents.fold(0, u64::saturating_add)).unwrap_or(usize::MAX)
}
