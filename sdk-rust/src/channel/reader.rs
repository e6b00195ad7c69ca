//! Reading the channel: a packet at a time is received, mapped or unmapped, and answered.
//!
//! Usually the session's worker reads. A caller that is about to wait for memory reads in its place. Then the memory
//! is mapped by a thread that runs already, on a core that is awake. Otherwise the worker must be woken for it, and
//! must wake the caller afterwards. `docs/benchmarks/hand_off` has the measured gain.

use std::time::Instant;

use rustix::io::Errno;
use vramd_proto::v1::{Map, daemon_frame::Frame};
use vramd_types::Reason;

use super::{
    link::{ChannelLock, Link},
    reader_seat::Reader,
    socket::{Packet, Ready, Received},
};
use crate::{
    error::Error,
    mapping::{Ending, Table},
    process::fork::Gate,
};

/// The outcome of reading in the worker's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadOutcome {
    /// Something may have changed.
    Packet,
    /// No packet arrived before the deadline.
    TimedOut,
    /// This thread is not the reader.
    NotReader,
}

/// The worker's loop: reads until the end of the channel.
pub(super) fn serve(link: &Link, table: &Table) {
    loop {
        let ended = worker_step(link, table).unwrap_or_else(|error| {
            end(link, table, failed(error));
            link.reader.nudge();
            true
        });
        if ended {
            return;
        }
    }
}

fn worker_step(link: &Link, table: &Table) -> Result<bool, Errno> {
    if link.socket.wait_readable_or(table.wake_fd(), None)? == Ready::Other {
        return unmap_unpinned(link, table);
    }
    link.reader.wait_for_caller();
    if !link.socket.wait_readable(Some(Instant::now()))? {
        return Ok(false);
    }
    link.reader.take_over();
    let ended = handle_next(link, table, Reader::Worker, || Some(link.lock_channel())).unwrap_or(false);
    link.reader.nudge();
    Ok(ended)
}

/// Unmaps parts whose last pin has ended. Returns true if that has ended the session.
fn unmap_unpinned(link: &Link, table: &Table) -> Result<bool, Errno> {
    table.clear_wake();
    let channel = link.lock_channel();
    let unmapped = table.unmap_unpinned();
    fault_point!(Unmapped);
    let ending = match unmapped {
        // After the end nothing is reported, or it was reported before.
        Ok(answer) if table.ending().is_none() => channel.report(answer).err().map(failed),
        Ok(_) => None,
        Err(problem) => Some(broken(&problem)),
    };
    fault_point!(UnmapAnswered);
    drop(channel);
    let ended = ending.is_some();
    if let Some(ending) = ending {
        end(link, table, ending);
    }
    link.reader.nudge();
    Ok(ended)
}

/// Waits, in the worker's place, for one packet and handles it.
pub(crate) fn read_one(link: &Link, table: &Table, deadline: Instant) -> ReadOutcome {
    let me = Reader::this_caller();
    if !link.reader.is_reader(me) {
        return ReadOutcome::NotReader;
    }
    match link.socket.wait_readable_or(link.reader.nudged(), Some(deadline)) {
        Ok(Ready::Neither) => return ReadOutcome::TimedOut,
        Ok(Ready::Other) => link.reader.clear_nudge(),
        // The thread that holds the lock may wait longer than this caller may.
        Ok(Ready::Packet) if handle_next(link, table, me, || link.try_lock_channel()).is_none() => {
            link.reader.leave_seat();
            return ReadOutcome::NotReader;
        }
        Ok(Ready::Packet) => {}
        Err(error) => end(link, table, failed(error)),
    }
    ReadOutcome::Packet
}

/// Handles one packet, if there is one and this thread still is its reader. Returns true if the session has ended by
/// it, and `None` if the lock is not to be had.
fn handle_next<'a>(
    link: &'a Link,
    table: &Table,
    reader: Reader,
    lock: impl Fn() -> Option<ChannelLock<'a>>,
) -> Option<bool> {
    loop {
        let prepared = prepare(link, table);
        let channel = lock()?;
        if !link.reader.is_reader(reader) {
            return Some(false);
        }
        // Another thread may have read the prepared packet, and a different one waits now.
        if table.has_unknown_devices() && waiting_map(link) != prepared {
            continue;
        }
        fault_point!(PacketWaits);
        let ending = receive(link, table, &channel).unwrap_or_else(|error| Some(failed(error)));
        let ended = ending.is_some();
        if let Some(ending) = ending {
            // Before any other thread can read: later frames say less about the reason.
            end(link, table, ending);
        }
        return Some(ended);
    }
}

/// Ends the session for both sides: a channel that the SDK gave up must not look alive to the daemon.
fn end(link: &Link, table: &Table, ending: Ending) {
    fault_point!(EndHeard);
    table.end(ending);
    link.end();
}

fn failed(error: Errno) -> Ending {
    broken(&error.to_string())
}

fn receive(link: &Link, table: &Table, channel: &ChannelLock<'_>) -> Result<Option<Ending>, Errno> {
    let gate = Gate::hold();
    match link.socket.receive()? {
        None => Ok(None),
        Some(Received::Ended) => Ok(Some(Ending::Closed)),
        // The SDK could never answer for the parts of such a packet.
        Some(Received::Unknown(problem)) => Ok(Some(broken(&problem))),
        Some(Received::Packet(packet)) => handle(channel, gate, table, packet),
    }
}

/// Prepares the driver before the first descriptors of a device are received: that takes long, and the driver may
/// fork, neither of which the gate allows. Returns the frame that was prepared for.
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

fn handle(
    channel: &ChannelLock<'_>,
    gate: Gate,
    table: &Table,
    packet: Packet,
) -> Result<Option<Ending>, Errno> {
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
            channel.report(answer)?;
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
            channel.report(answer)?;
            fault_point!(UnmapAnswered);
        }
        Frame::Drain(drain) => {
            fault_point!(DrainReceived);
            table.set_draining(drain.draining);
        }
        Frame::Pressure(pressure) => table.pressures.report(&pressure),
        Frame::PrefetchProgress(progress) => table.record_prefetch(progress),
        Frame::SequenceProgress(progress) => table.record_sequence(progress),
        Frame::WorkingSetAnswer(answer) => table.record_working_set(answer),
        Frame::TurnProgress(progress) => table.record_turn(progress),
        Frame::ManagedOrders(batch) => {
            // A thread may have to be started.
            drop(gate);
            if let Err(undone) = table.managed.queue(batch) {
                channel.send_managed_orders_done(undone)?;
            }
        }
        Frame::Refused(refused) => return Ok(Some(Ending::Refused(refused.into()))),
        Frame::Welcome(_) => return Ok(Some(broken("the daemon sent a second welcome"))),
        Frame::PinAnswer(answer) => {
            drop(gate);
            fault_point!(PinAnswered);
            match table.finish_pin(answer) {
                Ok(answer) => channel.report(answer)?,
                Err(problem) => return Ok(Some(broken(&problem))),
            }
        }
    }
    Ok(None)
}

fn broken(problem: &str) -> Ending {
    Ending::Refused(Error::refused(Reason::ProtocolBroken, &[("problem", &problem)]))
}
