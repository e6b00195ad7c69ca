//! Reading the channel: a packet at a time is received, mapped or unmapped, and answered.
//!
//! Most often the session's worker reads. A caller that is about to wait for memory reads in its place: then the memory
//! is mapped by a thread that runs already, on a core that is awake, instead of by one that must be woken for it and
//! wakes the caller afterwards. `docs/benchmarks/hand_off` has what that is worth.

use std::{thread, time::Instant};

use rustix::io::Errno;
use vramd_proto::v1::daemon_frame::Frame;
use vramd_types::Reason;

use super::{
    link::{Link, Reader, Turn},
    socket::{Packet, Received},
};
use crate::{
    error::Error,
    fork::Gate,
    mapping::{Ending, Table},
};

/// What came of reading in the worker's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attended {
    /// Something may have changed.
    Packet,
    /// Nothing came until the deadline.
    Nothing,
    /// This thread is not the reader.
    NotReader,
}

/// The worker: reads until the end.
pub(super) fn serve(link: &Link, table: &Table) -> Ending {
    loop {
        let step = link.socket.wait_readable(None).and_then(|_| {
            link.await_place()?;
            step(link, table, Reader::Worker)
        });
        if let Some(ending) = ending(step) {
            return ending;
        }
    }
}

/// A caller that sits in the worker's place: waits for one packet, and handles it.
pub(crate) fn attend(link: &Link, table: &Table, deadline: Instant) -> Attended {
    let me = Reader::Caller(thread::current().id());
    if link.turn().reader() != me {
        return Attended::NotReader;
    }
    let step = match link.socket.wait_readable(Some(deadline)) {
        Ok(false) => return Attended::Nothing,
        Ok(true) => step(link, table, me),
        Err(error) => Err(error),
    };
    if let Some(ending) = ending(step) {
        end(link, table, ending);
    }
    Attended::Packet
}

/// Both sides are to know: a channel that this side gave up must not look alive to the daemon.
pub(super) fn end(link: &Link, table: &Table, ending: Ending) {
    fault_point!(EndHeard);
    link.end();
    table.end(ending);
}

fn ending(step: Result<Option<Ending>, Errno>) -> Option<Ending> {
    match step {
        Ok(ending) => ending,
        Err(Errno::PIPE | Errno::CONNRESET) => Some(Ending::Closed),
        Err(error) => Some(broken(&error.to_string())),
    }
}

/// Handles one packet, if there is one and it is still this reader's.
fn step(link: &Link, table: &Table, reader: Reader) -> Result<Option<Ending>, Errno> {
    prepare(link, table);
    let turn = link.turn();
    if turn.reader() != reader {
        return Ok(None);
    }
    fault_point!(PacketWaits);
    let gate = Gate::hold();
    match link.socket.receive()? {
        None => Ok(None),
        Some(Received::Ended) => Ok(Some(Ending::Closed)),
        // Its parts, if it had any, will never be answered for.
        Some(Received::Unknown(problem)) => Ok(Some(broken(&problem))),
        Some(Received::Packet(packet)) => handle(&turn, gate, table, packet),
    }
}

/// Before the first descriptors of a device are taken, the driver is made ready for it: that takes long, and the
/// driver may fork, neither of which the gate allows.
fn prepare(link: &Link, table: &Table) {
    if table.has_unknown_devices()
        && let Some(Frame::Map(map)) = link.socket.peek()
    {
        table.prepare(&map);
    }
}

fn handle(turn: &Turn<'_>, gate: Gate, table: &Table, packet: Packet) -> Result<Option<Ending>, Errno> {
    match packet.frame {
        Frame::Map(map) => {
            fault_point!(MapReceived);
            let answer = table.map(map, packet.fds, packet.fds_lost);
            drop(gate);
            fault_point!(Mapped);
            turn.tell(answer)?;
            fault_point!(MapAnswered);
        }
        Frame::Revoke(revoke) => {
            drop(gate);
            fault_point!(RevokeReceived);
            // After an error something is mapped that should not be: the daemon must not be told otherwise.
            let answer = match table.revoke(&revoke) {
                Ok(answer) => answer,
                Err(problem) => return Ok(Some(broken(&problem))),
            };
            fault_point!(Unmapped);
            turn.tell(answer)?;
            fault_point!(UnmapAnswered);
        }
        Frame::Drain(drain) => {
            fault_point!(DrainReceived);
            table.set_draining(drain.draining);
        }
        Frame::Refused(refused) => return Ok(Some(Ending::Refused(refused.into()))),
        Frame::Welcome(_) => return Ok(Some(broken("a second welcome"))),
    }
    Ok(None)
}

fn broken(problem: &str) -> Ending {
    Ending::Refused(Error::refused(Reason::ProtocolBroken, &[("problem", &problem)]))
}
