//! Reads and writes by an io_uring, which whoever asks for them also polls: no thread of ours stands in between.
#![allow(unsafe_code, reason = "the kernel is told of memory by address")]

use std::{collections::VecDeque, io, mem, os::fd::AsRawFd, thread, time::Duration};

use io_uring::{IoUring, Probe, opcode, squeue, types};
use rustix::io::Errno;

use super::{AGAIN_MAX, Begun, Done, Flaw, Op, Way};
use crate::disk::room::Room;

/// Between two looks at what a ring that is broken still does.
const NAP: Duration = Duration::from_millis(1);

pub(crate) struct Uring<R: Room> {
    ring: IoUring,
    /// What is under way, by the number that the kernel was told.
    slots: Vec<Option<Begun<R>>>,
    /// Those that the kernel has not taken yet, in the order in which it will.
    offered: VecDeque<usize>,
    /// How often in a row it would take none.
    refusals: u32,
    /// Why it never will again: then it is asked no more, since what it was offered is still in the ring.
    broken: Option<Errno>,
}

/// Whether the kernel lets this process use one, all the way: containers refuse it at the first or the second call.
pub(crate) fn works() -> Result<(), String> {
    let said = |what: &str, error: io::Error| format!("{what}: {error}");
    let mut ring = IoUring::new(2).map_err(|error| said("io_uring_setup", error))?;
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
        let entries = u32::try_from(depth).map_err(io::Error::other)?;
        let ring = IoUring::new(entries)?;
        let slots = (0..depth).map(|_| None).collect();
        Ok(Self { ring, slots, offered: VecDeque::new(), refusals: 0, broken: None })
    }

    pub(crate) fn begin(&mut self, op: Op<R>) {
        let free = self.slots.iter().position(Option::is_none);
        let slot = free.expect("no more is under way than was said at most");
        let begun = self.slots[slot].insert(Begun::of(op));
        let entry = entry(slot, begun);
        self.push(slot, &entry);
    }

    pub(crate) fn poll(&mut self) -> Option<Done<R>> {
        if !self.offered.is_empty() {
            self.submit();
        }
        loop {
            if let Some(done) = self.never_taken() {
                return Some(done);
            }
            let told = self.ring.completion().next()?;
            let slot = usize::try_from(told.user_data()).ok();
            let place = slot.and_then(|slot| self.slots.get_mut(slot).map(|place| (slot, place)));
            let (slot, place) = place.expect("the kernel says back what it was told");
            let begun = place.as_mut().expect("each is answered once");
            let answer = usize::try_from(told.result())
                .map_err(|_| Errno::from_raw_os_error(told.result().wrapping_neg()));
            match begun.advance(answer) {
                Some(result) => return place.take().map(|begun| begun.end(result)),
                None => {
                    let entry = entry(slot, begun);
                    self.push(slot, &entry);
                }
            }
        }
    }

    fn push(&mut self, slot: usize, entry: &squeue::Entry) {
        self.offered.push_back(slot);
        if self.broken.is_some() {
            return;
        }
        // SAFETY: File and memory of the entry are those of an operation in its slot, and stay there until the kernel has
        // answered: also when this value is dropped.
        let pushed = unsafe { self.ring.submission().push(entry) };
        assert!(pushed.is_ok(), "there are as many entries as slots");
        self.submit();
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

    /// One that the kernel has not taken, and never will.
    fn never_taken(&mut self) -> Option<Done<R>> {
        let error = self.broken?;
        let slot = self.offered.pop_front()?;
        self.slots.get_mut(slot)?.take().map(|begun| begun.end(Err(Flaw::Failed(error))))
    }
}

fn entry<R: Room>(slot: usize, begun: &Begun<R>) -> squeue::Entry {
    let file = types::Fd(begun.op.file.as_raw_fd());
    let (start, length) = begun.rest();
    // Of what is longer than that the rest is asked for once it is done.
    let length = u32::try_from(length).unwrap_or(1 << 30);
    let entry = match begun.op.way {
        Way::FromDisk => opcode::Read::new(file, start, length).offset(begun.at()).build(),
        Way::ToDisk => opcode::Write::new(file, start, length).offset(begun.at()).build(),
    };
    entry.user_data(slot as u64)
}

impl<R: Room> Drop for Uring<R> {
    /// The kernel's work on memory is waited for. Where even that can't be, the memory is never given up.
    fn drop(&mut self) {
        loop {
            while self.poll().is_some() {}
            if self.slots.iter().all(Option::is_none) {
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
                Err(_) => return mem::forget(mem::take(&mut self.slots)),
            }
        }
    }
}

impl<R: Room> std::fmt::Debug for Uring<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Uring").field("depth", &self.slots.len()).finish_non_exhaustive()
    }
}
