//! The SDK's worker: maps and unmaps as frames say, and answers on the same channel.

use std::sync::Arc;
use std::sync::atomic::Ordering::AcqRel;

use loom::sync::mpsc::Receiver;
use vramd_words::{NotUnmappable, PinRefused, Unmapping, Waiting, Worker};

use crate::form::Form;
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
            // In use it is refused to the program; on its way out there is nothing to do.
            if let Ok(unmapping) = worker.slot(0).unwrap().begin_unmap() {
                unmap(world, unmapping);
            }
        }
    }
}

/// Whether the frame is done with.
fn unmap_revoked(world: &World, worker: &Worker<Memory>) -> bool {
    match worker.slot(0).unwrap().begin_unmap_revoked() {
        Ok(unmapping) => unmap(world, unmapping),
        Err(NotUnmappable::Pinned) => return false,
        // Who rolls back can't tell which frame an answer was for, so every frame must have one. Without a detach, no
        // frame of the right protocol finds this state.
        Err(NotUnmappable::Leaving) if world.is(Form::RollBackAfterFrame) => {
            world.tell_daemon(ToDaemon::Unmapped { written: false });
        }
        Err(NotUnmappable::NotRevoked) if world.is(Form::RollBackAfterFrame) => {}
        Err(NotUnmappable::Leaving) => {}
        Err(NotUnmappable::NotRevoked) => panic!("a frame without its revoke"),
    }
    true
}

fn unmap(world: &World, unmapping: Unmapping<'_>) {
    {
        let mut truth = world.truth();
        assert_eq!(truth.pins, 0, "unmapped under a pin");
        truth.mapped = None;
    }
    let written = unmapping.finish();
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
    worker.slot(0).unwrap().set_mapped(granted).unwrap();
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
