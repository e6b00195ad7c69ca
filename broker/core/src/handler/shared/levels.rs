//! The fill of places, and the bookkeeping of pressure.

use std::collections::btree_map::Entry;

use vramd_types::Bytes;

use crate::{
    broker::Broker,
    event::{PartRef, Tier},
    follow_up::Fact,
    ledger::Place,
    pressure::{Fill, Gauge, Outlook, Pressure},
    shell::Timer,
    tenancy::TenantId,
};

impl Broker {
    pub(crate) fn pressure_of(&self, place: Place) -> Pressure {
        self.node.pressure.gauges.get(&place).map(|gauge| gauge.pressure).unwrap_or_default()
    }

    /// The level that the charge of this moment gives. Follow-up work updates the gauge later in the event.
    pub(crate) fn pressure_now(&self, place: Place) -> Pressure {
        self.pressure_with(place, Bytes::ZERO)
    }

    /// The level that it would give with so many bytes more.
    pub(crate) fn pressure_with(&self, place: Place, more: Bytes) -> Pressure {
        let (level, bounds) = (self.pressure_of(place), &self.node.settings.pressure);
        self.fill(place)
            .map_or(level, |fill| level.next(fill.charged.saturating_add(more), fill.capacity, bounds))
    }

    pub(crate) fn fill(&self, place: Place) -> Option<Fill> {
        self.ledger
            .balances(place)
            .map(|balances| Fill { charged: balances.charged(), capacity: balances.capacity() })
    }

    /// The charge down to which pressure evicts.
    pub(crate) fn eviction_target(&self, place: Place) -> Option<Bytes> {
        let percent = u8::try_from(self.node.settings.pressure.evict_to_percent).unwrap_or(u8::MAX);
        self.fill(place).map(|fill| fill.capacity.percent(percent))
    }

    /// Tells a gauge that its place has another size. That is no growth of the charges there.
    pub(crate) fn note_resized(&mut self, place: Place, before: Option<Fill>) {
        let fills = before.zip(self.fill(place));
        if let Some((before, after)) = fills
            && let Some(gauge) = self.node.pressure.gauges.get_mut(&place)
        {
            gauge.resize(before.left(), after.left());
        }
    }

    pub(crate) fn arm_pressure(&mut self) {
        if !std::mem::replace(&mut self.node.pressure.timer_armed, true) {
            self.node.pressure.gauges.values_mut().for_each(|gauge| gauge.resume(self.shell.now));
            self.arm(self.shell.now.after(self.node.settings.pressure.sample_interval), Timer::Pressure);
        }
    }

    /// Records bytes that the driver was told to release there. They stay charged until it has.
    pub(crate) fn track_release(&mut self, tenant: TenantId, place: Place, bytes: Bytes) {
        let returning = self.node.pressure.returning.entry((place, tenant)).or_default();
        *returning = returning.saturating_add(bytes);
    }

    /// The driver has released them, or another process keeps them.
    pub(crate) fn untrack_release(&mut self, tenant: TenantId, place: Place, bytes: Bytes) {
        if let Entry::Occupied(mut returning) = self.node.pressure.returning.entry((place, tenant)) {
            *returning.get_mut() = returning.get().saturating_sub(bytes);
            if returning.get().is_zero() {
                returning.remove();
            }
        }
    }

    /// A write-back ahead of need has ended, so another may begin.
    pub(crate) fn note_written_ahead(&mut self, part: PartRef, failed: bool) {
        // Memory that could not be created or written below will fail again a moment later.
        if failed {
            self.node.pressure.failed.insert(part);
        }
        if let Some(footprint) = self.footprint_of(part) {
            self.follow_ups.push(Fact::PressureDue(Place::device(footprint.device)));
        }
    }

    pub(crate) fn is_cached_under_pressure(&self, place: Place) -> bool {
        planted!(self, CachedUnderPressure => return false);
        place.tier == Tier::Device
            && self.pressure_of(place) >= Pressure::High
            && !self.pool.cache().bytes_on(place.device).is_zero()
    }

    /// The outlook that clients were sent last.
    pub(crate) fn outlook_of(&self, place: Place) -> Outlook {
        self.node.pressure.gauges.get(&place).map_or(Outlook::CALM, Gauge::reported)
    }
}
