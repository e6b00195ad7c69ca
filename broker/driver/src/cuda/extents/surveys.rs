//! Looks at who holds what of a device: those that are asked for, and those that confirm what one of them found.
//!
//! An extent that a look finds to be back is told to be only once that has lasted (`accounts`). Nobody else can be
//! relied on to ask again by then, so while something is seen back the next look is ours. It answers nothing: it tells
//! of what has come back, and no more.

use std::time::Instant;

use vramd_types::{Bytes, DeviceIndex, ExtentId};

use crate::Completion;
use crate::cuda::{
    api::CudaError,
    device::{Device, accounts::LASTS},
    state::{Extent, State},
};

/// Of each device, by index.
#[derive(Debug)]
pub(crate) struct Surveys(Vec<Latest>);

/// The latest survey of a device.
#[derive(Debug, Default)]
struct Latest {
    clients: Vec<u32>,
    /// When to look again, if it left something to confirm.
    again: Option<Instant>,
}

/// What a look tells.
struct Found {
    returned: Vec<ExtentId>,
    unbrokered: Bytes,
    contexts: u32,
}

impl Surveys {
    pub(crate) fn of(state: &State) -> Self {
        Self(state.devices.iter().map(|_| Latest::default()).collect())
    }

    /// When [`confirm`](Self::confirm) has something to do.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.0.iter().filter_map(|latest| latest.again).min()
    }

    pub(crate) fn answer(&mut self, state: &State, index: DeviceIndex, clients: Vec<u32>) {
        let at = usize::from(index.0);
        let (Some(latest), Some(device)) = (self.0.get_mut(at), state.devices.get(at)) else {
            let (unbrokered, host_lacking) = (Bytes::ZERO, Bytes::ZERO);
            state.tell(Completion::Surveyed { device: index, unbrokered, contexts: 0, host_lacking });
            return;
        };
        latest.clients = clients;
        let (unbrokered, contexts) = match latest.look(device) {
            Ok(found) => {
                // Before the answer, which tells of it.
                tell(state, found.returned);
                (found.unbrokered, found.contexts)
            }
            Err(_) => (device.accounts().outsiders(), device.contexts()),
        };
        let host_lacking = state.host_lacking(device.node());
        state.tell(Completion::Surveyed { device: index, unbrokered, contexts, host_lacking });
    }

    /// Looks at those devices again where it is time to.
    pub(crate) fn confirm(&mut self, state: &State) {
        let now = Instant::now();
        for (latest, device) in self.0.iter_mut().zip(&state.devices) {
            if latest.again.is_some_and(|again| again <= now)
                // One that fails is made once more: what was seen back is not forgotten.
                && let Ok(found) = latest.look(device)
            {
                tell(state, found.returned);
            }
        }
    }
}

impl Latest {
    fn look(&mut self, device: &Device) -> Result<Found, CudaError> {
        let found = look(device, &self.clients);
        self.again = device.accounts().is_unconfirmed().then(|| Instant::now() + LASTS);
        found
    }
}

fn look(device: &Device, clients: &[u32]) -> Result<Found, CudaError> {
    // Nothing else may tell for a long time that the context has come to harm.
    device.context().is_sound()?;
    let (mut accounts, sight) = device.sight(clients)?;
    let returned = accounts.settle(Instant::now(), sight.others);
    let unbrokered = accounts.outsiders().saturating_add(sight.strangers);
    Ok(Found { returned, unbrokered, contexts: sight.contexts })
}

fn tell(state: &State, returned: Vec<ExtentId>) {
    let mut extents = state.extents();
    let released = returned.into_iter().filter(|it| matches!(extents.remove(it), Some(Extent::Awaited)));
    let released: Vec<ExtentId> = released.collect();
    drop(extents);
    for extent in released {
        state.tell(Completion::Returned { extent });
    }
}
