//! Other programs that take memory of a simulated device, or of the host.

use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

/// Takes memory of the device until it is dropped.
pub fn take_device_memory(uuid: &str, bytes: u64) -> OwnedFd {
    taken(&format!("vramd-sim:{uuid}:1"), bytes)
}

/// Takes memory of the host. It bears the name of the daemon's first device.
pub fn take_host_memory(uuid: &str, bytes: u64) -> OwnedFd {
    taken(&format!("vramd-sim:{uuid}:host-1"), bytes)
}

fn taken(name: &str, bytes: u64) -> OwnedFd {
    let fd = memfd_create(name, MemfdFlags::CLOEXEC).expect("a memfd can be made");
    ftruncate(&fd, bytes).expect("it can be so long");
    fd
}
