//! Moves bytes between extents: by a device's copy engine, on a stream for each direction, or by the CPU within the host.
//!
//! The end of a copy is read from its last event and not concluded from anything later: the caller may have the source
//! overwritten the moment that it is told. So the thread sleeps while chunks are to follow, and hardly at the last one.

use std::{num::NonZeroU64, sync::Arc, time::Duration};

use rustix::thread::set_current_timer_slack;
use vramd_types::{Bytes, ExtentId};

use crate::cuda::{
    api::{CudaError, Stream, Transfer, Used, Way},
    device::{Arrival, Device, memory::Held},
    state::{Live, State},
};
use crate::{
    CopyError, DriverError,
    copies::{Direction, Found, LaneEnd, Link, both_on_disk, check, lane},
    disk::{self, DiskWork},
    place::Place,
};

/// A third of what a chunk takes on a fast link, of which there are several under way.
const BETWEEN_CHUNKS: Duration = Duration::from_micros(100);
/// What is waited for is told at most so much later.
const AT_THE_END: Duration = Duration::from_micros(10);

/// The extents are kept for as long as it takes, even if they are released meanwhile.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    from: Held,
    to: Held,
    _arrival: Option<Arc<Arrival>>,
}

impl Used for Work {
    /// Nobody waits for the device's sake any more.
    fn keep_for_ever(self) {
        self.from.keep_for_ever();
        self.to.keep_for_ever();
    }
}

/// What is to be copied, if it can be.
pub(crate) fn find(
    state: &State,
    from: ExtentId,
    to: ExtentId,
    size: Bytes,
) -> Result<Found<Work, DiskWork<Held>>, DriverError> {
    let (of, onto) = (state.find(from)?, state.find(to)?);
    check((from, of.size()), (to, onto.size()), size)?;
    Ok(match (of, onto) {
        (Live::Memory(of), Live::Memory(onto)) => between(state, of, onto),
        (Live::Disk(disk), Live::Memory(memory)) => {
            Found::Disk(disk::Way::FromDisk, DiskWork { disk, memory })
        }
        (Live::Memory(memory), Live::Disk(disk)) => Found::Disk(disk::Way::ToDisk, DiskWork { disk, memory }),
        (Live::Disk(_), Live::Disk(_)) => return Err(both_on_disk(from, to)),
    })
}

fn between(state: &State, from: Held, to: Held) -> Found<Work, DiskWork<Held>> {
    let place = |held: &Held| match held {
        Held::Device(memory) => Place::Device(state.index_of(memory.device())),
        Held::Host(_) => Place::Host,
    };
    let direction = Direction::of(place(&from), place(&to));
    let mut work = Work { from, to, _arrival: None };
    if let (Direction::In(_), Held::Device(memory)) = (direction, &work.to) {
        work._arrival = Some(Arc::new(Arrival::at(memory.device())));
    }
    Found::Memory(direction, work)
}

/// One direction.
#[derive(Debug)]
pub(crate) struct Wire {
    /// None within the host.
    device: Option<(Arc<Device>, Stream)>,
}

impl Wire {
    pub(crate) fn new(state: &State, direction: Direction) -> Result<Self, CudaError> {
        let device = match direction {
            Direction::In(device) | Direction::Out(device) | Direction::Aside(device) => {
                state.devices.get(usize::from(device.0))
            }
            Direction::WithinHost => None,
        };
        let with_stream = |device: &Arc<Device>| Ok((Arc::clone(device), Stream::new(device.context())?));
        Ok(Self { device: device.map(with_stream).transpose()? })
    }

    /// Until nobody can send any more.
    pub(crate) fn run(self, state: &State, end: LaneEnd<Direction, Work>) {
        // Else every sleep takes 50 us more.
        let _ = set_current_timer_slack(NonZeroU64::new(1));
        if let Some((device, _)) = &self.device {
            device.stay_near();
        }
        lane::run(self, end.links, &end.orders, |completion| state.tell(completion));
    }
}

impl Link for Wire {
    type Work = Work;
    /// None where the CPU has done it already.
    type Chunk = Option<Transfer<Work>>;

    fn begin(&mut self, work: &Work, at: u64, length: u64) -> Result<Self::Chunk, CopyError> {
        let size = usize::try_from(length).unwrap_or(usize::MAX);
        let way = match (&work.from, &work.to) {
            (Held::Host(from), Held::Host(to)) => {
                let at = usize::try_from(at).unwrap_or(usize::MAX);
                from.view().copy_to(to.view(), at, size);
                return Ok(None);
            }
            (Held::Host(_), Held::Device(_)) => Way::In,
            (Held::Device(_), Held::Host(_)) => Way::Out,
            (Held::Device(from), Held::Device(to)) if Arc::ptr_eq(from.device(), to.device()) => Way::Within,
            (Held::Device(from), Held::Device(to)) => {
                Way::Across(from.device().context(), to.device().context())
            }
        };
        let Some((_, stream)) = &self.device else {
            return Err(DriverError::Failed("this is the host's own queue".to_owned()).into());
        };
        let begin = || {
            let (from, to) = (work.from.address()? + at, work.to.address()? + at);
            stream.copy(work.clone(), way, from, to, size)
        };
        Ok(Some(begin().map_err(DriverError::from)?))
    }

    fn has_ended(&mut self, chunk: &mut Self::Chunk) -> Result<bool, CopyError> {
        Ok(chunk.as_mut().map_or(Ok(true), Transfer::has_ended).map_err(DriverError::from)?)
    }

    fn patience(&self, chunk: &Self::Chunk, is_last: bool) -> Duration {
        match chunk {
            None => Duration::ZERO,
            Some(_) if is_last => AT_THE_END,
            Some(_) => BETWEEN_CHUNKS,
        }
    }
}
