//! Surveys: which processes have memory of a device, independent of the ledger. The daemon surveys at its
//! start, from time to time, and when a process has ended while memory is unreturned.

use std::collections::BTreeMap;

use vramd_types::{Bytes, DeviceIndex};

use crate::{
    broker::Broker,
    command::{Command, Notice},
    ledger::{Ledger, Place, PlaceBalances},
    shell::Timer,
    tenancy::Session,
};

/// Surveys under way by device; `true` if another one is wanted after it.
#[derive(Debug, Default)]
pub(crate) struct Surveys {
    pub(crate) under_way: BTreeMap<DeviceIndex, bool>,
    /// How many were done of each device.
    pub(crate) done: BTreeMap<DeviceIndex, u64>,
    /// After which survey it is known which process has what the driver lacked. Earlier surveys began too soon.
    awaited: BTreeMap<DeviceIndex, u64>,
}

impl Surveys {
    /// How many will have been done of a device after all that are requested by now.
    pub(crate) fn requested(&self, device: DeviceIndex) -> u64 {
        let more = match self.under_way.get(&device) {
            Some(true) => 2,
            Some(false) => 1,
            None => 0,
        };
        self.done(device).saturating_add(more)
    }

    /// The driver ran out: the next survey that begins shows which process has the memory.
    pub(crate) fn await_next(&mut self, device: DeviceIndex) {
        let requested = self.requested(device);
        self.awaited.insert(device, requested);
    }

    /// Takes note of a finished survey. Returns whether it is known which process has what the driver lacked,
    /// if it lacked anything.
    pub(crate) fn resolve_awaited(&mut self, device: DeviceIndex) -> bool {
        let found = self.awaited.get(&device).is_none_or(|awaited| self.done(device) >= *awaited);
        if found {
            self.awaited.remove(&device);
        }
        found
    }

    fn done(&self, device: DeviceIndex) -> u64 {
        self.done.get(&device).copied().unwrap_or_default()
    }
}

impl Broker {
    /// Whether every device has been surveyed. Before that the daemon does not know what other programs have,
    /// and should serve nothing.
    pub fn is_surveyed(&self) -> bool {
        self.node.surveys.done.len() == self.config.devices.len()
    }

    pub(crate) fn survey_all(&mut self) {
        for device in self.device_indices() {
            self.survey(device);
        }
    }

    /// Surveys devices with unreturned memory, which may have come back with the end of a process.
    pub(crate) fn survey_awaited(&mut self) {
        for device in self.device_indices() {
            if self.pool.awaits_return(device) {
                self.survey(device);
            }
        }
    }

    pub(crate) fn survey(&mut self, device: DeviceIndex) {
        match self.node.surveys.under_way.get_mut(&device) {
            Some(again) => *again = true,
            None => {
                self.node.surveys.under_way.insert(device, false);
                let sees = |session: &Session| session.devices.contains(&device);
                let clients = self.sessions.iter().filter(|(_, session)| sees(session));
                let mut clients: Vec<_> = clients.map(|(_, session)| session.pid).collect();
                clients.sort_unstable();
                clients.dedup();
                self.push_command(Command::Survey { device, clients });
            }
        }
    }

    pub(crate) fn arm_survey(&mut self) {
        let next = self.shell.now.after(self.config.limits.survey_interval);
        self.arm(next, Timer::Survey);
    }

    /// The bytes reserved for CUDA contexts: of the daemon, of clients that have one, and of some that may
    /// come.
    pub(crate) fn context_reserve(&self, device: DeviceIndex, contexts: u32) -> Bytes {
        let config = self.config.devices.get(usize::from(device.0));
        let each = config.map_or(0, |device| device.context_bytes.get());
        // One more for the daemon.
        let count = u64::from(contexts.max(self.config.sessions_reserved)).saturating_add(1);
        Bytes::new(each.saturating_mul(count))
    }

    pub(crate) fn has_surveyed(&self, device: DeviceIndex, survey: u64) -> bool {
        self.node.surveys.done(device) >= survey
    }

    /// Changes the bytes of a place that may not be handed out, and reports a changed shortfall.
    pub(crate) fn withhold(&mut self, place: Place, change: impl FnOnce(&mut Ledger)) {
        let shortfall =
            |broker: &Self| broker.ledger.balances(place).map_or(Bytes::ZERO, PlaceBalances::shortfall);
        let before = shortfall(self);
        change(&mut self.ledger);
        let bytes = shortfall(self);
        if before != bytes {
            self.push_notice(Notice::Shortfall { device: place.device, tier: place.tier, bytes });
        }
    }
}
