//! Pressure: what the daemon does as a device or host memory fills up, before it refuses anything. It copies
//! cold parts below ahead of need, then evicts them, and tells clients.
//!
//! No waiter depends on any of this: for waiters the daemon makes room at any pressure.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use vramd_types::{Bytes, DeviceIndex, SessionId};

use crate::{
    broker::Broker,
    command::{Command, DaemonFrame, Notice},
    event::{PartRef, Tier},
    follow_up::Fact,
    ledger::Place,
    limits::{COLD_PARTS_SCANNED, EXTENT_SPARE_DIVISOR, WRITE_BACKS_AHEAD_MAX},
    line::{Footprint, RoomPlan},
    moves::{Backing, Cause},
    pressure::{Fill, Gauge, Outlook, Pressure, PressureNote},
    tenancy::{Session, TenantClass, TenantId},
    time::Time,
};

/// For each class of tenants, the last part that a scan for cold parts visited, if there may be more behind it.
type ScanEnds = Vec<(TenantClass, Option<(PartRef, Time)>)>;

impl Broker {
    /// Starts the gauges, when nothing is charged anywhere.
    pub(crate) fn start_gauges(&mut self) {
        let now = self.shell.now;
        let places =
            self.ledger.places().map(|(place, balances)| (place, Gauge::new(now, balances.capacity())));
        self.node.pressure.gauges = places.collect();
    }

    /// Updates the level of a place whose charge changed, and reports a change.
    pub(crate) fn update_pressure(&mut self, place: Place) {
        let Some(fill) = self.fill(place) else { return };
        let Some(gauge) = self.node.pressure.gauges.get_mut(&place) else { return };
        let bounds = self.node.settings.pressure;
        planted!(self, LevelWithoutHysteresis => bounds = bounds.without_hysteresis());
        let changed = gauge.update_level(fill, &bounds);
        if let Some(from) = changed {
            let (Place { device, tier }, Fill { charged, capacity }) = (place, fill);
            let to = self.pressure_of(place);
            self.push_notice(Notice::PressureChanged { device, tier, from, to, charged, capacity });
            planted!(self, ReliefUnreported => if to <= from { return self.arm_pressure() });
            self.send_pressure(place, fill);
            if to < from {
                self.follow_ups.push(Fact::PressureFell);
            }
            if to == Pressure::Critical {
                self.relieve_pressure(place);
            }
        }
        self.arm_pressure();
    }

    /// Samples all places, and sets the timer again while something moves or remains to be done.
    pub(crate) fn sample_pressure(&mut self) {
        self.node.pressure.timer_armed = false;
        self.node.pressure.tried.clear();
        let places: Vec<_> = self.node.pressure.gauges.keys().copied().collect();
        let mut goes_on = false;
        for place in places {
            let Some(fill) = self.fill(place) else { continue };
            let now = self.shell.now;
            let moves =
                self.node.pressure.gauges.get_mut(&place).is_some_and(|gauge| gauge.sample(now, fill));
            self.send_pressure(place, fill);
            // The follow-ups do it, when all else that happened at this time is known.
            self.follow_ups.push(Fact::PressureDue(place));
            goes_on |= moves || self.can_relieve(place) || self.is_cached_under_pressure(place);
        }
        if goes_on {
            self.arm_pressure();
        }
    }

    /// Does what the pressure of the place asks for.
    pub(crate) fn relieve_pressure(&mut self, place: Place) {
        self.release_cached_under_pressure(place);
        if !self.can_relieve(place) {
            TenantClass::ALL
                .iter()
                .for_each(|class| _ = self.node.pressure.scanned_to.remove(&(place, *class)));
            return;
        }
        let high = self.pressure_of(place) >= Pressure::High;
        match place.tier {
            Tier::Device => {
                let (cold, ends) = self.cold_in(place);
                let mut begun = if high { self.evict_cold(place, &cold) } else { Vec::new() };
                let mut idle = self.read_mostly_in(place);
                idle.extend(&cold);
                begun.extend(self.write_back_ahead(place.device, &idle));
                self.record_cold_scan(place, ends, &begun);
            }
            Tier::Host if high => {
                let (cold, ends) = self.cold_in(place);
                let begun = self.demote_cold(place, &self.by_location(cold));
                self.record_cold_scan(place, ends, &begun);
            }
            Tier::Host | Tier::Disk => {}
        }
    }

    /// Whether the daemon does anything about the pressure of the place.
    fn can_relieve(&self, Place { device, tier }: Place) -> bool {
        let begins = match tier {
            Tier::Device => Pressure::Elevated,
            Tier::Host => Pressure::High,
            Tier::Disk => return false,
        };
        let has_below = self.ledger.below(device).any(|below| below.tier > tier)
            || (tier == Tier::Device && self.config.files);
        has_below
            && !self.node.settings.pressure.cold_after.is_zero()
            && self.pressure_of(Place { device, tier }) >= begins
    }

