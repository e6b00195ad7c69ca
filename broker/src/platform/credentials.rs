//! Reads the kernel's credentials of a Unix socket's peer: at connect time, and for each packet.
//!
//! Uses `libc` where `rustix` would be unsound: its `Pid` cannot be 0, and the kernel shows 0 for a process outside the
//! daemon's pid namespace.

#![allow(unsafe_code, reason = "getsockopt and recvmsg with types that rustix does not have")]

use std::{
    io,
    mem::{MaybeUninit, size_of},
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
    ptr,
};

/// Since Linux 6.5. `libc` has the constant only for newer targets.
const SO_PEERPIDFD: libc::c_int = 77;

/// A process as the kernel identifies it in the daemon's namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// 0 for a process outside the daemon's pid namespace.
    pub pid: i32,
    pub uid: u32,
    pub gid: u32,
}

impl From<libc::ucred> for Credentials {
    fn from(ucred: libc::ucred) -> Self {
        Self { pid: ucred.pid, uid: ucred.uid, gid: ucred.gid }
    }
}

/// Returns the credentials of the process that connected.
pub fn of_peer(socket: BorrowedFd<'_>) -> io::Result<Credentials> {
    // SAFETY: `ucred` is what the option is documented to write: three integers, valid for any bits.
    let ucred = unsafe { socket_option::<libc::ucred>(socket, libc::SO_PEERCRED) }?;
    Ok(ucred.into())
}

/// Returns a pidfd of exactly the process that connected. Kernels before 6.5 answer ENOPROTOOPT.
pub fn pidfd_of_peer(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: the option writes a descriptor, one C int.
    let fd = unsafe { socket_option::<RawFd>(socket, SO_PEERPIDFD) }?;
    // SAFETY: the kernel has just made it for this call; no other code has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// # Safety
/// `T` must be what the option writes, in full, and have no invalid values.
unsafe fn socket_option<T>(socket: BorrowedFd<'_>, name: libc::c_int) -> io::Result<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut length = libc::socklen_t::try_from(size_of::<T>()).map_err(io::Error::other)?;
    // SAFETY: the kernel writes at most `length` bytes to `value`, which has that many, and both outlive the call.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            name,
            value.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: zeroed and then written by the kernel; any bits are a `T`, as the caller promised.
    Ok(unsafe { value.assume_init() })
}

/// A received packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    pub bytes: usize,
    /// The process that sent it. `None` only at the end, on a socket with SO_PASSCRED.
    pub sender: Option<Credentials>,
    /// The packet was longer than the buffer.
    pub truncated: bool,
    /// The packet carried descriptors, which the kernel has closed.
    pub fds_dropped: bool,
}

impl Packet {
    /// Whether this is the end of the connection: an empty packet has a sender, the end has none.
    pub const fn is_end(&self) -> bool {
        self.bytes == 0 && self.sender.is_none()
    }
}

/// Room for one `ucred` and nothing else, so that the kernel never installs a descriptor here.
#[repr(C)]
union Control {
    space: [u8; CONTROL_BYTES],
    aligned: libc::cmsghdr,
}
// SAFETY: arithmetic on a constant; `CMSG_SPACE` has no precondition.
const CONTROL_BYTES: usize = unsafe { libc::CMSG_SPACE(UCRED_BYTES) } as usize;
#[allow(clippy::cast_possible_truncation, reason = "twelve")]
const UCRED_BYTES: libc::c_uint = size_of::<libc::ucred>() as libc::c_uint;

/// Receives a packet if there is one, without waiting. The socket must have SO_PASSCRED.
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Packet> {
    let mut control = Control { space: [0; CONTROL_BYTES] };
    let mut slice = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: `msghdr` is plain data; all zero means no name, no buffers, no control.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = &raw mut slice;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = CONTROL_BYTES;
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: `message` points to `buffer` and `control` with their true lengths, and both outlive the call.
    let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    let bytes = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
    Ok(Packet {
        bytes,
        sender: sender(&message),
        truncated: message.msg_flags & libc::MSG_TRUNC != 0,
        fds_dropped: message.msg_flags & libc::MSG_CTRUNC != 0,
    })
}

fn sender(message: &libc::msghdr) -> Option<Credentials> {
    // SAFETY: `message` and its control buffer are as `recvmsg` has left them, both alive and aligned in the caller.
    let header = unsafe { libc::CMSG_FIRSTHDR(message) };
    if header.is_null() {
        return None;
    }
    // SAFETY: not null, so it points to a whole header inside the control buffer.
    let (level, kind, length) = unsafe { ((*header).cmsg_level, (*header).cmsg_type, (*header).cmsg_len) };
    // SAFETY: arithmetic, as above.
    let whole = unsafe { libc::CMSG_LEN(UCRED_BYTES) } as usize;
    if level != libc::SOL_SOCKET || kind != libc::SCM_CREDENTIALS || length < whole {
        return None;
    }
    // SAFETY: a control message of this kind and length holds one `ucred`; it may be unaligned.
    let ucred = unsafe { ptr::read_unaligned(libc::CMSG_DATA(header).cast::<libc::ucred>()) };
    Some(ucred.into())
}

#[cfg(test)]
mod tests {
    use std::os::{fd::AsFd, unix::net::UnixStream};

    use super::*;

    #[test]
    fn the_kernel_names_this_process() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let peer = of_peer(ours.as_fd()).unwrap();
        assert_eq!(peer.pid, std::process::id().cast_signed());
        assert_eq!(peer.uid, rustix::process::getuid().as_raw());
    }

    #[test]
    fn errors_are_reported() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(of_peer(file.as_fd()).unwrap_err().raw_os_error(), Some(libc::ENOTSOCK));
        assert_eq!(receive(file.as_fd(), &mut [0; 4]).unwrap_err().raw_os_error(), Some(libc::ENOTSOCK));
    }
}
