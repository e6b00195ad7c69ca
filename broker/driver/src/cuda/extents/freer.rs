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
        memory::{Memory, Trace},
    },
    extents::releaser::{NAP, linger, retire},
    state::State,
};

#[derive(Debug)]
pub(crate) enum Free {
    /// A fixed extent that was released, which is answered.
    Released { extent: ExtentId, memory: Arc<Memory> },
    /// Of an extent that was not made, which has been answered.
    Unmade { extent: ExtentId, size: Bytes, device: Arc<Device>, piece: Box<dyn Piece> },
}

/// Whatever gives up the device's memory when it is dropped.
pub(crate) trait Piece: fmt::Debug + Send {}

impl Piece for Block {}
impl Piece for Physical {}
impl Piece for Memory {}

/// Until nobody can send any more.
pub(crate) fn run(state: &State, frees: &Receiver<Free>) {
    for free in frees {
        match free {
            Free::Released { extent, memory } => {
                let (device, size) = (Arc::clone(memory.device()), memory.size());
                let returned = match sole(memory, |memory| memory.is_kept()) {
                    Ok(memory) => give_up(&device, extent, size, memory),
                    Err(kept) => {
                        device.accounts().retire(extent, size, kept.trace());
                        false
                    }
                };
                if returned {
                    state.extents().remove(&extent);
                }
                state.tell(Completion::Released { extent, returned });
            }
            Free::Unmade { extent, size, device, piece } => {
                if give_up(&device, extent, size, piece) {
                    state.extents().remove(&extent);
                }
            }
        }
    }
}

/// A digest or a copy of it may be under way. It ends, and then the memory is freed by the caller and nobody else; unless it is
/// kept, since nobody can tell whether that has ended.
pub(crate) fn sole<M>(mut memory: Arc<M>, is_kept: impl Fn(&M) -> bool) -> Result<M, Arc<M>> {
    loop {
        match Arc::try_unwrap(memory) {
            Ok(memory) => return Ok(memory),
            Err(shared) if is_kept(&shared) => return Err(shared),
            Err(shared) => memory = shared,
        }
        thread::sleep(NAP);
    }
}

/// Whether it is seen to be back.
fn give_up<P>(device: &Device, extent: ExtentId, size: Bytes, piece: P) -> bool {
    device.accounts().begin_release();
    let before = retire(device, extent, size, Trace::default());
    drop(piece);
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
