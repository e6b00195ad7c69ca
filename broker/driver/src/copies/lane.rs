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

use broker_links::Waiting;
use vramd_types::{Bytes, CopyClass, CopyId};

use super::{
    links::{Crossed, Next},
    queue::Queue,
    table::Entry,
};
use crate::{Completion, CopyError, DriverError};

/// For so long who is held back by other lanes looks away.
const HELD_BACK: Duration = Duration::from_micros(100);

/// So many of what nobody waits for are under way, unless a link says otherwise.
const BACKGROUND_UNDER_WAY_MAX: usize = 4;

/// A driver's own way to move bytes in one direction.
pub(crate) trait Link {
    /// From here on larger chunks are no faster, and a copy that is cancelled stops the sooner the smaller they are.
    const CHUNK: u64 = 16 << 20;

    /// Of what nobody waits for, where whoever comes waits for it.
    const BACKGROUND_CHUNK: u64 = 8 << 20;

    /// Two milliseconds of a fast link: for so long the thread may be kept from its work before the link stands idle.
    const UNDER_WAY_MAX: usize = 6;

    /// What is copied, and what keeps it in place.
    type Work;
    /// A piece that was begun. Pieces end in the order of their beginning.
    type Chunk;

    /// How many of what nobody waits for are under way at most, for the same reason.
    fn background_under_way_max(&self) -> usize {
        BACKGROUND_UNDER_WAY_MAX
    }

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
    /// Likewise.
    Hastened(CopyId),
}

/// Until nobody can send any more and all is done.
pub(crate) fn run<L: Link>(
    link: L,
    links: Crossed,
    orders: &Receiver<Order<L::Work>>,
    tell: impl Fn(Completion),
) {
    let mut lane = Lane::on(link, links);
    while let Ok(arrived) = lane.next(orders) {
        for order in arrived.into_iter().chain(orders.try_iter()) {
            match order {
                // Those that wait need not wait for what is before them.
                Order::Copy(job) if job.entry.is_cancelled() => give_up(job, &tell),
                Order::Copy(job) => lane.queue(job.entry.class()).push(job),
                Order::Cancelled(copy) => match lane.take(copy) {
                    Some(job) => give_up(job, &tell),
                    None => lane.cancel(copy),
                },
                Order::Hastened(copy) => {
                    if let Some(job) = lane.take(copy) {
                        lane.queue(CopyClass::Demand).push(job);
                    }
                }
                Order::Refuse { copy, error } => tell(Completion::Copied { copy, result: Err(error.into()) }),
            }
        }
        // Nobody's orders wait for more than that.
        for _ in 0..L::UNDER_WAY_MAX {
            let has_ended = lane.end_next();
            lane.tell_over(&tell);
            lane.begin();
            if !has_ended {
                break;
            }
        }
    }
}

struct Lane<L: Link> {
    link: L,
    links: Crossed,
    /// One of each class.
    queues: [Queue<L::Work>; CopyClass::COUNT],
    /// Those of which something was begun: few, and of most of them nothing is left to begin.
    begun: Vec<Begun<L::Work>>,
    /// Of those, in the order of their beginning.
    under_way: VecDeque<Chunk<L>>,
}

struct Chunk<L: Link> {
    of: CopyId,
    /// As it was begun.
    class: CopyClass,
    chunk: L::Chunk,
    length: u64,
}

struct Begun<W> {
    job: Job<W>,
    next: u64,
    under_way: usize,
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

    fn on(link: L, links: Crossed) -> Self {
        let queues = CopyClass::ALL.map(|_| Queue::default());
        Self { link, links, queues, begun: Vec::new(), under_way: VecDeque::new() }
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
        let of = |it: &&mut Begun<_>| it.job.copy == copy && !it.is_all_begun();
        if let Some(begun) = self.begun.iter_mut().find(of) {
            begun.problem = Some(CopyError::Cancelled);
        }
    }

    /// `None` where there is nothing to do.
    fn patience(&self) -> Option<Duration> {
        match self.under_way.front() {
            Some(Chunk { of, chunk, .. }) => {
                let is_last = |it: &Begun<_>| it.job.copy == *of && it.is_all_begun() && it.under_way == 1;
                Some(self.link.patience(chunk, self.begun.iter().any(is_last)))
            }
            None if self.waiting() == Waiting::default() => {
                (!self.begun.is_empty()).then_some(Duration::ZERO)
            }
            None => Some(HELD_BACK),
        }
    }

