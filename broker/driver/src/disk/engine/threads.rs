//! Reads and writes on a few threads, each of which does one at a time.
#![allow(unsafe_code, reason = "the kernel is told of memory by address")]

use std::{
    io::{IoSlice, IoSliceMut},
    slice,
};

use rustix::io::{Errno, ReadWriteFlags, preadv2, pwritev2};

use super::{Begun, Done, Op, Way};
use crate::{
    DriverError,
    disk::{room::Room, workers::Workers},
};

/// Each waits for the disk most of its time.
const THREADS_MAX: usize = 8;

pub(crate) type Pool<R> = Workers<Op<R>, Done<R>>;

pub(super) fn pool<R: Room>(depth: usize) -> Result<Pool<R>, DriverError> {
    Workers::new("disk-io", depth.min(THREADS_MAX), transfer_all)
}

fn transfer_all<R: Room>(op: Op<R>) -> Done<R> {
    let mut begun = Begun::of(op);
    let result = loop {
        let answer = transfer(&mut begun);
        if let Some(result) = begun.advance(answer) {
            break result;
        }
    };
    begun.end(result)
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
