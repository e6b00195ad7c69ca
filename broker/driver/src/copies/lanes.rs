//! Which queue a copy goes to.

use std::sync::{
    Arc,
    mpsc::{Receiver, Sender, channel},
};

use vramd_types::{CopyId, DeviceIndex};

use super::{
    LaneId,
    lane::{Job, Order},
    links::{Crossed, Links},
    table::{Asked, Table},
};
use crate::{DriverError, LinkFacts, disk::Way, place::Place};

/// A device has a wire for each of the first two, which do not slow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    In(DeviceIndex),
    Out(DeviceIndex),
    /// From this device to a device, which may be itself.
    Aside(DeviceIndex),
    WithinHost,
}

impl Direction {
    pub(crate) fn of(from: Place, to: Place) -> Self {
        match (from, to) {
            (Place::Host, Place::Host) => Self::WithinHost,
            (Place::Host, Place::Device(device)) => Self::In(device),
            (Place::Device(device), Place::Host) => Self::Out(device),
            (Place::Device(device), Place::Device(_)) => Self::Aside(device),
        }
    }
}

impl From<Direction> for LaneId {
    fn from(direction: Direction) -> Self {
        match direction {
            Direction::In(device) => Self::In(device),
            Direction::Out(device) => Self::Out(device),
            Direction::Aside(device) => Self::Aside(device),
            Direction::WithinHost => Self::WithinHost,
        }
    }
}

impl From<Way> for LaneId {
    fn from(way: Way) -> Self {
        match way {
            Way::FromDisk => Self::FromDisk,
            Way::ToDisk => Self::ToDisk,
        }
    }
}

/// The queues: of copies between memories, and of those between memory and disk. They are as long as what the caller has
/// outstanding.
#[derive(Debug)]
pub(crate) struct Lanes<W, D> {
    table: Arc<Table>,
    queues: Vec<(Direction, Sender<Order<W>>)>,
    /// None where no extent can be on disk.
    disk: Vec<(Way, Sender<Order<D>>)>,
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

/// The other end of a queue.
#[derive(Debug)]
pub(crate) struct LaneEnd<O, W> {
    pub(crate) of: O,
    pub(crate) orders: Receiver<Order<W>>,
    pub(crate) links: Crossed,
}

/// The other ends of all.
#[derive(Debug)]
pub(crate) struct LaneEnds<W, D> {
    pub(crate) memory: Vec<LaneEnd<Direction, W>>,
    pub(crate) disk: Vec<LaneEnd<Way, D>>,
}

/// What is to be copied, and in which lane.
#[derive(Debug)]
pub(crate) enum Found<W, D> {
    Memory(Direction, W),
    Disk(Way, D),
}

impl<W, D> Lanes<W, D> {
    /// Of so many devices, and whether there is a disk; and what their links carry.
    pub(crate) fn new(devices: usize, has_disk: bool, facts: &[LinkFacts]) -> (Self, LaneEnds<W, D>) {
        let indices = (0..).map(DeviceIndex).take(devices);
        let of_devices = indices
            .flat_map(|device| [Direction::In(device), Direction::Out(device), Direction::Aside(device)]);
        let directions: Vec<Direction> = [Direction::WithinHost].into_iter().chain(of_devices).collect();
        let ways: Vec<Way> = [Way::FromDisk, Way::ToDisk].into_iter().filter(|_| has_disk).collect();
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

    /// Nothing of it is begun any more. Which lane it waits in nobody notes: such changes are few.
    pub(crate) fn cancel(&self, copy: CopyId) {
        if self.table.cancel(copy) {
            self.queues.iter().for_each(|(_, queue)| hand(queue, Order::Cancelled(copy)));
            self.disk.iter().for_each(|(_, queue)| hand(queue, Order::Cancelled(copy)));
        }
    }

    /// It is done before what nobody waits for.
    pub(crate) fn hasten(&self, copy: CopyId) {
        if self.table.hasten(copy) {
            self.queues.iter().for_each(|(_, queue)| hand(queue, Order::Hastened(copy)));
            self.disk.iter().for_each(|(_, queue)| hand(queue, Order::Hastened(copy)));
        }
    }

    /// To the thread that does it, or that says why it can't be done.
    pub(crate) fn send(&self, asked: Asked, found: Result<Found<W, D>, DriverError>) {
        let Asked { copy, size, entry } = asked;
        // Of what is refused the entry is gone by the end of this statement, and so before the answer.
        let found = match (entry, found) {
            (Ok(entry), Ok(found)) => Ok((entry, found)),
            (Err(error), _) | (_, Err(error)) => Err(error),
        };
        match found {
            Ok((entry, Found::Memory(direction, work))) => {
                hand(of(&self.queues, direction), Order::Copy(Job { copy, size, work, entry }));
            }
            Ok((entry, Found::Disk(way, work))) => {
                hand(of(&self.disk, way), Order::Copy(Job { copy, size, work, entry }));
            }
            Err(error) => hand(of(&self.queues, Direction::WithinHost), Order::Refuse { copy, error }),
        }
    }
}

type Opened<O, W> = (Vec<(O, Sender<Order<W>>)>, Vec<LaneEnd<O, W>>);

fn open<O: Copy + Into<LaneId>, W>(lanes: Vec<O>, links: &Arc<Links>) -> Opened<O, W> {
    lanes
        .into_iter()
        .map(|of| {
            let (queue, orders) = channel();
            ((of, queue), LaneEnd { of, orders, links: links.crossed_by(of.into()) })
        })
        .unzip()
}

fn of<O: PartialEq, W>(queues: &[(O, Sender<Order<W>>)], which: O) -> &Sender<Order<W>> {
    let queue = queues.iter().find(|(of, _)| *of == which);
    let (_, queue) = queue.expect("extents lie in the host, on one of the driver's devices or on its disk");
    queue
}

/// A lane that is gone has panicked, in the sink or by a bug of ours; its work can't be answered any more.
fn hand<W>(queue: &Sender<Order<W>>, order: Order<W>) {
    assert!(queue.send(order).is_ok(), "a thread of the driver that copies has panicked");
}
