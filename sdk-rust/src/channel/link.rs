//! The channel as its users share it: one at a time changes mappings and tells of it.

use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use rustix::io::Errno;
use vramd_proto::{
    channel::PARTS_PER_FRAME_MAX,
    v1::{Mapped, Pin, PinEnded, Unmapped, client_frame::Frame},
};

use super::{
    place::{Place, Seat},
    socket::Socket,
};
use crate::mapping::Answer;

#[derive(Debug)]
pub(crate) struct Link {
    pub(super) socket: Socket,
    /// Who reads it.
    pub(super) place: Place,
    turn: Mutex<()>,
}

/// The right to change mappings and tell of it: who holds it sends before anybody else changes anything.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    socket: &'a Socket,
    _held: MutexGuard<'a, ()>,
}

impl Link {
    pub(crate) fn new(socket: Socket) -> Result<Self, Errno> {
        Ok(Self { socket, place: Place::new()?, turn: Mutex::new(()) })
    }

    pub(crate) fn turn(&self) -> Turn<'_> {
        Turn { socket: &self.socket, _held: self.turn.lock().unwrap_or_else(PoisonError::into_inner) }
    }

    /// `None` while somebody has it, who may be waiting for a copy.
    pub(super) fn try_turn(&self) -> Option<Turn<'_>> {
        let held = match self.turn.try_lock() {
            Ok(held) => held,
            Err(TryLockError::Poisoned(held)) => held.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(Turn { socket: &self.socket, _held: held })
    }

    /// Makes this thread the reader, unless another caller is.
    pub(crate) fn sit(&self) -> Option<Seat<'_>> {
        self.place.sit()
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

/// Where the daemon hears no more, there is nobody to tell: the end, and why, which it may have said before, is read.
impl Turn<'_> {
    pub(crate) fn tell(&self, answer: Answer) -> Result<(), Errno> {
        for parts in answer.mapped.chunks(PARTS_PER_FRAME_MAX) {
            self.say(Frame::Mapped(Mapped { parts: parts.to_vec() }))?;
        }
        for parts in answer.unmapped.chunks(PARTS_PER_FRAME_MAX) {
            self.say(Frame::Unmapped(Unmapped { parts: parts.to_vec() }))?;
        }
        for call_id in answer.ended {
            self.say(Frame::PinEnded(PinEnded { call_id }))?;
        }
        Ok(())
    }

    /// Asks for a set that is not all here.
    pub(crate) fn ask(&self, pin: Pin) -> Result<(), Errno> {
        self.say(Frame::Pin(pin))
    }

    fn say(&self, frame: Frame) -> Result<(), Errno> {
        match self.socket.send(frame) {
            Err(Errno::PIPE | Errno::CONNRESET) => Ok(()),
            said => said,
        }
    }
}
