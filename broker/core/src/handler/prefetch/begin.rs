//! The next request of each device begins, once it has room.

use std::collections::{BTreeMap, BTreeSet};

use vramd_types::{Bytes, DeviceIndex};

use crate::{
    broker::Broker,
    event::{PartRef, Tier},
    follow_up::Fact,
    limits::{PREFETCH_BYTES_UNDER_WAY, PREFETCH_RETRY},
    line::{Footprint, Need, Waiter},
    moves::{Cause, Stop},
    prefetch::{Deferral, Phase, PrefetchId, PrefetchState},
    shell::Timer,
    tenancy::TenantId,
};

/// How far a request came.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Attempt {
    Begun,
    /// Room is on its way to it, so no other request goes before it.
    Awaits,
    /// The next request of another tenant may begin.
    Stays,
}

impl Broker {
    /// Begins the requests that have their turn and room, and tells clients that do not know how far theirs are.
    pub(crate) fn begin_prefetches(&mut self) {
        for device in self.moves.prefetches.queues.devices() {
            self.begin_prefetches_on(device);
        }
        // The last request with a deadline may be queued no longer.
        for device in self.moves.prefetches.fetches.devices_with_waiting() {
            self.copy_next_prefetches(device);
        }
        while let Some(id) = self.moves.prefetches.take_untold() {
            let Some(request) = self.moves.prefetches.get(id) else { continue };
            let state = match &request.phase {
                Phase::Queued(why) => PrefetchState::Deferred(*why),
                Phase::Fetching { .. } => {
                    let bytes = self.moves.prefetches.fetches.bytes(request.device);
                    let expected = self.moves.links.time_for(request.device, bytes);
                    PrefetchState::Accepted { expected }
                }
                Phase::Arrived { .. } => continue,
            };
            self.tell_prefetch(id, state);
        }
    }

    /// Tries all queued requests again, as parts may leave that could not before. That changes often, so it is done from
    /// time to time.
    pub(crate) fn retry_prefetches(&mut self) {
        self.moves.prefetches.retry_armed = false;
        self.follow_ups.push(Fact::PrefetchRetryDue);
    }

    /// Sets the timer for the next try.
    pub(crate) fn schedule_prefetch_retry(&mut self) {
        if !self.moves.prefetches.queues.is_empty() && !self.moves.prefetches.retry_armed {
            self.moves.prefetches.retry_armed = true;
            self.arm(self.shell.now.after(PREFETCH_RETRY), Timer::Prefetch);
        }
    }