    /// Cold parts of a bounded number, in the order in which they should leave: those of the lowest class first. Also
    /// returns for each class where the next scan begins if none of its parts can do anything. Discardable parts are not
    /// among them: they leave without a copy, so doing that before their room is needed wins nothing.
    fn cold_in(&self, place: Place) -> (Vec<PartRef>, ScanEnds) {
        let cold_after = self.node.settings.pressure.cold_after;
        planted!(self, HotEvicted => cold_after = std::time::Duration::ZERO);
        let since = self.shell.now.before(cold_after);
        let among = if place.tier == Tier::Device { &self.usage.residents } else { &self.usage.idle_on_host };
        let is_meant = |part: &PartRef| {
            among.is_candidate(*part) && !matches!(self.moves.backings.get(part), Some(Backing::Needless))
        };
        let leaving = self.leaving_by_tenant(place);
        let (mut all, mut ends) = (Vec::new(), Vec::new());
        for class in TenantClass::ALL {
            let seen = self.node.pressure.scanned_to.get(&(place, class)).copied();
            // Everything behind a part that was just used was used later still.
            let cold = among.order_by_use(place.device, class, seen).take_while(|(_, last)| *last < since);
            let looked_at: Vec<_> = cold.take(COLD_PARTS_SCANNED).collect();
            let is_full = looked_at.len() == COLD_PARTS_SCANNED;
            ends.push((class, looked_at.last().filter(|_| is_full).copied()));
            let cold = looked_at.into_iter().map(|(part, _)| part).filter(is_meant).collect();
            all.extend(self.by_share(place, cold, &leaving));
        }
        planted!(self, PressureClassIgnored => all = self.by_last_use(all));
        (all, ends)
    }

    /// Cold parts of one class: the tenant comes next that would keep the most bytes for its weight. Parts of one tenant
    /// keep their order.
    fn by_share(
        &self,
        place: Place,
        cold: Vec<PartRef>,
        leaving: &BTreeMap<TenantId, Bytes>,
    ) -> Vec<PartRef> {
        let mut queues: BTreeMap<TenantId, VecDeque<(usize, PartRef, Bytes)>> = BTreeMap::new();
        for (at, part) in cold.iter().enumerate() {
            if let Some(Footprint { tenant, size, .. }) = self.footprint_of(*part) {
                queues.entry(tenant).or_default().push_back((at, *part, size));
            }
        }
        if queues.len() < 2 {
            return cold;
        }
        let held = |tenant: TenantId| {
            let charged = self.ledger.account(tenant, place).map_or(Bytes::ZERO, |account| account.charged());
            charged.saturating_sub(leaving.get(&tenant).copied().unwrap_or_default())
        };
        let mut held: BTreeMap<_, _> = queues.keys().map(|tenant| (*tenant, held(*tenant))).collect();
        let mut order = Vec::with_capacity(cold.len());
        loop {
            let next = queues.iter().filter_map(|(tenant, parts)| {
                let weight = self.tenants.standing(*tenant).weight;
                // Of equal tenants the one comes first whose part was used longer ago.
                let (at, ..) = parts.front()?;
                Some((weight.divide(held.get(tenant)?.get()), std::cmp::Reverse(*at), *tenant))
            });
            let Some((.., tenant)) = next.max() else { return order };
            let Some((_, part, size)) = queues.get_mut(&tenant).and_then(VecDeque::pop_front) else {
                return order;
            };
            held.entry(tenant).and_modify(|bytes| *bytes = bytes.saturating_sub(size));
            order.push(part);
        }
    }

    /// Bytes that are leaving a place and are still charged there, by tenant.
    fn leaving_by_tenant(&self, place: Place) -> BTreeMap<TenantId, Bytes> {
        if place.tier != Tier::Device {
            return self.leaving_from(place);
        }
        let mut leaving: BTreeMap<TenantId, Bytes> = BTreeMap::new();
        for (_, was) in self.line.room.iter().filter(|(_, was)| was.device == place.device) {
            let bytes = leaving.entry(was.tenant).or_default();
            *bytes = bytes.saturating_add(was.size);
        }
        leaving
    }

    /// Parts without known pins that are advised to be mostly read, whether or not they are cold: their backing stays clean
    /// once they are written back. Only among as many as a scan for cold parts visits.
    fn read_mostly_in(&self, place: Place) -> Vec<PartRef> {
        if self.usage.advice.is_empty() {
            return Vec::new();
        }
        let of_class = |class| self.usage.residents.order_by_use(place.device, class, None);
        let parts = TenantClass::ALL.into_iter().flat_map(of_class).take(COLD_PARTS_SCANNED);
        let parts = parts.map(|(part, _)| part).filter(|part| self.usage.residents.is_candidate(*part));
        parts.filter(|part| self.advice_for(*part).is_read_mostly).collect()
    }

