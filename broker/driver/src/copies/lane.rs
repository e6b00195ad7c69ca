//! One lane: cuts copies into chunks and keeps a few chunks in flight, across the ends of copies, so that the
//! hardware never waits for this thread.
//!
//! For each chunk the links of the lane decide which class goes next. So a new copy waits only for the chunks
//! in flight.

use std::{
    collections::VecDeque,
    sync::mpsc::{Receiver, RecvTimeoutError},
    thread,
    time::Duration,
};

use broker_links::WaitingClasses;
use vramd_types::{Bytes, CopyClass, CopyId};

use super::{
    links::{LaneLinks, NextChunk},
    queue::Queue,
    table::Entry,
};
use crate::{Completion, CopyError, DriverError};

/// How often a lane that other lanes hold back asks again.
const HELD_BACK_POLL: Duration = Duration::from_micros(100);

/// The most background chunks in flight, unless a mover says otherwise.
const BACKGROUND_IN_FLIGHT_MAX: usize = 4;

/// A driver's way to move bytes in one direction.
pub(crate) trait Mover {
    /// The size of a demand chunk. Larger ones are no faster, and smaller ones let a cancelled copy stop
    /// sooner.
    const CHUNK: u64 = 16 << 20;

    /// The size of a background chunk, for which a demand copy may have to wait.
    const BACKGROUND_CHUNK: u64 = 8 << 20;

    /// The most chunks in flight: two milliseconds of a fast link. So long the thread may be delayed before the
    /// link idles.
    const IN_FLIGHT_MAX: usize = 6;

    /// The two ends of a copy, kept alive while it lasts.
    type Work;
    /// A begun chunk. Chunks end in the order of their beginning.
    type Chunk;

    /// The most background chunks in flight, for the same reason.
    fn background_in_flight_max(&self) -> usize {
        BACKGROUND_IN_FLIGHT_MAX
    }

    fn begin(&mut self, work: &Self::Work, at: u64, length: u64) -> Result<Self::Chunk, CopyError>;

    /// Whether the chunk has arrived. Not called again once it has ended, successfully or not.
    fn poll(&mut self, chunk: &mut Self::Chunk) -> Result<bool, CopyError>;

    /// How long to wait before the next poll. The last chunk of a copy is polled sooner, since a client waits
    /// for the copy.
    fn poll_after(&self, chunk: &Self::Chunk, is_last: bool) -> Duration;
}

/// A copy to do.
#[derive(Debug)]
pub(crate) struct Job<W> {
    pub(crate) copy: CopyId,
    pub(crate) size: Bytes,
    pub(crate) work: W,
    pub(crate) entry: Entry,
}

#[derive(Debug)]
pub(crate) enum Order<W> {
    Copy(Job<W>),
    Refuse {
        copy: CopyId,
        error: DriverError,
    },
    /// A copy was cancelled, which its table entry says too. It may be in another lane, or still on its way
    /// here.
    Cancelled(CopyId),
    /// A copy was hastened, likewise.
    Hastened(CopyId),
}

/// Runs until all senders are gone and all copies are done.
pub(crate) fn run<L: Mover>(
    mover: L,
    links: LaneLinks,
    orders: &Receiver<Order<L::Work>>,
    report: impl Fn(Completion),
) {
    let mut lane = Lane::on(mover, links);
    while let Ok(arrived) = lane.next(orders) {
        for order in arrived.into_iter().chain(orders.try_iter()) {
            match order {
                // A cancelled copy need not wait for those before it.
                Order::Copy(job) if job.entry.is_cancelled() => report_cancelled(job, &report),
                Order::Copy(job) => lane.queue(job.entry.class()).push(job),
                Order::Cancelled(copy) => match lane.take(copy) {
                    Some(job) => report_cancelled(job, &report),
                    None => lane.cancel(copy),
                },
                Order::Hastened(copy) => {
                    if let Some(job) = lane.take(copy) {
                        lane.queue(CopyClass::Demand).push(job);
                    }
                }
                Order::Refuse { copy, error } => {
                    report(Completion::Copied { copy, result: Err(error.into()) })
                }
            }
        }
        // Orders wait for at most so many polls.
        for _ in 0..L::IN_FLIGHT_MAX {
            let has_ended = lane.poll_next();
            lane.report_finished(&report);
            lane.begin();
            if !has_ended {
                break;
            }
        }
    }
}

