//! Reads and writes by an io_uring, which whoever asks for them also polls: no thread of ours stands in between.
#![allow(unsafe_code, reason = "the kernel is told of memory by address")]

use std::{collections::VecDeque, io, mem, os::fd::AsRawFd, thread, time::Duration};

use io_uring::{IoUring, Probe, opcode, squeue, types};
use rustix::io::Errno;

use super::{AGAIN_MAX, Done, Flaw, Op, Request, Way};
use crate::disk::{ALIGNMENT, RING_PIECES, room::Room};

/// Between two looks at what a ring that is broken still does.
const NAP: Duration = Duration::from_millis(1);

/// What one request reads at least: virtual disks are up to a sixth faster with several of these than with a large one, and many others are given no
/// larger ones by the kernel. Whether it is so of writes nobody has measured: each is one request.
const READ_BYTES_MIN: usize = 512 << 10;
/// Of one operation.
const REQUESTS_MAX: usize = 4;

pub(crate) struct Uring<R: Room> {
    ring: IoUring,
    ops: Vec<Option<UnderWay<R>>>,
    /// What the kernel was asked for and of which operation, by the number that it was told.
    slots: Vec<Option<(usize, Request)>>,
    /// Those that the kernel has not taken yet, in the order in which it will.
    offered: VecDeque<usize>,
    /// How often in a row it would take none.
    refusals: u32,
    /// Why it never will again: then it is asked no more, since what it was offered is still in the ring.
    broken: Option<Errno>,
}

/// What became of an operation.
pub(crate) enum Answer<R> {
    Done(Done<R>),
    /// The kernel would not take all of it, for that reason. It is in the kernel's hands no more.
    NotTaken(Op<R>, Errno),
}

struct UnderWay<R> {
    op: Op<R>,
    /// Requests that have not ended.
    left: usize,
    /// The first by its place, and where its request begins.
    flaw: Option<(usize, Flaw)>,
    /// One of them was never taken.
    refused: Option<Errno>,
}

/// Of a request.
enum End {
    Done(Result<(), Flaw>),
    NotTaken(Errno),
}

/// Whether the kernel lets this process use one of a lane's size, all the way: containers refuse it at the first or the second call.
pub(crate) fn works() -> Result<(), String> {
    let said = |what: &str, error: io::Error| format!("{what}: {error}");
    let size = u32::try_from(RING_PIECES * REQUESTS_MAX).unwrap_or(u32::MAX);
    let mut ring = IoUring::new(size).map_err(|error| said("io_uring_setup", error))?;
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe).map_err(|error| said("io_uring_register", error))?;
    if !probe.is_supported(opcode::Read::CODE) || !probe.is_supported(opcode::Write::CODE) {
        return Err("this kernel's io_uring has no plain reads and writes".to_owned());
    }
    // SAFETY: What is asked for uses no memory.
    let pushed = unsafe { ring.submission().push(&opcode::Nop::new().build()) };
    pushed.map_err(|error| format!("io_uring: {error}"))?;
    ring.submit_and_wait(1).map_err(|error| said("io_uring_enter", error))?;
    match ring.completion().next() {
        Some(_) => Ok(()),
        None => Err("io_uring_enter: nothing was done".to_owned()),
    }
}

impl<R: Room> Uring<R> {
    pub(crate) fn new(depth: usize) -> io::Result<Self> {
        let requests = depth * REQUESTS_MAX;
        let ring = IoUring::new(u32::try_from(requests).map_err(io::Error::other)?)?;
        let (ops, slots) = ((0..depth).map(|_| None).collect(), vec![None; requests]);
        Ok(Self { ring, ops, slots, offered: VecDeque::new(), refusals: 0, broken: None })
    }

    pub(crate) fn begin(&mut self, op: Op<R>) {
        let free = self.ops.iter().position(Option::is_none);
        let place = free.expect("no more is under way than was said at most");
        let requests: Vec<Request> = split(op.way, op.length).collect();
        self.ops[place] = Some(UnderWay { op, left: requests.len(), flaw: None, refused: None });
        for request in requests {
            let free = self.slots.iter().position(Option::is_none);
            let slot = free.expect("an operation has few requests");
            self.slots[slot] = Some((place, request));
            self.push(slot);
        }
        self.submit();
    }

    /// Why the kernel takes nothing any more: the caller begins nothing any more.
    pub(crate) fn broken(&self) -> Option<Errno> {
        self.broken
    }