    /// Cold parts with each place of a tenant taken by its next part: first those that should lie on disk, last those
    /// that should lie in the host.
    fn by_location(&self, cold: Vec<PartRef>) -> Vec<PartRef> {
        if self.usage.advice.is_empty() {
            return cold;
        }
        let tenant = |part: &PartRef| self.footprint_of(*part).map(|footprint| footprint.tenant);
        let mut by_tenant: BTreeMap<_, VecDeque<PartRef>> = BTreeMap::new();
        let mut ranked = cold.clone();
        ranked.sort_by_key(|part| self.advice_for(*part).rank_on_host());
        for part in ranked {
            by_tenant.entry(tenant(&part)).or_default().push_back(part);
        }
        cold.iter()
            .filter_map(|part| by_tenant.get_mut(&tenant(part)).and_then(VecDeque::pop_front))
            .collect()
    }

    /// Sets where the next scan of each class begins: where this one has ended, unless a part of the class does something.
    fn record_cold_scan(&mut self, place: Place, ends: ScanEnds, begun: &[PartRef]) {
        let begun: BTreeSet<TenantClass> = begun.iter().filter_map(|part| self.class_of(*part)).collect();
        for (class, end) in ends.into_iter().filter(|(class, _)| !begun.contains(class)) {
            match end {
                Some(last) => _ = self.node.pressure.scanned_to.insert((place, class), last),
                None => _ = self.node.pressure.scanned_to.remove(&(place, class)),
            }
        }
    }

    /// Evicts cold parts. Returns those that leave.
    fn evict_cold(&mut self, place: Place, cold: &[PartRef]) -> Vec<PartRef> {
        let Some(target) = self.eviction_target(place) else { return Vec::new() };
        planted!(self, EvictedFarBelow => target = Bytes::ZERO);
        let plan = self.choose_for_pressure(place.device, cold, target);
        planted!(self, ColdStays => return Vec::new());
        let victims = plan.victims.iter().map(|(part, _)| *part).collect();
        self.execute(plan, Cause::Pressure);
        victims
    }

    /// Writes parts back. Returns those whose copy begins.
    fn write_back_ahead(&mut self, device: DeviceIndex, parts: &[PartRef]) -> Vec<PartRef> {
        let of_device = self.moves.write_backs.iter().filter(|(part, _)| self.is_on(*part, device));
        let mut left = WRITE_BACKS_AHEAD_MAX.saturating_sub(of_device.count());
        let mut begun = Vec::new();
        for part in parts {
            if left == 0 {
                break;
            }
            let is_done = match self.moves.backings.get(part) {
                Some(Backing::Extent { clean, .. }) => *clean,
                Some(Backing::Reserved(_)) => self.are_extents_scarce(),
                Some(Backing::File { .. } | Backing::Needless) | None => true,
            };
            let has_failed = self.node.pressure.failed.contains(part);
            if is_done || has_failed || self.is_busy(*part) || !self.node.pressure.tried.insert(*part) {
                continue;
            }
            if self.write_back_part(None, *part).is_none() {
                left = left.saturating_sub(1);
                begun.push(*part);
            }
        }
        begun
    }

    fn are_extents_scarce(&self) -> bool {
        let extents_max = self.config.limits.extents_max;
        self.pool.len() >= extents_max.saturating_sub(extents_max / EXTENT_SPARE_DIVISOR)
    }

    /// Moves cold parts from host memory to disk. Returns those that begin to.
    fn demote_cold(&mut self, place: Place, cold: &[PartRef]) -> Vec<PartRef> {
        let Some((fill, target)) = self.fill(place).zip(self.eviction_target(place)) else {
            return Vec::new();
        };
        planted!(self, DemotedFarBelow => target = Bytes::ZERO);
        let mut leaving = self.leaving_from(place);
        let all_leaving = leaving.values().copied().fold(Bytes::ZERO, Bytes::saturating_add);
        let mut left = fill.charged.saturating_sub(all_leaving);
        let mut demoted = Vec::new();
        for part in cold {
            if left <= target {
                break;
            }
            let Some(footprint) = self.footprint_of(*part) else { continue };
            let of_tenant = leaving.entry(footprint.tenant).or_default();
            let without = of_tenant.saturating_add(footprint.size);
            if self.is_busy(*part)
                || self.is_wanted(*part)
                || self.moves.is_held(*part)
                || !self.is_above_guarantee_in(footprint.tenant, place, without)
                || !self.is_unused(*part, self.pins.after_all())
                || !self.node.pressure.tried.insert(*part)
            {
                continue;
            }
            let begun = self.start_move(*part, (Tier::Disk, Cause::Pressure), None, self.pins.after_all());
            self.after_moves();
            if begun.is_ok() {
                left = left.saturating_sub(footprint.size);
                *of_tenant = without;
                demoted.push(*part);
            }
        }
        demoted
    }

