//! Operations in flight, each as a few requests to the kernel: which requests the kernel has, and the results
//! of the others.
//!
//! An operation is answered once the kernel has none of its requests. Else the next user of its memory would
//! share it with the kernel.

use rustix::io::Errno;

use super::{Done, IoFlaw, Op, Request};

pub(super) struct Requests<R> {
    ops: Vec<Option<InFlight<R>>>,
    /// The requests, each with its operation, by the number that the kernel knows.
    slots: Vec<Option<(usize, Request)>>,
}

/// The end of an operation.
pub(super) enum Answer<R> {
    Done(Done<R>),
    /// The kernel refused part of it, for that reason, and has no part of it now.
    NotTaken(Op<R>, Errno),
}

/// The effect of an answered request.
pub(super) enum Step<R> {
    /// The rest must be requested.
    Again,
    /// With its operation, if this was its last request.
    Ended(Option<Answer<R>>),
}

struct InFlight<R> {
    op: Op<R>,
    /// Requests that have not ended.
    left: usize,
    /// The flaw at the lowest offset, with the offset of its request.
    flaw: Option<(usize, IoFlaw)>,
    /// The kernel refused one of its requests.
    refused: Option<Errno>,
}

/// The end of a request.
enum End {
    Done(Result<(), IoFlaw>),
    NotTaken(Errno),
}

impl<R> Requests<R> {
    /// For so many operations at once, of at most so many requests each.
    pub(super) fn new(depth: usize, requests_max: usize) -> Self {
        Self { ops: (0..depth).map(|_| None).collect(), slots: vec![None; depth * requests_max] }
    }

    /// Enters an operation, and returns the numbers of its requests.
    pub(super) fn begin(&mut self, op: Op<R>, requests: impl Iterator<Item = Request>) -> Vec<usize> {
        let free = self.ops.iter().position(Option::is_none);
        let place = free.expect("no more is under way than was said at most");
        let mut slots = Vec::new();
        for request in requests {
            let free = self.slots.iter().position(Option::is_none);
            let slot = free.expect("an operation has few requests");
            self.slots[slot] = Some((place, request));
            slots.push(slot);
        }
        self.ops[place] = Some(InFlight { op, left: slots.len(), flaw: None, refused: None });
        slots
    }

    /// The request with that number, and its operation.
    pub(super) fn get(&self, slot: usize) -> Option<(&Op<R>, Request)> {
        let (place, request) = (*self.slots.get(slot)?)?;
        Some((&self.ops[place].as_ref()?.op, request))
    }

    /// Takes the kernel's answer to a request.
    pub(super) fn answered(&mut self, slot: usize, answer: Result<usize, Errno>) -> Step<R> {
        let known = self.slots.get_mut(slot).and_then(Option::as_mut);
        let (_, request) = known.expect("each request is answered once, by the number that the kernel has");
        match request.advance(answer) {
            Some(result) => Step::Ended(self.end(slot, End::Done(result))),
            None => Step::Again,
        }
    }

    /// Ends a request that the kernel will never accept. Returns its operation, if this was its last request.
    pub(super) fn refuse(&mut self, slot: usize, why: Errno) -> Option<Answer<R>> {
        self.end(slot, End::NotTaken(why))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ops.iter().all(Option::is_none)
    }

    fn end(&mut self, slot: usize, how: End) -> Option<Answer<R>> {
        let (place, request) = self.slots[slot].take()?;
        let in_flight = self.ops[place].as_mut()?;
        in_flight.left -= 1;
        match how {
            End::Done(Err(flaw)) if in_flight.flaw.is_none_or(|(from, _)| request.from < from) => {
                in_flight.flaw = Some((request.from, flaw));
            }
            End::Done(_) => {}
            End::NotTaken(why) => in_flight.refused = Some(why),
        }
        if in_flight.left > 0 {
            return None;
        }
        let InFlight { op, flaw, refused, .. } = self.ops[place].take()?;
        Some(match refused {
            Some(why) => Answer::NotTaken(op, why),
            None => Answer::Done(op.end(flaw.map_or(Ok(()), |(_, flaw)| Err(flaw)))),
        })
    }
}

#[cfg(test)]
mod tests;
