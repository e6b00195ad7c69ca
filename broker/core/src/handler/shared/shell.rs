//! Commands, notices, violations and deadlines: the way to the shell. Also the names of devices.

use vramd_types::{DeviceIndex, SessionId};

use crate::{
    broker::Broker,
    command::{Command, Notice},
    config::devices_of,
    event::Tier,
    ledger::QuotaDevice,
    shell::Timer,
    time::Time,
};

impl Broker {
    pub(crate) fn push_command(&mut self, command: Command) {
        self.shell.outbox.push_back(command);
    }

    pub(crate) fn push_notice(&mut self, notice: Notice) {
        self.push_command(Command::Notice(notice));
    }

    /// Counts and logs a violated invariant, and goes on.
    pub(crate) fn report_violation(&mut self, invariant: &'static str, detail: String) {
        self.shell.violations = self.shell.violations.saturating_add(1);
        self.push_notice(Notice::InvariantBroken { invariant, detail });
    }

    /// The UUID of a device.
    pub(crate) fn uuid(&self, device: DeviceIndex) -> &str {
        self.config.devices.get(usize::from(device.0)).map_or("?", |device| &device.uuid)
    }

    /// The device with this UUID or index.
    pub(crate) fn find_device(&self, text: &str) -> Option<DeviceIndex> {
        devices_of(&self.config)
            .find(|(index, device)| device.uuid == text || index_of(text) == Some(*index))
            .map(|(index, _)| index)
    }

    pub(crate) fn device_indices(&self) -> impl Iterator<Item = DeviceIndex> + use<> {
        (0..=u16::MAX).map(DeviceIndex).take(self.config.devices.len())
    }

    /// The tier that memory lies in until it moves.
    pub(crate) const fn tier() -> Tier {
        Tier::Device
    }

    pub(crate) fn arm(&mut self, deadline: Time, timer: Timer) {
        self.shell.timers.insert((deadline, timer));
    }

    /// Sets the session's timer to this deadline or an earlier one. A session has one timer, which may be too
    /// early but never too late. An answer in time, which is nearly every one, leaves no timer behind.
    pub(crate) fn arm_session(&mut self, deadline: Time, id: SessionId) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        match session.alarm {
            Some(alarm) if alarm <= deadline => return,
            Some(alarm) => _ = self.shell.timers.remove(&(alarm, Timer::Session(id))),
            None => {}
        }
        session.alarm = Some(deadline);
        self.arm(deadline, Timer::Session(id));
    }

    /// The UUID of the device, or `*`.
    pub(crate) fn device_text(&self, device: &QuotaDevice) -> String {
        match device {
            QuotaDevice::All => "*".to_owned(),
            QuotaDevice::Present(index) => self.uuid(*index).to_owned(),
            QuotaDevice::Absent(uuid) => uuid.clone(),
        }
    }
}

/// Parses an index in its canonical form, without sign or leading zeros.
fn index_of(text: &str) -> Option<DeviceIndex> {
    let canonical = text == "0" || !text.starts_with(['0', '+']);
    text.parse().ok().filter(|_| canonical).map(DeviceIndex)
}
