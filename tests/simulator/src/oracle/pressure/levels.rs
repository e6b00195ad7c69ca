//! Pressure is shown and reported correctly. A part that leaves because of pressure left a full place and was
//! not in use.

use broker_core::{
    Broker, Cause, ChannelId, PartRef, Pressure, PressureNote, Tier, Time,
    invariants::{PRESSURE, PRESSURE_EVICTIONS},
};

use crate::oracle::{Oracle, facts::SessionFacts};

impl Oracle {
    /// Checks a reported change of level, with the charge and capacity that it names.
    pub(crate) fn check_pressure_change(
        &mut self,
        (device, tier): (usize, Tier),
        from: Pressure,
        to: Pressure,
        (held, capacity): (u64, u64),
    ) {
        let Some(place) = self.facts.place(device, tier) else { return };
        let known = self.pressure_in(place);
        let expected = self.level_after(from, held, capacity);
        self.expect(PRESSURE, from == known && to == expected && to != from, || {
            format!("place {place} goes from {from} to {to} with {held} of {capacity} charged; it was {known}, and should be {expected}")
        });
        if from >= Pressure::High {
            self.facts.high_until.insert(place, self.facts.now);
        }
        self.facts.pressure.insert(place, to);
        self.step.pressure_changed.insert(place);
    }

    pub(crate) fn check_pressure_frame(&mut self, channel: ChannelId, note: &PressureNote) {
        let session = self.facts.on_channel.get(&channel).and_then(|id| self.facts.sessions.get(id));
        let hears = session.is_some_and(|session| session.hears_pressure);
        self.expect(PRESSURE, hears, || format!("{channel:?} is sent pressure without asking for it"));
        let usual = (800..=1200).contains(&note.batch_factor);
        self.expect(PRESSURE, usual, || {
            format!("the batch factor is {} thousandths, not 800 to 1200", note.batch_factor)
        });
        let place = self.facts.place(usize::from(note.device.0), note.tier);
        place.map(|place| self.facts.reported_pressure.insert((channel, place), note.pressure));
    }

    /// Checks that each place is shown at its last reported level, that this is the level for its charge, and
    /// that every session that asked for it was sent it.
    pub(crate) fn check_pressure_levels(&mut self, broker: &Broker) {
        if !self.facts.clock.is_multiple_of(8) && !self.step.settings_changed {
            return;
        }
        for (device, view) in broker.devices().into_iter().enumerate() {
            let on_device = Some((Tier::Device, view.pressure, view.charged, view.capacity));
            let below = [(Tier::Host, view.host), (Tier::Disk, view.disk)];
            let below = below.map(|(tier, of)| of.map(|it| (tier, it.pressure, it.charged, it.capacity)));
            for (tier, shown, held, capacity) in on_device.into_iter().chain(below.into_iter().flatten()) {
                let Some(place) = self.facts.place(device, tier) else { continue };
                let known = self.pressure_in(place);
                let expected = self.level_after(known, held.get(), capacity.get());
                self.expect(PRESSURE, shown == known && shown == expected, || {
                    format!("place {place} is shown as {shown} with {held} of {capacity} charged; it was {known}, and should be {expected}")
                });
                self.check_pressure_reports(place, device, known);
            }
        }
    }

    fn check_pressure_reports(&mut self, place: usize, device: usize, known: Pressure) {
        let hears = |it: &&SessionFacts| !it.gone && it.hears_pressure && it.devices.contains(&device);
        let sessions = self.facts.sessions.values().filter(hears);
        let reported = |channel| self.facts.reported_pressure.get(&(channel, place)).copied();
        let missed = sessions
            .map(|it| it.channel)
            .find(|channel| self.facts.open_channels.contains(channel) && reported(*channel) != Some(known));
        self.expect(PRESSURE, missed.is_none(), || {
            format!("{missed:?} was not sent that place {place} is {known}")
        });
    }

    /// Checks that a part that left for pressure alone left a full place, and was cold.
    pub(crate) fn check_departure_for_pressure(
        &mut self,
        part: PartRef,
        tier: Tier,
        cause: Cause,
        began: Time,
    ) {
        let device = self.facts.allocations.get(&part.allocation).map(|allocation| allocation.device);
        if let Some(device) = device.filter(|_| cause == Cause::Pressure) {
            let here = if self.is_moving_below(part, tier) { Tier::Host } else { Tier::Device };
            let Some(place) = self.facts.place(device, here) else { return };
            let was_high = self.pressure_in(place) >= Pressure::High
                || self.facts.high_until.get(&place).is_some_and(|until| *until >= began);
            self.expect(PRESSURE_EVICTIONS, was_high && tier > here, || {
                format!("{part:?} has left place {place} for {tier}, which was not full")
            });
            let used = self.facts.used.get(&part).copied();
            // A part that is used once it has begun to leave still leaves.
            let cold_after = self.settings.cold_after(began);
            let cold = cold_after
                .is_some_and(|cold_after| used.is_none_or(|it| it >= began || it.after(cold_after) < began));
            self.expect(PRESSURE_EVICTIONS, cold, || {
                format!("{part:?} was used at {used:?}, and leaves at {began:?} because of pressure")
            });
        }
        if tier != Tier::Disk {
            self.facts.used.insert(part, self.facts.now);
        }
    }

    pub(crate) fn pressure_in(&self, place: usize) -> Pressure {
        self.facts.pressure.get(&place).copied().unwrap_or_default()
    }

    /// The level of a place before this event, or the lowest if it has changed in it.
    pub(crate) fn lowest_level_before(&self, place: usize) -> Pressure {
        match self.step.pressure_changed.contains(&place) {
            true => Pressure::Normal,
            false => self.step.pressure_before.get(&place).copied().unwrap_or_default(),
        }
    }

    /// The highest level that is entered with this charge, or that was entered and is not left yet.
    pub(crate) fn level_after(&self, from: Pressure, held: u64, capacity: u64) -> Pressure {
        let bounds = self.bounds();
        let at_least =
            |percent: u32| held > 0 && u128::from(held) * 100 >= u128::from(capacity) * u128::from(percent);
        let steps = [
            (Pressure::Elevated, bounds.elevated_percent),
            (Pressure::High, bounds.high_percent),
            (Pressure::Critical, bounds.critical_percent),
        ];
        let entered = steps.iter().filter(|(_, percent)| at_least(*percent)).map(|(step, _)| *step);
        let stands = steps
            .iter()
            .filter(|(step, percent)| *step <= from && at_least(percent - bounds.fall_percent.min(*percent)));
        entered.chain(stands.map(|(step, _)| *step)).max().unwrap_or_default()
    }
}
