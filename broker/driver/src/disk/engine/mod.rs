//! Who has the kernel read and write files: `uring` by an io_uring of its own, `threads` by `preadv2` and `pwritev2` on a few
//! threads, where the first is refused, at the start or from some time on. Both do the same to the byte, and pass the same tests.

mod requests;
mod threads;
mod uring;

use std::{fmt, os::fd::OwnedFd, sync::Arc};

use rustix::io::Errno;

use self::{
    requests::Answer,
    threads::{Pool, pool},
    uring::Uring,
};
pub(crate) use self::{threads::transfer_all, uring::check as check_uring};
use super::{ALIGNMENT, io_memory::IoMemory};
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
pub(crate) enum DiskDirection {
    FromDisk,
    ToDisk,
}

/// What is to be read or written, all of it or none.
#[derive(Debug)]
pub(crate) struct Op<R> {
    /// By which the caller knows it again.
    pub(crate) tag: u64,
    pub(crate) file: Arc<OwnedFd>,
    pub(crate) direction: DiskDirection,
    /// As the length, a multiple of [`ALIGNMENT`].
    pub(crate) at: u64,
    pub(crate) length: usize,
    pub(crate) buffer: R,
}

/// What became of it.
#[derive(Debug)]
pub(crate) struct Done<R> {
    pub(crate) tag: u64,
    pub(crate) buffer: R,
    pub(crate) result: Result<(), IoFlaw>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IoFlaw {
    /// So many bytes, and no more to be had.
    Short(usize),
    Failed(Errno),
}

/// Dropping it waits for what is under way.
#[derive(Debug)]
pub(crate) struct Engine<R: IoMemory> {
    by: Backend<R>,
    depth: usize,
    /// Until it is told that the ring has broken.
    warn: Option<Warn>,
}

#[derive(Debug)]
enum Backend<R: IoMemory> {
    /// And threads, from when on the kernel takes nothing from the ring any more.
    Ring(Box<Uring<R>>, Option<Pool<R>>),
    Threads(Pool<R>),
}

impl<R: IoMemory> Engine<R> {
    /// With so many operations under way at most, which the caller keeps to. Unless io_uring was named it does without a ring that cannot be
    /// made, for want of descriptors or memory, say. What operators should know is told by `warn`, once.
    pub(crate) fn new(chosen: EngineChoice, depth: usize, warn: Warn) -> Result<Self, DriverError> {
        if chosen.engine == DiskEngine::Threads {
            return Ok(Self { by: Backend::Threads(pool(depth)?), depth, warn: None });
        }
        match Uring::new(depth) {
            Ok(ring) => Ok(Self { by: Backend::Ring(Box::new(ring), None), depth, warn: Some(warn) }),
            Err(error) if chosen.is_named => Err(DriverError::Failed(format!("set up an io_uring: {error}"))),
            Err(error) => {
                let by = Backend::Threads(pool(depth)?);
                warn.report(format!(
                    "an io_uring of the disk cannot be made, threads are in its place: {error}"
                ));
                Ok(Self { by, depth, warn: None })
            }
        }
    }

    pub(crate) fn begin(&mut self, op: Op<R>) {
        op.check();
        match &mut self.by {
            Backend::Ring(ring, _) => ring.begin(op),
            Backend::Threads(threads) => threads.begin(op),
        }
    }

