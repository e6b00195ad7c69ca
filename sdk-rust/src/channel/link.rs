//! The sending half of the channel, one sender at a time.

use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use vramd_proto::{
    channel::PARTS_PER_FRAME_MAX,
    v1::{Mapped, Unmapped, client_frame::Frame},
};

use super::socket::Socket;
use crate::mapping::Answer;

#[derive(Debug)]
pub(crate) struct Link {
    pub(super) socket: Socket,
    turn: Mutex<()>,
}

/// The right to change mappings and tell of it: who holds it sends before anybody else changes anything.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    socket: &'a Socket,
    _held: MutexGuard<'a, ()>,
}

impl Link {
    pub(crate) fn new(socket: Socket) -> Self {
        Self { socket, turn: Mutex::new(()) }
    }

    pub(crate) fn turn(&self) -> Turn<'_> {
        let held = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        Turn { socket: &self.socket, _held: held }
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

impl Turn<'_> {
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
