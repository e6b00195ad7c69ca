//! Surveys of devices: requested ones, and those that confirm an earlier one.
//!
//! A return is reported only once it has lasted (`accounts`). No other caller can be relied on to survey again
//! by then, so the driver itself surveys while a return is unconfirmed. Such a survey answers nothing; it only
//! reports returned extents.

use std::time::Instant;

use vramd_types::{Bytes, DeviceIndex, ExtentId};

use crate::Completion;
use crate::cuda::{
    api::CudaError,
    device::{Device, accounts::CONFIRM_AFTER},
    state::{Extent, State},
};

/// The latest survey of each device, by index.
#[derive(Debug)]
pub(crate) struct Surveys(Vec<LatestSurvey>);

/// The latest survey of a device.
#[derive(Debug, Default)]
struct LatestSurvey {
    clients: Vec<u32>,
    /// When to survey again, if there is something to confirm.
    again: Option<Instant>,
}

/// The findings of a survey.
struct Found {
    returned: Vec<ExtentId>,
    unbrokered: Bytes,
    contexts: u32,
}

impl Surveys {
    pub(crate) fn of(state: &State) -> Self {
        Self(state.devices.iter().map(|_| LatestSurvey::default()).collect())
    }

    /// When [`confirm`](Self::confirm) has something to do.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.0.iter().filter_map(|latest| latest.again).min()
    }

    pub(crate) fn answer(&mut self, state: &State, index: DeviceIndex, clients: Vec<u32>) {
        let at = usize::from(index.0);
        let (Some(latest), Some(device)) = (self.0.get_mut(at), state.devices.get(at)) else {
            let (unbrokered, host_missing) = (Bytes::ZERO, Bytes::ZERO);
            state.report(Completion::Surveyed { device: index, unbrokered, contexts: 0, host_missing });
            return;
        };
        latest.clients = clients;
        let (unbrokered, contexts) = match latest.survey(device) {
            Ok(found) => {
                // Before the answer, which already counts it.
                report_returned(state, found.returned);
                (found.unbrokered, found.contexts)
            }
            Err(_) => (device.accounts().other_programs(), device.contexts()),
        };
        let host_missing = state.host_missing(device.node());
        state.report(Completion::Surveyed { device: index, unbrokered, contexts, host_missing });
    }

    /// Surveys those devices again that are due.
    pub(crate) fn confirm(&mut self, state: &State) {
        let now = Instant::now();
        for (latest, device) in self.0.iter_mut().zip(&state.devices) {
            if latest.again.is_some_and(|again| again <= now)
                // A failed survey is repeated: the unconfirmed returns are kept.
                && let Ok(found) = latest.survey(device)
            {
                report_returned(state, found.returned);
            }
        }
    }
}

impl LatestSurvey {
    fn survey(&mut self, device: &Device) -> Result<Found, CudaError> {
        let found = survey(device, &self.clients);
        self.again = device.accounts().has_unconfirmed().then(|| Instant::now() + CONFIRM_AFTER);
        found
    }
}

fn survey(device: &Device, clients: &[u32]) -> Result<Found, CudaError> {
    // Otherwise a lost context might go unnoticed for a long time.
    device.context().is_sound()?;
    let (mut accounts, survey) = device.survey(clients)?;
    let returned = accounts.apply_survey(Instant::now(), survey.others, survey.held_max);
    let unbrokered = accounts.other_programs().saturating_add(survey.other_contexts);
    Ok(Found { returned, unbrokered, contexts: survey.contexts })
}

fn report_returned(state: &State, returned: Vec<ExtentId>) {
    let mut extents = state.extents();
    let released = returned.into_iter().filter(|it| matches!(extents.remove(it), Some(Extent::Awaited)));
    let released: Vec<ExtentId> = released.collect();
    drop(extents);
    for extent in released {
        state.report(Completion::Returned { extent });
    }
}
