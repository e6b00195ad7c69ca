//! One queue of copies: cuts them into chunks and keeps a few under way, over the ends of copies, so that the wire never waits
//! for us.
//!
//! Which class goes next the lane's links say, chunk by chunk: whoever comes waits for those chunks alone that are under way.

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

/// For so long who is held back by other lanes looks away.
const HELD_BACK_POLL: Duration = Duration::from_micros(100);

/// So many of what nobody waits for are under way, unless a link says otherwise.
const BACKGROUND_IN_FLIGHT_MAX: usize = 4;

/// A driver's own way to move bytes in one direction.
pub(crate) trait Mover {
    /// From here on larger chunks are no faster, and a copy that is cancelled stops the sooner the smaller they are.
    const CHUNK: u64 = 16 << 20;

    /// Of what nobody waits for, where whoever comes waits for it.
    const BACKGROUND_CHUNK: u64 = 8 << 20;

    /// Two milliseconds of a fast link: for so long the thread may be kept from its work before the link stands idle.
    const IN_FLIGHT_MAX: usize = 6;

    /// What is copied, and what keeps it in place.
    type Work;
    /// A piece that was begun. Pieces end in the order of their beginning.
    type Chunk;

    /// How many of what nobody waits for are under way at most, for the same reason.
    fn background_in_flight_max(&self) -> usize {
        BACKGROUND_IN_FLIGHT_MAX
    }

    fn begin(&mut self, work: &Self::Work, at: u64, length: u64) -> Result<Self::Chunk, CopyError>;

    /// Whether the bytes have arrived. Not asked again once it has ended, well or not.
    fn poll(&mut self, chunk: &mut Self::Chunk) -> Result<bool, CopyError>;

    /// How long it pays to wait before asking again. Who waits for the copy waits for its last chunk.
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
    /// Its entry says so too. It may have gone to another lane, or be on its way here.
    Cancelled(CopyId),
    /// Likewise.
    Hastened(CopyId),
}

/// Until nobody can send any more and all is done.
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
                // Those that wait need not wait for what is before them.
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
        // Nobody's orders wait for more than that.
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
    /// One of each class.
    queues: [Queue<L::Work>; CopyClass::COUNT],
    /// Those of which something was begun: few, and of most of them nothing is left to begin.
    active: Vec<ActiveCopy<L::Work>>,
    /// Of those, in the order of their beginning.
    in_flight: VecDeque<Chunk<L>>,
}

struct Chunk<L: Mover> {
    of: CopyId,
    /// As it was begun.
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

/// Nobody can send any more, and nothing is left to do.
#[derive(Debug)]
struct Closed;

impl<L: Mover> Lane<L> {
    /// What comes next, or nothing once it is time to look at what is under way.
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

    /// If it waits here.
    fn take(&mut self, copy: CopyId) -> Option<Job<L::Work>> {
        self.queues.iter_mut().find_map(|queue| queue.take(copy))
    }

    /// If it was begun, and not all of it: nothing more is, whether that is permitted now or not.
    fn cancel(&mut self, copy: CopyId) {
        let of = |it: &&mut ActiveCopy<_>| it.job.copy == copy && !it.is_all_begun();
        if let Some(active) = self.active.iter_mut().find(of) {
            active.problem = Some(CopyError::Cancelled);
        }
    }

    /// `None` where there is nothing to do.
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

    /// Whether a chunk has ended. One at a time: what is begun in its place is under way while the link looks at the next.
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
                // That is told with the next that has ended.
                None => self.links.undo_begin(class, length),
            }
        }
    }

    /// The classes of which something is left to begin.
    fn waiting(&self) -> WaitingClasses {
        let left = self.active.iter().filter(|it| !it.is_all_begun()).map(|it| it.job.entry.class());
        let whole = CopyClass::ALL.into_iter().filter(|class| !self.queues[class.index()].is_empty());
        left.chain(whole).collect()
    }

    /// As much is under way of what nobody waits for as should be. What waits wants its share all the same.
    fn is_full(&self) -> bool {
        let in_background = self.in_flight.iter().filter(|chunk| chunk.class != CopyClass::Demand).count();
        in_background >= self.mover.background_in_flight_max()
    }

    /// Of the one that goes on. It counts as begun before it is.
    fn next_to_begin(&mut self) -> Option<NextChunk> {
        let Self { links, queues, active, .. } = self;
        links.begin(|class| {
            let at = begun_of(class, active, &mut queues[class.index()])?;
            let class = active[at].job.entry.class();
            Some(NextChunk { at, class, length: active[at].next_length::<L>().map(Bytes::new) })
        })
    }
}

/// Where one of that class is of which something is left to begin.
fn begun_of<W>(class: CopyClass, active: &mut Vec<ActiveCopy<W>>, queue: &mut Queue<W>) -> Option<usize> {
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

    /// Or nothing more will be.
    fn is_all_begun(&self) -> bool {
        self.problem.is_some() || self.next == self.job.size.get()
    }

    /// Of what is begun next: nothing if it was cancelled, or there is nothing to copy.
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

    /// Unless there is a problem.
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

    /// A chunk has: so many bytes have arrived.
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

/// It has let go of the extents before it is told: who then releases them finds them free.
fn report_result<W>(job: Job<W>, result: Result<(), CopyError>, report: &impl Fn(Completion)) {
    let Job { copy, work, entry, .. } = job;
    drop((work, entry));
    report(Completion::Copied { copy, result });
}

#[cfg(test)]
mod tests;