    /// One that has ended, in any order. Does not sleep.
    pub(crate) fn poll(&mut self) -> Option<Done<R>> {
        let (ring, threads) = match &mut self.by {
            Backend::Ring(ring, threads) => (ring, threads),
            Backend::Threads(threads) => return threads.poll(),
        };
        while let Some(answer) = ring.poll() {
            let (op, why) = match answer {
                Answer::Done(done) => return Some(done),
                Answer::NotTaken(op, why) => (op, why),
            };
            if let Some(warn) = self.warn.take() {
                warn.report(format!("an io_uring of the disk takes nothing any more, threads go on: {why}"));
            }
            if threads.is_none() {
                *threads = pool(self.depth).ok();
            }
            match threads {
                // All of it: what is read or written twice is as if it had been once.
                Some(threads) => threads.begin(op),
                None => return Some(op.end(Err(IoFlaw::Failed(why)))),
            }
        }
        threads.as_ref()?.poll()
    }
}

/// Tells operators something.
pub(crate) struct Warn(Box<dyn FnOnce(String) + Send>);

impl Warn {
    pub(crate) fn by(report: impl FnOnce(String) + Send + 'static) -> Self {
        Self(Box::new(report))
    }

    fn report(self, problem: String) {
        (self.0)(problem);
    }
}

impl fmt::Debug for Warn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Warn")
    }
}

/// What is used, if it can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EngineChoice {
    pub(crate) engine: DiskEngine,
    /// It, and nothing in its place.
    pub(crate) is_named: bool,
}

/// Which one: that is asked for, else io_uring where the kernel has it for us. With it why it is not, where it is not.
pub(crate) fn choose(requested: Option<DiskEngine>) -> Result<(DiskEngine, Option<String>), String> {
    choose_by(requested, check_uring)
}

/// For tests: those that can be used. Where `VRAMD_EXPECT_URING` is set io_uring is one of them, so that no machine on which all is to be tested
/// leaves it out in silence.
///
/// # Panics
/// Where it is not.
pub(crate) fn usable_engines() -> Vec<DiskEngine> {
    let check = check_uring();
    if let Err(why) = &check {
        assert!(std::env::var_os("VRAMD_EXPECT_URING").is_none(), "io_uring cannot be used: {why}");
    }
    check.ok().map(|()| DiskEngine::Uring).into_iter().chain([DiskEngine::Threads]).collect()
}

/// Who wants threads has the kernel asked for no io_uring: where that is forbidden, to ask may be the end of the process.
fn choose_by(
    requested: Option<DiskEngine>,
    check_uring: impl FnOnce() -> Result<(), String>,
) -> Result<(DiskEngine, Option<String>), String> {
    if requested == Some(DiskEngine::Threads) {
        return Ok((DiskEngine::Threads, None));
    }
    match (requested, check_uring()) {
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
    fn advance(&mut self, answer: Result<usize, Errno>) -> Option<Result<(), IoFlaw>> {
        match answer {
            Err(Errno::INTR | Errno::AGAIN) if self.again < AGAIN_MAX => {
                self.again += 1;
                None
            }
            Err(error) => Some(Err(IoFlaw::Failed(error))),
            Ok(moved) => {
                self.done += moved;
                self.again = 0;
                if self.done >= self.length {
                    Some(Ok(()))
                } else if moved == 0 || !self.done.is_multiple_of(ALIGNMENT) {
                    Some(Err(IoFlaw::Short(self.from + self.done)))
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
    fn rest<R: IoMemory>(&self, of: &Op<R>) -> (*mut u8, usize) {
        (of.buffer.start().as_ptr().wrapping_add(self.from + self.done), self.length - self.done)
    }
}

impl<R: IoMemory> Op<R> {
    /// Whoever tells the kernel of its memory has asked this before.
    ///
    /// # Panics
    /// Where it would go beyond its room, or is not of whole blocks.
    fn check(&self) {
        let is_whole = |it: usize| it.is_multiple_of(ALIGNMENT);
        assert!(self.length > 0 && self.length <= self.buffer.length(), "there is room for what is moved");
        assert!(is_whole(self.length) && self.at.is_multiple_of(ALIGNMENT as u64), "whole blocks are moved");
    }
}

impl<R> Op<R> {
    fn end(self, result: Result<(), IoFlaw>) -> Done<R> {
        Done { tag: self.tag, buffer: self.buffer, result }
    }
}

#[cfg(test)]
mod tests;
