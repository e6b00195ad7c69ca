//! Frees fixed extents, and what is left of extents that could not be created. `cuMemFree` waits for every
//! kernel and copy of the process, so this thread does nothing else.
//!
//! Failed extents are awaited like released ones, until the device's figure shows them returned. Else bytes
//! that disappear a moment later would look like the return of another extent. No completion reports them.

use std::{
    fmt,
    sync::{Arc, mpsc::Receiver},
    thread,
};

use vramd_types::{Bytes, ExtentId};

use crate::Completion;
use crate::cuda::{
    api::{Block, Physical},
    device::{
        Device,
        memory::{DeviceMemory, Trace},
    },
    extents::releaser::{POLL_EVERY, await_return, retire},
    state::State,
};

#[derive(Debug)]
pub(crate) enum FreeOrder {
    /// A released fixed extent, to be answered.
    Released { extent: ExtentId, memory: Arc<DeviceMemory> },
    /// An extent that could not be created, which has been answered.
    Unmade { extent: ExtentId, size: Bytes, device: Arc<Device>, piece: Box<dyn Freeable> },
}

/// Device memory that is freed by dropping it.
pub(crate) trait Freeable: fmt::Debug + Send {}

impl Freeable for Block {}
impl Freeable for Physical {}
impl Freeable for DeviceMemory {}

/// Runs until all senders are gone.
pub(crate) fn run(state: &State, frees: &Receiver<FreeOrder>) {
    for free in frees {
        match free {
            FreeOrder::Released { extent, memory } => {
                let (device, size) = (Arc::clone(memory.device()), memory.size());
                let returned = match wait_for_sole(memory, |memory| memory.is_leaked()) {
                    Ok(memory) => free_and_await(&device, extent, size, memory),
                    Err(leaked) => {
                        device.accounts().retire(extent, size, leaked.trace());
                        false
                    }
                };
                if returned {
                    state.extents().remove(&extent);
                }
                state.report(Completion::Released { extent, returned });
            }
            FreeOrder::Unmade { extent, size, device, piece } => {
                if free_and_await(&device, extent, size, piece) {
                    state.extents().remove(&extent);
                }
            }
        }
    }
}

/// Waits until a digest or copy in flight has ended, so that the caller alone frees the memory. Leaked memory
/// is never free, since the end of its work is unknown.
pub(crate) fn wait_for_sole<M>(mut memory: Arc<M>, is_leaked: impl Fn(&M) -> bool) -> Result<M, Arc<M>> {
    loop {
        match Arc::try_unwrap(memory) {
            Ok(memory) => return Ok(memory),
            Err(shared) if is_leaked(&shared) => return Err(shared),
            Err(shared) => memory = shared,
        }
        thread::sleep(POLL_EVERY);
    }
}

/// Frees the memory, and returns whether the device's figure shows it returned.
fn free_and_await<P>(device: &Device, extent: ExtentId, size: Bytes, piece: P) -> bool {
    device.learn_contexts();
    device.accounts().begin_release();
    let before = retire(device, extent, size, Trace::default());
    drop(piece);
    let returned = before.is_ok_and(|before| {
        await_return(device, before.saturating_add(size), vec![(extent, size)]).contains(&extent)
    });
    let mut accounts = device.accounts();
    if returned {
        accounts.mark_returned(extent);
    }
    accounts.end_release();
    returned
}
