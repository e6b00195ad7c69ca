//! `channel.sock` without an SDK: raw packets, so that a test can send what no SDK would.

use std::{
    io::{IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    time::Duration,
};

use prost::Message as _;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Result,
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
        SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags,
        SocketType, connect, recvmsg, sendmsg, shutdown, socket_with,
    },
};
use vramd_proto::{
    channel::{FDS_PER_PACKET_MAX, FRAME_BYTES_MAX},
    v1::{ClientFrame, DaemonFrame, client_frame, daemon_frame},
};

/// One connection to `channel.sock`.
#[derive(Debug)]
pub struct RawChannel(OwnedFd);

/// The next thing on the channel.
#[derive(Debug)]
pub enum Packet {
    Frame(daemon_frame::Frame, Vec<OwnedFd>),
    /// A frame whose descriptors could not all be received. The received ones are closed.
    Cut(daemon_frame::Frame),
    /// The daemon has ended the channel.
    Ended,
    /// Nothing arrived in time.
    Silence,
}

impl RawChannel {
    pub fn connect(socket_dir: &Path) -> Result<Self> {
        let fd = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        connect(&fd, &SocketAddrUnix::new(socket_dir.join("channel.sock"))?)?;
        Ok(Self(fd))
    }

    pub fn send(&self, frame: client_frame::Frame) -> Result<()> {
        self.send_bytes(&ClientFrame { frame: Some(frame) }.encode_to_vec())
    }

    pub fn send_bytes(&self, bytes: &[u8]) -> Result<()> {
        sendmsg(&self.0, &[IoSlice::new(bytes)], &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL)
            .map(drop)
    }

    /// Sends a packet with ancillary data: descriptors, or credentials of the sender's choice.
    pub fn send_with(&self, bytes: &[u8], beside: SendAncillaryMessage<'_, '_>) -> Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64), ScmCredentials(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(beside), "the buffer has room for it");
        sendmsg(&self.0, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL).map(drop)
    }

    /// The next packet, or the state of the channel after `patience`.
    #[track_caller]
    pub fn receive(&self, patience: Duration) -> Packet {
        if !self.waits(patience) {
            return Packet::Silence;
        }
        let mut bytes = vec![0; FRAME_BYTES_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_PER_PACKET_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = {
            let buffer = &mut [IoSliceMut::new(&mut bytes)];
            recvmsg(&self.0, buffer, &mut control, RecvFlags::CMSG_CLOEXEC)
        };
        let Ok(message) = received else { return Packet::Ended };
        let mut handed = Vec::new();
        for beside in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = beside {
                handed.extend(rights);
            }
        }
        assert!(!message.flags.contains(ReturnFlags::TRUNC), "a frame is longer than the protocol allows");
        if message.bytes == 0 {
            return Packet::Ended;
        }
        let frame =
            DaemonFrame::decode(&bytes[..message.bytes]).expect("the daemon sends what the protocol has");
        let frame = frame.frame.expect("the daemon sends only frames that this test knows");
        if message.flags.contains(ReturnFlags::CTRUNC) {
            return Packet::Cut(frame);
        }
        Packet::Frame(frame, handed)
    }

    /// Waits until something can be received, including the end, and leaves it there. Returns whether it came in time.
    pub fn waits(&self, patience: Duration) -> bool {
        let patience = Timespec::try_from(patience).expect("a test's patience is short");
        poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&patience)).is_ok_and(|ready| ready > 0)
    }

    /// Closes the socket. Unread packets in it are gone.
    pub fn close(&mut self) -> Result<()> {
        self.0 = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok(())
    }

    /// Ends the connection, and keeps the socket with its unread packets.
    pub fn shut_down(&self) -> Result<()> {
        shutdown(&self.0, Shutdown::Both)
    }
}

impl AsFd for RawChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