    /// Whether the tenant keeps its guarantee in a tier without this much of its charge there.
    fn is_above_guarantee_in(&self, tenant: TenantId, place: Place, less: Bytes) -> bool {
        let account = self.ledger.account(tenant, place);
        account.is_some_and(|account| account.charged().saturating_sub(less) >= account.guarantee)
    }

    /// Bytes that are moving from host memory to disk, or have left it and are still charged, by tenant.
    fn leaving_from(&self, place: Place) -> BTreeMap<TenantId, Bytes> {
        let migrations = self
            .moves
            .migrations
            .iter()
            .filter(|(_, it)| it.from_tier == place.tier && it.to_tier == Tier::Disk);
        let returning = self.node.pressure.returning.iter().filter(|((of, _), _)| *of == place);
        let mut leaving: BTreeMap<_, Bytes> =
            returning.map(|((_, tenant), bytes)| (*tenant, *bytes)).collect();
        for footprint in migrations.filter_map(|(part, _)| self.footprint_of(part)) {
            if footprint.device == place.device {
                let bytes = leaving.entry(footprint.tenant).or_default();
                *bytes = bytes.saturating_add(footprint.size);
            }
        }
        leaving
    }

    /// Whether anything is being done with the part, or with its allocation as a whole.
    fn is_busy(&self, part: PartRef) -> bool {
        !self.is_stable(part.allocation)
            || self.moves.migrations.contains(part)
            || self.mapping.revocations.contains_key(&part)
            || self.moves.write_backs.contains(part)
    }

    fn is_on(&self, part: PartRef, device: DeviceIndex) -> bool {
        self.footprint_of(part).is_some_and(|footprint| footprint.device == device)
    }

    fn send_pressure(&mut self, place: Place, fill: Fill) {
        let news = self.node.pressure.gauges.get_mut(&place).and_then(|gauge| gauge.take_update(fill));
        let Some(outlook) = news else { return };
        let hears = |session: &Session| {
            session.wants_pressure && session.channel_open && session.devices.contains(&place.device)
        };
        let class = |session: &Session| self.tenants.standing(session.tenant).class;
        let hearing = self.sessions.iter().filter(|(_, session)| hears(session));
        let mut channels: Vec<_> = hearing.map(|(_, session)| (class(session), session.channel)).collect();
        // The lowest class first: its sessions are the first to make room.
        channels.sort_by_key(|(class, _)| *class);
        for (_, channel) in channels {
            self.push_command(Command::Send {
                channel,
                frame: DaemonFrame::Pressure(pressure_note(place, outlook)),
            });
        }
    }

    /// Sends a new session the outlooks that others have, of every place that it may have memory in.
    pub(crate) fn send_outlooks(&mut self, id: SessionId) {
        planted!(self, OutlooksUnreported => return);
        let Some(session) = self.sessions.get(id).filter(|session| session.wants_pressure) else { return };
        let (channel, devices) = (session.channel, session.devices.clone());
        let gauges = self.node.pressure.gauges.iter().filter(|(place, _)| devices.contains(&place.device));
        let notes: Vec<_> = gauges.map(|(place, gauge)| pressure_note(*place, gauge.reported())).collect();
        for told in notes {
            self.push_command(Command::Send { channel, frame: DaemonFrame::Pressure(told) });
        }
    }

    /// Releases cached extents under high pressure, guaranteed or not, with a tier below or without: the oldest
    /// first, down to the eviction target.
    pub(crate) fn release_cached_under_pressure(&mut self, place: Place) {
        let Some((fill, target)) = self.fill(place).zip(self.eviction_target(place)) else { return };
        if !self.is_cached_under_pressure(place) {
            return;
        }
        let of_device = self.line.room.iter().filter(|(_, was)| was.device == place.device);
        let (awaited, leaving): (Vec<_>, Vec<_>) = of_device.map(|(extent, was)| (extent, was.size)).unzip();
        let mut left = leaving.into_iter().fold(fill.charged, Bytes::saturating_sub);
        let mut given_up = BTreeSet::new();
        for (age, entry) in self.pool.cache().iter().filter(|(_, it)| it.device == place.device) {
            if left <= target {
                break;
            }
            left = left.saturating_sub(entry.size);
            given_up.insert(age);
        }
        self.execute(RoomPlan { awaited, given_up, ..RoomPlan::default() }, Cause::Pressure);
    }
}

const fn pressure_note(Place { device, tier }: Place, outlook: Outlook) -> PressureNote {
    let Outlook { pressure, batch_factor, full_in } = outlook;
    PressureNote { device, tier, pressure, batch_factor, full_in }
}
