//! A fake daemon: the daemon's end of a channel, played by a test.

use std::{
    io::{IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
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
use vramd_proto::{
    channel::PROTOCOL_MAJOR,
    v1::{
        self, Access, HandleType, Map, MapPart, PartRef, Refused, Revoke, RevokeReason, client_frame,
        daemon_frame::Frame,
    },
};

use vramd_types::{AllocationId, Reason};
use vramd_words::{Daemon, DaemonSlot, Fence, Header, bytes_for};

use super::{Link, socket::Socket, worker};
use crate::{
    cuda::Gpus,
    mapping::{Mode, Table, Until},
    pins::{Memory, Words},
    process::fork::ProcessBound,
    session::{Session, pressure::Pressures},
};

pub(crate) const PART: u64 = 2 << 20;
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct Fake {
    daemon: OwnedFd,
    pub(crate) link: Arc<Link>,
    pub(crate) table: Arc<Table>,
    worker: JoinHandle<()>,
}

/// A daemon that supports pins, with a whole session at its other end.
pub(crate) struct Pinning {
    daemon: OwnedFd,
    pub(crate) words: Daemon<Memory>,
    pub(crate) session: ProcessBound<Session>,
}

const SLOTS: u32 = 2048;

impl Fake {
    pub(crate) fn start(mode: Mode) -> Self {
        Self::start_with(mode, Gpus::new(&[]))
    }

    pub(crate) fn start_with(mode: Mode, gpus: Gpus) -> Self {
        Self::start_with_pressure(mode, gpus, Pressures::default())
    }

    pub(crate) fn start_with_pressure(mode: Mode, gpus: Gpus, pressures: Pressures) -> Self {
        let (daemon, client) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let link = Arc::new(Link::new(Socket::from_fd(client).unwrap()).unwrap());
        let table = Arc::new(Table::new(mode, gpus, Words::own().unwrap(), pressures));
        let worker = worker::spawn(Arc::clone(&link), Arc::clone(&table)).unwrap();
        Self { daemon, link, table, worker }
    }

    pub(crate) fn send(&self, frame: Frame, fds: &[BorrowedFd<'_>]) {
        send(&self.daemon, frame, fds);
    }

    pub(crate) fn send_bytes(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        send_bytes(&self.daemon, bytes, fds);
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
        next(&self.daemon)
    }

    /// Ends the channel, and waits until the worker has seen it.
    pub(crate) fn hang_up(self) -> Arc<Table> {
        self.close()()
    }

    /// Ends the channel. The returned function waits until the worker has seen it.
    pub(crate) fn close(self) -> impl FnOnce() -> Arc<Table> {
        let Self { daemon, worker, table, .. } = self;
        drop(daemon);
        move || {
            worker.join().unwrap();
            table
        }
    }
}

impl Pinning {
    pub(crate) fn start(gpus: Gpus, request_timeout: Duration) -> Self {
        let (daemon, client) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let memfd = memfd_create("vramd-words", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&memfd, bytes_for(SLOTS)).unwrap();
        let memory = Memory::shared(memfd.as_fd(), bytes_for(SLOTS)).unwrap();
        let header = Header { major: PROTOCOL_MAJOR, minor: 0, features: 0, slots: SLOTS };
        let words = Daemon::create(memory, header).unwrap();
        let words_of = Words::shared(memfd.as_fd(), SLOTS).unwrap();
        let table = Table::new(Mode::Map, gpus, words_of, Pressures::default());
        let link = Link::new(Socket::from_fd(client).unwrap()).unwrap();
        // No daemon answers calls there.
        let nowhere = Path::new("/nowhere");
        let session = Session::begin(
            link,
            table,
            v1::Welcome { session_id: 3, ..Default::default() },
            nowhere,
            request_timeout,
        );
        Self { daemon, words, session: session.unwrap() }
    }

    /// Maps parts of allocation 7, each in the slot of its number.
    pub(crate) fn map(&self, parts: Vec<MapPart>, fds: &[OwnedFd]) {
        let slotted = |part: MapPart| {
            let index = part.part.as_ref().map_or(0, |part| part.part_index);
            let allocation = part.part.as_ref().map_or(0, |part| part.allocation_id);
            MapPart { slot: slot(allocation, index), ..part }
        };
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        send(&self.daemon, Frame::Map(Map { parts: parts.into_iter().map(slotted).collect() }), &fds);
    }

    /// Maps a part in the slot that it names.
    pub(crate) fn send_map(&self, part: MapPart, fd: &OwnedFd) {
        send(&self.daemon, Frame::Map(Map { parts: vec![part] }), &[fd.as_fd()]);
    }

    pub(crate) fn word(&self, part: PartRef) -> DaemonSlot<'_> {
        self.words.slot(slot(part.allocation_id, part.part_index)).unwrap()
    }

    /// Sets REVOKE in the word, then sends the frame.
    pub(crate) fn revoke(&self, part: PartRef, reason: RevokeReason) {
        if matches!(self.word(part).state(), Ok(vramd_words::State::Resident { .. })) {
            assert!(matches!(self.word(part).revoke_to_fence(), Ok(Fence::Revoked { .. })));
        }
        self.tell_revoke(part, reason);
    }

    /// Sends the frame alone.
    pub(crate) fn tell_revoke(&self, part: PartRef, reason: RevokeReason) {
        self.send(Frame::Revoke(Revoke { parts: vec![part], reason: reason.into() }));
    }

    pub(crate) fn send(&self, frame: Frame) {
        send(&self.daemon, frame, &[]);
    }

    /// Returns the client's next frame. The wait of a pin is checked and left out, since it varies.
    pub(crate) fn next(&self) -> Option<client_frame::Frame> {
        let mut frame = next(&self.daemon);
        if let Some(client_frame::Frame::Pin(pin)) = &mut frame {
            assert!(pin.wait_ms.take().is_some_and(|wait| wait > 0));
        }
        frame
    }

    /// Whether the client sends nothing for a while.
    pub(crate) fn is_silent(&self) -> bool {
        let moment = Timespec::try_from(Duration::from_millis(30)).unwrap();
        poll(&mut [PollFd::new(&self.daemon, PollFlags::IN)], Some(&moment)).unwrap() == 0
    }

    pub(crate) fn hang_up(self) -> ProcessBound<Session> {
        self.session
    }
}

/// The slot of a part: eight slots for each allocation.
fn slot(allocation: u64, index: u32) -> u32 {
    u32::try_from(allocation).unwrap() * 8 + index
}

pub(super) fn send(daemon: &OwnedFd, frame: Frame, fds: &[BorrowedFd<'_>]) {
    send_bytes(daemon, &v1::DaemonFrame { frame: Some(frame) }.encode_to_vec(), fds);
}

fn send_bytes(daemon: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(128))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
    }
    sendmsg(daemon, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL).unwrap();
}

fn next(daemon: &OwnedFd) -> Option<client_frame::Frame> {
    let deadline = Timespec::try_from(PATIENCE).unwrap();
    let mut waiting = [PollFd::new(daemon, PollFlags::IN)];
    assert_eq!(poll(&mut waiting, Some(&deadline)).unwrap(), 1, "the client says nothing");
    let mut bytes = vec![0; 65536];
    let mut control = RecvAncillaryBuffer::default();
    let iov = &mut [IoSliceMut::new(&mut bytes)];
    let count = recvmsg(daemon, iov, &mut control, RecvFlags::empty()).unwrap().bytes;
    (count > 0).then(|| v1::ClientFrame::decode(&bytes[..count]).unwrap().frame.unwrap())
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
        losses: 0,
    }
}

/// Makes a part's memory, filled with one byte.
pub(crate) fn memory(name: &str, fill: u8) -> OwnedFd {
    let fd = memfd_create(name, MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, PART).unwrap();
    let bytes = vec![fill; usize::try_from(PART).unwrap()];
    assert_eq!(rustix::io::write(&fd, &bytes).unwrap(), bytes.len());
    fd
}

pub(crate) fn arrived(id: AllocationId, parts: usize, access: Access) -> Until {
    Until::Arrived { id, parts, access }
}

/// The daemon's frame to a session that an operator has ended.
pub(crate) fn ended_by_an_operator() -> Frame {
    Frame::Refused(Refused {
        code: Reason::SessionLost.code() as i32,
        reason: Reason::SessionLost.name().to_owned(),
        message: "ended by an operator".to_owned(),
        metadata: [("session".to_owned(), "s-3".to_owned())].into(),
    })
}

pub(crate) fn soon() -> Instant {
    Instant::now() + PATIENCE
}
