//! Reads and writes on a few threads, each of which does one at a time.
#![allow(unsafe_code, reason = "the kernel is told of memory by address")]

use std::{
    io::{IoSlice, IoSliceMut},
    slice,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, Sender, channel},
    },
};

use rustix::io::{Errno, ReadWriteFlags, preadv2, pwritev2};

use super::{Begun, Done, Op, Way};
use crate::{DriverError, disk::room::Room, threads::Threads};

/// Each waits for the disk most of its time.
const THREADS_MAX: usize = 8;

#[derive(Debug)]
pub(crate) struct Pool<R: Room> {
    /// Taken away to end the threads.
    orders: Option<Sender<Op<R>>>,
    done: Receiver<Done<R>>,
    threads: Threads,
}

impl<R: Room> Pool<R> {
    pub(crate) fn new(depth: usize) -> Result<Self, DriverError> {
        let (orders, orders_end) = channel();
        let (told, done) = channel();
        let orders_end = Arc::new(Mutex::new(orders_end));
        let mut pool = Self { orders: Some(orders), done, threads: Threads::default() };
        for _ in 0..depth.min(THREADS_MAX) {
            let (orders, told) = (Arc::clone(&orders_end), told.clone());
            pool.threads.start("disk-io", Box::new(move || run(&orders, &told)))?;
        }
        Ok(pool)
    }

    pub(crate) fn begin(&mut self, op: Op<R>) {
        let sent = self.orders.as_ref().is_some_and(|orders| orders.send(op).is_ok());
        assert!(sent, "a thread of the disk's has panicked");
    }

    pub(crate) fn poll(&mut self) -> Option<Done<R>> {
        self.done.try_recv().ok()
    }
}

impl<R: Room> Drop for Pool<R> {
    fn drop(&mut self) {
        drop(self.orders.take());
        self.threads.join();
    }
}

/// Until nobody can send any more.
fn run<R: Room>(orders: &Mutex<Receiver<Op<R>>>, told: &Sender<Done<R>>) {
    loop {
        let next = orders.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(op) = next else { return };
        let mut begun = Begun::of(op);
        let result = loop {
            let answer = transfer(&mut begun);
            if let Some(result) = begun.advance(answer) {
                break result;
            }
        };
        if told.send(begun.end(result)).is_err() {
            return;
        }
    }
}

/// As much of the rest as the kernel does at once.
fn transfer<R: Room>(begun: &mut Begun<R>) -> Result<usize, Errno> {
    let (start, length) = begun.rest();
    let (file, at, flags) = (begun.op.file.as_ref(), begun.at(), ReadWriteFlags::empty());
    match begun.op.way {
        Way::FromDisk => {
            // SAFETY: The range is inside the room, which is memory that may be written and which this thread owns while
            // the call takes.
            let rest = unsafe { slice::from_raw_parts_mut(start, length) };
            preadv2(file, &mut [IoSliceMut::new(rest)], at, flags)
        }
        Way::ToDisk => {
            // SAFETY: As above, and it is only read.
            let rest = unsafe { slice::from_raw_parts(start, length) };
            pwritev2(file, &[IoSlice::new(rest)], at, flags)
        }
    }
}
