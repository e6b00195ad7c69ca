//! Hashes extents, off the other threads' way: two at a time, so that a small one need not wait for a large one.

use std::sync::{Arc, Mutex, PoisonError, mpsc::Receiver};

use vramd_types::{Bytes, ExtentId};

use super::{memory::Memory, state::State};
use crate::{Completion, DriverError, digest::digest};

pub(super) const THREADS: usize = 2;

#[derive(Debug)]
pub(super) struct Digest {
    pub(super) ticket: u64,
    pub(super) spans: Vec<(ExtentId, Bytes)>,
    pub(super) failure: Option<DriverError>,
}

/// Until nobody can send any more.
pub(super) fn run(state: &State, orders: &Mutex<Receiver<Digest>>) {
    loop {
        let next = orders.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Digest { ticket, spans, failure }) = next else { return };
        // It has let go of the memory before it is told: who then releases the extents finds them free.
        let result = failure.map_or_else(|| hash(state, &spans), Err);
        state.tell(Completion::Digested { ticket, result });
    }
}

/// The extents are kept for as long as it takes, even if they are released meanwhile.
fn hash(state: &State, spans: &[(ExtentId, Bytes)]) -> Result<[u8; 32], DriverError> {
    let memories = spans.iter().map(|(extent, length)| state.live(*extent).map(|memory| (memory, *length)));
    let memories: Vec<(Arc<Memory>, Bytes)> = memories.collect::<Result<_, _>>()?;
    let spans: Vec<&[u8]> =
        memories.iter().map(|(memory, length)| memory.bytes(*length)).collect::<Result<_, _>>()?;
    Ok(digest(spans))
}
