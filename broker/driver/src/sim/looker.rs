//! Whatever needs a look at who holds what: releases, surveys, and extents for which there is room only if others
//! have let go. Everything that waits shares one look.

use std::{
    collections::BTreeSet,
    iter,
    sync::mpsc::{Receiver, Sender},
};

use vramd_types::{DeviceIndex, ExtentId};

use super::{
    books::Refusal,
    maker::Make,
    state::{State, hand},
};
use crate::{Completion, disk::DiskOrder};

#[derive(Debug)]
pub(super) enum Look {
    Release { extent: ExtentId },
    Survey { device: DeviceIndex },
    Make(Make),
}

/// Until nobody can send any more. What lies on disk is released by who makes it.
pub(super) fn run(state: &State, looks: &Receiver<Look>, disk: &Sender<DiskOrder>) {
    while let Ok(first) = looks.recv() {
        let mut batch: Vec<Look> = iter::once(first).chain(looks.try_iter()).collect();
        batch.retain(|look| !is_released_on_disk(state, look, disk));
        let_go(state, &batch);
        let mut returned = settle(state);
        for look in &batch {
            if let Look::Release { extent } = look {
                returned.remove(extent);
                let awaited = state.books().is_awaited(*extent);
                state.tell(Completion::Released { extent: *extent, returned: !awaited });
            }
        }
        // Before the surveys: they tell of it.
        for extent in returned {
            state.tell(Completion::Returned { extent });
        }
        for look in batch {
            match look {
                Look::Release { .. } => {}
                Look::Survey { device } => {
                    let (unbrokered, host_lacking) = state.books().unbrokered(device);
                    state.tell(Completion::Surveyed { device, unbrokered, contexts: 0, host_lacking });
                }
                Look::Make(make) => retry(state, &make),
            }
        }
    }
}

fn is_released_on_disk(state: &State, look: &Look, disk: &Sender<DiskOrder>) -> bool {
    let Look::Release { extent } = *look else { return false };
    let released = state.books().retire_on_disk(extent);
    released.map(|released| hand(disk, DiskOrder::Release { extent, released })).is_some()
}

/// Ends the driver's own hold on what is released, all before the look.
fn let_go(state: &State, batch: &[Look]) {
    for look in batch {
        if let Look::Release { extent } = look {
            let memory = state.books().retire(*extent);
            // Unmapping takes its time; the books are unlocked again.
            drop(memory);
        }
    }
}

/// Looks, and returns what has come back. From a look that failed nothing follows: what is awaited stays so.
fn settle(state: &State) -> BTreeSet<ExtentId> {
    match state.holders.look() {
        Ok(seen) => state.books().settle(&seen).into_iter().collect(),
        Err(_) => BTreeSet::new(),
    }
}

fn retry(state: &State, make: &Make) {
    let result = make.attempt(state).map_err(|refusal| match refusal {
        Refusal::Tight => state.books().is_full(make.place),
        Refusal::Final(error) => error,
    });
    state.tell(make.completion(result));
}