struct Lane<L: Mover> {
    mover: L,
    links: LaneLinks,
    /// One for each class.
    queues: [Queue<L::Work>; CopyClass::COUNT],
    /// Copies of which a chunk has begun. They are few, and most have nothing left to begin.
    active: Vec<ActiveCopy<L::Work>>,
    /// Chunks of these copies, in the order of their beginning.
    in_flight: VecDeque<Chunk<L>>,
}

struct Chunk<L: Mover> {
    of: CopyId,
    /// The class as which it was begun.
    class: CopyClass,
    chunk: L::Chunk,
    length: u64,
}

struct ActiveCopy<W> {
    job: Job<W>,
    next: u64,
    in_flight: usize,
    problem: Option<CopyError>,
}

/// All senders are gone, and nothing is left to do.
#[derive(Debug)]
struct Closed;

impl<L: Mover> Lane<L> {
    /// Waits for the next order, or returns nothing once it is time to poll the chunks in flight.
    fn next(&self, orders: &Receiver<Order<L::Work>>) -> Result<Option<Order<L::Work>>, Closed> {
        let Some(poll_after) = self.poll_after() else { return orders.recv().map(Some).map_err(|_| Closed) };
        match orders.recv_timeout(poll_after) {
            Ok(order) => return Ok(Some(order)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => thread::sleep(poll_after),
        }
        Ok(None)
    }

    fn on(mover: L, links: LaneLinks) -> Self {
        let queues = CopyClass::ALL.map(|_| Queue::default());
        Self { mover, links, queues, active: Vec::new(), in_flight: VecDeque::new() }
    }

    fn queue(&mut self, class: CopyClass) -> &mut Queue<L::Work> {
        &mut self.queues[class.index()]
    }

    /// Removes a copy that waits in this lane.
    fn take(&mut self, copy: CopyId) -> Option<Job<L::Work>> {
        self.queues.iter_mut().find_map(|queue| queue.take(copy))
    }

    /// Begins no more chunks of an active copy, even if the links would permit one.
    fn cancel(&mut self, copy: CopyId) {
        let of = |it: &&mut ActiveCopy<_>| it.job.copy == copy && !it.is_all_begun();
        if let Some(active) = self.active.iter_mut().find(of) {
            active.problem = Some(CopyError::Cancelled);
        }
    }

    /// How long to wait before the next poll. `None` if there is nothing to do.
    fn poll_after(&self) -> Option<Duration> {
        match self.in_flight.front() {
            Some(Chunk { of, chunk, .. }) => {
                let is_last =
                    |it: &ActiveCopy<_>| it.job.copy == *of && it.is_all_begun() && it.in_flight == 1;
                Some(self.mover.poll_after(chunk, self.active.iter().any(is_last)))
            }
            None if self.waiting() == WaitingClasses::default() => {
                (!self.active.is_empty()).then_some(Duration::ZERO)
            }
            None => Some(HELD_BACK_POLL),
        }
    }

    /// Polls the first chunk in flight, and returns whether it has ended. One at a time: the chunk begun in its
    /// place is in flight while the next is polled.
    fn poll_next(&mut self) -> bool {
        let Some(Chunk { of, class, chunk, length }) = self.in_flight.front_mut() else { return false };
        let record_end = match self.mover.poll(chunk) {
            Ok(false) => return false,
            Ok(true) => Ok(*length),
            Err(error) => Err(error),
        };
        self.links.record_end(*class, Bytes::new(*length));
        if let Some(active) = self.active.iter_mut().find(|it| it.job.copy == *of) {
            active.record_end(record_end);
        }
        self.in_flight.pop_front();
        true
    }

    fn report_finished(&mut self, report: &impl Fn(Completion)) {
        for over in self.active.extract_if(.., |it| it.is_all_begun() && it.in_flight == 0) {
            report_result(over.job, over.problem.map_or(Ok(()), Err), report);
        }
    }

    fn begin(&mut self) {
        loop {
            self.links.set_waiting(self.waiting(), self.is_full());
            let has_room = self.in_flight.len() < L::IN_FLIGHT_MAX;
            let Some(next) = has_room.then(|| self.next_to_begin()).flatten() else { return };
            let NextChunk { at, class, length: Some(length) } = next else { continue };
            let active = &mut self.active[at];
            let of = active.job.copy;
            match active.begin_next(&mut self.mover, length.get()) {
                Some(chunk) => self.in_flight.push_back(Chunk { of, class, chunk, length: length.get() }),
                // Reported with the next ended chunk.
                None => self.links.undo_begin(class, length),
            }
        }
    }

    /// The classes that have something left to begin.
    fn waiting(&self) -> WaitingClasses {
        let left = self.active.iter().filter(|it| !it.is_all_begun()).map(|it| it.job.entry.class());
        let whole = CopyClass::ALL.into_iter().filter(|class| !self.queues[class.index()].is_empty());
        left.chain(whole).collect()
    }

    /// Whether as many background chunks are in flight as should be. A waiting class is still owed its share
    /// then.
    fn is_full(&self) -> bool {
        let in_background = self.in_flight.iter().filter(|chunk| chunk.class != CopyClass::Demand).count();
        in_background >= self.mover.background_in_flight_max()
    }

    /// The chunk to begin next. The links record it as begun before it is.
    fn next_to_begin(&mut self) -> Option<NextChunk> {
        let Self { links, queues, active, .. } = self;
        links.begin(|class| {
            let at = find_active(class, active, &mut queues[class.index()])?;
            let class = active[at].job.entry.class();
            Some(NextChunk { at, class, length: active[at].next_length::<L>().map(Bytes::new) })
        })
    }
}

/// The index of a copy of that class with something left to begin.
fn find_active<W>(class: CopyClass, active: &mut Vec<ActiveCopy<W>>, queue: &mut Queue<W>) -> Option<usize> {
    let is_left = |it: &ActiveCopy<_>| !it.is_all_begun() && it.job.entry.class() == class;
    active.iter().position(is_left).or_else(|| {
        active.push(ActiveCopy::of(queue.pop()?));
        Some(active.len() - 1)
    })
}

impl<W> ActiveCopy<W> {
    fn of(job: Job<W>) -> Self {
        Self { job, next: 0, in_flight: 0, problem: None }
    }

