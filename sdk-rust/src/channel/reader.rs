//! Reading the channel: a packet at a time is received, mapped or unmapped, and answered.
//!
//! Most often the session's worker reads. A caller that is about to wait for memory reads in its place: then the memory
//! is mapped by a thread that runs already, on a core that is awake, instead of by one that must be woken for it and
//! wakes the caller afterwards. `docs/benchmarks/hand_off` has what that is worth.

use std::time::Instant;

use rustix::io::Errno;
use vramd_proto::v1::{Map, daemon_frame::Frame};
use vramd_types::Reason;

use super::{
    link::{Link, Turn},
    place::Reader,
    socket::{Packet, Ready, Received},
};
use crate::{
    error::Error,
    mapping::{Ending, Table},
    process::fork::Gate,
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
pub(super) fn serve(link: &Link, table: &Table) {
    loop {
        let ended = worker_step(link, table).unwrap_or_else(|error| {
            end(link, table, failed(error));
            link.place.nudge();
            true
        });
        if ended {
            return;
        }
    }
}

fn worker_step(link: &Link, table: &Table) -> Result<bool, Errno> {
    if link.socket.wait_readable_or(table.woken(), None)? == Ready::Other {
        return leave(link, table);
    }
    link.place.wait_for_caller();
    if !link.socket.wait_readable(Some(Instant::now()))? {
        return Ok(false);
    }
    link.place.take_back();
    let ended = step(link, table, Reader::Worker, || Some(link.turn())).unwrap_or(false);
    link.place.nudge();
    Ok(ended)
}

/// The last pin of something that the daemon wants back has ended. True if the session has ended by it.
fn leave(link: &Link, table: &Table) -> Result<bool, Errno> {
    table.hear_wake();
    let turn = link.turn();
    let left = table.leave();
    fault_point!(Unmapped);
    let ending = match left {
        // Nothing is left to be told, or it was told before.
        Ok(answer) if table.ending().is_none() => turn.tell(answer).err().map(failed),
        Ok(_) => None,
        Err(problem) => Some(broken(&problem)),
    };
    fault_point!(UnmapAnswered);
    drop(turn);
    let ended = ending.is_some();
    if let Some(ending) = ending {
        end(link, table, ending);
    }
    link.place.nudge();
    Ok(ended)
}

/// A caller that sits in the worker's place: waits for one packet, and handles it.
pub(crate) fn attend(link: &Link, table: &Table, deadline: Instant) -> Attended {
    let me = Reader::this_caller();
    if !link.place.is_of(me) {
        return Attended::NotReader;
    }
    match link.socket.wait_readable_or(link.place.nudged(), Some(deadline)) {
        Ok(Ready::Neither) => return Attended::Nothing,
        Ok(Ready::Other) => link.place.hear_nudge(),
        // Who has the turn may wait for something that takes longer than this caller may.
        Ok(Ready::Packet) if step(link, table, me, || link.try_turn()).is_none() => {
            link.place.leave();
            return Attended::NotReader;
        }
        Ok(Ready::Packet) => {}
        Err(error) => end(link, table, failed(error)),
    }
    Attended::Packet
}

/// Handles one packet, if there is one and it is still this reader's. True if the session has ended by it; `None` if
/// there is no turn to be had.
fn step<'a>(
    link: &'a Link,
    table: &Table,
    reader: Reader,
    turn: impl Fn() -> Option<Turn<'a>>,
) -> Option<bool> {
    loop {
        let prepared = prepare(link, table);
        let turn = turn()?;
        if !link.place.is_of(reader) {
            return Some(false);
        }
        // Somebody else may have read what was prepared for, and another packet is there now.
        if table.has_unknown_devices() && waiting_map(link) != prepared {
            continue;
        }
        fault_point!(PacketWaits);
        let ending = receive(link, table, &turn).unwrap_or_else(|error| Some(failed(error)));
        let ended = ending.is_some();
        if let Some(ending) = ending {
            // Before anybody else can read: what follows says less of why.
            end(link, table, ending);
        }
        return Some(ended);
    }
}

/// Both sides are to know: a channel that this side gave up must not look alive to the daemon.
fn end(link: &Link, table: &Table, ending: Ending) {
    fault_point!(EndHeard);
    table.end(ending);
    link.end();
}

fn failed(error: Errno) -> Ending {
    broken(&error.to_string())
}

fn receive(link: &Link, table: &Table, turn: &Turn<'_>) -> Result<Option<Ending>, Errno> {
    let gate = Gate::hold();
    match link.socket.receive()? {
        None => Ok(None),
        Some(Received::Ended) => Ok(Some(Ending::Closed)),
        // Its parts, if it had any, will never be answered for.
        Some(Received::Unknown(problem)) => Ok(Some(broken(&problem))),
        Some(Received::Packet(packet)) => handle(turn, gate, table, packet),
    }
}

/// Before the first descriptors of a device are taken, the driver is made ready for it: that takes long, and the
/// driver may fork, neither of which the gate allows. What it was made ready for.
fn prepare(link: &Link, table: &Table) -> Option<Map> {
    let map = table.has_unknown_devices().then(|| waiting_map(link)).flatten()?;
    table.prepare(&map);
    Some(map)
}

fn waiting_map(link: &Link) -> Option<Map> {
    match link.socket.peek() {
        Some(Frame::Map(map)) => Some(map),
        _ => None,
    }
}

fn handle(turn: &Turn<'_>, gate: Gate, table: &Table, packet: Packet) -> Result<Option<Ending>, Errno> {
    match packet.frame {
        Frame::Map(map) => {
            fault_point!(MapReceived);
            let answer = table.map(map, packet.fds, packet.fds_lost);
            drop(gate);
            let answer = match answer {
                Ok(answer) => answer,
                Err(problem) => return Ok(Some(broken(&problem))),
            };
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
        Frame::Pressure(pressure) => table.pressures.told(&pressure),
        Frame::Refused(refused) => return Ok(Some(Ending::Refused(refused.into()))),
        Frame::Welcome(_) => return Ok(Some(broken("a second welcome"))),
        Frame::PinAnswer(answer) => {
            drop(gate);
            fault_point!(PinAnswered);
            match table.pin_answered(answer) {
                Ok(answer) => turn.tell(answer)?,
                Err(problem) => return Ok(Some(broken(&problem))),
            }
        }
    }
    Ok(None)
}

fn broken(problem: &str) -> Ending {
    Ending::Refused(Error::refused(Reason::ProtocolBroken, &[("problem", &problem)]))
}
