//! Requests of the lower classes are paused under pressure. The oracle knows only the lowest level that the device can have
//! had when a request began: that of its charge without all that the event may have added.

use broker_core::{Pressure, TenantClass, invariants::PREFETCH_PAUSED};

use super::{PrefetchId, RequestFacts};
use crate::oracle::Oracle;

/// The level from which on a class is paused.
fn pauses_at(class: TenantClass) -> Option<Pressure> {
    match class {
        TenantClass::Background => Some(Pressure::Elevated),
        TenantClass::Utility => Some(Pressure::High),
        TenantClass::Initiated | TenantClass::Interactive => None,
    }
}

impl Oracle {
    /// Checks a request that began in this event.
    pub(super) fn check_not_paused(&mut self, id: PrefetchId, request: &RequestFacts) {
        let class = self.class_of(request.tenant);
        let Some((device, begins)) = request.device.zip(pauses_at(class)) else { return };
        if self.step.surveyed || self.step.settings_changed || self.step.quotas_changed {
            return;
        }
        let added: u64 = self.step.taken.iter().filter(|((_, on), _)| *on == device).map(|(_, it)| it).sum();
        let charged = self.charged_to_all(device).0;
        let before = self.lowest_level_before(device);
        let lowest = self.level_after(before, charged.saturating_sub(added), self.capacity(device));
        self.expect(PREFETCH_PAUSED, lowest < begins, || {
            format!("{id:?} of a {class} tenant begins although device {device} is {lowest}: {request:?}")
        });
    }

    /// Whether the request may have been paused in this event.
    pub(super) fn may_be_paused(&self, request: &RequestFacts) -> bool {
        let begins = pauses_at(self.class_of(request.tenant));
        let Some((device, begins)) = request.device.zip(begins) else { return false };
        let before = self.step.pressure_before.get(&device).copied().unwrap_or_default();
        let charged = self.charged_to_all(device).0;
        let highest = before.max(self.pressure_in(device));
        highest.max(self.level_after(highest, charged, self.capacity(device))) >= begins
    }
}
