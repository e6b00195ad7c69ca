//! Registers descriptors that tasks wait for.

#![allow(unsafe_code, reason = "AsyncFd takes no proof that its descriptor stays the same")]

use std::{io, os::fd::OwnedFd, sync::Arc};

use tokio::io::{Interest, unix::AsyncFd};

/// Registers a non-blocking socket, to read from, write to or accept on.
pub fn of_socket(socket: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` is open until it is dropped, which is when the `AsyncFd` is; it is never replaced.
    Ok(unsafe { AsyncFd::register(socket) }?)
}

/// Registers a pidfd, which is readable once its process has ended.
pub fn of_pidfd(pidfd: Arc<OwnedFd>) -> io::Result<AsyncFd<Arc<OwnedFd>>> {
    // SAFETY: as above, and the `AsyncFd` keeps its own share of it.
    Ok(unsafe { AsyncFd::register_with_interest(pidfd, Interest::READABLE) }?)
}
