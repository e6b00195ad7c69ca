//! Memory of this process that the driver pins: buffers that copies go through, and what is said where there is none.
//!
//! Buffers are charged to the process's cgroup, whatever memory of the host is made of. As that is exceeded the kernel ends processes, this
//! one perhaps: so it is asked for room before, and whoever needs a buffer is refused.

use std::sync::Arc;

use rustix::process::{Resource, getrlimit};
use vramd_types::Bytes;

use crate::cuda::{
    api::{Api, Context, CudaError, Pinned},
    copies::digester,
    host::headroom::{self, RequestLock},
    start::link_speeds,
};
use crate::{DriverError, HostLimit, disk};

/// What all buffers together take at most: those with which links are measured, those of digests, and of the disk the rings and those by
/// which it is read to be hashed.
pub fn buffers_max(devices: usize, disk: bool, files: bool) -> Bytes {
    let digesters = if files { 2 } else { 1 };
    let (rings, readers) =
        if disk || files { (disk::RING_BUFFERS, digester::READERS) } else { (Bytes::ZERO, Bytes::ZERO) };
    let all = std::iter::repeat_n(link_speeds::BUFFER, devices)
        .chain(std::iter::repeat_n(digester::BUFFERS, digesters))
        .chain(std::iter::repeat_n(readers, digesters))
        .chain([rings]);
    Bytes::checked_sum(all).unwrap_or(Bytes::MAX)
}

/// A buffer, if there is room for it.
pub(crate) fn new_buffer(context: &Arc<Context>, length: usize) -> Result<Pinned, DriverError> {
    make_buffer(&headroom::lock_requests(), context, length)
}

pub(crate) fn make_buffer(
    _: &RequestLock,
    context: &Arc<Context>,
    length: usize,
) -> Result<Pinned, DriverError> {
    let size = Bytes::new(length as u64);
    match headroom::limit_below_for_daemon(size) {
        Some(limit) => Err(DriverError::OutOfHostMemory(limit)),
        None => Pinned::new(context, length).map_err(|error| pin_error(context.api(), size, error)),
    }
}

/// Which limit it was, where so much more could not be registered. What the driver pins in this process's name, buffers and memory of the
/// host alike, may count as locked, as its kernel module has it: so RLIMIT_MEMLOCK is named where all of it would be more.
pub(crate) fn pin_error(api: &Api, requested: Bytes, error: CudaError) -> DriverError {
    let all = api.registered().saturating_add(requested);
    let locked = || getrlimit(Resource::Memlock).current.map(Bytes::new).filter(|limit| *limit < all);
    match error.of_pinned() {
        DriverError::OutOfHostMemory(limit) => {
            DriverError::OutOfHostMemory(locked().map_or(limit, HostLimit::Locked))
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_of_all_buffers_is_known_before_any_exists() {
        assert_eq!(buffers_max(1, false, false), Bytes::mib(64 + 128));
        // By a piece and the block behind it, each on two threads.
        let read = |threads: u64| threads * (2 << 20 | 4096);
        let disk = Bytes::new(Bytes::mib(8 * 64 + 128 + 64).get() + read(2));
        assert_eq!(buffers_max(8, true, false), disk);
        let files = Bytes::new(Bytes::mib(64 + 256 + 64).get() + read(4));
        assert_eq!(buffers_max(1, true, true), files, "files are hashed beside all else");
    }
}
