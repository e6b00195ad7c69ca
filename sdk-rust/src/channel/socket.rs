//! `channel.sock` as packets: one packet is one frame, with the descriptors that belong to it.

use std::{
    io::{IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    time::{Duration, Instant},
};

use prost::Message as _;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
        SendAncillaryBuffer, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, connect, recv,
        recvmsg, sendmsg, shutdown, socket_with,
        sockopt::{Timeout, set_socket_timeout},
    },
};
use vramd_proto::{
    channel::{FDS_PER_PACKET_MAX, FRAME_BYTES_MAX},
    v1::{self, daemon_frame::Frame},
};

use super::frame;

/// A daemon that takes no frame for this long is as good as gone.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
}

#[derive(Debug)]
pub(crate) enum Received {
    Packet(Packet),
    Ended,
    /// Not a frame, or one of a kind that this build does not know.
    Unknown(String),
}

/// The result of a wait for something to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ready {
    Packet,
    Other,
    Neither,
}

#[derive(Debug)]
pub(crate) struct Packet {
    pub(crate) frame: Frame,
    pub(crate) fds: Vec<OwnedFd>,
    /// The kernel could not give this process all descriptors that were sent.
    pub(crate) fds_lost: bool,
}

impl Socket {
    pub(crate) fn connect(path: &Path, deadline: Instant) -> Result<Self, Errno> {
        let fd = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        // Connecting waits only if the daemon has not accepted for long. A time of zero would mean no limit.
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        set_socket_timeout(&fd, Timeout::Send, Some(left.min(SEND_TIMEOUT)))?;
        connect(&fd, &SocketAddrUnix::new(path)?)?;
        Self::from_fd(fd)
    }

    pub(crate) fn from_fd(fd: OwnedFd) -> Result<Self, Errno> {
        set_socket_timeout(&fd, Timeout::Send, Some(SEND_TIMEOUT))?;
        Ok(Self { fd })
    }

    pub(crate) fn send(&self, frame: v1::client_frame::Frame) -> Result<(), Errno> {
        self.send_with(frame, SendFlags::NOSIGNAL)
    }

    /// Like [`Self::send`], but fails with `AGAIN` instead of waiting.
    pub(crate) fn try_send(&self, frame: v1::client_frame::Frame) -> Result<(), Errno> {
        self.send_with(frame, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
    }

    fn send_with(&self, frame: v1::client_frame::Frame, flags: SendFlags) -> Result<(), Errno> {
        let bytes = v1::ClientFrame { frame: Some(frame) }.encode_to_vec();
        loop {
            let mut no_fds = SendAncillaryBuffer::default();
            match sendmsg(&self.fd, &[IoSlice::new(&bytes)], &mut no_fds, flags) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits for a packet or the end of the channel. Returns false once the deadline has passed.
    pub(crate) fn wait_readable(&self, deadline: Option<Instant>) -> Result<bool, Errno> {
        loop {
            let remaining = remaining(deadline)?;
            match poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], remaining.as_ref()) {
                Ok(ready) => return Ok(ready > 0),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits for a packet or the end of the channel, or for another descriptor; the packet comes first.
    pub(crate) fn wait_readable_or(
        &self,
        other: BorrowedFd<'_>,
        deadline: Option<Instant>,
    ) -> Result<Ready, Errno> {
        loop {
            let remaining = remaining(deadline)?;
            let mut both =
                [PollFd::new(&self.fd, PollFlags::IN), PollFd::from_borrowed_fd(other, PollFlags::IN)];
            match poll(&mut both, remaining.as_ref()) {
                Ok(0) => return Ok(Ready::Neither),
                Ok(_) if both[0].revents().is_empty() => return Ok(Ready::Other),
                Ok(_) => return Ok(Ready::Packet),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Decodes the waiting frame and leaves it with its descriptors. `None` if there is none.
    pub(crate) fn peek(&self) -> Option<Frame> {
        let mut bytes = vec![0; FRAME_BYTES_MAX];
        let (count, _) = recv(&self.fd, bytes.as_mut_slice(), RecvFlags::PEEK | RecvFlags::DONTWAIT).ok()?;
        frame::decode(bytes.get(..count)?).ok()
    }

    /// Receives the waiting packet. `None` if there is none after all.
    pub(crate) fn receive(&self) -> Result<Option<Received>, Errno> {
        let mut bytes = vec![0; FRAME_BYTES_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_PER_PACKET_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let message = match recvmsg(&self.fd, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
            Ok(message) => message,
            // Reported once, for frames that the daemon had not read when it closed. Its earlier frames are still
            // here, and then the end.
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNRESET) => return Ok(None),
            Err(error) => return Err(error),
        };
        let fds = control
            .drain()
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(fds) => Some(fds),
                _ => None,
            })
            .flatten()
            .collect();
        if message.bytes == 0 {
            return Ok(Some(Received::Ended));
        }
        if message.flags.contains(ReturnFlags::TRUNC) {
            return Ok(Some(Received::Unknown("the frame is larger than 64 KiB".to_owned())));
        }
        let frame = match frame::decode(&bytes[..message.bytes]) {
            Ok(frame) => frame,
            Err(problem) => return Ok(Some(Received::Unknown(problem))),
        };
        let fds_lost = message.flags.contains(ReturnFlags::CTRUNC);
        Ok(Some(Received::Packet(Packet { frame, fds, fds_lost })))
    }

    /// Ends the session for both sides, even where a forked child has a copy of the descriptor.
    pub(crate) fn end(&self) {
        // This fails only if it has ended already.
        let _ = shutdown(self.fd.as_fd(), Shutdown::Both);
    }
}

fn remaining(deadline: Option<Instant>) -> Result<Option<Timespec>, Errno> {
    let remaining = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    remaining.map(|remaining| Timespec::try_from(remaining).map_err(|_| Errno::OVERFLOW)).transpose()
}
