//! The lives of victims that speak the protocol, step by step.

use anyhow::{Context as _, anyhow};
use vramd_proto::v1::{
    AllocateBatchRequest, Allocation, AllocationSpec, AttachRequest, DetachRequest, FreeBatchRequest,
    Lifetime, Revoke, SealRequest, attach_request::Target, daemon_frame::Frame,
};
use vramd_tests::{
    MIB_2, digest, spec,
    victim::{Report, Script, Step, content},
};

use crate::{
    moves, say,
    wire::{End, Life, again_after},
};

/// More parts than one packet carries.
const BATCH_PARTS: u64 = 130;

/// The steps of one packet.
pub(crate) struct Packet {
    waits: Step,
    received: Step,
    mapped: Step,
    answered: Step,
}

pub(crate) const FIRST: Packet = Packet {
    waits: Step::MapWaits,
    received: Step::MapReceived,
    mapped: Step::Mapped,
    answered: Step::MapAnswered,
};
const SECOND: Packet = Packet {
    waits: Step::SecondWaits,
    received: Step::SecondReceived,
    mapped: Step::SecondMapped,
    answered: Step::SecondAnswered,
};

pub(crate) fn run(life: &mut Life) -> Result<(), End> {
    match life.reaper.fate.script {
        Script::Allocate => {
            life.reaper.arm();
            write_new(life)
        }
        Script::Batch => {
            life.open()?;
            life.reaper.arm();
            let each = AllocationSpec { part_size_bytes: Some(MIB_2), ..spec(BATCH_PARTS * MIB_2) };
            allocate(life, vec![each, spec(1)])?;
            map(life, &FIRST)?;
            map(life, &SECOND)
        }
        Script::Seal => {
            write_new(life)?;
            life.reaper.arm();
            seal(life)
        }
        Script::Free => {
            write_new(life)?;
            life.reaper.arm();
            free(life)
        }
        Script::Attach => {
            life.open()?;
            life.reaper.arm();
            attach(life)
        }
        Script::Detach => {
            life.open()?;
            attach(life)?;
            life.reaper.arm();
            detach(life)
        }
        Script::Reconnect => {
            write_new(life)?;
            life.reaper.arm();
            reconnect(life)
        }
        Script::Drain => {
            write_new(life)?;
            life.reaper.arm();
            hear_drain(life)
        }
        Script::End => {
            write_new(life)?;
            life.reaper.arm();
            be_ended(life)
        }
        Script::Move | Script::MoveAttach => moves::live(life),
        other => Err(anyhow!("{other:?} is not by protocol").into()),
    }
}

/// Opens a session with memory that it has written.
fn write_new(life: &mut Life) -> Result<(), End> {
    life.open()?;
    let fate = &life.reaper.fate;
    let (case, size) = (fate.case, fate.size());
    let mut spec = AllocationSpec { part_size_bytes: Some(MIB_2), ..spec(size) };
    if fate.persistent {
        (spec.name, spec.lifetime) = (Some(fate.client_name()), Lifetime::Persistent.into());
    }
    let id = allocate(life, vec![spec])?.context("one item has one answer")?.allocation_id;
    map(life, &FIRST)?;
    let content = content(case, size);
    life.session()?.write(id, &content);
    life.content = Some(content);
    life.at(Step::Written)
}

/// Allocates these, and returns the first.
pub(crate) fn allocate(life: &mut Life, items: Vec<AllocationSpec>) -> Result<Option<Allocation>, End> {
    loop {
        let session = life.session()?;
        let request =
            AllocateBatchRequest { session_id: session.id(), items: items.clone(), ..Default::default() };
        let pending = session.memory.allocate_batch(request);
        life.at(Step::CallSent)?;
        match pending.wait() {
            Err(status) => again_after(&status)?,
            Ok(answer) => {
                for allocation in &answer.allocations {
                    say(&Report::Allocation(allocation.allocation_id));
                }
                let first = answer.allocations.into_iter().next();
                life.allocation = first.as_ref().map(|allocation| allocation.allocation_id);
                life.at(Step::Answered)?;
                return Ok(first);
            }
        }
    }
}

/// Maps one packet in two halves, and acknowledges it.
fn map(life: &mut Life, packet: &Packet) -> Result<(), End> {
    life.await_packet()?;
    life.at(packet.waits)?;
    // A revoke may have crossed the report that makes it needless.
    while !matches!(life.receive()?, Frame::Map(_)) {}
    map_received(life, packet)
}

pub(crate) fn map_received(life: &mut Life, packet: &Packet) -> Result<(), End> {
    life.at(packet.received)?;
    let half = life.parcel.split_off(life.parcel.len() / 2);
    let first = std::mem::replace(&mut life.parcel, half);
    let mut parts = life.session()?.map(first);
    life.at(Step::HalfMapped)?;
    let rest = std::mem::take(&mut life.parcel);
    parts.extend(life.session()?.map(rest));
    life.at(packet.mapped)?;
    life.session()?.acknowledge(parts);
    life.at(packet.answered)
}

