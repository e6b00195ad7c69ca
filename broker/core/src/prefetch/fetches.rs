//! The moves that bring parts for requests, and the order of their copies on the link.
//!
//! A request that begins reserves room for all its parts at once, and their memory is created. Without deadlines their
//! copies begin at once, so the link is never idle for want of the next one. Copies wait here while a request with a
//! deadline is under way to their device, or is queued for it and can still meet its deadline. Few are on the link at a
//! time then, and an early deadline passes requests that have begun. Copies that are on the link go on.
//!
//! A request that is under way counts even if it misses its deadline. Otherwise late requests would fill the link all at
//! once, and make the next ones late.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use vramd_types::{Bytes, DeviceIndex};

use super::{PrefetchId, Prefetches};
use crate::{event::PartRef, moves::Links, tenancy::TenantClass, time::Time};

/// The place of a copy on the link of its device: as the requests that they are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CopyOrder {
    class: Reverse<TenantClass>,
    /// Whether its request has no deadline that can be met, and the deadline.
    deadline: (bool, Option<Time>),
    begun: u64,
}

#[derive(Debug)]
struct Fetch {
    /// The request that began it. It may have ended.
    request: PrefetchId,
    device: DeviceIndex,
    bytes: Bytes,
    order: CopyOrder,
    /// Whether its request has a deadline, even one that it misses.
    has_deadline: bool,
    /// Since when its copy is on the link, if it is.
    copied_since: Option<Time>,
}

/// The sums over the moves to one device, so that no part costs a look at all others.
#[derive(Debug, Default)]
struct OnDevice {
    /// Of all parts.
    bytes: Bytes,
    /// How many are for requests with deadlines.
    with_deadline: usize,
    /// Of parts whose copies are on the link, and since when.
    copied: Bytes,
    copied_since: BTreeSet<(Time, PartRef)>,
    /// Of all others, by the place of their copies. A request has one.
    uncopied: BTreeMap<CopyOrder, Bytes>,
}

/// All moves that bring parts for requests.
#[derive(Debug, Default)]
pub(crate) struct Fetches {
    by_part: BTreeMap<PartRef, Fetch>,
    by_device: BTreeMap<DeviceIndex, OnDevice>,
    /// Parts whose memory is created and whose copies have not had their turn.
    waiting: BTreeSet<(DeviceIndex, CopyOrder, PartRef)>,
    last: u64,
}

impl OnDevice {
    fn add(&mut self, part: PartRef, fetch: &Fetch) {
        self.bytes = self.bytes.saturating_add(fetch.bytes);
        self.with_deadline = self.with_deadline.saturating_add(fetch.has_deadline.into());
        match fetch.copied_since {
            Some(since) => {
                self.copied = self.copied.saturating_add(fetch.bytes);
                self.copied_since.insert((since, part));
            }
            None => {
                let of_order = self.uncopied.entry(fetch.order).or_default();
                *of_order = of_order.saturating_add(fetch.bytes);
            }
        }
    }

    fn subtract(&mut self, part: PartRef, fetch: &Fetch) {
        self.bytes = self.bytes.saturating_sub(fetch.bytes);
        self.with_deadline = self.with_deadline.saturating_sub(fetch.has_deadline.into());
        match fetch.copied_since {
            Some(since) => {
                self.copied = self.copied.saturating_sub(fetch.bytes);
                self.copied_since.remove(&(since, part));
            }
            None => {
                let Some(of_order) = self.uncopied.get_mut(&fetch.order) else { return };
                *of_order = of_order.saturating_sub(fetch.bytes);
                if of_order.is_zero() {
                    self.uncopied.remove(&fetch.order);
                }
            }
        }
    }
}

impl Fetches {
    pub(super) fn is_empty(&self) -> bool {
        self.by_part.is_empty()
    }

    /// The order of the copies of a request that begins now.
    pub(crate) fn order(&self, class: TenantClass, deadline: Option<Time>) -> CopyOrder {
        let begun = self.last.saturating_add(1);
        CopyOrder { class: Reverse(class), deadline: (deadline.is_none(), deadline), begun }
    }

    /// Records that a move is about to bring the part.
    pub(crate) fn begin(
        &mut self,
        (part, request): (PartRef, PrefetchId),
        (device, bytes): (DeviceIndex, Bytes),
        (order, has_deadline): (CopyOrder, bool),
    ) {
        self.last = self.last.max(order.begun);
        let fetch = Fetch { request, device, bytes, order, has_deadline, copied_since: None };
        self.end(part);
        self.by_device.entry(device).or_default().add(part, &fetch);
        self.by_part.insert(part, fetch);
    }

    /// Records the end of a move. Returns the device if it was one for a request.
    pub(crate) fn end(&mut self, part: PartRef) -> Option<DeviceIndex> {
        let fetch = self.by_part.remove(&part)?;
        self.waiting.remove(&(fetch.device, fetch.order, part));
        if let Some(sums) = self.by_device.get_mut(&fetch.device) {
            sums.subtract(part, &fetch);
        }
        Some(fetch.device)
    }

    /// Bytes on their way to the device.
    pub(crate) fn bytes(&self, device: DeviceIndex) -> Bytes {
        self.on(device).map(|sums| sums.bytes).unwrap_or_default()
    }

