//! Descriptors go to open channels only, one unanswered packet a session, within the budgets.

use broker_core::{ChannelId, MapPart, invariants::FDS_SENT};
use vramd_types::{DeviceIndex, SessionId};

use crate::oracle::Oracle;

impl Oracle {
    pub(crate) fn welcomed(&mut self, channel: ChannelId, id: SessionId, devices: &[DeviceIndex]) {
        self.is_new_session(id);
        self.takes_new(id);
        let Some(hello) = self.facts.hellos.remove(&channel) else {
            return self.expect(FDS_SENT, false, || format!("{id} is welcomed, and nobody said hello"));
        };
        let tenant = self.facts.tenant(&hello.tenant);
        self.facts.on_channel.insert(channel, id);
        let session = crate::oracle::facts::SessionFacts {
            tenant,
            pid: hello.pid,
            uid: hello.uid,
            channel,
            gone: false,
            ending: false,
            kill_asked: false,
            devices: self.seen(hello.devices.as_deref()),
            owed: Default::default(),
            holds: Default::default(),
            owes_since: None,
            owes_words: hello.pins.then_some(self.facts.now),
            in_flight: 0,
            pins: hello.pins,
            hears_pressure: hello.pressure,
            silent: false,
            silent_since: None,
            away: Default::default(),
            coming: Default::default(),
            slots: Default::default(),
            prompt: Default::default(),
            last_pin: None,
            pin_calls: Default::default(),
        };
        self.facts.sessions.insert(id, session);
        self.welcomed_with(id, devices);
        self.sessions_are_bounded(tenant);
    }

    pub(crate) fn packet_sent(&mut self, channel: ChannelId, parts: &[MapPart]) {
        let open = self.facts.open_channels.contains(&channel);
        self.expect(FDS_SENT, open, || format!("descriptors are sent on {channel:?}, which has ended"));
        let Some(id) = self.facts.on_channel.get(&channel).copied() else {
            return self
                .expect(FDS_SENT, false, || format!("descriptors are sent on {channel:?}, no session's"));
        };
        let Some(session) = self.facts.sessions.get(&id) else { return };
        let (alive, unanswered, tenant) = (!session.gone, session.in_flight, session.tenant);
        self.expect(FDS_SENT, alive, || format!("descriptors are sent to {id}, which is gone"));
        self.expect(FDS_SENT, unanswered == 0, || format!("{id} has {unanswered} unanswered and gets more"));
        let (total, own) =
            (self.facts.in_flight(None) + parts.len(), self.facts.in_flight(Some(tenant)) + parts.len());
        let (most, most_own) = (self.limits.fds_in_flight_max, self.limits.fds_in_flight_per_tenant_max);
        self.expect(FDS_SENT, total <= most, || format!("{total} descriptors in flight, at most {most}"));
        self.expect(FDS_SENT, own <= most_own, || {
            format!("{own} in flight of one tenant, at most {most_own}")
        });
    }
}
