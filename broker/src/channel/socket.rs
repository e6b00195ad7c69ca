//! A SOCK_SEQPACKET socket for tasks: it receives whole packets with their senders, and sends packets with descriptors.

use std::{
    cell::RefCell,
    io::{self, IoSlice},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown};
use tokio::io::unix::AsyncFd;
use vramd_proto::channel::{FDS_PER_PACKET_MAX, FRAME_BYTES_MAX};

use super::OutFrame;
use crate::platform::{
    credentials::{self, Packet},
    readiness,
};

thread_local! {
    /// The packet that this thread receives.
    static BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; FRAME_BYTES_MAX].into());
}

#[derive(Debug)]
pub(super) struct Socket {
    fd: AsyncFd<OwnedFd>,
}

impl Socket {
    /// Takes a non-blocking socket.
    pub(super) fn new(fd: OwnedFd) -> io::Result<Self> {
        Ok(Self { fd: readiness::of_socket(fd)? })
    }

    /// Receives the next packet and has it read at once, so that sessions need no buffers of their own. Descriptors in
    /// the packet are not taken: the kernel closes them and reports that.
    pub(super) async fn receive<T>(&self, mut read: impl FnMut(&[u8], Packet) -> T) -> io::Result<T> {
        loop {
            let mut ready = self.fd.readable().await?;
            let received = BUFFER.with_borrow_mut(|buffer| {
                let packet = ready.try_io(|fd| credentials::receive(fd.as_fd(), buffer));
                packet.map(|packet| packet.map(|packet| read(buffer, packet)))
            });
            match received {
                Ok(result) => return result,
                Err(_would_block) => {}
            }
        }
    }

    /// Sends the frame and its descriptors in one packet, once there is room.
    pub(super) async fn send(&self, frame: &OutFrame) -> io::Result<()> {
        loop {
            let mut ready = self.fd.writable().await?;
            match ready.try_io(|fd| send(fd.as_fd(), frame)) {
                Ok(result) => return result,
                Err(_would_block) => {}
            }
        }
    }

    /// Sends the frame if there is room at once.
    pub(super) fn try_send(&self, frame: &OutFrame) -> io::Result<()> {
        send(self.fd.as_fd(), frame)
    }

    /// Ends both directions. Packets that the peer sent before can still be received; then comes the end.
    pub(super) fn shutdown(&self) {
        // It fails only if the peer has left, which has the same effect.
        let _ = rustix::net::shutdown(&self.fd, Shutdown::Both);
    }

    /// Receives all packets that are left after a [`Self::shutdown`]. If a socket is closed with unread packets, its
    /// peer gets ECONNRESET in place of the last frame.
    pub(super) fn discard_received(&self) {
        let mut buffer = [0; 64];
        while credentials::receive(self.fd.as_fd(), &mut buffer).is_ok_and(|packet| !packet.is_end()) {}
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn send(socket: BorrowedFd<'_>, frame: &OutFrame) -> io::Result<()> {
    let fds: Vec<_> = frame.exports.iter().filter_map(broker_driver::Export::fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_PER_PACKET_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(io::Error::other(format!("{} descriptors in one packet", fds.len())));
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    rustix::net::sendmsg(socket, &[IoSlice::new(&frame.bytes)], &mut control, flags)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use broker_driver::Export;
    use rustix::{
        fs::{MemfdFlags, memfd_create},
        net::{AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType},
    };

    use super::*;

    fn pair() -> (Socket, OwnedFd) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        rustix::net::sockopt::set_socket_passcred(&ours, true).unwrap();
        (Socket::new(ours).unwrap(), theirs)
    }

    fn send_fds(socket: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)));
        rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::empty()).unwrap();
    }

    #[tokio::test]
    async fn a_packet_names_its_sender() {
        let (ours, theirs) = pair();
        send_fds(&theirs, b"hello", &[]);
        let read = |bytes: &[u8], packet: Packet| (bytes[..packet.bytes].to_vec(), packet);
        let (bytes, packet) = ours.receive(read).await.unwrap();
        assert_eq!(bytes, b"hello");
        assert_eq!(packet.sender.map(|sender| sender.pid), Some(std::process::id().cast_signed()));
        assert!(!packet.truncated && !packet.fds_dropped && !packet.is_end());
    }

    #[tokio::test]
    async fn descriptors_are_not_taken_and_too_much_is_noticed() {
        let (ours, theirs) = pair();
        let (mut probe, watched) = io::pipe().unwrap();
        send_fds(&theirs, &vec![b'x'; FRAME_BYTES_MAX + 1], &[watched.as_fd(), watched.as_fd()]);
        drop(watched);
        let packet = ours.receive(|_, packet| packet).await.unwrap();
        assert!(packet.truncated && packet.fds_dropped);
        // The pipe's other end is closed everywhere: a leaked copy would let this read wait.
        assert_eq!(io::Read::read(&mut probe, &mut [0; 1]).unwrap(), 0);
    }

    #[tokio::test]
    async fn an_empty_packet_is_not_the_end() {
        let (ours, theirs) = pair();
        send_fds(&theirs, b"", &[]);
        assert!(!ours.receive(|_, packet| packet.is_end()).await.unwrap());
        drop(theirs);
        assert!(ours.receive(|_, packet| packet.is_end()).await.unwrap());
    }

    #[tokio::test]
    async fn the_last_frame_arrives_though_packets_were_unread() {
        let (ours, theirs) = pair();
        send_fds(&theirs, b"unread", &[]);
        ours.try_send(&OutFrame { bytes: b"refused".to_vec(), exports: vec![], note_of: None }).unwrap();
        ours.shutdown();
        ours.discard_received();
        drop(ours);
        let mut buffer = [0; 16];
        assert_eq!(rustix::net::recv(&theirs, &mut buffer[..], RecvFlags::empty()).unwrap().0, 7);
    }

    #[tokio::test]
    async fn the_most_descriptors_arrive_in_one_packet() {
        let (ours, theirs) = pair();
        let memfd = Arc::new(memfd_create("socket-test", MemfdFlags::CLOEXEC).unwrap().into());
        let exports = vec![Export::Memfd(memfd); FDS_PER_PACKET_MAX];
        ours.send(&OutFrame { bytes: b"map".to_vec(), exports: exports.clone(), note_of: None })
            .await
            .unwrap();
        let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_PER_PACKET_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut buffer = [0; 8];
        let buffers = &mut [io::IoSliceMut::new(&mut buffer)];
        rustix::net::recvmsg(&theirs, buffers, &mut control, RecvFlags::CMSG_CLOEXEC).unwrap();
        let count: usize = control
            .drain()
            .map(|message| if let RecvAncillaryMessage::ScmRights(fds) = message { fds.count() } else { 0 })
            .sum();
        assert_eq!(count, FDS_PER_PACKET_MAX);

        let too_many = [exports, vec![Export::CudaIpc([0; 64]); 1]].concat();
        assert!(
            ours.try_send(&OutFrame { bytes: vec![1], exports: too_many, note_of: None }).is_ok(),
            "no descriptor for that one"
        );
    }
}
