//! Descriptors go to open channels only, one unanswered packet per session, within the budgets.

use broker_core::{ChannelId, MapPart, invariants::FDS_SENT};
use vramd_types::{DeviceIndex, SessionId};

use crate::oracle::Oracle;

impl Oracle {
    pub(crate) fn record_welcome(&mut self, channel: ChannelId, id: SessionId, devices: &[DeviceIndex]) {
        self.record_session_id(id);
        self.expect_not_draining(id);
        let Some(hello) = self.facts.hellos.remove(&channel) else {
            return self.expect(FDS_SENT, false, || format!("{id} is welcomed without a hello"));
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
            devices: self.visible_devices(hello.devices.as_deref()),
            owed: Default::default(),
            mappings: Default::default(),
            owes_since: None,
            owes_words: hello.pins.then_some(self.facts.now),
            in_flight: 0,
            pins: hello.pins,
            hears_pressure: hello.pressure,
            silent: false,
            silent_since: None,
            answered: 0,
            away: Default::default(),
            pin_requested: Default::default(),
            slots: Default::default(),
            unmaps: Default::default(),
            last_pin: None,
            pin_calls: Default::default(),
            waits_since: None,
            starved_since: None,
            last_not_starved: self.facts.clock,
        };
        self.facts.sessions.insert(id, session);
        self.check_welcome_devices(id, devices);
        self.check_session_count(tenant);
    }

    pub(crate) fn check_packet(&mut self, channel: ChannelId, parts: &[MapPart]) {
        let open = self.facts.open_channels.contains(&channel);
        self.expect(FDS_SENT, open, || format!("descriptors are sent on {channel:?}, which has ended"));
        let Some(id) = self.facts.on_channel.get(&channel).copied() else {
            return self.expect(FDS_SENT, false, || {
                format!("descriptors are sent on {channel:?}, which has no session")
            });
        };
        let Some(session) = self.facts.sessions.get(&id) else { return };
        let (alive, unanswered, tenant) = (!session.gone, session.in_flight, session.tenant);
        self.expect(FDS_SENT, alive, || format!("descriptors are sent to {id}, which is gone"));
        self.expect(FDS_SENT, unanswered == 0, || {
            format!("{id} has {unanswered} unanswered descriptors and is sent more")
        });
        self.record_packet(id);
        let (total, own) =
            (self.facts.in_flight(None) + parts.len(), self.facts.in_flight(Some(tenant)) + parts.len());
        let (max, max_own) = (self.limits.fds_in_flight_max, self.limits.fds_in_flight_per_tenant_max);
        self.expect(FDS_SENT, total <= max, || format!("{total} descriptors in flight, at most {max}"));
        self.expect(FDS_SENT, own <= max_own, || {
            format!("{own} descriptors in flight to one tenant, at most {max_own}")
        });
    }
}
