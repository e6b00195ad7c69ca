//! A few threads that take orders from one queue and return results in any order.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, Ordering},
    mpsc::{Receiver, Sender, channel},
};

use crate::{DriverError, threads::Threads};

#[derive(Debug)]
pub(super) struct Workers<I, O> {
    /// Dropped to end the threads.
    orders: Option<Sender<I>>,
    done: Receiver<O>,
    /// A thread has panicked, so that some result will never come.
    panicked: Arc<AtomicBool>,
    threads: Threads,
}

impl<I: Send + 'static, O: Send + 'static> Workers<I, O> {
    pub(super) fn new(name: &str, count: usize, work: fn(I) -> O) -> Result<Self, DriverError> {
        let (orders, orders_end) = channel();
        let (reported, done) = channel();
        let orders_end = Arc::new(Mutex::new(orders_end));
        let panicked = Arc::new(AtomicBool::new(false));
        let says = Arc::clone(&panicked);
        let threads = Threads::new(move |_| says.store(true, Ordering::Release));
        let mut workers = Self { orders: Some(orders), done, panicked, threads };
        for _ in 0..count {
            let (orders, reported) = (Arc::clone(&orders_end), reported.clone());
            workers.threads.start(name, Box::new(move || run(&orders, &reported, work)))?;
        }
        Ok(workers)
    }

    pub(super) fn begin(&self, order: I) {
        let sent = self.orders.as_ref().is_some_and(|orders| orders.send(order).is_ok());
        assert!(sent, "all threads have ended");
    }

    /// The next result. Does not sleep. Panics if one of the threads has, since the caller would wait forever.
    pub(super) fn poll(&self) -> Option<O> {
        assert!(!self.panicked.load(Ordering::Acquire), "a thread of the disk's has panicked");
        self.done.try_recv().ok()
    }
}

impl<I, O> Drop for Workers<I, O> {
    fn drop(&mut self) {
        drop(self.orders.take());
        self.threads.join();
    }
}

/// Runs until all senders are gone.
fn run<I, O>(orders: &Mutex<Receiver<I>>, reported: &Sender<O>, work: fn(I) -> O) {
    loop {
        let next = orders.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(order) = next else { return };
        if reported.send(work(order)).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn every_order_is_done_once() {
        let workers = Workers::new("test", 3, |it: u32| it * 2).unwrap();
        (0..100).for_each(|it| workers.begin(it));
        let (mut done, begun) = (Vec::new(), Instant::now());
        while done.len() < 100 {
            done.extend(workers.poll());
            assert!(begun.elapsed() < Duration::from_secs(30), "{done:?}");
        }
        done.sort_unstable();
        assert_eq!(done, (0..100).map(|it| it * 2).collect::<Vec<_>>());
        assert_eq!(workers.poll(), None);
    }

    #[test]
    fn polling_panics_after_a_worker_panicked() {
        let workers = Workers::new("test", 2, |it: u32| assert!(it > 0)).unwrap();
        [1, 0].into_iter().for_each(|it| workers.begin(it));
        let waits = std::panic::AssertUnwindSafe(|| {
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_secs(30) {
                workers.poll();
            }
        });
        assert!(std::panic::catch_unwind(waits).is_err());
    }
}
