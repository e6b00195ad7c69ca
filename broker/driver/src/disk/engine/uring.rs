//! Reads and writes by an io_uring, polled by the thread that begins the operations: no other thread stands in
//! between.
#![allow(unsafe_code, reason = "the kernel gets addresses of memory")]

use std::{collections::VecDeque, io, os::fd::AsRawFd, thread, time::Duration};

use io_uring::{IoUring, Probe, opcode, squeue, types};
use rustix::io::Errno;

use super::{
    AGAIN_MAX, DiskDirection, Op, Request,
    requests::{Answer, Requests, Step},
};
use crate::disk::{ALIGNMENT, RING_PIECES, io_memory::IoMemory};

/// How often the requests in a broken ring are polled.
const POLL_EVERY: Duration = Duration::from_millis(1);

/// The least that one request reads. Virtual disks are up to a sixth faster with several such requests than
/// with a large one, and the kernel splits large requests to many other disks anyway. Writes were not measured:
/// each is one request.
const READ_BYTES_MIN: usize = 512 << 10;
/// Of one operation.
const REQUESTS_MAX: usize = 4;

pub(super) struct Uring<R: IoMemory> {
    ring: IoUring,
    in_flight: Requests<R>,
    /// Requests that the kernel has not accepted yet, in their order.
    offered: VecDeque<usize>,
    /// How often in a row the kernel accepted none.
    refusals: u32,
    /// Why the kernel will never accept more. The ring is not entered again, since offered requests are still
    /// in it.
    broken: Option<Errno>,
}

/// Checks that this process may use a ring of a lane's size: containers refuse the first or the second call.
pub(crate) fn check() -> Result<(), String> {
    let failed = |what: &str, error: io::Error| format!("{what}: {error}");
    let size = u32::try_from(RING_PIECES * REQUESTS_MAX).unwrap_or(u32::MAX);
    let mut ring = IoUring::new(size).map_err(|error| failed("io_uring_setup", error))?;
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe).map_err(|error| failed("io_uring_register", error))?;
    if !probe.is_supported(opcode::Read::CODE) || !probe.is_supported(opcode::Write::CODE) {
        return Err("this kernel's io_uring has no plain reads and writes".to_owned());
    }
    // SAFETY: The request uses no memory.
    let pushed = unsafe { ring.submission().push(&opcode::Nop::new().build()) };
    pushed.map_err(|error| format!("io_uring: {error}"))?;
    ring.submit_and_wait(1).map_err(|error| failed("io_uring_enter", error))?;
    match ring.completion().next() {
        Some(_) => Ok(()),
        None => Err("io_uring_enter: no request was done".to_owned()),
    }
}

impl<R: IoMemory> Uring<R> {
    pub(super) fn new(depth: usize) -> io::Result<Self> {
        let ring = IoUring::new(u32::try_from(depth * REQUESTS_MAX).map_err(io::Error::other)?)?;
        let in_flight = Requests::new(depth, REQUESTS_MAX);
        Ok(Self { ring, in_flight, offered: VecDeque::new(), refusals: 0, broken: None })
    }

    /// Begins an operation. If the ring is broken, the operation comes back as refused.
    pub(super) fn begin(&mut self, op: Op<R>) {
        let requests = split(op.direction, op.length);
        for slot in self.in_flight.begin(op, requests) {
            self.push(slot);
        }
        self.submit();
    }

    pub(super) fn poll(&mut self) -> Option<Answer<R>> {
        if !self.offered.is_empty() {
            self.submit();
        }
        loop {
            while let Some((slot, why)) = self.take_refused() {
                if let Some(answer) = self.in_flight.refuse(slot, why) {
                    return Some(answer);
                }
            }
            let reported = self.ring.completion().next()?;
            let slot = usize::try_from(reported.user_data()).unwrap_or(usize::MAX);
            let answer = usize::try_from(reported.result())
                .map_err(|_| Errno::from_raw_os_error(reported.result().wrapping_neg()));
            match self.in_flight.answered(slot, answer) {
                Step::Ended(Some(answer)) => return Some(answer),
                Step::Ended(None) => {}
                Step::Again => {
                    self.push(slot);
                    self.submit();
                }
            }
        }
    }

    /// Offers the rest of a request to the kernel.
    fn push(&mut self, slot: usize) {
        self.offered.push_back(slot);
        if self.broken.is_some() {
            return;
        }
        let (op, request) = self.in_flight.get(slot).expect("a request is of an operation under way");
        let entry = entry(slot, op, request);
        // SAFETY: File and memory of the entry belong to an operation in flight. They stay valid until the
        // kernel has answered all its requests, also when this value is dropped. Requests of a broken ring are
        // never submitted.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        assert!(pushed.is_ok(), "there are as many entries as slots");
    }

    /// Submits the offered requests. A refused one is offered again with the next
    /// submission or poll, up to a bound.
    fn submit(&mut self) {
        if self.broken.is_none() {
            let submitted = self.ring.submit();
            self.record_submit(submitted);
        }
    }

    /// Records which requests the kernel has accepted, and whether it may accept more later.
    fn record_submit(&mut self, submitted: io::Result<usize>) {
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

    /// A request that the kernel will never accept, and why.
    fn take_refused(&mut self) -> Option<(usize, Errno)> {
        let error = self.broken?;
        Some((self.offered.pop_front()?, error))
    }
}

/// Splits an operation of that length into requests.
fn split(direction: DiskDirection, length: usize) -> impl Iterator<Item = Request> {
    let each = match direction {
        DiskDirection::FromDisk => {
            length.div_ceil(REQUESTS_MAX).next_multiple_of(ALIGNMENT).max(READ_BYTES_MIN)
        }
        DiskDirection::ToDisk => length,
    };
    (0..length).step_by(each).map(move |from| Request::new(from, each.min(length - from)))
}

fn entry<R: IoMemory>(slot: usize, op: &Op<R>, request: Request) -> squeue::Entry {
    let file = types::Fd(op.file.as_raw_fd());
    let (start, length) = request.rest(op);
    // The rest of a longer request follows once this part is done.
    let length = u32::try_from(length).unwrap_or(1 << 30);
    let entry = match op.direction {
        DiskDirection::FromDisk => opcode::Read::new(file, start, length).offset(request.at(op)).build(),
        DiskDirection::ToDisk => opcode::Write::new(file, start, length).offset(request.at(op)).build(),
    };
    entry.user_data(slot as u64)
}

impl<R: IoMemory> Drop for Uring<R> {
    /// Waits for the kernel to finish with the memory, however long it takes.
    fn drop(&mut self) {
        loop {
            while self.poll().is_some() {}
            if self.in_flight.is_empty() {
                return;
            }
            // A broken ring still contains requests that were given back long ago: it must not be entered.
            if self.broken.is_some() {
                thread::sleep(POLL_EVERY);
                continue;
            }
            let submitted = self.ring.submit_and_wait(1);
            self.record_submit(submitted);
        }
    }
}

impl<R: IoMemory> std::fmt::Debug for Uring<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Uring").field("broken", &self.broken).finish_non_exhaustive()
    }
}
