//! The CUDA driver's part of copies between memory and disk. The disk reads and writes host memory in place,
//! and device memory through pinned buffers.

use std::{ops::Range, sync::Arc};

use crate::cuda::{
    api::{CudaError, Stream, Transfer, TransferKind},
    copies::{
        buffers::{Borrower, LentBuffer},
        io_memory::CudaIoMemory,
    },
    device::{
        Device,
        memory::{DeviceMemory, ExtentMemory},
    },
    host::memory::HostSpan,
    state::State,
};
use crate::{
    DriverError,
    disk::{IoMemory as _, Side},
};

/// The memory side of one lane.
#[derive(Debug)]
pub(crate) struct CudaSide {
    /// One for each device.
    streams: Vec<(Arc<Device>, Stream)>,
    buffers: Borrower,
}

impl CudaSide {
    pub(crate) fn new(state: &State) -> Result<Self, CudaError> {
        let streams =
            state.devices.iter().map(|device| Ok((Arc::clone(device), Stream::new(device.context())?)));
        let buffers = state.buffers.borrower();
        Ok(Self { streams: streams.collect::<Result<_, CudaError>>()?, buffers })
    }

    fn stream(&self, memory: &DeviceMemory) -> Result<&Stream, DriverError> {
        let stream = self.streams.iter().find(|(device, _)| Arc::ptr_eq(device, memory.device()));
        stream
            .map(|(_, stream)| stream)
            .ok_or_else(|| DriverError::Failed("the extent's device does not exist".to_owned()))
    }
}

/// Bytes on their way between a buffer and memory.
#[derive(Debug)]
pub(crate) enum Hop {
    Device(Transfer<(LentBuffer, ExtentMemory)>),
    /// The CPU has already done it.
    Host(Option<LentBuffer>),
}

impl Side for CudaSide {
    type Memory = ExtentMemory;
    type Io = CudaIoMemory;
    type Hop = Hop;

    fn is_same(one: &ExtentMemory, other: &ExtentMemory) -> bool {
        match (one, other) {
            (ExtentMemory::Device(one), ExtentMemory::Device(other)) => Arc::ptr_eq(one, other),
            (ExtentMemory::Host(one), ExtentMemory::Host(other)) => Arc::ptr_eq(one, other),
            (ExtentMemory::Device(_), ExtentMemory::Host(_))
            | (ExtentMemory::Host(_), ExtentMemory::Device(_)) => false,
        }
    }

    fn unbuffered(&self, held: &ExtentMemory, at: u64, length: usize) -> Option<CudaIoMemory> {
        match held {
            ExtentMemory::Host(memory) => HostSpan::of(memory, at, length).map(CudaIoMemory::Host),
            ExtentMemory::Device(_) => None,
        }
    }

    fn buffer(&mut self, length: usize) -> Result<Option<CudaIoMemory>, DriverError> {
        let (device, _) = self
            .streams
            .first()
            .ok_or_else(|| DriverError::Failed("no device can pin a buffer".to_owned()))?;
        Ok(self.buffers.take(device.context(), length)?.map(CudaIoMemory::Buffer))
    }

    fn give_back(&mut self, buffer: CudaIoMemory) {
        drop(buffer);
    }

    fn fetch(
        &mut self,
        held: &ExtentMemory,
        at: u64,
        length: usize,
        buffer: CudaIoMemory,
    ) -> Result<Hop, DriverError> {
        match (held, buffer) {
            (ExtentMemory::Device(memory), CudaIoMemory::Buffer(pinned)) => {
                let from = memory.address()? + at;
                Ok(Hop::Device(self.stream(memory)?.copy_out(held.clone(), from, length, pinned)?))
            }
            (ExtentMemory::Host(_), _) | (_, CudaIoMemory::Host(_)) => Err(needs_no_buffer()),
        }
    }

    fn store(
        &mut self,
        held: &ExtentMemory,
        at: u64,
        range: Range<usize>,
        buffer: CudaIoMemory,
    ) -> Result<Hop, DriverError> {
        match (held, buffer) {
            (ExtentMemory::Device(memory), CudaIoMemory::Buffer(pinned)) => {
                let (from, to) = (pinned.address() + range.start as u64, memory.address()? + at);
                let stream = self.stream(memory)?;
                Ok(Hop::Device(stream.copy(
                    (pinned, held.clone()),
                    TransferKind::HostToDevice,
                    from,
                    to,
                    range.len(),
                )?))
            }
            (ExtentMemory::Host(memory), CudaIoMemory::Buffer(pinned)) => {
                let at = usize::try_from(at).unwrap_or(usize::MAX);
                memory.view().write(at, &pinned.bytes()[range]);
                Ok(Hop::Host(Some(pinned)))
            }
            (_, CudaIoMemory::Host(_)) => Err(needs_no_buffer()),
        }
    }

    fn arrived(&mut self, hop: &mut Hop) -> Result<Option<CudaIoMemory>, DriverError> {
        let pinned = match hop {
            Hop::Host(pinned) => pinned.take(),
            Hop::Device(transfer) => transfer.poll_take()?.map(|(pinned, _)| pinned),
        };
        Ok(pinned.map(CudaIoMemory::Buffer))
    }
}

fn needs_no_buffer() -> DriverError {
    DriverError::Failed("the disk accesses host memory without a buffer".to_owned())
}
