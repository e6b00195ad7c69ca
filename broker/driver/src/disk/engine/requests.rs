//! Operations that are under way, each as a few requests to the kernel: which of them are in its hands, and what became of the others.
//!
//! An operation is answered once none of its requests is the kernel's any more. Else whoever gets it back would have another write the memory
//! that the kernel still writes.

use rustix::io::Errno;

use super::{Done, IoFlaw, Op, Request};

pub(super) struct Requests<R> {
    ops: Vec<Option<InFlight<R>>>,
    /// What the kernel is asked for and of which operation, by the number that it is told.
    slots: Vec<Option<(usize, Request)>>,
}

/// What became of an operation.
pub(super) enum Answer<R> {
    Done(Done<R>),
    /// The kernel would not take all of it, for that reason. It is in the kernel's hands no more.
    NotTaken(Op<R>, Errno),
}

/// Of a request that the kernel has answered.
pub(super) enum Step<R> {
    /// The rest of it is to be asked for.
    Again,
    /// With its operation, if that was the last of it.
    Ended(Option<Answer<R>>),
}

struct InFlight<R> {
    op: Op<R>,
    /// Requests that have not ended.
    left: usize,
    /// The first by its place, and where its request begins.
    flaw: Option<(usize, IoFlaw)>,
    /// One of them was never taken.
    refused: Option<Errno>,
}

/// Of a request.
enum End {
    Done(Result<(), IoFlaw>),
    NotTaken(Errno),
}

impl<R> Requests<R> {
    /// For so many operations at once, of so many requests each at most.
    pub(super) fn new(depth: usize, requests_max: usize) -> Self {
        Self { ops: (0..depth).map(|_| None).collect(), slots: vec![None; depth * requests_max] }
    }

    /// The numbers of its requests.
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

    /// What is under way by that number.
    pub(super) fn get(&self, slot: usize) -> Option<(&Op<R>, Request)> {
        let (place, request) = (*self.slots.get(slot)?)?;
        Some((&self.ops[place].as_ref()?.op, request))
    }

    /// The kernel has answered.
    pub(super) fn answered(&mut self, slot: usize, answer: Result<usize, Errno>) -> Step<R> {
        let known = self.slots.get_mut(slot).and_then(Option::as_mut);
        let (_, request) = known.expect("each is answered once, by the number that the kernel was told");
        match request.advance(answer) {
            Some(result) => Step::Ended(self.end(slot, End::Done(result))),
            None => Step::Again,
        }
    }

    /// The kernel has not taken it and never will. Its operation, if that was the last of it.
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
