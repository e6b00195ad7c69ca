//! The other process of the bare program: owns extents, and sends their descriptors over a Unix socket.
//!
//! ```text
//!   this process                    owner (a process of its own, with a context)
//!   ──"COUNT SIZE"──────────────▶   creates, exports
//!   ◀──1 byte, COUNT descriptors──  sends all in one packet
//!   imports, maps, sets access
//!   ──"done"─────────────────────▶  releases, closes
//!   ◀──1 byte────────────────────
//! ```

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

use crate::cuda::Gpu;

/// Descriptors in a packet. The kernel's limit is 253.
const FDS_MAX: usize = 128;

/// The client's side of the owner, which ends with its socket.
#[derive(Debug)]
pub(crate) struct Owner {
    socket: OwnedFd,
    child: Child,
}

impl Owner {
    pub(crate) fn start(gpu: &Gpu) -> Result<Self> {
        let (socket, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let mut command = Command::new(std::env::current_exe()?);
        let child = command.args(["bare-owner", gpu.uuid()]).stdin(Stdio::from(theirs)).spawn()?;
        let owner = Self { socket, child };
        owner.receive().context("the owner did not start")?;
        Ok(owner)
    }

    pub(crate) fn ask(&self, count: usize, size: usize) -> Result<Vec<OwnedFd>> {
        send(self.socket.as_fd(), format!("{count} {size}").as_bytes(), &[])?;
        let fds = self.receive()?;
        ensure!(fds.len() == count, "{} descriptors came, and {count} were asked for", fds.len());
        Ok(fds)
    }

    pub(crate) fn done(&self) -> Result<()> {
        send(self.socket.as_fd(), b"done", &[])?;
        self.receive().map(drop)
    }

    fn receive(&self) -> Result<Vec<OwnedFd>> {
        let (bytes, fds) = receive(self.socket.as_fd())?;
        ensure!(!bytes.is_empty(), "the owner has left");
        Ok(fds)
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // Harmless if the process has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the owner's side. Its socket is its standard input.
pub(crate) fn run(uuid: &str) -> Result<()> {
    let stdin = io::stdin();
    let socket = stdin.as_fd();
    let gpu = Gpu::open(Some(uuid))?;
    // The first export of a process costs thirty times as much as the next. A daemon keeps one open, and so does the bare side.
    let sentinel = gpu.create(2 << 20)?;
    let _exported = sentinel.export()?;
    send(socket, b"r", &[])?;
    loop {
        let (request, _) = receive(socket)?;
        if request.is_empty() {
            return Ok(());
        }
        let request = String::from_utf8(request)?;
        let (count, size) = request.split_once(' ').context("COUNT SIZE")?;
        let (count, size): (usize, usize) = (count.parse()?, size.parse()?);
        let extents = (0..count).map(|_| gpu.create(size)).collect::<Result<Vec<_>>>()?;
        let fds = extents.iter().map(crate::cuda::Extent::export).collect::<Result<Vec<_>>>()?;
        send(socket, b"m", &fds)?;
        if receive(socket)?.0 != b"done" {
            bail!("the client did not say that it is done");
        }
        drop((fds, extents));
        send(socket, b"r", &[])?;
    }
}

fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[OwnedFd]) -> Result<()> {
    let fds: Vec<_> = fds.iter().map(OwnedFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        ensure!(control.push(SendAncillaryMessage::ScmRights(&fds)), "too many descriptors for one packet");
    }
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives a request. Returns `None` if the other side has closed.
fn receive(socket: BorrowedFd<'_>) -> Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut bytes = [0; 64];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let message = recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut fds = Vec::new();
    for beside in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = beside {
            fds.extend(rights);
        }
    }
    Ok((bytes[..message.bytes].to_vec(), fds))
}
