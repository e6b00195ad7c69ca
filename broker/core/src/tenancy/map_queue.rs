//! The queue of parts that wait to be sent to a session, in the order of the requests.
//!
//! A part that is freed while it waits is not searched for. It stays in the queue, is skipped at its turn,
//! and is swept out once most of the queue is stale. So a session may have a million parts waiting and free
//! any of them cheaply.

use std::collections::{BTreeSet, VecDeque};

use crate::event::PartRef;

/// A shorter queue is not worth sweeping.
const SWEEP_MIN: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct MapQueue {
    /// A part that was forgotten and queued again is in here twice: its first turn counts.
    line: VecDeque<PartRef>,
    /// The number of waiting parts.
    waiting: usize,
}

impl MapQueue {
    pub(crate) fn push(&mut self, part: PartRef) {
        self.line.push_back(part);
        self.waiting = self.waiting.saturating_add(1);
    }

    /// Removes one waiting part. `waits` tells whether a part still waits.
    pub(crate) fn forget(&mut self, waits: impl Fn(PartRef) -> bool) {
        self.waiting = self.waiting.saturating_sub(1);
        if self.line.len() > SWEEP_MIN.max(self.waiting.saturating_mul(2)) {
            let mut seen = BTreeSet::new();
            self.line.retain(|part| waits(*part) && seen.insert(*part));
        }
    }

    /// Removes and returns the next part that still waits.
    pub(crate) fn pop(&mut self, waits: impl Fn(PartRef) -> bool) -> Option<PartRef> {
        while let Some(part) = self.line.pop_front() {
            if waits(part) {
                self.waiting = self.waiting.saturating_sub(1);
                return Some(part);
            }
        }
        None
    }

    /// Removes and returns all waiting parts, in order.
    pub(crate) fn take(&mut self, waits: impl Fn(PartRef) -> bool) -> Vec<PartRef> {
        let mut seen = BTreeSet::new();
        self.waiting = 0;
        self.line.drain(..).filter(|part| waits(*part) && seen.insert(*part)).collect()
    }

    pub(crate) const fn len(&self) -> usize {
        self.waiting
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.waiting == 0
    }
}

#[cfg(test)]
mod tests {
    use vramd_types::{AllocationId, PartIndex};

    use super::*;

    fn part(number: u64) -> PartRef {
        PartRef { allocation: AllocationId::from_raw(number), part: PartIndex(0) }
    }

    #[test]
    fn requeued_part_keeps_its_earlier_turn_alone() {
        let mut queue = MapQueue::default();
        for number in [1, 2, 3] {
            queue.push(part(number));
        }
        queue.forget(|other| other != part(2));
        queue.push(part(2));
        let served = std::cell::Cell::new(0);
        let mut order = Vec::new();
        while let Some(next) = queue.pop(|other| served.get() & (1 << other.allocation.get()) == 0) {
            served.set(served.get() | 1 << next.allocation.get());
            order.push(next.allocation.get());
        }
        assert_eq!((order, queue.len()), (vec![1, 2, 3], 0));
    }

    #[test]
    fn requeued_parts_do_not_lengthen_the_queue() {
        let mut queue = MapQueue::default();
        queue.push(part(0));
        queue.push(part(1));
        for _ in 0..10_000 {
            for number in [0, 1] {
                queue.forget(|other| other != part(number));
                queue.push(part(number));
            }
        }
        assert_eq!(queue.len(), 2);
        assert!(queue.line.len() <= SWEEP_MIN + 2, "{}", queue.line.len());
        assert_eq!(queue.take(|_| true).len(), 2);
    }
}
