//! Looking at who holds memory of a device, independent of the books: at the start, from time to time, and when a
//! process has ended while memory is awaited back.

use std::collections::BTreeMap;

use vramd_types::{Bytes, DeviceIndex};

use super::Timer;
use crate::{
    broker::Broker,
    command::{Command, Notice},
    ledger::{Books, Place},
};

/// Surveys under way, by device; `true` where another one is wanted after it.
#[derive(Debug, Default)]
pub(crate) struct Surveys(BTreeMap<DeviceIndex, bool>);

impl Broker {
    pub(crate) fn survey_all(&mut self) {
        for device in self.device_indices() {
            self.survey(device);
        }
    }

    /// Where something is awaited back, it may have come with the end of a process.
    pub(crate) fn survey_awaited(&mut self) {
        for device in self.device_indices() {
            if self.pool.awaits(device) {
                self.survey(device);
            }
        }
    }

    fn survey(&mut self, device: DeviceIndex) {
        match self.surveys.0.get_mut(&device) {
            Some(again) => *again = true,
            None => {
                self.surveys.0.insert(device, false);
                self.command(Command::Survey { device });
            }
        }
    }

    pub(crate) fn arm_survey(&mut self) {
        let next = self.now.after(self.config.limits.survey_interval);
        self.arm(next, Timer::Survey);
    }

    pub(crate) fn on_surveyed(&mut self, device: DeviceIndex, unbrokered: Bytes) {
        let place = Place::device(device);
        let before = self.ledger.books(place).map(|books| (books.unbrokered(), books.shortfall()));
        self.ledger.set_unbrokered(place, unbrokered);
        let shortfall = self.ledger.books(place).map_or(Bytes::ZERO, Books::shortfall);
        if before.is_some_and(|(old, _)| old != unbrokered) {
            self.notice(Notice::Unbrokered { device, bytes: unbrokered });
        }
        if before.is_some_and(|(_, old)| old != shortfall) {
            self.notice(Notice::Shortfall { device, tier: place.tier, bytes: shortfall });
        }
        if self.surveys.0.remove(&device) == Some(true) {
            self.survey(device);
        }
    }
}
