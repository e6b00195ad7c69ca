//! Moves bytes between extents: by a device's copy engine, on a stream for each direction, or by the CPU within
//! the host.
//!
//! The end of a copy is read from its own last event, never concluded from a later one: the caller may
//! overwrite the source at the moment of the report. So the thread sleeps while chunks are to follow, and
//! hardly at the last one.

use std::{num::NonZeroU64, sync::Arc, time::Duration};

use rustix::thread::set_current_timer_slack;
use vramd_types::{Bytes, ExtentId};

use crate::cuda::{
    api::{CudaError, KeepAlive, Stream, Transfer, TransferKind},
    device::{Device, InboundCopy, memory::ExtentMemory},
    state::{Live, State},
};
use crate::{
    CopyError, DriverError,
    copies::{Direction, LaneEnd, Located, Mover, both_on_disk, check, lane},
    disk::{self, DiskWork},
    location::Location,
};

/// A third of the time of a chunk on a fast link, of which several are in flight.
const BETWEEN_CHUNKS: Duration = Duration::from_micros(100);
/// The last chunk of a copy is reported at most so much late.
const AT_THE_END: Duration = Duration::from_micros(10);

/// The two ends of a copy. They stay alive as long as it lasts, even if they are released meanwhile.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    from: ExtentMemory,
    to: ExtentMemory,
    _inbound: Option<Arc<InboundCopy>>,
}

impl KeepAlive for Work {
    /// Ends the inbound copy, so that releases on the device are not deferred for it.
    fn leak(self) {
        self.from.leak();
        self.to.leak();
    }
}

/// Finds the two ends of a copy, if it is possible.
pub(crate) fn find(
    state: &State,
    from: ExtentId,
    to: ExtentId,
    size: Bytes,
) -> Result<Located<Work, DiskWork<ExtentMemory>>, DriverError> {
    let (of, onto) = (state.find(from)?, state.find(to)?);
    check((from, of.size()), (to, onto.size()), size)?;
    Ok(match (of, onto) {
        (Live::Memory(of), Live::Memory(onto)) => between(state, of, onto),
        (Live::Disk(disk), Live::Memory(memory)) => {
            Located::Disk(disk::DiskDirection::FromDisk, DiskWork { disk, memory })
        }
        (Live::Memory(memory), Live::Disk(disk)) => {
            Located::Disk(disk::DiskDirection::ToDisk, DiskWork { disk, memory })
        }
        (Live::Disk(_), Live::Disk(_)) => return Err(both_on_disk(from, to)),
    })
}

fn between(state: &State, from: ExtentMemory, to: ExtentMemory) -> Located<Work, DiskWork<ExtentMemory>> {
    let place = |held: &ExtentMemory| match held {
        ExtentMemory::Device(memory) => Location::Device(state.index_of(memory.device())),
        ExtentMemory::Host(_) => Location::Host,
    };
    let direction = Direction::of(place(&from), place(&to));
    let mut work = Work { from, to, _inbound: None };
    if let (Direction::ToDevice(_), ExtentMemory::Device(memory)) = (direction, &work.to) {
        work._inbound = Some(Arc::new(InboundCopy::at(memory.device())));
    }
    Located::Memory(direction, work)
}

/// Moves bytes in one direction.
#[derive(Debug)]
pub(crate) struct MemoryMover {
    /// None within the host.
    device: Option<(Arc<Device>, Stream)>,
}

impl MemoryMover {
    pub(crate) fn new(state: &State, direction: Direction) -> Result<Self, CudaError> {
        let device = match direction {
            Direction::ToDevice(device)
            | Direction::FromDevice(device)
            | Direction::BetweenDevices(device) => state.devices.get(usize::from(device.0)),
            Direction::WithinHost => None,
        };
        let with_stream = |device: &Arc<Device>| Ok((Arc::clone(device), Stream::new(device.context())?));
        Ok(Self { device: device.map(with_stream).transpose()? })
    }

    /// Runs until all senders are gone.
    pub(crate) fn run(self, state: &State, end: LaneEnd<Direction, Work>) {
        // Else every sleep takes 50 us longer.
        let _ = set_current_timer_slack(NonZeroU64::new(1));
        if let Some((device, _)) = &self.device {
            device.run_near();
        }
        lane::run(self, end.links, &end.orders, |completion| state.report(completion));
    }
}

impl Mover for MemoryMover {
    type Work = Work;
    /// None if the CPU has already done it.
    type Chunk = Option<Transfer<Work>>;

    fn begin(&mut self, work: &Work, at: u64, length: u64) -> Result<Self::Chunk, CopyError> {
        let size = usize::try_from(length).unwrap_or(usize::MAX);
        let kind = match (&work.from, &work.to) {
            (ExtentMemory::Host(from), ExtentMemory::Host(to)) => {
                let at = usize::try_from(at).unwrap_or(usize::MAX);
                from.view().copy_to(to.view(), at, size);
                return Ok(None);
            }
            (ExtentMemory::Host(_), ExtentMemory::Device(_)) => TransferKind::HostToDevice,
            (ExtentMemory::Device(_), ExtentMemory::Host(_)) => TransferKind::DeviceToHost,
            (ExtentMemory::Device(from), ExtentMemory::Device(to))
                if Arc::ptr_eq(from.device(), to.device()) =>
            {
                TransferKind::WithinDevice
            }
            (ExtentMemory::Device(from), ExtentMemory::Device(to)) => {
                TransferKind::AcrossDevices(from.device().context(), to.device().context())
            }
        };
        let Some((_, stream)) = &self.device else {
            return Err(
                DriverError::Failed("the lane within the host cannot copy to a device".to_owned()).into()
            );
        };
        let begin = || {
            let (from, to) = (work.from.address()? + at, work.to.address()? + at);
            stream.copy(work.clone(), kind, from, to, size)
        };
        Ok(Some(begin().map_err(DriverError::from)?))
    }

    fn poll(&mut self, chunk: &mut Self::Chunk) -> Result<bool, CopyError> {
        Ok(chunk.as_mut().map_or(Ok(true), Transfer::poll).map_err(DriverError::from)?)
    }

    fn poll_after(&self, chunk: &Self::Chunk, is_last: bool) -> Duration {
        match chunk {
            None => Duration::ZERO,
            Some(_) if is_last => AT_THE_END,
            Some(_) => BETWEEN_CHUNKS,
        }
    }
}