    /// Whether a chunk has ended. One at a time: what is begun in its place is under way while the link looks at the next.
    fn end_next(&mut self) -> bool {
        let Some(Chunk { of, class, chunk, length }) = self.under_way.front_mut() else { return false };
        let ended = match self.link.has_ended(chunk) {
            Ok(false) => return false,
            Ok(true) => Ok(*length),
            Err(error) => Err(error),
        };
        self.links.ended(*class, Bytes::new(*length));
        if let Some(begun) = self.begun.iter_mut().find(|it| it.job.copy == *of) {
            begun.ended(ended);
        }
        self.under_way.pop_front();
        true
    }

    fn tell_over(&mut self, tell: &impl Fn(Completion)) {
        for over in self.begun.extract_if(.., |it| it.is_all_begun() && it.under_way == 0) {
            finish(over.job, over.problem.map_or(Ok(()), Err), tell);
        }
    }

    fn begin(&mut self) {
        loop {
            self.links.waits(self.waiting(), self.is_full());
            let has_room = self.under_way.len() < L::UNDER_WAY_MAX;
            let Some(next) = has_room.then(|| self.next_to_begin()).flatten() else { return };
            let Next { at, class, length: Some(length) } = next else { continue };
            let begun = &mut self.begun[at];
            let of = begun.job.copy;
            match begun.begin_next(&mut self.link, length.get()) {
                Some(chunk) => self.under_way.push_back(Chunk { of, class, chunk, length: length.get() }),
                // That is told with the next that has ended.
                None => self.links.not_begun(class, length),
            }
        }
    }

    /// The classes of which something is left to begin.
    fn waiting(&self) -> Waiting {
        let left = self.begun.iter().filter(|it| !it.is_all_begun()).map(|it| it.job.entry.class());
        let whole = CopyClass::ALL.into_iter().filter(|class| !self.queues[class.index()].is_empty());
        left.chain(whole).collect()
    }

    /// As much is under way of what nobody waits for as should be. What waits wants its share all the same.
    fn is_full(&self) -> bool {
        let in_background = self.under_way.iter().filter(|chunk| chunk.class != CopyClass::Demand).count();
        in_background >= self.link.background_under_way_max()
    }

    /// Of the one that goes on. It counts as begun before it is.
    fn next_to_begin(&mut self) -> Option<Next> {
        let Self { links, queues, begun, .. } = self;
        links.begin(|class| {
            let at = begun_of(class, begun, &mut queues[class.index()])?;
            let class = begun[at].job.entry.class();
            Some(Next { at, class, length: begun[at].next_length::<L>().map(Bytes::new) })
        })
    }
}

/// Where one of that class is of which something is left to begin.
fn begun_of<W>(class: CopyClass, begun: &mut Vec<Begun<W>>, queue: &mut Queue<W>) -> Option<usize> {
    let is_left = |it: &Begun<_>| !it.is_all_begun() && it.job.entry.class() == class;
    begun.iter().position(is_left).or_else(|| {
        begun.push(Begun::of(queue.pop()?));
        Some(begun.len() - 1)
    })
}

impl<W> Begun<W> {
    fn of(job: Job<W>) -> Self {
        Self { job, next: 0, under_way: 0, problem: None }
    }

    /// Or nothing more will be.
    fn is_all_begun(&self) -> bool {
        self.problem.is_some() || self.next == self.job.size.get()
    }

    /// Of what is begun next: nothing if it was cancelled, or there is nothing to copy.
    fn next_length<L: Link<Work = W>>(&mut self) -> Option<u64> {
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
    fn begin_next<L: Link<Work = W>>(&mut self, link: &mut L, length: u64) -> Option<L::Chunk> {
        match link.begin(&self.job.work, self.next, length) {
            Ok(chunk) => {
                self.under_way += 1;
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
    fn ended(&mut self, arrived: Result<u64, CopyError>) {
        self.under_way -= 1;
        match arrived {
            Ok(length) => self.job.entry.add(length),
            Err(error) => drop(self.problem.get_or_insert(error)),
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
