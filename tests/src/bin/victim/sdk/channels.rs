//! Ends the channels of this process behind the SDK's back, as a broken daemon or an impatient one would.

#![allow(unsafe_code, reason = "the SDK's own descriptor is what must be reached, and it gives none away")]

use std::{fs, os::fd::BorrowedFd, thread, time::Duration};

use rustix::net::{Shutdown, SocketType, shutdown, sockopt::socket_type};

/// In which the daemon has answered what it was sent.
const LATE: Duration = Duration::from_millis(3);

/// At once, or when what is on its way has arrived.
pub(super) fn shut_down(late: bool) {
    if late {
        thread::sleep(LATE);
    }
    let entries = fs::read_dir("/proc/self/fd").expect("/proc is there").flatten();
    for number in entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()) {
        // SAFETY: the SDK lends its channel to nobody, so it is found by its number. What another thread closed
        // meanwhile is no open descriptor, and the kernel says so; what it opened in its place is not of this type
        // unless it is a channel, too. Nothing is kept beyond this turn of the loop.
        let fd = unsafe { BorrowedFd::borrow_raw(number) };
        if socket_type(fd) == Ok(SocketType::SEQPACKET) {
            // It fails only where it has ended already.
            let _ = shutdown(fd, Shutdown::Both);
        }
    }
}
