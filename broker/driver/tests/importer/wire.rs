//! Orders and answers between a test and the process that it has started.

use std::{
    io::{self, IoSlice, IoSliceMut, Read, Write},
    mem::MaybeUninit,
    os::fd::{BorrowedFd, OwnedFd},
    os::unix::net::UnixStream,
};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Verb {
    Import,
    MapReadOnly,
    MapReadWrite,
    Close,
    Unmap,
    Read,
    Write,
    /// A legacy handle follows.
    ImportBlock,
    Allocate,
    /// The descriptor does not come from a CUDA driver.
    ImportFile,
}

impl Verb {
    const ALL: [Self; 10] = [
        Self::Import,
        Self::MapReadOnly,
        Self::MapReadWrite,
        Self::Close,
        Self::Unmap,
        Self::Read,
        Self::Write,
        Self::ImportBlock,
        Self::Allocate,
        Self::ImportFile,
    ];
}

/// For an import, `length` is the extent's size and `offset` the number of its device; else both describe the
/// range.
#[derive(Clone, Copy, Debug)]
pub(super) struct Order {
    pub(super) verb: Verb,
    pub(super) offset: u64,
    pub(super) length: u64,
}

const ORDER_BYTES: usize = 17;

/// The payload of a write follows its order.
pub(super) fn send(
    mut socket: &UnixStream,
    order: Order,
    fd: Option<BorrowedFd<'_>>,
    payload: &[u8],
) -> io::Result<()> {
    let mut text = [0; ORDER_BYTES];
    text[0] = order.verb as u8;
    text[1..9].copy_from_slice(&order.offset.to_le_bytes());
    text[9..].copy_from_slice(&order.length.to_le_bytes());
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let fds: Vec<BorrowedFd<'_>> = fd.into_iter().collect();
    if !fds.is_empty() {
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
    }
    let sent = sendmsg(socket, &[IoSlice::new(&text)], &mut ancillary, SendFlags::NOSIGNAL)?;
    assert_eq!(sent, ORDER_BYTES);
    socket.write_all(payload)
}

/// `None` when the test has ended.
pub(super) fn receive(mut socket: &UnixStream) -> io::Result<Option<(Order, Option<OwnedFd>)>> {
    let mut text = [0; ORDER_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let got = recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut text)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC | RecvFlags::WAITALL,
    )?;
    if got.bytes == 0 {
        return Ok(None);
    }
    socket.read_exact(&mut text[got.bytes..])?;
    let mut fd = None;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            fd = fds.last();
        }
    }
    let number = |at: usize| u64::from_le_bytes(text[at..at + 8].try_into().unwrap());
    let order = Order { verb: Verb::ALL[usize::from(text[0])], offset: number(1), length: number(9) };
    Ok(Some((order, fd)))
}

pub(super) fn send_answer(mut socket: &UnixStream, done: bool, bytes: &[u8]) -> io::Result<()> {
    socket.write_all(&[u8::from(done)])?;
    socket.write_all(&(bytes.len() as u64).to_le_bytes())?;
    socket.write_all(bytes)
}

pub(super) fn answer(mut socket: &UnixStream) -> io::Result<(bool, Vec<u8>)> {
    let mut head = [0; 9];
    socket.read_exact(&mut head)?;
    let length = u64::from_le_bytes(head[1..].try_into().unwrap());
    let mut bytes = vec![0; usize::try_from(length).unwrap()];
    socket.read_exact(&mut bytes)?;
    Ok((head[0] == 1, bytes))
}
