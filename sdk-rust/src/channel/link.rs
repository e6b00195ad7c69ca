//! The channel as its users share it: one thread at a time changes mappings and reports the changes.

use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use rustix::io::Errno;
use vramd_proto::{
    channel::PARTS_PER_FRAME_MAX,
    v1::{
        ManagedOrdersDone, Mapped, Pin, PinEnded, Prefetch, PrefetchCancelled, Sequence, SequenceEnded,
        SequenceStepBegun, TurnAcquire, TurnYielded, Unmapped, WorkingSet, WorkingSetEnded,
        client_frame::Frame,
    },
};

use super::{
    reader_seat::{ReaderRole, ReaderSeat},
    socket::Socket,
};
use crate::mapping::Report;

#[derive(Debug)]
pub(crate) struct Link {
    pub(super) socket: Socket,
    /// The role of the reader.
    pub(super) reader: ReaderRole,
    lock: Mutex<()>,
}

/// The right to change mappings and report it: its holder sends before any other thread changes anything.
#[derive(Debug)]
pub(crate) struct ChannelLock<'a> {
    socket: &'a Socket,
    _held: MutexGuard<'a, ()>,
}

impl Link {
    pub(crate) fn new(socket: Socket) -> Result<Self, Errno> {
        Ok(Self { socket, reader: ReaderRole::new()?, lock: Mutex::new(()) })
    }

    pub(crate) fn lock_channel(&self) -> ChannelLock<'_> {
        ChannelLock { socket: &self.socket, _held: self.lock.lock().unwrap_or_else(PoisonError::into_inner) }
    }

    /// Returns `None` while another thread holds the lock, which may be waiting for a copy.
    pub(super) fn try_lock_channel(&self) -> Option<ChannelLock<'_>> {
        let held = match self.lock.try_lock() {
            Ok(held) => held,
            Err(TryLockError::Poisoned(held)) => held.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(ChannelLock { socket: &self.socket, _held: held })
    }

    /// Makes this thread the reader, unless another caller is.
    pub(crate) fn take_seat(&self) -> Option<ReaderSeat<'_>> {
        self.reader.take_seat()
    }

    /// Sends the unmapped parts of a report without waiting, for callers that must not wait.
    pub(crate) fn try_report(&self, report: Report) {
        for parts in report.unmapped.chunks(PARTS_PER_FRAME_MAX) {
            // The next session of this process reports the same of the whole session.
            let _ = self.socket.try_send(Frame::Unmapped(Unmapped { parts: parts.to_vec() }));
        }
    }

    pub(crate) fn end(&self) {
        self.socket.end();
    }
}

/// Sending to a daemon that has closed the channel is no error: the reader gets the end, and perhaps its reason.
impl ChannelLock<'_> {
    pub(crate) fn report(&self, report: Report) -> Result<(), Errno> {
        for parts in report.mapped.chunks(PARTS_PER_FRAME_MAX) {
            self.send(Frame::Mapped(Mapped { parts: parts.to_vec() }))?;
        }
        for parts in report.unmapped.chunks(PARTS_PER_FRAME_MAX) {
            self.send(Frame::Unmapped(Unmapped { parts: parts.to_vec() }))?;
        }
        for call_id in report.ended {
            self.send(Frame::PinEnded(PinEnded { call_id }))?;
        }
        Ok(())
    }

    /// Sends a pin call for a set whose parts are not all mapped.
    pub(crate) fn send_pin(&self, pin: Pin) -> Result<(), Errno> {
        self.send(Frame::Pin(pin))
    }

    pub(crate) fn send_prefetch(&self, prefetch: Prefetch) -> Result<(), Errno> {
        self.send(Frame::Prefetch(prefetch))
    }

    pub(crate) fn send_prefetch_cancelled(&self, cancelled: PrefetchCancelled) -> Result<(), Errno> {
        self.send(Frame::PrefetchCancelled(cancelled))
    }

    pub(crate) fn send_sequence(&self, sequence: Sequence) -> Result<(), Errno> {
        self.send(Frame::Sequence(sequence))
    }

    pub(crate) fn send_sequence_step(&self, begun: SequenceStepBegun) -> Result<(), Errno> {
        self.send(Frame::SequenceStepBegun(begun))
    }

    pub(crate) fn send_sequence_ended(&self, ended: SequenceEnded) -> Result<(), Errno> {
        self.send(Frame::SequenceEnded(ended))
    }

    pub(crate) fn send_working_set(&self, set: WorkingSet) -> Result<(), Errno> {
        self.send(Frame::WorkingSet(set))
    }

    pub(crate) fn send_working_set_ended(&self, ended: WorkingSetEnded) -> Result<(), Errno> {
        self.send(Frame::WorkingSetEnded(ended))
    }

    pub(crate) fn send_turn_acquire(&self, turn: TurnAcquire) -> Result<(), Errno> {
        self.send(Frame::TurnAcquire(turn))
    }

    pub(crate) fn send_turn_yielded(&self, yielded: TurnYielded) -> Result<(), Errno> {
        self.send(Frame::TurnYielded(yielded))
    }

    pub(crate) fn send_managed_orders_done(&self, done: ManagedOrdersDone) -> Result<(), Errno> {
        self.send(Frame::ManagedOrdersDone(done))
    }

    fn send(&self, frame: Frame) -> Result<(), Errno> {
        match self.socket.send(frame) {
            Err(Errno::PIPE | Errno::CONNRESET) => Ok(()),
            outcome => outcome,
        }
    }
}