    pub(crate) fn poll(&mut self) -> Option<Answer<R>> {
        if !self.offered.is_empty() {
            self.submit();
        }
        loop {
            while let Some((slot, why)) = self.never_taken() {
                if let Some(answer) = self.end(slot, End::NotTaken(why)) {
                    return Some(answer);
                }
            }
            let told = self.ring.completion().next()?;
            let slot = usize::try_from(told.user_data()).ok();
            let known = slot.and_then(|slot| Some((slot, self.slots.get_mut(slot)?)));
            let (slot, request) = known.expect("the kernel says back what it was told");
            let (_, request) = request.as_mut().expect("each is answered once");
            let answer = usize::try_from(told.result())
                .map_err(|_| Errno::from_raw_os_error(told.result().wrapping_neg()));
            match request.advance(answer) {
                Some(result) => {
                    if let Some(answer) = self.end(slot, End::Done(result)) {
                        return Some(answer);
                    }
                }
                None => {
                    self.push(slot);
                    self.submit();
                }
            }
        }
    }

    /// A request has ended; its operation, if that was the last of it.
    fn end(&mut self, slot: usize, how: End) -> Option<Answer<R>> {
        let (place, request) = self.slots[slot].take()?;
        let under_way = self.ops[place].as_mut()?;
        under_way.left -= 1;
        match how {
            End::Done(Err(flaw)) if under_way.flaw.is_none_or(|(from, _)| request.from < from) => {
                under_way.flaw = Some((request.from, flaw));
            }
            End::Done(_) => {}
            End::NotTaken(why) => under_way.refused = Some(why),
        }
        if under_way.left > 0 {
            return None;
        }
        let UnderWay { op, flaw, refused, .. } = self.ops[place].take()?;
        Some(match refused {
            Some(why) => Answer::NotTaken(op, why),
            None => Answer::Done(op.end(flaw.map_or(Ok(()), |(_, flaw)| Err(flaw)))),
        })
    }

    /// Offers the kernel what is left of a request.
    fn push(&mut self, slot: usize) {
        self.offered.push_back(slot);
        if self.broken.is_some() {
            return;
        }
        let entry = self.slots[slot]
            .and_then(|(place, request)| Some(entry(slot, &self.ops[place].as_ref()?.op, request)));
        let entry = entry.expect("a request is of an operation under way");
        // SAFETY: File and memory of the entry are those of an operation in its place, and stay there until the kernel has
        // answered all its requests, also when this value is dropped; those of a ring that is broken are never submitted.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        assert!(pushed.is_ok(), "there are as many entries as slots");
    }

    /// What the kernel does not take now it is offered again with the next, or when it is polled; but not for ever.
    fn submit(&mut self) {
        if self.broken.is_some() {
            return;
        }
        let submitted = self.ring.submit();
        let left = self.ring.submission().len();
        while self.offered.len() > left {
            self.offered.pop_front();
            self.refusals = 0;
        }
        let Some(error) = submitted.err().and_then(|error| Errno::from_io_error(&error)) else { return };
        self.refusals = self.refusals.saturating_add(1);
        let may_pass = matches!(error, Errno::INTR | Errno::AGAIN | Errno::BUSY | Errno::NOMEM);
        if !may_pass || self.refusals >= AGAIN_MAX {
            self.broken = Some(error);
        }
    }

    /// One that the kernel has not taken, and never will; and why.
    fn never_taken(&mut self) -> Option<(usize, Errno)> {
        let error = self.broken?;
        Some((self.offered.pop_front()?, error))
    }
}

/// Requests that are all of an operation of that length.
fn split(way: Way, length: usize) -> impl Iterator<Item = Request> {
    let each = match way {
        Way::FromDisk => length.div_ceil(REQUESTS_MAX).next_multiple_of(ALIGNMENT).max(READ_BYTES_MIN),
        Way::ToDisk => length,
    };
    (0..length).step_by(each).map(move |from| Request::new(from, each.min(length - from)))
}

fn entry<R: Room>(slot: usize, op: &Op<R>, request: Request) -> squeue::Entry {
    let file = types::Fd(op.file.as_raw_fd());
    let (start, length) = request.rest(op);
    // Of what is longer than that the rest is asked for once it is done.
    let length = u32::try_from(length).unwrap_or(1 << 30);
    let entry = match op.way {
        Way::FromDisk => opcode::Read::new(file, start, length).offset(request.at(op)).build(),
        Way::ToDisk => opcode::Write::new(file, start, length).offset(request.at(op)).build(),
    };
    entry.user_data(slot as u64)
}

impl<R: Room> Drop for Uring<R> {
    /// The kernel's work on memory is waited for. Where even that can't be, the memory is never given up.
    fn drop(&mut self) {
        loop {
            while self.poll().is_some() {}
            if self.ops.iter().all(Option::is_none) {
                return;
            }
            // A ring that is broken still has what was given back long ago: it must not be entered.
            if self.broken.is_some() {
                thread::sleep(NAP);
                continue;
            }
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return mem::forget(mem::take(&mut self.ops)),
            }
        }
    }
}

impl<R: Room> std::fmt::Debug for Uring<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Uring").field("depth", &self.ops.len()).finish_non_exhaustive()
    }
}
