//! Reads how many bytes sent on a Unix socket no process has received.
//!
//! Descriptors in an unread packet outlive the process that they were sent to: another process with its end of the
//! socket, like a forked child, can still receive them.

#![allow(unsafe_code, reason = "an ioctl that rustix does not have")]

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
};

/// Returns the bytes of kernel memory that packets sent on this end still take. It is 0 once each of them was received
/// or can no longer be received, also after a shutdown of either end.
pub fn bytes(socket: BorrowedFd<'_>) -> io::Result<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: TIOCOUTQ, which sockets call SIOCOUTQ, writes one C int, and `bytes` is one that outlives the call.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(usize::try_from(bytes).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::{
        io::{IoSlice, IoSliceMut},
        mem::MaybeUninit,
        os::fd::{AsFd, OwnedFd},
    };

    use rustix::net::{
        AddressFamily, RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
        Shutdown, SocketFlags, SocketType, recvmsg, sendmsg, shutdown, socketpair,
    };

    use super::*;

    /// A pair of sockets. The second end has an unread packet with a descriptor.
    fn pair() -> (OwnedFd, OwnedFd) {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        assert_eq!(bytes(ours.as_fd()).unwrap(), 0);
        let memfd = rustix::fs::memfd_create("unread-test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let fds = [memfd.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        sendmsg(&ours, &[IoSlice::new(b"x")], &mut control, SendFlags::empty()).unwrap();
        assert!(bytes(ours.as_fd()).unwrap() > 0);
        (ours, theirs)
    }

    fn receive(socket: &OwnedFd, flags: RecvFlags) -> usize {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut buffer = [0; 4];
        recvmsg(socket, &mut [IoSliceMut::new(&mut buffer)], &mut control, flags).unwrap().bytes
    }

    #[test]
    fn a_received_packet_is_no_longer_unread() {
        let (ours, theirs) = pair();
        assert_eq!(receive(&theirs, RecvFlags::PEEK), 1);
        assert!(bytes(ours.as_fd()).unwrap() > 0, "a look takes nothing off the socket");
        assert_eq!(receive(&theirs, RecvFlags::empty()), 1);
        assert_eq!(bytes(ours.as_fd()).unwrap(), 0);
    }

    #[test]
    fn a_shutdown_of_either_end_changes_nothing() {
        let (ours, theirs) = pair();
        shutdown(&ours, Shutdown::Both).unwrap();
        shutdown(&theirs, Shutdown::Both).unwrap();
        assert!(bytes(ours.as_fd()).unwrap() > 0);
        assert_eq!(receive(&theirs, RecvFlags::empty()), 1, "it can still be received");
        assert_eq!(bytes(ours.as_fd()).unwrap(), 0);
    }

    #[test]
    fn a_packet_without_a_receiver_is_gone() {
        let (ours, theirs) = pair();
        let copy = theirs.try_clone().unwrap();
        shutdown(&ours, Shutdown::Both).unwrap();
        drop(theirs);
        assert!(bytes(ours.as_fd()).unwrap() > 0, "a copy of the socket is left");
        drop(copy);
        assert_eq!(bytes(ours.as_fd()).unwrap(), 0);
    }
}
