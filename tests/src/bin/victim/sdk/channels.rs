//! Ends the channels of this process without the SDK's knowledge, as a broken or impatient daemon would.

#![allow(unsafe_code, reason = "the SDK's own descriptor is what must be reached, and it gives none away")]

use std::{fs, os::fd::BorrowedFd, thread, time::Duration};

use rustix::net::{Shutdown, SocketType, shutdown, sockopt::socket_type};

/// Time in which the daemon has answered earlier frames.
const LATE: Duration = Duration::from_millis(3);

/// Shuts the channels down: at once, or when packets in flight have arrived.
pub(super) fn shut_down(late: bool) {
    if late {
        thread::sleep(LATE);
    }
    let entries = fs::read_dir("/proc/self/fd").expect("/proc is there").flatten();
    for number in entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()) {
        // SAFETY: the SDK lends its channel to no caller, so this code finds it by its number. A descriptor that
        // another thread has closed meanwhile is not open, and the kernel says so. One that it opened in its place is
        // not of this type unless it is a channel, too. Nothing is kept beyond this turn of the loop.
        let fd = unsafe { BorrowedFd::borrow_raw(number) };
        if socket_type(fd) == Ok(SocketType::SEQPACKET) {
            // It fails only if the channel has ended already.
            let _ = shutdown(fd, Shutdown::Both);
        }
    }
}
