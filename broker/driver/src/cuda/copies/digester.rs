//! Hashes extents. The device's copy engine moves the bytes to pinned buffers, while several cores hash earlier
//! ones. Host memory is hashed in place, and extents on disk are read by the thread itself. There are two
//! threads, so that a small digest need not wait for a large one.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError, mpsc::Receiver},
};

use vramd_types::{Bytes, ExtentId};

use crate::cuda::{
    api::{Context, CudaError, Stream, Transfer},
    copies::{
        buffers::{Borrower, LentBuffer},
        io_memory::CudaIoMemory,
    },
    device::{
        Device,
        memory::{DeviceMemory, ExtentMemory},
    },
    host::memory::HostMemory,
    state::{Live, State},
};
use crate::{
    Completion, CopyError, DriverError,
    disk::{DiskExtent, IoMemory as _, READ_BUFFER, read_each},
};

pub(crate) const THREADS: usize = 2;

/// Copies of this size run at the full speed of the bus.
const CHUNK: usize = 16 << 20;
/// One is hashed, one is full, and two are in flight.
const CHUNKS: usize = 4;
/// The buffers of all threads that share a queue.
pub(crate) const BUFFERS: Bytes = Bytes::new((THREADS * CHUNKS * CHUNK) as u64);
/// Their buffers for reading the disk, one for each thread.
pub(crate) const READERS: Bytes = Bytes::new((THREADS * READ_BUFFER) as u64);

#[derive(Debug)]
pub(crate) struct Digest {
    pub(crate) ticket: u64,
    pub(crate) spans: Vec<(ExtentId, Bytes)>,
}

/// Runs until all senders are gone.
pub(crate) fn run(state: &State, orders: &Mutex<Receiver<Digest>>) {
    let mut worker = Worker { state, borrower: state.buffers.borrower(), streams: Vec::new() };
    loop {
        let next = orders.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Digest { ticket, spans }) = next else { return };
        // The memory is dropped before the report, so that a caller who then releases the extents finds them
        // free.
        let result =
            find_all(state, &spans).map_err(CopyError::Driver).and_then(|spans| worker.digest(&spans));
        state.report(Completion::Digested { ticket, result });
    }
}

/// Finds the extents. They stay alive as long as it takes, even if they are released meanwhile.
fn find_all(state: &State, spans: &[(ExtentId, Bytes)]) -> Result<Vec<(Live, Bytes)>, DriverError> {
    let held = spans.iter().map(|(extent, length)| {
        let memory = state.find(*extent)?;
        if *length > memory.size() {
            return Err(DriverError::Failed(format!(
                "extent {extent} has only {} bytes, {} were requested",
                memory.size().get(),
                length.get()
            )));
        }
        Ok((memory, *length))
    });
    held.collect()
}

/// The state of a thread, kept from one digest to the next.
#[derive(Debug)]
struct Worker<'a> {
    state: &'a State,
    borrower: Borrower,
    streams: Vec<(Arc<Device>, Stream)>,
}

/// A range to hash.
#[derive(Clone, Copy, Debug)]
enum Span<'a> {
    Device {
        memory: &'a Arc<DeviceMemory>,
        at: u64,
        length: usize,
    },
    Host {
        memory: &'a HostMemory,
        at: usize,
        length: usize,
    },
    /// The whole hashed part of the extent.
    Disk {
        extent: &'a DiskExtent,
        length: Bytes,
    },
}

/// A range whose bytes are there, or on their way.
enum PendingSpan<'a> {
    Device { transfer: Transfer<(LentBuffer, Arc<DeviceMemory>)>, length: usize },
    Host(&'a [u8]),
    Disk(&'a DiskExtent, Bytes, LentBuffer),
}

impl Worker<'_> {
    fn digest(&mut self, spans: &[(Live, Bytes)]) -> Result<[u8; 32], CopyError> {
        let mut spans_of = spans_of(spans).map_err(DriverError::from)?.into_iter().peekable();
        let mut in_flight = VecDeque::new();
        let mut hasher = blake3::Hasher::new();
        loop {
            while in_flight.len() < CHUNKS {
                let Some(span) = spans_of.peek() else { break };
                // Without a free buffer, those in use will do later.
                let Some(pending) = self.begin(*span, &in_flight)? else { break };
                in_flight.push_back(pending);
                spans_of.next();
            }
            match in_flight.pop_front() {
                None => break,
                Some(PendingSpan::Host(bytes)) => drop(hasher.update_rayon(bytes)),
                Some(PendingSpan::Disk(extent, length, lent)) => {
                    let add = |bytes: &[u8]| _ = hasher.update_rayon(bytes);
                    read_each(extent, length, CudaIoMemory::Buffer(lent), &self.state.hashed, add)?;
                }
                Some(PendingSpan::Device { transfer, length }) => {
                    let (pinned, _memory) = transfer.end().map_err(DriverError::from)?;
                    hasher.update_rayon(&pinned.bytes()[..length]);
                }
            }
        }
        Ok(hasher.finalize().into())
    }

    /// Begins with a range. None if a resource is missing that ranges in flight will return.
    fn begin<'a>(
        &mut self,
        span: Span<'a>,
        in_flight: &VecDeque<PendingSpan<'a>>,
    ) -> Result<Option<PendingSpan<'a>>, DriverError> {
        let is_first = in_flight.is_empty();
        Ok(Some(match span {
            Span::Host { memory, at, length } => PendingSpan::Host(memory.view().bytes(at, length)),
            // The thread reads one extent at a time.
            Span::Disk { .. } if in_flight.iter().any(|it| matches!(it, PendingSpan::Disk(..))) => {
                return Ok(None);
            }
            Span::Disk { extent, length } => {
                let no_device = || DriverError::Failed("no device can pin a buffer".to_owned());
                let context = self.state.devices.first().ok_or_else(no_device)?.context();
                let Some(lent) = self.buffer(context, READ_BUFFER, is_first)? else { return Ok(None) };
                PendingSpan::Disk(extent, length, lent)
            }
            Span::Device { memory, at, length } => {
                let device = memory.device();
                let Some(lent) = self.buffer(device.context(), CHUNK, is_first)? else { return Ok(None) };
                let transfer = self.stream(device)?.copy_out(Arc::clone(memory), at, length, lent)?;
                PendingSpan::Device { transfer, length }
            }
        }))
    }

    /// None if the thread has other buffers that will do later.
    fn buffer(
        &self,
        context: &Arc<Context>,
        length: usize,
        is_first: bool,
    ) -> Result<Option<LentBuffer>, DriverError> {
        match is_first {
            true => self.borrower.take_or_wait(context, length).map(Some),
            false => self.borrower.take(context, length),
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

fn spans_of(spans: &[(Live, Bytes)]) -> Result<Vec<Span<'_>>, CudaError> {
    let mut spans_of = Vec::new();
    for (live, length) in spans {
        let held = match live {
            Live::Memory(held) => held,
            Live::Disk(extent) => {
                spans_of.push(Span::Disk { extent, length: *length });
                continue;
            }
        };
        let (mut done, all) = (0, usize::try_from(length.get()).unwrap_or(usize::MAX));
        while done < all {
            let length = (all - done).min(CHUNK);
            spans_of.push(match held {
                ExtentMemory::Device(memory) => {
                    Span::Device { memory, at: memory.address()? + done as u64, length }
                }
                ExtentMemory::Host(memory) => Span::Host { memory, at: done, length },
            });
            done += length;
        }
    }
    Ok(spans_of)
}