/// Unmaps the parts of one `Revoke` in two halves, and reports each half.
fn unmap(life: &mut Life) -> Result<(), End> {
    life.await_packet()?;
    life.at(Step::RevokeWaits)?;
    let Frame::Revoke(revoke) = life.receive()? else { return Err(anyhow!("no revoke came").into()) };
    unmap_revoked(life, &revoke)
}

pub(crate) fn unmap_revoked(life: &mut Life, revoke: &Revoke) -> Result<(), End> {
    life.at(Step::RevokeReceived)?;
    let (first, second) = revoke.parts.split_at(revoke.parts.len() / 2);
    life.session()?.unmap_without_report(first);
    life.at(Step::HalfUnmapped)?;
    life.session()?.unmap_without_report(second);
    life.at(Step::Unmapped)?;
    life.session()?.report_unmapped(first);
    life.at(Step::HalfAnswered)?;
    life.session()?.report_unmapped(second);
    life.at(Step::UnmapAnswered)
}

fn seal(life: &mut Life) -> Result<(), End> {
    let allocation_id = life.allocation.context("nothing is allocated")?;
    let session = life.session()?;
    let request = SealRequest { session_id: session.id(), allocation_id, ..Default::default() };
    let pending = session.memory.seal(request);
    life.at(Step::CallSent)?;
    unmap(life)?;
    let sealed = pending.wait()?.allocation.context("a sealed allocation is told")?;
    if life.content.as_deref().map(digest) != Some(sealed.digest) {
        say(&Report::Intact(false));
    }
    life.at(Step::Answered)?;
    map(life, &FIRST)?;
    Ok(())
}

fn free(life: &mut Life) -> Result<(), End> {
    let allocation_ids = vec![life.allocation.context("nothing is allocated")?];
    let session = life.session()?;
    let request = FreeBatchRequest { session_id: session.id(), allocation_ids, ..Default::default() };
    let pending = session.memory.free_batch(request);
    life.at(Step::CallSent)?;
    unmap(life)?;
    pending.wait()?;
    life.at(Step::Answered)
}

fn attach(life: &mut Life) -> Result<(), End> {
    let told = ask_to_attach(life)?;
    map(life, &FIRST)?;
    read_attached(life, &told)
}

pub(crate) fn ask_to_attach(life: &mut Life) -> Result<Allocation, End> {
    let told = loop {
        let target = Some(Target::Name(life.reaper.fate.target.clone()));
        let session = life.session()?;
        let request = AttachRequest { session_id: session.id(), target, ..Default::default() };
        let pending = session.memory.attach(request);
        life.at(Step::CallSent)?;
        match pending.wait() {
            Err(status) => again_after(&status)?,
            Ok(answer) => break answer.allocation.context("an answer describes the attached allocation")?,
        }
    };
    life.allocation = Some(told.allocation_id);
    life.at(Step::Answered)?;
    Ok(told)
}

/// Reads the attached content, all of which is mapped, to compare it later.
pub(crate) fn read_attached(life: &mut Life, told: &Allocation) -> Result<(), End> {
    let parts = life.session()?.parts(told.allocation_id);
    let mut bytes: Vec<u8> = parts.flat_map(|part| part.bytes().iter().copied()).collect();
    bytes.truncate(usize::try_from(told.size_bytes)?);
    if digest(&bytes) != told.digest {
        say(&Report::Intact(false));
    }
    life.content = Some(bytes);
    Ok(())
}

fn detach(life: &mut Life) -> Result<(), End> {
    let allocation_ids = vec![life.allocation.context("nothing is attached")?];
    let session = life.session()?;
    let request = DetachRequest { session_id: session.id(), allocation_ids, ..Default::default() };
    let pending = session.memory.detach(request);
    life.at(Step::CallSent)?;
    unmap(life)?;
    pending.wait()?;
    life.at(Step::Answered)
}

fn reconnect(life: &mut Life) -> Result<(), End> {
    life.close()?;
    life.at(Step::ChannelClosed)?;
    life.unmap_all();
    life.at(Step::Unmapped)?;
    write_new(life)
}

fn hear_drain(life: &mut Life) -> Result<(), End> {
    say(&Report::ReadyToDrain);
    life.await_packet()?;
    life.at(Step::DrainWaits)?;
    // The end of an earlier drain may come first.
    while !matches!(life.receive()?, Frame::Drain(drain) if drain.draining) {}
    life.at(Step::DrainReceived)
}

fn be_ended(life: &mut Life) -> Result<(), End> {
    say(&Report::ReadyToEnd);
    unmap(life)?;
    let last = life.receive();
    if matches!(last, Ok(Frame::Map(_) | Frame::Revoke(_))) {
        return Err(anyhow!("the session goes on: {last:?}").into());
    }
    life.at(Step::EndHeard)
}
