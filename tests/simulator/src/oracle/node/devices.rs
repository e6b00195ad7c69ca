//! Memory lies on the device that was requested, and goes to processes that see that device.

use broker_core::{AllocationSpec, AllocationView, MapPart, Tier, invariants::DEVICES};
use vramd_types::{DeviceIndex, SessionId};

use crate::oracle::{Oracle, facts::ExtentFacts};

impl Oracle {
    /// Devices that a process sees: those of its list of UUIDs, or all.
    pub(crate) fn visible_devices(&self, reported: Option<&[String]>) -> Vec<usize> {
        let seen = |uuid: &String| reported.is_none_or(|reported| reported.contains(uuid));
        let places = self.facts.places.iter().enumerate();
        places
            .filter(|(_, place)| place.tier == Tier::Device && seen(&place.uuid))
            .map(|(at, _)| at)
            .collect()
    }

    pub(crate) fn check_welcome_devices(&mut self, id: SessionId, shown: &[DeviceIndex]) {
        let shown: Vec<_> = shown.iter().map(|device| usize::from(device.0)).collect();
        let seen = self.facts.sessions.get(&id).map(|session| session.devices.clone());
        self.expect(DEVICES, seen.as_ref() == Some(&shown), || {
            format!("{id} is told of devices {shown:?} and sees {seen:?}")
        });
    }

    /// Checks that new memory lies on the requested device, or on the first device that its session sees.
    pub(crate) fn check_placement(&mut self, by: SessionId, spec: &AllocationSpec, view: &AllocationView) {
        let Some(session) = self.facts.sessions.get(&by) else { return };
        let is_called = |text: &str, at: usize| text == self.facts.places[at].uuid || text == at.to_string();
        let place = self.device_of(view);
        let fits = place.is_some_and(|at| match &spec.device {
            Some(text) => session.devices.contains(&at) && is_called(text, at),
            None => session.devices.first() == Some(&at),
        });
        let seen = session.devices.clone();
        self.expect(DEVICES, fits, || {
            format!(
                "{} of {by} is on {}; requested {:?}, visible {seen:?}",
                view.id, view.device, spec.device
            )
        });
    }

    pub(crate) fn check_device_visible(&mut self, by: SessionId, view: &AllocationView) {
        let place = self.device_of(view);
        let session = self.facts.sessions.get(&by);
        let seen = session.is_none_or(|it| place.is_some_and(|at| it.devices.contains(&at)));
        self.expect(DEVICES, seen, || format!("{by} attaches {}, whose device it does not see", view.id));
    }

    pub(crate) fn check_sent_device(&mut self, id: SessionId, sent: &MapPart) {
        let place = usize::from(sent.device.0);
        let in_host = self.facts.place(place, Tier::Host);
        let is_near = |extent: &ExtentFacts| extent.place == place || Some(extent.place) == in_host;
        let lies = self.facts.extents.get(&sent.extent).is_none_or(is_near);
        let seen = self.facts.sessions.get(&id).is_none_or(|session| session.devices.contains(&place));
        self.expect(DEVICES, lies && seen, || {
            format!("{:?} is sent to {id} as of device {place}", sent.part)
        });
    }

    pub(crate) fn device_of(&self, view: &AllocationView) -> Option<usize> {
        self.facts.place_of(&view.device, Tier::Device)
    }
}
