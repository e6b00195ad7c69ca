//! Who has the kernel read and write files: `uring` by an io_uring of its own, `threads` by `preadv2` and `pwritev2` on a few
//! threads, where the first is refused, at the start or from some time on. Both do the same to the byte, and pass the same tests.

mod threads;
mod uring;

use std::{fmt, os::fd::OwnedFd, sync::Arc};

use rustix::io::Errno;

pub(crate) use self::{threads::transfer_all, uring::works as uring_works};
use self::{
    threads::{Pool, pool},
    uring::{Answer, Uring},
};
use super::{ALIGNMENT, room::Room};
use crate::DriverError;

/// Who moves bytes between memory and disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskEngine {
    /// io_uring.
    Uring,
    /// `preadv2` and `pwritev2`, on threads.
    Threads,
}

impl fmt::Display for DiskEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Uring => "io_uring",
            Self::Threads => "threads",
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    FromDisk,
    ToDisk,
}

/// What is to be read or written, all of it or none.
#[derive(Debug)]
pub(crate) struct Op<R> {
    /// By which the caller knows it again.
    pub(crate) tag: u64,
    pub(crate) file: Arc<OwnedFd>,
    pub(crate) way: Way,
    /// As the length, a multiple of [`ALIGNMENT`].
    pub(crate) at: u64,
    pub(crate) length: usize,
    pub(crate) room: R,
}

/// What became of it.
#[derive(Debug)]
pub(crate) struct Done<R> {
    pub(crate) tag: u64,
    pub(crate) room: R,
    pub(crate) result: Result<(), Flaw>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// So many bytes, and no more to be had.
    Short(usize),
    Failed(Errno),
}

/// Dropping it waits for what is under way.
#[derive(Debug)]
pub(crate) struct Engine<R: Room> {
    uring: Option<Box<Uring<R>>>,
    /// Where there is no ring, and from when on the kernel takes nothing from it any more.
    threads: Option<Pool<R>>,
    /// What nobody can be found to do.
    failed: Vec<Done<R>>,
    depth: usize,
}

impl<R: Room> Engine<R> {
    /// With so many operations under way at most, which the caller keeps to.
    pub(crate) fn new(which: DiskEngine, depth: usize) -> Result<Self, DriverError> {
        let mut engine = Self { uring: None, threads: None, failed: Vec::new(), depth };
        match which {
            DiskEngine::Uring => {
                let uring = Uring::new(depth);
                let failed = |error| DriverError::Failed(format!("set up an io_uring: {error}"));
                engine.uring = Some(Box::new(uring.map_err(failed)?));
            }
            DiskEngine::Threads => engine.threads = Some(pool(depth)?),
        }
        Ok(engine)
    }

    pub(crate) fn begin(&mut self, op: Op<R>) {
        let is_whole = |it: usize| it.is_multiple_of(ALIGNMENT);
        assert!(op.length > 0 && op.length <= op.room.length(), "there is room for what is moved");
        assert!(is_whole(op.length) && op.at.is_multiple_of(ALIGNMENT as u64), "whole blocks are moved");
        match self.uring.as_mut().map(|uring| (uring.broken(), uring)) {
            Some((None, uring)) => uring.begin(op),
            Some((Some(why), _)) => self.by_threads(op, why),
            // There have been threads from the beginning.
            None => self.by_threads(op, Errno::AGAIN),
        }
    }

    /// One that has ended, in any order. Does not sleep.
    pub(crate) fn poll(&mut self) -> Option<Done<R>> {
        while let Some(answer) = self.uring.as_mut().and_then(|uring| uring.poll()) {
            match answer {
                Answer::Done(done) => return Some(done),
                // All of it: what is read or written twice is as if it had been once.
                Answer::NotTaken(op, why) => self.by_threads(op, why),
            }
        }
        self.failed.pop().or_else(|| self.threads.as_ref()?.poll())
    }

    /// Where there can be no threads either it fails, for that reason.
    fn by_threads(&mut self, op: Op<R>, why: Errno) {
        if self.threads.is_none() {
            self.threads = pool(self.depth).ok();
        }
        match &self.threads {
            Some(threads) => threads.begin(op),
            None => self.failed.push(op.end(Err(Flaw::Failed(why)))),
        }
    }
}

/// Which one: that is asked for, else io_uring where the kernel has it for us. With it why it is not, where it is not.
pub(crate) fn choose(asked: Option<DiskEngine>) -> Result<(DiskEngine, Option<String>), String> {
    choose_by(asked, uring_works)
}

/// Who wants threads has the kernel asked for no io_uring: where that is forbidden, to ask may be the end of the process.
fn choose_by(
    asked: Option<DiskEngine>,
    uring_works: impl FnOnce() -> Result<(), String>,
) -> Result<(DiskEngine, Option<String>), String> {
    if asked == Some(DiskEngine::Threads) {
        return Ok((DiskEngine::Threads, None));
    }
    match (asked, uring_works()) {
        (_, Ok(())) => Ok((DiskEngine::Uring, None)),
        (Some(_), Err(why)) => Err(why),
        (None, Err(why)) => Ok((DiskEngine::Threads, Some(why))),
    }
}

/// How often in a row the kernel may ask to be asked again.
const AGAIN_MAX: u32 = 10_000;

/// What is asked of the kernel at once: an operation, or a piece of one.
#[derive(Clone, Copy, Debug)]
struct Request {
    /// Where in the operation it begins.
    from: usize,
    length: usize,
    done: usize,
    again: u32,
}

impl Request {
    fn new(from: usize, length: usize) -> Self {
        Self { from, length, done: 0, again: 0 }
    }

    /// Takes the kernel's answer; the end, unless the rest is to be asked for.
    fn advance(&mut self, answer: Result<usize, Errno>) -> Option<Result<(), Flaw>> {
        match answer {
            Err(Errno::INTR | Errno::AGAIN) if self.again < AGAIN_MAX => {
                self.again += 1;
                None
            }
            Err(error) => Some(Err(Flaw::Failed(error))),
            Ok(moved) => {
                self.done += moved;
                if self.done >= self.length {
                    Some(Ok(()))
                } else if moved == 0 || !self.done.is_multiple_of(ALIGNMENT) {
                    Some(Err(Flaw::Short(self.from + self.done)))
                } else {
                    None
                }
            }
        }
    }

    /// Where in the file the rest begins.
    fn at<R>(&self, of: &Op<R>) -> u64 {
        of.at + (self.from + self.done) as u64
    }

    /// Where in memory, and how long it is.
    fn rest<R: Room>(&self, of: &Op<R>) -> (*mut u8, usize) {
        (of.room.start().as_ptr().wrapping_add(self.from + self.done), self.length - self.done)
    }
}

impl<R> Op<R> {
    fn end(self, result: Result<(), Flaw>) -> Done<R> {
        Done { tag: self.tag, room: self.room, result }
    }
}

#[cfg(test)]
mod tests;
