//! Moves bytes between extents: by a device's copy engine, on a stream for each direction, or by the CPU within the host.
//!
//! The end of a copy is read from its last event and not concluded from anything later: the caller may have the source
//! overwritten the moment that it is told. So the thread sleeps while chunks are to follow, and hardly at the last one.

use std::{num::NonZeroU64, sync::Arc, time::Duration};

use rustix::thread::set_current_timer_slack;
use vramd_types::{Bytes, ExtentId};

use super::{
    api::{CudaError, Stream, Transfer, Way},
    device::{Arrival, Device},
    memory::Held,
    state::State,
};
use crate::{
    DriverError,
    copies::{Direction, LaneEnd, Link, check, lane},
    place::Place,
};

/// A third of what a chunk takes on a fast link, of which there are several under way.
const BETWEEN_CHUNKS: Duration = Duration::from_micros(100);
/// What is waited for is told at most so much later.
const AT_THE_END: Duration = Duration::from_micros(10);

/// The extents are kept for as long as it takes, even if they are released meanwhile.
#[derive(Clone, Debug)]
pub(super) struct Work {
    from: Held,
    to: Held,
    _arrival: Option<Arc<Arrival>>,
}

/// What is to be copied, if it can be.
pub(super) fn find(
    state: &State,
    from: ExtentId,
    to: ExtentId,
    size: Bytes,
) -> Result<(Direction, Work), DriverError> {
    let live =
        |extent| state.live(extent).ok_or_else(|| DriverError::Failed(format!("there is no {extent}")));
    let mut work = Work { from: live(from)?, to: live(to)?, _arrival: None };
    check((from, work.from.size()), (to, work.to.size()), size)?;
    let place = |held: &Held| match held {
        Held::Device(memory) => Place::Device(state.index_of(memory.device())),
        Held::Host(_) => Place::Host,
    };
    let direction = Direction::of(place(&work.from), place(&work.to));
    if let (Direction::In(_), Held::Device(memory)) = (direction, &work.to) {
        work._arrival = Some(Arc::new(Arrival::at(memory.device())));
    }
    Ok((direction, work))
}

/// One direction.
#[derive(Debug)]
pub(super) struct Wire {
    /// None within the host.
    device: Option<(Arc<Device>, Stream)>,
}

impl Wire {
    pub(super) fn new(state: &State, direction: Direction) -> Result<Self, CudaError> {
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
    pub(super) fn run(self, state: &State, end: &LaneEnd<Work>) {
        // Else every sleep takes 50 us more.
        let _ = set_current_timer_slack(NonZeroU64::new(1));
        if let Some((device, _)) = &self.device {
            device.stay_near();
        }
        lane::run(self, &end.orders, |completion| state.tell(completion));
    }
}

impl Link for Wire {
    type Work = Work;
    /// None where the CPU has done it already.
    type Chunk = Option<Transfer<Work>>;

    fn begin(&mut self, work: &Work, at: u64, length: u64) -> Result<Self::Chunk, DriverError> {
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
            return Err(DriverError::Failed("this is the host's own queue".to_owned()));
        };
        let (from, to) = (work.from.address()? + at, work.to.address()? + at);
        Ok(Some(stream.copy(work.clone(), way, from, to, size)?))
    }

    fn has_ended(&mut self, chunk: &mut Self::Chunk) -> Result<bool, DriverError> {
        Ok(chunk.as_mut().map_or(Ok(true), Transfer::has_ended)?)
    }

    fn patience(&self, chunk: &Self::Chunk, is_last: bool) -> Duration {
        match chunk {
            None => Duration::ZERO,
            Some(_) if is_last => AT_THE_END,
            Some(_) => BETWEEN_CHUNKS,
        }
    }
}