    fn begin_prefetches_on(&mut self, device: DeviceIndex) {
        // Each turn takes a request out of a queue, or ends.
        'turns: loop {
            self.drop_missed_deadlines(device);
            let heads = self.prefetch_heads(device);
            planted!(self, PrefetchOrderReversed => heads = heads.into_iter().rev().collect());
            for id in heads {
                if let Some(why) = self.why_prefetch_waits(device, id) {
                    self.moves.prefetches.defer(id, why);
                    continue;
                }
                if self.pause_prefetch(id) {
                    continue;
                }
                if self.moves.prefetches.was_tried(id) {
                    if self.moves.prefetches.awaits_room(id) {
                        return;
                    }
                    continue;
                }
                match self.try_prefetch(id) {
                    Attempt::Begun => continue 'turns,
                    attempt => {
                        self.moves.prefetches.record_try(id);
                        if attempt == Attempt::Awaits {
                            return;
                        }
                    }
                }
            }
            return;
        }
    }

    /// Why a request may not begin now, whatever its room.
    fn why_prefetch_waits(&self, device: DeviceIndex, id: PrefetchId) -> Option<Deferral> {
        planted!(self, PrefetchAboveDemand => return None);
        if self.has_waiters_on(device) {
            return Some(Deferral::Demand);
        }
        let ahead = self.bytes_ahead_of_prefetch(id);
        (ahead >= PREFETCH_BYTES_UNDER_WAY).then_some(Deferral::Link)
    }

    /// Begins a request, or makes room for it.
    fn try_prefetch(&mut self, id: PrefetchId) -> Attempt {
        let Some(request) = self.moves.prefetches.get(id) else { return Attempt::Stays };
        let (device, tenant, parts) = (request.device, request.tenant, request.parts.clone());
        let whole = request.whole;
        let (mut there, mut coming, mut fetched) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
        for part in parts.iter().copied() {
            // One that is no longer to be read in place comes once its sessions have unmapped it there. If they cannot be
            // asked now, it counts as there.
            if !self.usage.idle_on_host.is_pinned(part) {
                self.unmap_in_place(part);
            }
            if self.mapping.in_place_to_unmap.contains(&part) && self.mapping.revocations.contains_key(&part)
            {
                self.moves.prefetches.defer(id, Deferral::Moving);
                return Attempt::Stays;
            }
            match self.moves.migrations.get(part).map(|it| (it.to_tier, it.from_tier, it.cause)) {
                Some((Tier::Device, ..)) => _ = coming.insert(part),
                // No waiter needs its room: it stays.
                Some((_, Tier::Device, Cause::Pressure | Cause::Prefetch)) if !self.is_room_awaited(part) => {
                    self.stop_migration(part, Stop::Wanted);
                    self.moves.prefetches.defer(id, Deferral::Moving);
                    return Attempt::Stays;
                }
                Some(_) => {
                    self.moves.prefetches.defer(id, Deferral::Moving);
                    return Attempt::Stays;
                }
                // Its waiter fetches it, even one that lets others pass since the driver failed it.
                None if self.line.contains(Waiter::Part(part)) => {
                    self.moves.prefetches.defer(id, Deferral::Demand);
                    return Attempt::Stays;
                }
                None if self.is_off_device(part) && !self.stays_in_place(part) => fetched.push(part),
                None => _ = there.insert(part),
            }
        }
        let Ok((fetched, left_out)) = self.make_room_for_prefetch(id, fetched) else {
            let awaits = self.moves.prefetches.awaits_room(id);
            return if awaits { Attempt::Awaits } else { Attempt::Stays };
        };
        let mut missing = coming;
        let (mut failed, mut failures) = (None, 0_u32);
        let has_deadline = self.moves.prefetches.get(id).is_some_and(|request| request.deadline.is_some());
        let order = self.copy_order_of(id);
        for part in fetched {
            let size = self.footprint_of(part).map_or(Bytes::ZERO, |footprint| footprint.size);
            if let Some(order) = order {
                self.moves.prefetches.fetches.begin((part, id), (device, size), (order, has_deadline));
            }
            match self.start_move(part, (Tier::Device, Cause::Prefetch), None, self.pins.after_all()) {
                // A part that needs no copy has arrived already, and its report follows.
                Ok(_) => {
                    self.count_prefetched(device, tenant, size);
                    missing.insert(part);
                }
                Err(error) => {
                    self.moves.prefetches.fetches.end(part);
                    failures = failures.saturating_add(1);
                    failed = failed.or(Some((part, error)));
                }
            }
        }
        // Part of a group is of no use to its client. Otherwise it is what did not fit.
        match failed {
            Some((part, error)) if whole || missing.is_empty() => {
                self.moves.prefetches.begin(id, there, missing, left_out);
                let refusal = self.move_refusal(part, &error);
                self.end_prefetch(id, PrefetchState::Refused(refusal));
            }
            Some(_) => self.moves.prefetches.begin(id, there, missing, left_out.saturating_add(failures)),
            None => self.moves.prefetches.begin(id, there, missing, left_out),
        }
        self.follow_ups.push(Fact::PrefetchAdvanced(id));
        Attempt::Begun
    }

    /// Returns the parts that have room now, and how many others are left out. `Err`: the request waits, for the
    /// reason that it has.
    fn make_room_for_prefetch(
        &mut self,
        id: PrefetchId,
        fetched: Vec<PartRef>,
    ) -> Result<(Vec<PartRef>, u32), ()> {
        let Some(request) = self.moves.prefetches.get(id) else { return Err(()) };
        let (device, whole) = (request.device, request.whole);
        let mut cached: BTreeMap<(TenantId, Bytes), usize> = BTreeMap::new();
        let (mut ready, mut short) = (Vec::new(), Vec::new());
        for part in fetched {
            let Some(footprint @ Footprint { tenant, size, .. }) = self.footprint_of(part) else { continue };
            let left = cached
                .entry((tenant, size))
                .or_insert_with(|| self.pool.cache().oldest(tenant, device, size).count());
            match *left > 0 && !self.is_unwritten(part) {
                true => {
                    *left = left.saturating_sub(1);
                    ready.push(part);
                }
                false => short.push((part, footprint)),
            }
        }
        let arrived = self.pins.after_all();
        let need = |footprint| Need { footprint, arrived, own_cached: Vec::new(), lets_pass: true };
        let needs: Vec<Need> = short.iter().map(|(_, footprint)| need(*footprint)).collect();
        let (plan, results) = self.plan_for_prefetch(device, (id.0, request), &needs);
        let fits = |at: usize| results.get(at).is_some_and(Result::is_ok);
        let fitting = (0..short.len()).filter(|at| fits(*at)).count();
        let lacks = fitting < short.len();
        planted!(self, PrefetchSplit => lacks = false);
        if (whole && lacks) || (fitting == 0 && ready.is_empty() && !short.is_empty()) {
            self.moves.prefetches.defer(id, Deferral::Room);
            return Err(());
        }
        if !(plan.awaited.is_empty() && plan.victims.is_empty() && plan.given_up.is_empty()) {
            self.moves.prefetches.defer(id, Deferral::RoomOnItsWay);
            self.execute(plan, Cause::Prefetch);
            return Err(());
        }
        let left_out = short.len().saturating_sub(fitting);
        ready.extend(short.iter().enumerate().filter(|(at, _)| fits(*at)).map(|(_, (part, _))| *part));
        Ok((ready, u32::try_from(left_out).unwrap_or(u32::MAX)))
    }
}
