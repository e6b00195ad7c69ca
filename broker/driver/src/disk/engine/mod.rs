//! Reads and writes files. `uring` uses an io_uring of its own; `threads` uses `preadv2` and `pwritev2` on a
//! few threads, if the kernel refuses the first, at the start or later. Both behave the same to the byte, and
//! pass the same tests.

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

/// The way to move bytes between memory and disk.
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

/// A read or write: all of it or none.
#[derive(Debug)]
pub(crate) struct Op<R> {
    /// The caller's name for the operation.
    pub(crate) tag: u64,
    pub(crate) file: Arc<OwnedFd>,
    pub(crate) direction: DiskDirection,
    /// Like the length, a multiple of [`ALIGNMENT`].
    pub(crate) at: u64,
    pub(crate) length: usize,
    pub(crate) buffer: R,
}

/// The result of an operation.
#[derive(Debug)]
pub(crate) struct Done<R> {
    pub(crate) tag: u64,
    pub(crate) buffer: R,
    pub(crate) result: Result<(), IoFlaw>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IoFlaw {
    /// The file ended after so many bytes.
    Short(usize),
    Failed(Errno),
}

/// Dropping it waits for operations in flight.
#[derive(Debug)]
pub(crate) struct Engine<R: IoMemory> {
    by: Backend<R>,
    depth: usize,
    /// Taken when the ring's failure is reported.
    warn: Option<Warn>,
}

#[derive(Debug)]
enum Backend<R: IoMemory> {
    /// With threads, once the kernel accepts nothing from the ring.
    Ring(Box<Uring<R>>, Option<Pool<R>>),
    Threads(Pool<R>),
}

impl<R: IoMemory> Engine<R> {
    /// An engine for at most `depth` operations in flight, which the caller observes. If the ring cannot be set
    /// up, for lack of descriptors or memory for example, threads replace it, unless the configuration names
    /// io_uring. `warn` reports a failing ring, once.
    pub(crate) fn new(chosen: EngineChoice, depth: usize, warn: Warn) -> Result<Self, DriverError> {
        if chosen.engine == DiskEngine::Threads {
            return Ok(Self { by: Backend::Threads(pool(depth)?), depth, warn: None });
        }
        match Uring::new(depth) {
            Ok(ring) => Ok(Self { by: Backend::Ring(Box::new(ring), None), depth, warn: Some(warn) }),
            Err(error) if chosen.is_named => {
                Err(DriverError::Failed(format!("cannot set up an io_uring: {error}")))
            }
            Err(error) => {
                let by = Backend::Threads(pool(depth)?);
                warn.report(format!("cannot set up an io_uring for the disk, threads replace it: {error}"));
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

    /// The next ended operation, in any order. Does not sleep.
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
                warn.report(format!("an io_uring of the disk has failed, threads replace it: {why}"));
            }
            if threads.is_none() {
                *threads = pool(self.depth).ok();
            }
            match threads {
                // All of it again: reading or writing twice has the same result.
                Some(threads) => threads.begin(op),
                None => return Some(op.end(Err(IoFlaw::Failed(why)))),
            }
        }
        threads.as_ref()?.poll()
    }
}

/// Reports a problem to operators.
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

/// The engine to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EngineChoice {
    pub(crate) engine: DiskEngine,
    /// The configuration names it, so that no other may replace it.
    pub(crate) is_named: bool,
}

/// Chooses the engine: the requested one, else io_uring if the kernel permits it. Returns also why io_uring was
/// not chosen.
pub(crate) fn choose(requested: Option<DiskEngine>) -> Result<(DiskEngine, Option<String>), String> {
    choose_by(requested, check_uring)
}

/// For tests: the engines that work here. With `VRAMD_EXPECT_URING` set, io_uring must be one of them, so that
/// a machine for complete tests does not skip it silently.
///
/// # Panics
/// If io_uring does not work although it is expected.
pub(crate) fn usable_engines() -> Vec<DiskEngine> {
    let check = check_uring();
    if let Err(why) = &check {
        assert!(std::env::var_os("VRAMD_EXPECT_URING").is_none(), "io_uring cannot be used: {why}");
    }
    check.ok().map(|()| DiskEngine::Uring).into_iter().chain([DiskEngine::Threads]).collect()
}

/// A request for threads does not probe io_uring: where it is forbidden, the probe may kill the process.
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

/// How often in a row the kernel may ask for a retry.
const AGAIN_MAX: u32 = 10_000;

/// A request to the kernel: an operation, or a part of one.
#[derive(Clone, Copy, Debug)]
struct Request {
    /// Its offset in the operation.
    from: usize,
    length: usize,
    done: usize,
    again: u32,
}

impl Request {
    fn new(from: usize, length: usize) -> Self {
        Self { from, length, done: 0, again: 0 }
    }

    /// Takes the kernel's answer. Returns the result, unless the rest must be requested.
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

    /// The offset of the rest in the file.
    fn at<R>(&self, of: &Op<R>) -> u64 {
        of.at + (self.from + self.done) as u64
    }

    /// The address and length of the rest.
    fn rest<R: IoMemory>(&self, of: &Op<R>) -> (*mut u8, usize) {
        (of.buffer.start().as_ptr().wrapping_add(self.from + self.done), self.length - self.done)
    }
}

impl<R: IoMemory> Op<R> {
    /// Checked before the kernel gets the address.
    ///
    /// # Panics
    /// If the operation exceeds its buffer, or is not in whole blocks.
    fn check(&self) {
        let is_whole = |it: usize| it.is_multiple_of(ALIGNMENT);
        assert!(self.length > 0 && self.length <= self.buffer.length(), "the buffer holds the operation");
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
