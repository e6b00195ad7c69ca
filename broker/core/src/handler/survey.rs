//! Looking at who holds memory of a device, independent of the books: at the start, from time to time, and when a
//! process has ended while memory is awaited back.

use std::collections::{BTreeMap, BTreeSet};

use vramd_types::{Bytes, DeviceIndex};

use super::Timer;
use crate::{
    broker::Broker,
    command::{Command, Notice},
    ledger::{Books, Place},
    tenancy::Session,
};

/// Surveys under way, by device; `true` where another one is wanted after it.
#[derive(Debug, Default)]
pub(crate) struct Surveys {
    under_way: BTreeMap<DeviceIndex, bool>,
    done_once: BTreeSet<DeviceIndex>,
}

impl Broker {
    /// Whether every device was looked at: before that nobody knows what others hold, and nothing should be served.
    pub fn is_surveyed(&self) -> bool {
        self.surveys.done_once.len() == self.config.devices.len()
    }

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
        match self.surveys.under_way.get_mut(&device) {
            Some(again) => *again = true,
            None => {
                self.surveys.under_way.insert(device, false);
                let sees = |session: &Session| session.devices.contains(&device);
                let clients = self.sessions.iter().filter(|(_, session)| sees(session));
                let mut clients: Vec<_> = clients.map(|(_, session)| session.pid).collect();
                clients.sort_unstable();
                clients.dedup();
                self.command(Command::Survey { device, clients });
            }
        }
    }

    pub(crate) fn arm_survey(&mut self) {
        let next = self.now.after(self.config.limits.survey_interval);
        self.arm(next, Timer::Survey);
    }

    /// Room for contexts: the broker's own, and of those clients that have one, and of some that may come.
    pub(crate) fn context_reserve(&self, device: DeviceIndex, contexts: u32) -> Bytes {
        let config = self.config.devices.get(usize::from(device.0));
        let each = config.map_or(0, |device| device.context_bytes.get());
        // One more for the broker's own.
        let count = u64::from(contexts.max(self.config.sessions_reserved)).saturating_add(1);
        Bytes::new(each.saturating_mul(count))
    }

    pub(crate) fn on_surveyed(&mut self, device: DeviceIndex, unbrokered: Bytes, contexts: u32) {
        self.surveys.done_once.insert(device);
        let place = Place::device(device);
        let before = self.ledger.books(place).map(|books| (books.unbrokered(), books.shortfall()));
        let reserved = self.context_reserve(device, contexts);
        self.ledger.set_withheld(place, unbrokered, reserved);
        let shortfall = self.ledger.books(place).map_or(Bytes::ZERO, Books::shortfall);
        if before.is_some_and(|(old, _)| old != unbrokered) {
            self.notice(Notice::Unbrokered { device, bytes: unbrokered });
        }
        if before.is_some_and(|(_, old)| old != shortfall) {
            self.notice(Notice::Shortfall { device, tier: place.tier, bytes: shortfall });
        }
        self.cover_shortfall(device);
        self.demands.all_step_up();
        self.residents.loosen();
        self.unsettled.demands = true;
        if self.surveys.under_way.remove(&device) == Some(true) {
            self.survey(device);
        }
    }
}
