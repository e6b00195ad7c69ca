//! Moves bytes between memory and disk: the disk reads and writes memory of the host where it is, and memory of a device by way of
//! pinned buffers.

use std::{ops::Range, sync::Arc};

use crate::cuda::{
    api::{CudaError, Stream, Transfer, Way},
    copies::{
        buffers::{Borrower, Lent},
        disk_room::CudaRoom,
    },
    device::{
        Device,
        memory::{Held, Memory},
    },
    host::memory::HostSpan,
    state::State,
};
use crate::{
    DriverError,
    disk::{Room as _, Side},
};

/// Of one lane.
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

    fn stream(&self, memory: &Memory) -> Result<&Stream, DriverError> {
        let stream = self.streams.iter().find(|(device, _)| Arc::ptr_eq(device, memory.device()));
        stream
            .map(|(_, stream)| stream)
            .ok_or_else(|| DriverError::Failed("there is no such device".to_owned()))
    }
}

/// Bytes between a buffer and memory.
#[derive(Debug)]
pub(crate) enum Hop {
    Device(Transfer<(Lent, Held)>),
    /// The CPU has done it already.
    Host(Option<Lent>),
}

impl Side for CudaSide {
    type Memory = Held;
    type Room = CudaRoom;
    type Hop = Hop;

    fn is_same(one: &Held, other: &Held) -> bool {
        match (one, other) {
            (Held::Device(one), Held::Device(other)) => Arc::ptr_eq(one, other),
            (Held::Host(one), Held::Host(other)) => Arc::ptr_eq(one, other),
            (Held::Device(_), Held::Host(_)) | (Held::Host(_), Held::Device(_)) => false,
        }
    }

    fn straight(&self, held: &Held, at: u64, length: usize) -> Option<CudaRoom> {
        match held {
            Held::Host(memory) => HostSpan::of(memory, at, length).map(CudaRoom::Host),
            Held::Device(_) => None,
        }
    }

    fn buffer(&mut self, length: usize) -> Result<Option<CudaRoom>, DriverError> {
        let (device, _) =
            self.streams.first().ok_or_else(|| DriverError::Failed("there is no device".to_owned()))?;
        Ok(self.buffers.take(device.context(), length)?.map(CudaRoom::Ring))
    }

    fn give_back(&mut self, buffer: CudaRoom) {
        drop(buffer);
    }

    fn fetch(&mut self, held: &Held, at: u64, length: usize, buffer: CudaRoom) -> Result<Hop, DriverError> {
        match (held, buffer) {
            (Held::Device(memory), CudaRoom::Ring(pinned)) => {
                let from = memory.address()? + at;
                Ok(Hop::Device(self.stream(memory)?.copy_out(held.clone(), from, length, pinned)?))
            }
            (Held::Host(_), _) | (_, CudaRoom::Host(_)) => Err(needs_no_buffer()),
        }
    }

    fn store(
        &mut self,
        held: &Held,
        at: u64,
        range: Range<usize>,
        buffer: CudaRoom,
    ) -> Result<Hop, DriverError> {
        match (held, buffer) {
            (Held::Device(memory), CudaRoom::Ring(pinned)) => {
                let (from, to) = (pinned.address() + range.start as u64, memory.address()? + at);
                let stream = self.stream(memory)?;
                Ok(Hop::Device(stream.copy((pinned, held.clone()), Way::In, from, to, range.len())?))
            }
            (Held::Host(memory), CudaRoom::Ring(pinned)) => {
                let at = usize::try_from(at).unwrap_or(usize::MAX);
                memory.view().write(at, &pinned.bytes()[range]);
                Ok(Hop::Host(Some(pinned)))
            }
            (_, CudaRoom::Host(_)) => Err(needs_no_buffer()),
        }
    }

    fn arrived(&mut self, hop: &mut Hop) -> Result<Option<CudaRoom>, DriverError> {
        let pinned = match hop {
            Hop::Host(pinned) => pinned.take(),
            Hop::Device(transfer) => transfer.ended()?.map(|(pinned, _)| pinned),
        };
        Ok(pinned.map(CudaRoom::Ring))
    }
}

fn needs_no_buffer() -> DriverError {
    DriverError::Failed("the disk itself reads and writes memory of the host".to_owned())
}
