//! The daemon's end of a channel, played by a test.

use std::{
    io::{IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use prost::Message as _;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{MemfdFlags, ftruncate, memfd_create},
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
        SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
    },
};
use vramd_proto::v1::{
    self, Access, HandleType, Map, MapPart, PartRef, Revoke, RevokeReason, client_frame, daemon_frame::Frame,
};

use vramd_types::AllocationId;

use super::{Link, socket::Socket, worker};
use crate::{
    cuda::Gpus,
    mapping::{Mode, Table, Until},
    pins::Words,
};

pub(crate) const PART: u64 = 2 << 20;
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct Fake {
    daemon: OwnedFd,
    pub(crate) link: Arc<Link>,
    pub(crate) table: Arc<Table>,
    worker: JoinHandle<()>,
}

impl Fake {
    pub(crate) fn start(mode: Mode) -> Self {
        Self::start_with(mode, Gpus::new(&[]))
    }

    pub(crate) fn start_with(mode: Mode, gpus: Gpus) -> Self {
        let (daemon, client) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let link = Arc::new(Link::new(Socket::from_fd(client).unwrap()).unwrap());
        let table = Arc::new(Table::new(mode, gpus, Words::own().unwrap()));
        let worker = worker::spawn(Arc::clone(&link), Arc::clone(&table)).unwrap();
        Self { daemon, link, table, worker }
    }

    pub(crate) fn send(&self, frame: Frame, fds: &[BorrowedFd<'_>]) {
        let bytes = v1::DaemonFrame { frame: Some(frame) }.encode_to_vec();
        self.send_bytes(&bytes, fds);
    }

    pub(crate) fn send_bytes(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(128))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
        }
        sendmsg(&self.daemon, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL).unwrap();
    }

    pub(crate) fn map(&self, parts: Vec<MapPart>, fds: &[OwnedFd]) {
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        self.send(Frame::Map(Map { parts }), &fds);
    }

    pub(crate) fn revoke(&self, part: PartRef, reason: RevokeReason) {
        self.send(Frame::Revoke(Revoke { parts: vec![part], reason: reason.into() }), &[]);
    }

    /// The client's next frame; `None` when it has ended the channel.
    pub(crate) fn next(&self) -> Option<client_frame::Frame> {
        let deadline = Timespec::try_from(PATIENCE).unwrap();
        let mut waiting = [PollFd::new(&self.daemon, PollFlags::IN)];
        assert_eq!(poll(&mut waiting, Some(&deadline)).unwrap(), 1, "the client says nothing");
        let mut bytes = vec![0; 65536];
        let mut control = RecvAncillaryBuffer::default();
        let iov = &mut [IoSliceMut::new(&mut bytes)];
        let count = recvmsg(&self.daemon, iov, &mut control, RecvFlags::empty()).unwrap().bytes;
        (count > 0).then(|| v1::ClientFrame::decode(&bytes[..count]).unwrap().frame.unwrap())
    }

    /// Hangs up, and waits until the worker has seen it.
    pub(crate) fn hang_up(self) -> Arc<Table> {
        drop(self.daemon);
        self.worker.join().unwrap();
        self.table
    }
}

pub(crate) fn part_ref(allocation_id: u64, part_index: u32) -> PartRef {
    PartRef { allocation_id, part_index }
}

/// One of `count` parts, of a memfd.
pub(crate) fn part(allocation: u64, index: u32, count: u64, access: Access) -> MapPart {
    MapPart {
        part: Some(part_ref(allocation, index)),
        offset_bytes: u64::from(index) * PART,
        size_bytes: PART,
        span_bytes: count * PART,
        access: access.into(),
        handle_type: HandleType::Memfd.into(),
        device: 0,
        cuda_ipc_handle: Vec::new(),
        slot: 0,
    }
}

/// A part's memory, all bytes alike.
pub(crate) fn memory(name: &str, fill: u8) -> OwnedFd {
    let fd = memfd_create(name, MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, PART).unwrap();
    let bytes = vec![fill; usize::try_from(PART).unwrap()];
    assert_eq!(rustix::io::write(&fd, &bytes).unwrap(), bytes.len());
    fd
}

pub(crate) fn held(id: AllocationId, parts: usize, access: Access) -> Until {
    Until::Held { id, parts, access }
}

pub(crate) fn soon() -> Instant {
    Instant::now() + PATIENCE
}
