//! One queue of copies, in order: cuts them into chunks and keeps a few under way, over the ends of copies, so that the
//! wire never waits for us.

use std::{
    collections::VecDeque,
    sync::mpsc::{Receiver, RecvTimeoutError},
    thread,
    time::Duration,
};

use vramd_types::{Bytes, CopyId};

use super::{table::Entry, waiting::Waiting};
use crate::{Completion, CopyError, DriverError};

/// A driver's own way to move bytes in one direction.
pub(crate) trait Link {
    /// From here on larger chunks are no faster, and a copy that is cancelled stops the sooner the smaller they are.
    const CHUNK: u64 = 16 << 20;

    /// Two milliseconds of a fast link: for so long the thread may be kept from its work before the link stands idle.
    const UNDER_WAY_MAX: usize = 6;

    /// What is copied, and what keeps it in place.
    type Work;
    /// A piece that was begun. Pieces end in the order of their beginning.
    type Chunk;

    fn begin(&mut self, work: &Self::Work, at: u64, length: u64) -> Result<Self::Chunk, CopyError>;

    /// Whether the bytes have arrived. Not asked again once it has ended, well or not.
    fn has_ended(&mut self, chunk: &mut Self::Chunk) -> Result<bool, CopyError>;

    /// How long it pays to wait before asking again. Who waits for the copy waits for its last chunk.
    fn patience(&self, chunk: &Self::Chunk, is_last: bool) -> Duration;
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
}

/// Until nobody can send any more and all is done.
pub(crate) fn run<L: Link>(link: L, orders: &Receiver<Order<L::Work>>, tell: impl Fn(Completion)) {
    let mut lane = Lane { link, waiting: Waiting::default(), begun: VecDeque::new(), under_way: 0 };
    while let Ok(arrived) = lane.next(orders) {
        for order in arrived.into_iter().chain(orders.try_iter()) {
            match order {
                // Those that wait need not wait for what is before them.
                Order::Copy(job) if job.entry.is_cancelled() => give_up(job, &tell),
                Order::Copy(job) => lane.waiting.push(job),
                Order::Cancelled(copy) => drop(lane.waiting.take(copy).map(|job| give_up(job, &tell))),
                Order::Refuse { copy, error } => tell(Completion::Copied { copy, result: Err(error.into()) }),
            }
        }
        // Nobody's orders wait for more than that.
        for _ in 0..L::UNDER_WAY_MAX {
            let has_ended = lane.end_next(&tell);
            lane.begin();
            if !has_ended {
                break;
            }
        }
    }
}

struct Lane<L: Link> {
    link: L,
    waiting: Waiting<L::Work>,
    /// Of all but the last nothing is left to begin.
    begun: VecDeque<Begun<L>>,
    under_way: usize,
}

struct Begun<L: Link> {
    job: Job<L::Work>,
    next: u64,
    /// With their lengths.
    chunks: VecDeque<(L::Chunk, u64)>,
    problem: Option<CopyError>,
}

/// Nobody can send any more, and nothing is left to do.
#[derive(Debug)]
struct Over;

impl<L: Link> Lane<L> {
    /// What comes next, or nothing once it is time to look at what is under way.
    fn next(&self, orders: &Receiver<Order<L::Work>>) -> Result<Option<Order<L::Work>>, Over> {
        let Some(patience) = self.patience() else { return orders.recv().map(Some).map_err(|_| Over) };
        match orders.recv_timeout(patience) {
            Ok(order) => return Ok(Some(order)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => thread::sleep(patience),
        }
        Ok(None)
    }

    /// `None` where there is nothing to do.
    fn patience(&self) -> Option<Duration> {
        match self.begun.front() {
            None if self.waiting.is_empty() => None,
            None => Some(Duration::ZERO),
            Some(front) => Some(front.chunks.front().map_or(Duration::ZERO, |(chunk, _)| {
                self.link.patience(chunk, front.is_all_begun() && front.chunks.len() == 1)
            })),
        }
    }

    /// Takes a chunk that has ended, and tells of a copy of which nothing is left; or there is none. One at a time: what is
    /// begun in its place is under way while the link looks at the next.
    fn end_next(&mut self, tell: &impl Fn(Completion)) -> bool {
        let Some(front) = self.begun.front_mut() else { return false };
        if let Some((chunk, length)) = front.chunks.front_mut() {
            match self.link.has_ended(chunk) {
                Ok(false) => return false,
                Ok(true) => front.job.entry.add(*length),
                Err(error) => drop(front.problem.get_or_insert(error)),
            }
            front.chunks.pop_front();
            self.under_way -= 1;
        } else if !front.is_all_begun() {
            return false;
        }
        let is_over = front.chunks.is_empty() && front.is_all_begun();
        if is_over && let Some(Begun { job, problem, .. }) = self.begun.pop_front() {
            finish(job, problem.map_or(Ok(()), Err), tell);
        }
        true
    }

    fn begin(&mut self) {
        while self.under_way < L::UNDER_WAY_MAX {
            match self.begun.back_mut().filter(|it| !it.is_all_begun()) {
                Some(last) => self.under_way += last.begin_next(&mut self.link),
                None => match self.waiting.pop() {
                    Some(job) => self.begun.push_back(Begun::of(job)),
                    None => return,
                },
            }
        }
    }
}

impl<L: Link> Begun<L> {
    fn of(job: Job<L::Work>) -> Self {
        Self { job, next: 0, chunks: VecDeque::new(), problem: None }
    }

    /// Or nothing more will be.
    fn is_all_begun(&self) -> bool {
        self.problem.is_some() || self.next == self.job.size.get()
    }

    /// How many chunks were begun: one, or none because of a problem.
    fn begin_next(&mut self, link: &mut L) -> usize {
        if self.job.entry.is_cancelled() {
            self.problem = Some(CopyError::Cancelled);
            return 0;
        }
        let length = (self.job.size.get() - self.next).min(L::CHUNK);
        match link.begin(&self.job.work, self.next, length) {
            Ok(chunk) => {
                self.chunks.push_back((chunk, length));
                self.next += length;
                1
            }
            Err(error) => {
                self.problem = Some(error);
                0
            }
        }
    }
}

fn give_up<W>(job: Job<W>, tell: &impl Fn(Completion)) {
    finish(job, Err(CopyError::Cancelled), tell);
}

/// It has let go of the extents before it is told: who then releases them finds them free.
fn finish<W>(job: Job<W>, result: Result<(), CopyError>, tell: &impl Fn(Completion)) {
    let Job { copy, work, entry, .. } = job;
    drop((work, entry));
    tell(Completion::Copied { copy, result });
}

#[cfg(test)]
mod tests;
