//! Finds the lane of a copy, and passes the copy to the thread of that lane.

use std::sync::{
    Arc,
    mpsc::{Receiver, Sender, channel},
};

use vramd_types::{CopyId, DeviceIndex};

use super::{
    LaneId,
    lane::{Job, Order},
    links::{LaneLinks, Links},
    table::{RequestedCopy, Table},
};
use crate::{DriverError, LinkFacts, disk::DiskDirection, location::Location};

/// A direction of copies between memories. On a device the first two have separate hardware and do not slow
/// each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    ToDevice(DeviceIndex),
    FromDevice(DeviceIndex),
    /// From this device to a device, perhaps itself.
    BetweenDevices(DeviceIndex),
    WithinHost,
}

impl Direction {
    pub(crate) fn of(from: Location, to: Location) -> Self {
        match (from, to) {
            (Location::Host, Location::Host) => Self::WithinHost,
            (Location::Host, Location::Device(device)) => Self::ToDevice(device),
            (Location::Device(device), Location::Host) => Self::FromDevice(device),
            (Location::Device(device), Location::Device(_)) => Self::BetweenDevices(device),
        }
    }
}

impl From<Direction> for LaneId {
    fn from(direction: Direction) -> Self {
        match direction {
            Direction::ToDevice(device) => Self::ToDevice(device),
            Direction::FromDevice(device) => Self::FromDevice(device),
            Direction::BetweenDevices(device) => Self::BetweenDevices(device),
            Direction::WithinHost => Self::WithinHost,
        }
    }
}

impl From<DiskDirection> for LaneId {
    fn from(direction: DiskDirection) -> Self {
        match direction {
            DiskDirection::FromDisk => Self::FromDisk,
            DiskDirection::ToDisk => Self::ToDisk,
        }
    }
}

/// The sending ends of all lanes. Their queues are as long as the caller's outstanding copies.
#[derive(Debug)]
pub(crate) struct Lanes<W, D> {
    table: Arc<Table>,
    queues: Vec<(Direction, Sender<Order<W>>)>,
    /// Empty if no extent can be on disk.
    disk: Vec<(DiskDirection, Sender<Order<D>>)>,
    links: Arc<Links>,
}

impl<W, D> Clone for Lanes<W, D> {
    fn clone(&self) -> Self {
        Self {
            table: Arc::clone(&self.table),
            queues: self.queues.clone(),
            disk: self.disk.clone(),
            links: Arc::clone(&self.links),
        }
    }
}

/// The receiving end of one lane.
#[derive(Debug)]
pub(crate) struct LaneEnd<O, W> {
    pub(crate) of: O,
    pub(crate) orders: Receiver<Order<W>>,
    pub(crate) links: LaneLinks,
}

/// The receiving ends of all lanes.
#[derive(Debug)]
pub(crate) struct LaneEnds<W, D> {
    pub(crate) memory: Vec<LaneEnd<Direction, W>>,
    pub(crate) disk: Vec<LaneEnd<DiskDirection, D>>,
}

/// The two ends of a copy, and its lane.
#[derive(Debug)]
pub(crate) enum Located<W, D> {
    Memory(Direction, W),
    Disk(DiskDirection, D),
}

impl<W, D> Lanes<W, D> {
    /// Lanes for so many devices, with or without a disk, and their links.
    pub(crate) fn new(devices: usize, has_disk: bool, facts: &[LinkFacts]) -> (Self, LaneEnds<W, D>) {
        let indices = (0..).map(DeviceIndex).take(devices);
        let of_devices = indices.flat_map(|device| {
            [Direction::ToDevice(device), Direction::FromDevice(device), Direction::BetweenDevices(device)]
        });
        let directions: Vec<Direction> = [Direction::WithinHost].into_iter().chain(of_devices).collect();
        let ways: Vec<DiskDirection> =
            [DiskDirection::FromDisk, DiskDirection::ToDisk].into_iter().filter(|_| has_disk).collect();
        let lanes = directions.iter().map(|it| (*it).into()).chain(ways.iter().map(|it| (*it).into()));
        let links = Arc::new(Links::new(lanes, facts));
        let (queues, memory) = open(directions, &links);
        let (disk, disk_ends) = open(ways, &links);
        (Self { table: Arc::default(), queues, disk, links }, LaneEnds { memory, disk: disk_ends })
    }

    pub(crate) fn table(&self) -> &Arc<Table> {
        &self.table
    }

    pub(crate) fn links(&self) -> &Arc<Links> {
        &self.links
    }

    /// Cancels a copy. All lanes are told, since none records where a copy waits: cancellations are few.
    pub(crate) fn cancel(&self, copy: CopyId) {
        if self.table.cancel(copy) {
            self.queues.iter().for_each(|(_, queue)| send_order(queue, Order::Cancelled(copy)));
            self.disk.iter().for_each(|(_, queue)| send_order(queue, Order::Cancelled(copy)));
        }
    }

    /// Moves a copy ahead of all background copies.
    pub(crate) fn hasten(&self, copy: CopyId) {
        if self.table.hasten(copy) {
            self.queues.iter().for_each(|(_, queue)| send_order(queue, Order::Hastened(copy)));
            self.disk.iter().for_each(|(_, queue)| send_order(queue, Order::Hastened(copy)));
        }
    }

    /// Passes a copy to the thread that does it, or that reports why it cannot be done.
    pub(crate) fn send(&self, requested: RequestedCopy, found: Result<Located<W, D>, DriverError>) {
        let RequestedCopy { copy, size, entry } = requested;
        // The entry of a refused copy is dropped at the end of this statement, before the answer.
        let found = match (entry, found) {
            (Ok(entry), Ok(found)) => Ok((entry, found)),
            (Err(error), _) | (_, Err(error)) => Err(error),
        };
        match found {
            Ok((entry, Located::Memory(direction, work))) => {
                send_order(queue_for(&self.queues, direction), Order::Copy(Job { copy, size, work, entry }));
            }
            Ok((entry, Located::Disk(direction, work))) => {
                send_order(queue_for(&self.disk, direction), Order::Copy(Job { copy, size, work, entry }));
            }
            Err(error) => {
                send_order(queue_for(&self.queues, Direction::WithinHost), Order::Refuse { copy, error })
            }
        }
    }
}

type Opened<O, W> = (Vec<(O, Sender<Order<W>>)>, Vec<LaneEnd<O, W>>);

fn open<O: Copy + Into<LaneId>, W>(lanes: Vec<O>, links: &Arc<Links>) -> Opened<O, W> {
    lanes
        .into_iter()
        .map(|of| {
            let (queue, orders) = channel();
            ((of, queue), LaneEnd { of, orders, links: links.links_of(of.into()) })
        })
        .unzip()
}

fn queue_for<O: PartialEq, W>(queues: &[(O, Sender<Order<W>>)], which: O) -> &Sender<Order<W>> {
    let queue = queues.iter().find(|(of, _)| *of == which);
    let (_, queue) = queue.expect("extents lie in the host, on one of the driver's devices or on its disk");
    queue
}

/// A missing lane has panicked, in the sink or by a bug in the driver. Its copies can never be answered.
fn send_order<W>(queue: &Sender<Order<W>>, order: Order<W>) {
    assert!(queue.send(order).is_ok(), "a thread of the driver that copies has panicked");
}
