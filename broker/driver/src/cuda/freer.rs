//! Frees fixed extents. `cuMemFree` waits for every kernel and copy of the process, so this thread serves nobody else.

use std::{
    sync::{Arc, mpsc::Receiver},
    thread,
};

use vramd_types::ExtentId;

use super::{
    device::Device,
    looker::{NAP, linger, retire},
    memory::{Memory, Trace},
    state::State,
};
use crate::Completion;

#[derive(Debug)]
pub(super) struct Free {
    pub(super) extent: ExtentId,
    pub(super) memory: Arc<Memory>,
}

/// Until nobody can send any more.
pub(super) fn run(state: &State, frees: &Receiver<Free>) {
    for Free { extent, memory } in frees {
        let device = Arc::clone(memory.device());
        let returned = free(&device, extent, memory);
        let mut extents = state.extents();
        if returned {
            extents.remove(&extent);
        }
        drop(extents);
        state.tell(Completion::Released { extent, returned });
    }
}

fn free(device: &Device, extent: ExtentId, mut memory: Arc<Memory>) -> bool {
    let size = memory.size();
    // A digest of it may be under way. It ends, and then the block is freed here and nowhere else.
    let memory = loop {
        match Arc::try_unwrap(memory) {
            Ok(memory) => break memory,
            Err(shared) => memory = shared,
        }
        thread::sleep(NAP);
    };
    device.accounts().begin_release();
    let before = retire(device, extent, size, Trace::default());
    drop(memory);
    let returned = before.is_ok_and(|before| {
        linger(device, before.saturating_add(size), vec![(extent, size)]).contains(&extent)
    });
    let mut accounts = device.accounts();
    if returned {
        accounts.forget(extent);
    }
    accounts.end_release();
    returned
}
