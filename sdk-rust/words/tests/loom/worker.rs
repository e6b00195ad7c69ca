//! The SDK's worker: maps and unmaps as frames say, and answers on the same channel.

use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use loom::sync::mpsc::Receiver;
use vramd_words::{NotUnmappable, PinRefused, Waiting, Word, Worker};

use crate::form::Form;
use crate::step::{self, Step};
use crate::world::{Call, Memory, ToDaemon, ToWorker, World, count};

pub(crate) fn run(world: &Arc<World>, worker: &Worker<Memory>, inbox: &Receiver<ToWorker>) {
    let mut revoked = false;
    loop {
        match inbox.recv().unwrap() {
            ToWorker::Stop => return,
            message => handle(world, worker, &mut revoked, message),
        }
    }
}

pub(crate) fn handle(world: &World, worker: &Worker<Memory>, revoked: &mut bool, message: ToWorker) {
    match message {
        ToWorker::Revoke => *revoked = !unmap_revoked(world, worker),
        ToWorker::Wake if *revoked => *revoked = !unmap_revoked(world, worker),
        ToWorker::Wake | ToWorker::Stop => {}
        ToWorker::Map { extent } => map(world, worker, extent),
        ToWorker::Resident => pin_waiting(world, worker),
        ToWorker::Detach => {
            // A pinned part is refused to the program; for a part being unmapped there is nothing to do.
            if let Ok(unmapping) = worker.slot(0).unwrap().begin_unmap() {
                unmap(world, || unmapping.finish());
            }
        }
    }
}

/// Whether the frame has been handled.
fn unmap_revoked(world: &World, worker: &Worker<Memory>) -> bool {
    let begun = match world.ordering(Step::BeginUnmap) {
        Some(order) => {
            step::take(world.bare(), order, Word::unmap_revoked).map(|_| unmap(world, || finish(world)))
        }
        None => {
            let begun = worker.slot(0).unwrap().begin_unmap_revoked();
            begun.map(|unmapping| unmap(world, || unmapping.finish()))
        }
    };
    match begun {
        Ok(()) => {}
        Err(NotUnmappable::Pinned) => return false,
        // Without a detach, no frame of the right protocol finds this state.
        Err(NotUnmappable::Leaving) if world.is(Form::RollBackWithTwoAnswers) => {
            let written = Word::from_raw(world.bare().load(Acquire)).is_written();
            world.tell_daemon(ToDaemon::Unmapped { written });
        }
        Err(NotUnmappable::NotRevoked) if world.is(Form::RollBackWithTwoAnswers) => {}
        Err(NotUnmappable::Leaving) => {}
        Err(NotUnmappable::NotRevoked) => panic!("a frame without its revoke"),
    }
    true
}

/// The crate's own end of an unmap, for a run that began it in the model.
fn finish(world: &World) -> bool {
    const WRITTEN: u64 = 1 << 24;
    Word::from_raw(world.bare().fetch_and(WRITTEN, AcqRel)).is_written()
}

/// Between the two steps of the word the part is unmapped. All work under pins must precede that, and not only the
/// copy, which follows more steps of the word: so the worker reads the memory as it unmaps it.
fn unmap(world: &World, finish: impl FnOnce() -> bool) {
    let (extent, last) = {
        let truth = world.truth();
        (truth.mapped.expect("it is mapped"), truth.writes.last().copied())
    };
    let left = world.extents[extent].load(Relaxed);
    {
        let mut truth = world.truth();
        assert_eq!(truth.pins, 0, "unmapped under a pin");
        assert_eq!(Some(left), last, "a byte was lost: unmapped before it was written");
        truth.mapped = None;
    }
    let written = finish();
    world.tell_daemon(ToDaemon::Unmapped { written });
}

fn map(world: &World, worker: &Worker<Memory>, extent: usize) {
    {
        let mut truth = world.truth();
        assert_eq!(truth.owned, Some(extent), "mapped an extent that was given away");
        assert_eq!(truth.mapped.replace(extent), None, "mapped twice");
    }
    if world.is(Form::RestoreForgetsWritten) {
        world.bare().fetch_and(0, AcqRel);
    }
    let seen = world.is(Form::PinsForWhoLeft).then(|| count(&world.calls.lock().unwrap()));
    let mut calls = world.calls.lock().unwrap();
    let waiting = seen.unwrap_or_else(|| count(&calls));
    let granted = match world.form {
        Some(Form::BringInWithoutWritten) => {
            Waiting { readers: waiting.readers + waiting.writers, writers: 0 }
        }
        _ => waiting,
    };
    match world.ordering(Step::SetMapped) {
        Some(order) => drop(step::take(world.bare(), order, |word| word.map(granted)).unwrap()),
        None => worker.slot(0).unwrap().set_mapped(granted).unwrap(),
    }
    grant(world, &mut calls, waiting);
    drop(calls);
    world.tell_daemon(ToDaemon::Mapped);
}

fn pin_waiting(world: &World, worker: &Worker<Memory>) {
    let mut calls = world.calls.lock().unwrap();
    if calls.is_empty() {
        return;
    }
    let waiting = count(&calls);
    match worker.slot(0).unwrap().pin_waiting(waiting) {
        Ok(()) => grant(world, &mut calls, waiting),
        Err(PinRefused::NeedsFrame) => world.tell_daemon(ToDaemon::Pin),
        Err(refused) => panic!("{refused}"),
    }
}

fn grant(world: &World, calls: &mut Vec<Call>, waiting: Waiting) {
    world.truth().pins += waiting.readers + waiting.writers;
    for call in calls.drain(..) {
        call.granted.send(()).unwrap();
    }
}
