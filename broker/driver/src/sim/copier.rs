//! Moves bytes between extents at the speed of a link.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use vramd_types::{Bytes, ExtentId};

use super::{
    LinkSpeed,
    disk_mover::DiskEnd,
    fault::CopyFlaw,
    memory::Memory,
    state::{Live, State},
};
use crate::{
    CopyError, DriverError,
    copies::{Direction, Located, Mover, RequestedCopy, both_on_disk, check},
    disk::{DiskDirection, DiskWork},
};

/// Short enough for a caller that cancels a copy and waits for the answer.
const PATIENCE_MAX: Duration = Duration::from_millis(1);

/// A copy to do, or to fail.
#[derive(Debug)]
pub(super) struct Copy {
    pub(super) requested: RequestedCopy,
    pub(super) from: ExtentId,
    pub(super) to: ExtentId,
    pub(super) failure: Option<DriverError>,
    pub(super) flaw: Option<CopyFlaw>,
}

/// The two ends of a copy. They stay alive as long as it lasts, even if they are released meanwhile.
#[derive(Debug)]
pub(super) struct Work {
    from: Arc<Memory>,
    to: Arc<Memory>,
    size: Bytes,
    flaw: Option<CopyFlaw>,
}

impl Copy {
    pub(super) fn find(&self, state: &State) -> Result<Located<Work, DiskWork<DiskEnd>>, DriverError> {
        let (from, to, size) = (state.find(self.from)?, state.find(self.to)?, self.requested.size);
        check((self.from, from.size()), (self.to, to.size()), size)?;
        let is_of_disk = matches!((&from, &to), (Live::Disk(_), _) | (_, Live::Disk(_)));
        let flaw = match &self.failure {
            Some(DriverError::Failed(_)) if is_of_disk => Some(CopyFlaw::Io),
            Some(failure) => return Err(failure.clone()),
            None => self.flaw,
        };
        let on_disk = |disk, memory| DiskWork { disk, memory: DiskEnd { memory, size, flaw } };
        Ok(match (from, to) {
            (Live::Memory(from), Live::Memory(to)) => {
                let direction = Direction::of(from.identity().location, to.identity().location);
                Located::Memory(direction, Work { from, to, size, flaw })
            }
            (Live::Disk(disk), Live::Memory(memory)) => {
                Located::Disk(DiskDirection::FromDisk, on_disk(disk, memory))
            }
            (Live::Memory(memory), Live::Disk(disk)) => {
                Located::Disk(DiskDirection::ToDisk, on_disk(disk, memory))
            }
            (Live::Disk(_), Live::Disk(_)) => return Err(both_on_disk(self.from, self.to)),
        })
    }
}

/// Moves the bytes at once, and reports them when the link would have carried them.
#[derive(Debug)]
pub(super) struct MemoryMover {
    /// Its own link and the uplink.
    clocks: Vec<Arc<LinkClock>>,
}

/// A simulated link that several movers may share.
#[derive(Debug)]
pub(super) struct LinkClock {
    /// Bytes per second; zero is as fast as possible.
    speed: u64,
    free_at: Mutex<Instant>,
}

/// The uplink of all devices, in both directions.
#[derive(Clone, Debug)]
pub(super) struct Uplink {
    to_device: Arc<LinkClock>,
    to_host: Arc<LinkClock>,
}

impl Uplink {
    pub(super) fn new(speed: LinkSpeed) -> Self {
        Self {
            to_device: Arc::new(LinkClock::new(speed.to_device)),
            to_host: Arc::new(LinkClock::new(speed.to_host)),
        }
    }
}

impl LinkClock {
    fn new(speed: u64) -> Self {
        Self { speed, free_at: Mutex::new(Instant::now()) }
    }

    /// When so many bytes will have crossed the link, behind all earlier ones.
    fn cross(&self, length: u64) -> Instant {
        let mut free_at = self.free_at.lock().unwrap_or_else(PoisonError::into_inner);
        let begins = (*free_at).max(Instant::now());
        *free_at = begins.checked_add(self.takes(length)).unwrap_or(begins);
        *free_at
    }

    fn takes(&self, length: u64) -> Duration {
        let nanoseconds = u128::from(length) * 1_000_000_000 / u128::from(self.speed.max(1));
        match self.speed {
            0 => Duration::ZERO,
            _ => Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX)),
        }
    }
}

impl MemoryMover {
    pub(super) fn new(direction: Direction, speed: LinkSpeed, uplink: &Uplink) -> Self {
        let (own, shared) = match direction {
            Direction::ToDevice(_) => (speed.to_device, Some(&uplink.to_device)),
            Direction::FromDevice(_) => (speed.to_host, Some(&uplink.to_host)),
            Direction::BetweenDevices(_) | Direction::WithinHost => (0, None),
        };
        Self { clocks: [Arc::new(LinkClock::new(own))].into_iter().chain(shared.map(Arc::clone)).collect() }
    }
}

impl Mover for MemoryMover {
    type Work = Work;
    type Chunk = Instant;

    fn begin(&mut self, work: &Work, at: u64, length: u64) -> Result<Instant, CopyError> {
        work.copy(at, at + length)?;
        let crossed = self.clocks.iter().map(|clock| clock.cross(length)).max();
        Ok(crossed.unwrap_or_else(Instant::now))
    }

    fn poll(&mut self, ends: &mut Instant) -> Result<bool, CopyError> {
        Ok(*ends <= Instant::now())
    }

    fn poll_after(&self, ends: &Instant, _is_last: bool) -> Duration {
        ends.saturating_duration_since(Instant::now()).min(PATIENCE_MAX)
    }
}

impl Work {
    fn copy(&self, start: u64, end: u64) -> Result<(), DriverError> {
        let half = self.size.get() / 2;
        match self.flaw {
            Some(CopyFlaw::Short) if end > half => {
                self.move_bytes(start, half)?;
                Err(short(self.size))
            }
            Some(CopyFlaw::Corrupt) if (start..end).contains(&half) => {
                self.move_bytes(start, end)?;
                let source = self.from.bytes(Bytes::new(half + 1))?;
                let wrong: Vec<u8> = source.last().into_iter().map(|byte| !byte).collect();
                self.to.write(half, &wrong)
            }
            _ => self.move_bytes(start, end),
        }
    }

    fn move_bytes(&self, start: u64, end: u64) -> Result<(), DriverError> {
        let source = self.from.bytes(Bytes::new(end))?;
        let source = usize::try_from(start).ok().and_then(|start| source.get(start..)).unwrap_or(&[]);
        self.to.write(start, source)
    }
}

/// The error of a copy that stopped halfway.
pub(super) fn short(size: Bytes) -> DriverError {
    DriverError::Failed(format!("copied {} of {} bytes", size.get() / 2, size.get()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_takes_as_long_as_its_slowest_link() {
        let speed = LinkSpeed { to_device: 1 << 20, to_host: 0 };
        let uplink = Uplink::new(LinkSpeed { to_device: 0, to_host: 1 << 20 });
        let takes = |direction, length| {
            let mover = MemoryMover::new(direction, speed, &uplink);
            mover.clocks.iter().map(|clock| clock.takes(length)).max().unwrap_or_default()
        };
        let device = vramd_types::DeviceIndex(0);
        assert_eq!(takes(Direction::ToDevice(device), 3 << 20), Duration::from_secs(3));
        assert_eq!(takes(Direction::FromDevice(device), 2 << 20), Duration::from_secs(2));
        assert_eq!(takes(Direction::BetweenDevices(device), u64::MAX), Duration::ZERO);
    }
}