    /// Whether nothing is left to begin, or a problem forbids it.
    fn is_all_begun(&self) -> bool {
        self.problem.is_some() || self.next == self.job.size.get()
    }

    /// The length of the next chunk. None if the copy was cancelled or is empty.
    fn next_length<L: Mover<Work = W>>(&mut self) -> Option<u64> {
        if self.job.entry.is_cancelled() {
            self.problem = Some(CopyError::Cancelled);
            return None;
        }
        let chunk = match self.job.entry.class() {
            CopyClass::Demand => L::CHUNK,
            CopyClass::Prefetch | CopyClass::WriteBack => L::BACKGROUND_CHUNK,
        };
        let length = (self.job.size.get() - self.next).min(chunk);
        (length > 0).then_some(length)
    }

    /// Begins the next chunk, unless that fails.
    fn begin_next<L: Mover<Work = W>>(&mut self, mover: &mut L, length: u64) -> Option<L::Chunk> {
        match mover.begin(&self.job.work, self.next, length) {
            Ok(chunk) => {
                self.in_flight += 1;
                self.next += length;
                Some(chunk)
            }
            Err(error) => {
                self.problem = Some(error);
                None
            }
        }
    }

    /// Records the end of a chunk, and the bytes that have arrived.
    fn record_end(&mut self, arrived: Result<u64, CopyError>) {
        self.in_flight -= 1;
        match arrived {
            Ok(length) => self.job.entry.add(length),
            Err(error) => drop(self.problem.get_or_insert(error)),
        }
    }
}

fn report_cancelled<W>(job: Job<W>, report: &impl Fn(Completion)) {
    report_result(job, Err(CopyError::Cancelled), report);
}

/// The job drops the extents before the report, so that a caller who then releases them finds them free.
fn report_result<W>(job: Job<W>, result: Result<(), CopyError>, report: &impl Fn(Completion)) {
    let Job { copy, work, entry, .. } = job;
    drop((work, entry));
    report(Completion::Copied { copy, result });
}

#[cfg(test)]
mod tests;
