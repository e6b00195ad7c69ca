//! Reads and writes on a few threads, one operation on each.
#![allow(unsafe_code, reason = "the kernel gets addresses of memory")]

use std::{
    io::{IoSlice, IoSliceMut},
    slice,
};

use rustix::io::{Errno, ReadWriteFlags, preadv2, pwritev2};

use super::{DiskDirection, Done, Op, Request};
use crate::{
    DriverError,
    disk::{io_memory::IoMemory, workers::Workers},
};

/// Each thread waits for the disk most of its time.
const THREADS_MAX: usize = 8;

pub(crate) type Pool<R> = Workers<Op<R>, Done<R>>;

pub(super) fn pool<R: IoMemory>(depth: usize) -> Result<Pool<R>, DriverError> {
    Workers::new("disk-io", depth.min(THREADS_MAX), transfer_all)
}

/// Does the whole operation on the calling thread.
pub(crate) fn transfer_all<R: IoMemory>(op: Op<R>) -> Done<R> {
    op.check();
    let mut request = Request::new(0, op.length);
    let result = loop {
        let answer = transfer(&op, request);
        if let Some(result) = request.advance(answer) {
            break result;
        }
    };
    op.end(result)
}

/// Transfers as much of the rest as the kernel does at once.
fn transfer<R: IoMemory>(op: &Op<R>, request: Request) -> Result<usize, Errno> {
    let (start, length) = request.rest(op);
    let (file, at, flags) = (op.file.as_ref(), request.at(op), ReadWriteFlags::empty());
    match op.direction {
        DiskDirection::FromDisk => {
            // SAFETY: The range is inside the buffer, see `Op::check`, which is writable memory that this
            // thread owns during the call.
            let rest = unsafe { slice::from_raw_parts_mut(start, length) };
            preadv2(file, &mut [IoSliceMut::new(rest)], at, flags)
        }
        DiskDirection::ToDisk => {
            // SAFETY: As above, and it is only read.
            let rest = unsafe { slice::from_raw_parts(start, length) };
            pwritev2(file, &[IoSlice::new(rest)], at, flags)
        }
    }
}
