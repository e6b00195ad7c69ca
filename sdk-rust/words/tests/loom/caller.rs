//! A thread of the client: it pins, uses, unpins, and sometimes stops waiting.

use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use loom::sync::mpsc::channel;
use vramd_words::{Access, NotPinned, PinRefused, Unpinned, Word};

use crate::form::Form;
use crate::step::{self, Step};
use crate::world::{Call, ToDaemon, ToWorker, World};

/// One thing that a caller does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    Read,
    Write(u64),
    /// As `Write`, but the call doesn't wait for its answer: its deadline is now.
    WriteOrLeave(u64),
    /// Ends a pin that it does not have: a bug in the program.
    UnpinTooMany,
}

pub(crate) fn run(world: &Arc<World>, id: usize, acts: &[Act]) {
    for act in acts {
        let settled = world.truth().settled;
        let written = match act {
            Act::Write(value) | Act::WriteOrLeave(value) => Some(*value),
            Act::Read | Act::UnpinTooMany => None,
        };
        let has_pin = match act {
            Act::Read => pin(world, id, Access::Read, true),
            Act::Write(_) => pin(world, id, Access::Write, true),
            Act::WriteOrLeave(_) => pin(world, id, Access::Write, false),
            Act::UnpinTooMany => {
                unpin_too_many(world);
                false
            }
        };
        if has_pin {
            let seen = use_memory(world, written);
            assert!(seen >= settled, "a byte was lost: use {seen} of the memory after use {settled}");
            unpin(world, seen);
        }
    }
}

fn pin(world: &World, id: usize, access: Access, waits: bool) -> bool {
    let pinned = match world.ordering(Step::Pin) {
        Some(order) => step::take(world.bare(), order, |word| word.pin(access)).map(drop),
        None => world.client.slot(0).unwrap().pin(access),
    };
    match pinned {
        Ok(()) => {
            world.truth().pins += 1;
            true
        }
        Err(PinRefused::NeedsFrame) => ask(world, id, access, waits),
        Err(refused) => panic!("{refused}"),
    }
}

/// The slow path. The worker pins for calls that still wait, so a leaving call first removes itself from the list.
fn ask(world: &World, id: usize, access: Access, waits: bool) -> bool {
    let (granted, answer) = channel();
    let call = Call { id, writes: access == Access::Write, granted };
    world.calls.lock().unwrap().push(call);
    world.tell_daemon(ToDaemon::Pin);
    if !waits {
        let mut calls = world.calls.lock().unwrap();
        if let Some(at) = calls.iter().position(|call| call.id == id) {
            calls.remove(at);
            return false;
        }
    }
    answer.recv().unwrap();
    true
}

/// How many writes precede this use.
fn use_memory(world: &World, written: Option<u64>) -> usize {
    let extent = world.truth().mapped.expect("used while it is not mapped");
    let seen = match written {
        Some(value) => {
            // A swap, so that of two writers at once one is the last; it orders nothing else.
            world.extents[extent].swap(value, Relaxed);
            let mut truth = world.truth();
            truth.writes.push(value);
            truth.writes.len()
        }
        None => {
            let value = world.extents[extent].load(Relaxed);
            let before = world.truth().writes.iter().position(|written| *written == value);
            before.map_or(0, |before| before + 1)
        }
    };
    let truth = world.truth();
    assert_eq!(truth.mapped, Some(extent), "unmapped under a pin");
    assert_eq!(truth.owned, Some(extent), "used an extent that was given away");
    seen
}

fn unpin(world: &World, seen: usize) {
    let unpinned = if let Some(order) = world.ordering(Step::Unpin) {
        wakes(step::take(world.bare(), order, Word::unpin).expect("an unpin below zero"))
    } else {
        match world.form {
            Some(Form::UnpinBySubtraction) => {
                world.bare().fetch_sub(1, AcqRel);
                Unpinned::WakeWorker
            }
            Some(Form::UnpinInTwoSteps) => {
                let word = Word::from_raw(world.bare().load(Acquire)).unpin().expect("an unpin below zero");
                world.bare().store(word.raw(), Release);
                wakes(word)
            }
            _ => world.client.slot(0).unwrap().unpin().expect("an unpin below zero"),
        }
    };
    {
        let mut truth = world.truth();
        truth.pins -= 1;
        truth.settled = truth.settled.max(seen);
    }
    if unpinned == Unpinned::WakeWorker {
        world.tell_worker(ToWorker::Wake);
    }
}

/// Decides as the crate does whether an unpin must wake the worker.
fn wakes(left: Word) -> Unpinned {
    if left.is_free_to_unmap() { Unpinned::WakeWorker } else { Unpinned::Done }
}

fn unpin_too_many(world: &World) {
    if world.is(Form::UnpinBySubtraction) {
        world.bare().fetch_sub(1, AcqRel);
    } else {
        assert_eq!(world.client.slot(0).unwrap().unpin(), Err(NotPinned::NoPins));
    }
}
