//! Others who use a simulated device beside the daemon.

use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

/// Memory of the device that somebody took, until it is dropped.
pub fn outsider(uuid: &str, bytes: u64) -> OwnedFd {
    let fd = memfd_create(format!("vramd-sim:{uuid}:1"), MemfdFlags::CLOEXEC).expect("a memfd can be made");
    ftruncate(&fd, bytes).expect("it can be so long");
    fd
}