    /// Bytes that the link carries before a copy of that order.
    pub(crate) fn bytes_ahead(&self, device: DeviceIndex, order: CopyOrder) -> Bytes {
        let Some(sums) = self.on(device) else { return Bytes::ZERO };
        let ahead = sums.uncopied.range(..order).map(|(_, bytes)| *bytes);
        ahead.fold(sums.copied, Bytes::saturating_add)
    }

    /// Since when the link carries copies for requests.
    pub(crate) fn copied_since(&self, device: DeviceIndex) -> Option<Time> {
        self.on(device)?.copied_since.first().map(|(since, _)| *since)
    }

    /// Whether a request with a deadline is under way to the device.
    fn has_deadline(&self, device: DeviceIndex) -> bool {
        self.on(device).is_some_and(|sums| sums.with_deadline > 0)
    }

    fn copied_bytes(&self, device: DeviceIndex) -> Bytes {
        self.on(device).map(|sums| sums.copied).unwrap_or_default()
    }

    fn on(&self, device: DeviceIndex) -> Option<&OnDevice> {
        self.by_device.get(&device)
    }

    /// Records that the part is copied, whatever its turn.
    pub(crate) fn pass_turn(&mut self, part: PartRef, now: Time) {
        let Some(fetch) = self.by_part.get_mut(&part).filter(|fetch| fetch.copied_since.is_none()) else {
            return;
        };
        self.waiting.remove(&(fetch.device, fetch.order, part));
        let sums = self.by_device.entry(fetch.device).or_default();
        sums.subtract(part, fetch);
        fetch.copied_since = Some(now);
        sums.add(part, fetch);
    }

    /// Whether the part is ready and waits for its turn.
    pub(crate) fn is_waiting(&self, part: PartRef) -> bool {
        self.by_part.get(&part).is_some_and(|fetch| self.waiting.contains(&(fetch.device, fetch.order, part)))
    }

    /// The devices for which parts wait for their turn.
    pub(crate) fn devices_with_waiting(&self) -> Vec<DeviceIndex> {
        let mut devices: Vec<_> = self.waiting.iter().map(|(device, ..)| *device).collect();
        devices.dedup();
        devices
    }

    /// Puts the rest of a request among the parts without a deadline.
    fn drop_deadline(&mut self, begun: u64) {
        for (part, fetch) in &mut self.by_part {
            if fetch.order.begun == begun && fetch.copied_since.is_none() {
                let order = CopyOrder { deadline: (true, None), ..fetch.order };
                if self.waiting.remove(&(fetch.device, fetch.order, *part)) {
                    self.waiting.insert((fetch.device, order, *part));
                }
                let sums = self.by_device.entry(fetch.device).or_default();
                sums.subtract(*part, fetch);
                fetch.order = order;
                sums.add(*part, fetch);
            }
        }
    }

    /// Whether the link cannot carry the rest of a request by its deadline behind what is copied.
    fn misses_deadline(&self, device: DeviceIndex, order: CopyOrder, (now, links): (Time, &Links)) -> bool {
        let Some(deadline) = order.deadline.1 else { return false };
        let own = self.on(device).and_then(|sums| sums.uncopied.get(&order)).copied().unwrap_or_default();
        let ahead = (self.copied_since(device), self.copied_bytes(device));
        links.end_of(device, ahead, own, now) > deadline
    }
}

impl Prefetches {
    /// Whether the link of a device has room for a copy: always without deadlines there, and next to them while fewer than
    /// `max` bytes are copied.
    fn has_room_on_link(&self, device: DeviceIndex, max: Bytes) -> bool {
        let has_deadline = self.queues.has_deadline(device) || self.fetches.has_deadline(device);
        !has_deadline || self.fetches.copied_bytes(device) < max
    }

    /// Whether a part that is ready may be copied now. Otherwise it waits for its turn.
    pub(crate) fn take_turn(&mut self, part: PartRef, max: Bytes, now: Time) -> bool {
        let Some(fetch) = self.fetches.by_part.get(&part) else { return true };
        let (device, order) = (fetch.device, fetch.order);
        if fetch.copied_since.is_some() || self.has_room_on_link(device, max) {
            self.fetches.pass_turn(part, now);
            return true;
        }
        self.fetches.waiting.insert((device, order, part));
        false
    }

    /// Takes the part whose turn is next, if the link has room. Requests that miss their deadlines let others pass.
    pub(crate) fn take_next(
        &mut self,
        device: DeviceIndex,
        max: Bytes,
        (now, links): (Time, &Links),
    ) -> Option<PartRef> {
        while self.has_room_on_link(device, max) {
            let next = self.fetches.waiting.iter().find(|(of, ..)| *of == device);
            let (_, order, part) = next.copied()?;
            if !self.fetches.misses_deadline(device, order, (now, links)) {
                self.fetches.waiting.remove(&(device, order, part));
                return Some(part);
            }
            let request = self.fetches.by_part.get(&part).map(|fetch| fetch.request);
            if let Some(request) = request.and_then(|id| self.requests.get_mut(&id)) {
                request.misses_deadline = true;
            }
            self.fetches.drop_deadline(order.begun);
        }
        None
    }
}
