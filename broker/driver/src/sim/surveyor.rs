//! Does all orders that need a survey: releases, surveys, and extents for which there is room only if other
//! processes have freed memory. Orders that wait together share one survey.

use std::{
    collections::BTreeSet,
    iter,
    sync::mpsc::{Receiver, Sender},
};

use vramd_types::{DeviceIndex, ExtentId};

use super::{
    accounts::Refusal,
    maker::Make,
    state::{State, send},
};
use crate::{Completion, disk::DiskOrder};

#[derive(Debug)]
pub(super) enum SurveyorOrder {
    Release { extent: ExtentId },
    Survey { device: DeviceIndex },
    Make(Make),
}

/// Runs until all senders are gone. Extents on disk go to the thread that makes them.
pub(super) fn run(state: &State, surveys: &Receiver<SurveyorOrder>, disk: &Sender<DiskOrder>) {
    while let Ok(first) = surveys.recv() {
        let mut batch: Vec<SurveyorOrder> = iter::once(first).chain(surveys.try_iter()).collect();
        batch.retain(|order| !passes_to_disk(state, order, disk));
        release_all(state, &batch);
        let mut returned = survey(state);
        for order in &batch {
            if let SurveyorOrder::Release { extent } = order {
                returned.remove(extent);
                let awaited = state.accounts().is_awaited(*extent);
                state.report(Completion::Released { extent: *extent, returned: !awaited });
            }
        }
        // Before the surveys, which already count it.
        for extent in returned {
            state.report(Completion::Returned { extent });
        }
        for order in batch {
            match order {
                SurveyorOrder::Release { .. } => {}
                SurveyorOrder::Survey { device } => {
                    let (unbrokered, host_missing) = state.accounts().unbrokered(device);
                    state.report(Completion::Surveyed { device, unbrokered, contexts: 0, host_missing });
                }
                SurveyorOrder::Make(make) => retry_create(state, &make),
            }
        }
    }
}

fn passes_to_disk(state: &State, order: &SurveyorOrder, disk: &Sender<DiskOrder>) -> bool {
    let SurveyorOrder::Release { extent } = *order else { return false };
    let released = state.accounts().retire_on_disk(extent);
    released.map(|released| send(disk, DiskOrder::Release { extent, released })).is_some()
}

/// Ends the driver's own use of all released extents, before the survey.
fn release_all(state: &State, batch: &[SurveyorOrder]) {
    for order in batch {
        if let SurveyorOrder::Release { extent } = order {
            let memory = state.accounts().retire(*extent);
            // Unmapping takes time; the accounts are unlocked again.
            drop(memory);
        }
    }
}

/// Surveys, and returns the extents that have returned. A failed survey proves nothing: awaited extents stay
/// awaited.
fn survey(state: &State) -> BTreeSet<ExtentId> {
    match state.holders.survey() {
        Ok(seen) => state.accounts().apply_survey(&seen).into_iter().collect(),
        Err(_) => BTreeSet::new(),
    }
}

fn retry_create(state: &State, make: &Make) {
    let result = make.attempt(state).map_err(|refusal| match refusal {
        Refusal::NeedsSurvey => state.accounts().full_error(make.location),
        Refusal::Final(error) => error,
    });
    state.report(make.completion(result));
}
