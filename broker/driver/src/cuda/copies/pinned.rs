//! Makes pinned buffers of this process's memory, and says which limit stood in the way.
//!
//! Buffers are charged to the process's cgroup, whatever kind of host memory extents have. The kernel kills
//! processes of a cgroup that exceeds its limit, perhaps this one. So the driver checks the room first, and
//! refuses the borrower instead.

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

/// The most that all buffers take together: those for measuring links, those of digests, the rings of the disk,
/// and those for hashing disk extents.
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

/// Makes a buffer, if there is room for it.
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

/// The limit that refused to register so much more. Buffers and host memory that the
/// driver pins in this process's name may count as locked; that depends on its kernel module. So the error names
/// RLIMIT_MEMLOCK if all of it would exceed that.
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
        // A piece and the block behind it, on two threads each.
        let read = |threads: u64| threads * (2 << 20 | 4096);
        let disk = Bytes::new(Bytes::mib(8 * 64 + 128 + 64).get() + read(2));
        assert_eq!(buffers_max(8, true, false), disk);
        let files = Bytes::new(Bytes::mib(64 + 256 + 64).get() + read(4));
        assert_eq!(buffers_max(1, true, true), files, "files are hashed beside all else");
    }
}
