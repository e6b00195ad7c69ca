//! Runs work from a queue in small batches, and reports each batch together.
//!
//! A completion wakes the thread that waits for it, and a wake-up costs about as much as creating an extent. So
//! a thread first does the work that is ready in its queue, up to a bound, and reports afterwards.

use std::{
    iter,
    sync::mpsc::{Receiver, TryRecvError},
};

use crate::Completion;

/// The most items of work in a batch, with or without a completion: half a millisecond of creating extents.
const BATCH_MAX: usize = 16;

/// Runs until all senders are gone. Items without a completion from `work` are reported by another thread.
pub(crate) fn run<T>(
    queue: &Receiver<T>,
    work: impl FnMut(T) -> Option<Completion>,
    report: impl Fn(Completion),
) {
    run_filling(queue, work, report, || false);
}

/// The same, and calls `fill` while the queue is empty.
pub(crate) fn run_filling<T>(
    queue: &Receiver<T>,
    mut work: impl FnMut(T) -> Option<Completion>,
    report: impl Fn(Completion),
    mut fill: impl FnMut() -> bool,
) {
    while let Some(first) = next_or_idle(queue, &mut fill) {
        let mut done = Vec::with_capacity(BATCH_MAX);
        let ready = iter::once(first).chain(queue.try_iter());
        done.extend(ready.take(BATCH_MAX).filter_map(&mut work));
        done.into_iter().for_each(&report);
    }
}

/// The next item, or nothing once all senders are gone. While the queue is empty, `fill` does one piece of
/// background work and returns whether it did any. So neither an item nor the end waits for more than one
/// piece.
pub(crate) fn next_or_idle<T>(queue: &Receiver<T>, mut fill: impl FnMut() -> bool) -> Option<T> {
    loop {
        match queue.try_recv() {
            Ok(first) => return Some(first),
            Err(TryRecvError::Disconnected) => return None,
            Err(TryRecvError::Empty) if fill() => {}
            Err(TryRecvError::Empty) => return queue.recv().ok(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, sync::mpsc::channel};

    use vramd_types::ExtentId;

    use super::*;

    #[test]
    fn idle_work_yields_to_orders_and_to_the_end() {
        let (sender, queue) = channel();
        sender.send(1).unwrap();
        let mut filled = 0;
        assert_eq!(next_or_idle(&queue, || panic!("an order is there")), Some(1));
        let fill = || {
            filled += 1;
            if filled == 3 {
                sender.send(2).unwrap();
            }
            true
        };
        assert_eq!(next_or_idle(&queue, fill), Some(2));
        assert_eq!(filled, 3);
        drop(sender);
        assert_eq!(next_or_idle(&queue, || panic!("all senders are gone")), None);
    }

    #[test]
    fn batch_is_reported_together_in_order_and_is_bounded() {
        let (sender, queue) = channel();
        (0..40).for_each(|raw| sender.send(raw).unwrap());
        drop(sender);
        let log = RefCell::new(Vec::new());
        let work = |raw: u64| {
            log.borrow_mut().push(("work", raw));
            (raw % 4 != 3).then(|| Completion::Returned { extent: ExtentId::from_raw(raw) })
        };
        run(&queue, work, |completion| {
            let Completion::Returned { extent } = completion else { panic!("{completion:?}") };
            log.borrow_mut().push(("reported", extent.get()));
        });
        let of =
            |kind| log.borrow().iter().filter(|(is, _)| *is == kind).map(|(_, raw)| *raw).collect::<Vec<_>>();
        assert_eq!(of("work"), (0..40).collect::<Vec<_>>());
        assert_eq!(of("reported"), (0..40).filter(|raw| *raw % 4 != 3).collect::<Vec<_>>());
        let first_reported = log.borrow().iter().position(|(is, _)| *is == "reported");
        assert_eq!(first_reported, Some(BATCH_MAX), "work without a completion counts too");
    }
}
