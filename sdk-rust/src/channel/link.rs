//! The channel as its users share it: one at a time changes mappings and tells of it, one at a time reads.

use std::{
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, ThreadId},
    time::{Duration, Instant},
};

use rustix::io::Errno;
use vramd_proto::{
    channel::PARTS_PER_FRAME_MAX,
    v1::{Mapped, Unmapped, client_frame::Frame},
};

use super::socket::Socket;
use crate::mapping::Answer;

/// How long the worker leaves a packet to a caller that waits for one: longer than an answer takes that the daemon sent
/// with it, and too short for anybody else to notice.
const LEFT_TO_CALLER: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(crate) struct Link {
    pub(super) socket: Socket,
    reader: Mutex<Reader>,
    caller_left: Condvar,
}

/// Who reads the channel now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reader {
    Worker,
    /// A thread that waits for memory.
    Caller(ThreadId),
}

/// The right to change mappings and tell of it: who holds it sends before anybody else changes anything.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    socket: &'a Socket,
    reader: MutexGuard<'a, Reader>,
}

/// A caller's place as the reader, until this is dropped or the worker has lost patience.
#[derive(Debug)]
pub(crate) struct Seat<'a>(&'a Link);

impl Link {
    pub(crate) fn new(socket: Socket) -> Self {
        Self { socket, reader: Mutex::new(Reader::Worker), caller_left: Condvar::new() }
    }

    pub(crate) fn turn(&self) -> Turn<'_> {
        Turn { socket: &self.socket, reader: self.reader() }
    }

    /// Makes this thread the reader, unless another caller is.
    pub(crate) fn sit(&self) -> Option<Seat<'_>> {
        let mut reader = self.reader();
        (*reader == Reader::Worker).then(|| {
            *reader = Reader::Caller(thread::current().id());
            Seat(self)
        })
    }

    /// Leaves what can be read to the caller that sits, if one does. If it does not come for it, it loses its place:
    /// others may wait for that packet, and the daemon for its answer.
    pub(super) fn await_place(&self) -> Result<(), Errno> {
        let occupied = |reader: &mut Reader| *reader != Reader::Worker;
        let waited = self.caller_left.wait_timeout_while(self.reader(), LEFT_TO_CALLER, occupied);
        let mut reader = waited.unwrap_or_else(PoisonError::into_inner).0;
        if self.socket.wait_readable(Some(Instant::now()))? {
            *reader = Reader::Worker;
        }
        Ok(())
    }

    fn reader(&self) -> MutexGuard<'_, Reader> {
        self.reader.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells what can be told without waiting, for who must not wait.
    pub(crate) fn tell_at_once(&self, answer: Answer) {
        for parts in answer.unmapped.chunks(PARTS_PER_FRAME_MAX) {
            // The next session of this process says the same of the whole session.
            let _ = self.socket.try_send(Frame::Unmapped(Unmapped { parts: parts.to_vec() }));
        }
    }

    pub(crate) fn end(&self) {
        self.socket.end();
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        let mut reader = self.0.reader();
        if *reader == Reader::Caller(thread::current().id()) {
            *reader = Reader::Worker;
            self.0.caller_left.notify_all();
        }
    }
}

impl Turn<'_> {
    pub(super) fn reader(&self) -> Reader {
        *self.reader
    }

    pub(crate) fn tell(&self, answer: Answer) -> Result<(), Errno> {
        for parts in answer.mapped.chunks(PARTS_PER_FRAME_MAX) {
            self.socket.send(Frame::Mapped(Mapped { parts: parts.to_vec() }))?;
        }
        for parts in answer.unmapped.chunks(PARTS_PER_FRAME_MAX) {
            self.socket.send(Frame::Unmapped(Unmapped { parts: parts.to_vec() }))?;
        }
        Ok(())
    }
}
