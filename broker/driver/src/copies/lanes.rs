//! Which queue a copy goes to.

use std::sync::{
    Arc,
    mpsc::{Receiver, Sender, channel},
};

use vramd_types::{CopyId, DeviceIndex};

use super::{
    lane::{Job, Order},
    table::{Asked, Table},
};
use crate::{DriverError, place::Place};

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

/// The queues. They are as long as what the caller has outstanding.
#[derive(Debug)]
pub(crate) struct Lanes<W> {
    table: Arc<Table>,
    queues: Vec<(Direction, Sender<Order<W>>)>,
}

impl<W> Clone for Lanes<W> {
    fn clone(&self) -> Self {
        Self { table: Arc::clone(&self.table), queues: self.queues.clone() }
    }
}

/// The other end of a queue.
#[derive(Debug)]
pub(crate) struct LaneEnd<W> {
    pub(crate) direction: Direction,
    pub(crate) orders: Receiver<Order<W>>,
}

impl<W> Lanes<W> {
    /// Of so many devices.
    pub(crate) fn new(devices: usize) -> (Self, Vec<LaneEnd<W>>) {
        let indices = (0..).map(DeviceIndex).take(devices);
        let of_devices = indices
            .flat_map(|device| [Direction::In(device), Direction::Out(device), Direction::Aside(device)]);
        let directions = [Direction::WithinHost].into_iter().chain(of_devices);
        let (queues, ends) = directions
            .map(|direction| {
                let (queue, orders) = channel();
                ((direction, queue), LaneEnd { direction, orders })
            })
            .unzip();
        (Self { table: Arc::default(), queues }, ends)
    }

    pub(crate) fn table(&self) -> &Arc<Table> {
        &self.table
    }

    /// Nothing of it is begun any more. Which lane it waits in nobody notes: such changes are few.
    pub(crate) fn cancel(&self, copy: CopyId) {
        if self.table.cancel(copy) {
            for (_, queue) in &self.queues {
                hand(queue, Order::Cancelled(copy));
            }
        }
    }

    /// It is done before what nobody waits for.
    pub(crate) fn hasten(&self, copy: CopyId) {
        if self.table.hasten(copy) {
            for (_, queue) in &self.queues {
                hand(queue, Order::Hastened(copy));
            }
        }
    }

    /// To the thread that does it, or that says why it can't be done.
    pub(crate) fn send(&self, asked: Asked, found: Result<(Direction, W), DriverError>) {
        let Asked { copy, size, entry } = asked;
        // Of what is refused the entry is gone by the end of this statement, and so before the answer.
        let (direction, order) = match (entry, found) {
            (Ok(entry), Ok((direction, work))) => (direction, Order::Copy(Job { copy, size, work, entry })),
            (Err(error), _) | (_, Err(error)) => (Direction::WithinHost, Order::Refuse { copy, error }),
        };
        let queue = self.queues.iter().find(|(of, _)| *of == direction);
        let (_, queue) = queue.expect("extents lie in the host or on one of the driver's devices");
        hand(queue, order);
    }
}

/// A lane that is gone has panicked, in the sink or by a bug of ours; its work can't be answered any more.
fn hand<W>(queue: &Sender<Order<W>>, order: Order<W>) {
    assert!(queue.send(order).is_ok(), "a thread of the driver that copies has panicked");
}
