//! Hashes extents: the device's copy engine brings the bytes to pinned buffers, while several cores hash what came
//! before. Two threads, so that a small digest need not wait for a large one.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError, mpsc::Receiver},
};

use vramd_types::{Bytes, ExtentId};

use super::{
    api::{CudaError, Pinned, Stream, Transfer},
    device::Device,
    memory::Memory,
    state::State,
};
use crate::{Completion, DriverError};

pub(super) const THREADS: usize = 2;

/// Copies of this size run at the bus's full speed.
const CHUNK: usize = 16 << 20;
/// One is hashed, one is full, and two are on their way.
const CHUNKS: usize = 4;

#[derive(Debug)]
pub(super) struct Digest {
    pub(super) ticket: u64,
    pub(super) spans: Vec<(ExtentId, Bytes)>,
}

/// Until nobody can send any more.
pub(super) fn run(state: &State, orders: &Mutex<Receiver<Digest>>) {
    let mut worker = Worker::default();
    loop {
        let next = orders.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Digest { ticket, spans }) = next else { return };
        // It has let go of the memory before it is told: who then releases the extents finds them free.
        let result = held(state, &spans).and_then(|spans| Ok(worker.digest(&spans)?));
        state.tell(Completion::Digested { ticket, result });
    }
}

/// The extents, kept for as long as it takes, even if they are released meanwhile.
fn held(state: &State, spans: &[(ExtentId, Bytes)]) -> Result<Vec<(Arc<Memory>, Bytes)>, DriverError> {
    let held = spans.iter().map(|(extent, length)| {
        let memory =
            state.live(*extent).ok_or_else(|| DriverError::Failed(format!("there is no {extent}")))?;
        if *length > memory.size() {
            return Err(DriverError::Failed(format!("{extent} has only {} bytes", memory.size().get())));
        }
        Ok((memory, *length))
    });
    held.collect()
}

/// What a thread keeps from one digest to the next; made when it is first needed, as pinning takes its time.
#[derive(Debug, Default)]
struct Worker {
    idle: Vec<Pinned>,
    streams: Vec<(Arc<Device>, Stream)>,
}

/// A piece of the text.
#[derive(Clone, Copy, Debug)]
struct Piece<'a> {
    memory: &'a Arc<Memory>,
    at: u64,
    length: usize,
}

impl Worker {
    fn digest(&mut self, spans: &[(Arc<Memory>, Bytes)]) -> Result<[u8; 32], CudaError> {
        let mut pieces = pieces(spans)?.into_iter();
        let mut under_way = VecDeque::new();
        let mut hasher = blake3::Hasher::new();
        loop {
            while under_way.len() < CHUNKS {
                let Some(piece) = pieces.next() else { break };
                under_way.push_back((self.begin(piece)?, piece.length));
            }
            let Some((transfer, length)) = under_way.pop_front() else { break };
            let (pinned, _memory) = transfer.end()?;
            hasher.update_rayon(&pinned.bytes()[..length]);
            self.idle.push(pinned);
        }
        Ok(hasher.finalize().into())
    }

    fn begin(&mut self, piece: Piece<'_>) -> Result<Transfer<(Pinned, Arc<Memory>)>, CudaError> {
        let device = piece.memory.device();
        let pinned = self.buffer(device)?;
        self.stream(device)?.copy_out(Arc::clone(piece.memory), piece.at, piece.length, pinned)
    }

    /// One that is idle. Those of a digest that failed are gone, and made again.
    fn buffer(&mut self, device: &Device) -> Result<Pinned, CudaError> {
        match self.idle.pop() {
            Some(pinned) => Ok(pinned),
            None => Pinned::new(device.context(), CHUNK),
        }
    }

    fn stream(&mut self, device: &Arc<Device>) -> Result<&Stream, CudaError> {
        let at = match self.streams.iter().position(|(of, _)| Arc::ptr_eq(of, device)) {
            Some(at) => at,
            None => {
                self.streams.push((Arc::clone(device), Stream::new(device.context())?));
                self.streams.len() - 1
            }
        };
        Ok(&self.streams[at].1)
    }
}

fn pieces(spans: &[(Arc<Memory>, Bytes)]) -> Result<Vec<Piece<'_>>, CudaError> {
    let mut pieces = Vec::new();
    for (memory, length) in spans {
        if length.is_zero() {
            continue;
        }
        let start = memory.address()?;
        let mut done = 0;
        while done < length.get() {
            let size = (length.get() - done).min(CHUNK as u64);
            let length = usize::try_from(size).unwrap_or(CHUNK);
            pieces.push(Piece { memory, at: start + done, length });
            done += size;
        }
    }
    Ok(pieces)
}
