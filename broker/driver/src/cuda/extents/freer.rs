//! Frees fixed extents, and gives up what was begun and not made after all. `cuMemFree` waits for every kernel and copy
//! of the process, so this thread serves nobody else.
//!
//! What was not made is given up like what is released, awaited until the device's figure shows it back: else bytes
//! that go away a moment later would look like the return of somebody's extent. Only that nobody is told.

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
    /// A fixed extent that was released, which is answered.
    Released { extent: ExtentId, memory: Arc<DeviceMemory> },
    /// Of an extent that was not made, which has been answered.
    Unmade { extent: ExtentId, size: Bytes, device: Arc<Device>, piece: Box<dyn Freeable> },
}

/// Whatever gives up the device's memory when it is dropped.
pub(crate) trait Freeable: fmt::Debug + Send {}

impl Freeable for Block {}
impl Freeable for Physical {}
impl Freeable for DeviceMemory {}

/// Until nobody can send any more.
pub(crate) fn run(state: &State, frees: &Receiver<FreeOrder>) {
    for free in frees {
        match free {
            FreeOrder::Released { extent, memory } => {
                let (device, size) = (Arc::clone(memory.device()), memory.size());
                let returned = match wait_for_sole(memory, |memory| memory.is_leaked()) {
                    Ok(memory) => free_and_await(&device, extent, size, memory),
                    Err(kept) => {
                        device.accounts().retire(extent, size, kept.trace());
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

/// A digest or a copy of it may be under way. It ends, and then the memory is freed by the caller and nobody else; unless it is
/// kept, since nobody can tell whether that has ended.
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

/// Whether it is seen to be back.
fn free_and_await<P>(device: &Device, extent: ExtentId, size: Bytes, piece: P) -> bool {
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
