//! Lives where memory moves all the time: the victim pins its memory, uses it, and unmaps it when the daemon revokes
//! it.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use vramd_proto::v1::{
    Allocation, AllocationSpec, DescribeAllocationRequest, PartRef, PinAnswer, Tier, daemon_frame::Frame,
    describe_allocation_request::Target,
};
use vramd_tests::{
    MIB_2, Refused, spec,
    victim::{Script, Step, content},
    wait::PATIENCE,
};
use vramd_types::Reason;
use vramd_words::{Access, Unpinned};

use crate::{
    steps::{FIRST, allocate, ask_to_attach, map_received, read_attached, unmap_revoked},
    wire::{End, Life},
};

/// How long to wait for a packet before asking where all parts are.
const PAUSE: Duration = Duration::from_millis(1);
/// The tiers of a part that is not on its device.
const BELOW: [Tier; 2] = [Tier::Host, Tier::Disk];
/// How often it pins after it has come to its step, if it goes on.
const ROUNDS_AFTER: u32 = 3;

/// Lives until it has come to its step, and a little longer.
pub(crate) fn live(life: &mut Life) -> Result<(), End> {
    life.open()?;
    let told = match life.reaper.fate.script {
        Script::Move => {
            let each = AllocationSpec {
                part_size_bytes: Some(MIB_2),
                unheld: true,
                ..spec(life.reaper.fate.size())
            };
            allocate(life, vec![each])?.context("one item has one answer")?
        }
        _ => ask_to_attach(life)?,
    };
    life.reaper.arm();
    let (end, mut rounds_left) = (Instant::now() + PATIENCE, ROUNDS_AFTER);
    while rounds_left > 0 {
        rounds_left -= u32::from(life.reaper.has_struck());
        pin_all(life, &told, end)?;
        until_out(life, &told, end)?;
    }
    Ok(())
}

fn in_time(end: Instant, what: &str) -> Result<()> {
    ensure!(Instant::now() < end, "waited in vain for its step, and {what}");
    Ok(())
}

/// Pins all parts, and uses them once they are there.
fn pin_all(life: &mut Life, told: &Allocation, end: Instant) -> Result<(), End> {
    let all = parts(told).map(|part_index| PartRef { allocation_id: told.allocation_id, part_index });
    let all: Vec<_> = all.collect();
    let mut call = life.session()?.pin(all.clone());
    life.at(Step::PinCalled)?;
    loop {
        in_time(end, "its pins")?;
        if life.session()?.channel.waits(PAUSE) {
            let Some(answer) = heed(life)? else { continue };
            if answer.call_id != call {
                return Err(anyhow!("another call is answered").into());
            }
            let Some(refused) = answer.refused.map(Refused::from_frame) else { break };
            if refused.reason != Reason::PinStalled.name() {
                return Err(anyhow!("not pinned: {refused:?}").into());
            }
            call = life.session()?.pin(all.clone());
        }
        if moves(&look(life, told)?, Tier::Device) {
            life.at(Step::Coming)?;
        }
    }
    life.at(Step::PinAnswered)?;
    life.check();
    if life.reaper.fate.script == Script::Move {
        write(life, told)?;
    } else if life.content.is_none() {
        read_attached(life, told)?;
    }
    life.session()?.end_pin_call(call);
    life.at(Step::PinEnded)
}

/// Writes, so that the parts must be copied when they leave. No part is revoked before the call has ended.
fn write(life: &mut Life, told: &Allocation) -> Result<(), End> {
    let (id, fate) = (told.allocation_id, &life.reaper.fate);
    let content = content(fate.case, fate.size());
    let session = life.session()?;
    for part in parts(told) {
        session.word_table().client(session.slot(id, part)).pin(Access::Write)?;
    }
    session.write(id, &content);
    for part in parts(told) {
        let unpinned = session.word_table().client(session.slot(id, part)).unpin()?;
        if unpinned != Unpinned::Done {
            return Err(anyhow!("part {part} is revoked while a call pins it").into());
        }
    }
    life.content = Some(content);
    Ok(())
}

/// Answers the daemon until all parts are below their device, or have come back without a pin.
fn until_out(life: &mut Life, told: &Allocation, end: Instant) -> Result<(), End> {
    loop {
        in_time(end, "its leaving")?;
        if life.session()?.channel.waits(PAUSE) {
            heed(life)?;
            continue;
        }
        let shown = look(life, told)?;
        let session = life.session()?;
        let maps = |offset: u64| session.parts(told.allocation_id).any(|part| part.offset == offset);
        let leaves = shown.parts.iter().any(|it| BELOW.contains(&it.moves_to()) && !maps(it.offset_bytes));
        if leaves {
            life.at(Step::Leaving)?;
            continue;
        }
        if maps_any(life, told)? || BELOW.into_iter().chain([Tier::Device]).any(|tier| moves(&shown, tier)) {
            continue;
        }
        if shown.parts.iter().all(|part| BELOW.contains(&part.tier())) {
            life.at(Step::Out)?;
        }
        return Ok(());
    }
}

/// Answers the next packet. Returns its content if it answers a pin call.
fn heed(life: &mut Life) -> Result<Option<PinAnswer>, End> {
    life.await_packet()?;
    life.at(Step::PacketWaits)?;
    match life.receive()? {
        Frame::Map(_) => map_received(life, &FIRST)?,
        Frame::Revoke(revoke) => unmap_revoked(life, &revoke)?,
        Frame::PinAnswer(answer) => return Ok(Some(answer)),
        other => return Err(anyhow!("neither maps nor unmaps: {other:?}").into()),
    }
    Ok(None)
}

/// Asks the daemon where all parts are.
fn look(life: &mut Life, told: &Allocation) -> Result<Allocation, End> {
    let session = life.session()?;
    let target = Some(Target::AllocationId(told.allocation_id));
    let request = DescribeAllocationRequest { session_id: session.id(), target };
    let answer = session.memory.describe_allocation(request).wait()?;
    Ok(answer.allocation.context("an answer describes the allocation")?)
}

fn moves(shown: &Allocation, to: Tier) -> bool {
    shown.parts.iter().any(|part| part.moves_to() == to)
}

fn maps_any(life: &mut Life, told: &Allocation) -> Result<bool, End> {
    Ok(life.session()?.parts(told.allocation_id).next().is_some())
}

fn parts(told: &Allocation) -> impl Iterator<Item = u32> {
    0..u32::try_from(told.size_bytes.div_ceil(MIB_2)).expect("a few")
}
