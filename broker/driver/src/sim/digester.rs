//! Hashes extents on two threads, so that a small digest need not wait for a large one.

use std::sync::{Mutex, PoisonError, mpsc::Receiver};

use vramd_types::{Bytes, ExtentId};

use super::state::{Live, State};
use crate::{
    Completion, CopyError, DriverError,
    digest::Hasher,
    disk::{Buffer, READ_BUFFER, read_each},
};

pub(super) const THREADS: usize = 2;

#[derive(Debug)]
pub(super) struct Digest {
    pub(super) ticket: u64,
    pub(super) spans: Vec<(ExtentId, Bytes)>,
    pub(super) failure: Option<DriverError>,
}

/// Runs until all senders are gone.
pub(super) fn run(state: &State, orders: &Mutex<Receiver<Digest>>) {
    loop {
        let next = orders.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Digest { ticket, spans, failure }) = next else { return };
        // The memory is dropped before the report, so that a caller who then releases the extents finds them
        // free.
        let result = failure.map_or_else(|| hash(state, &spans), |error| Err(error.into()));
        state.report(Completion::Digested { ticket, result });
    }
}

/// The extents stay alive as long as it takes, even if they are released meanwhile.
fn hash(state: &State, spans: &[(ExtentId, Bytes)]) -> Result<[u8; 32], CopyError> {
    let found = spans.iter().map(|(extent, length)| state.find(*extent).map(|found| (found, *length)));
    let found: Vec<(Live, Bytes)> = found.collect::<Result<_, _>>()?;
    let mut hasher = Hasher::default();
    for (live, length) in &found {
        match live {
            Live::Memory(memory) => hasher.add(memory.bytes(*length)?),
            Live::Disk(extent) => {
                read_each(extent, *length, buffer()?, &state.hashed, |bytes| hasher.add(bytes))?;
            }
        }
    }
    Ok(hasher.end())
}

fn buffer() -> Result<Buffer, DriverError> {
    Buffer::new(READ_BUFFER)
        .map_err(|error| DriverError::Failed(format!("cannot allocate a buffer: {error}")))
}
