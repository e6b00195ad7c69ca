//! Makes extents, and keeps memory of the host for those to come. A memfd is made in microseconds, so one thread keeps
//! up with any caller.

use std::sync::{
    Arc,
    mpsc::{Receiver, Sender},
};

use vramd_types::{Bytes, ExtentId, HostNode};

use super::{
    books::Refusal,
    looker::Look,
    memory::Memory,
    state::{State, hand},
};
use crate::{Completion, DriverError, Handle, batch, place::Place};

#[derive(Debug)]
pub(super) enum Task {
    Make(Make),
    Keep(Keep),
}

/// An extent to make, or to fail to make.
#[derive(Debug)]
pub(super) struct Make {
    pub(super) extent: ExtentId,
    pub(super) place: Place,
    pub(super) size: Bytes,
    /// Else it may hold what was there before.
    pub(super) zeroed: bool,
    pub(super) failure: Option<DriverError>,
}

/// What of the host is to be kept.
#[derive(Debug)]
pub(super) struct Keep {
    pub(super) node: HostNode,
    pub(super) size: Bytes,
    pub(super) piece: Bytes,
    pub(super) pieces_max: usize,
}

/// Until nobody can send any more. What finds no room because of memory that others held when last looked at is
/// passed on, to be tried again after another look.
pub(super) fn run(state: &State, tasks: &Receiver<Task>, looks: &Sender<Look>) {
    let work = |task: Task| match task {
        Task::Keep(keep) => keep.begin(state),
        Task::Make(make) => match make.attempt(state) {
            Err(Refusal::Tight) => {
                hand(looks, Look::Make(make));
                None
            }
            Err(Refusal::Final(error)) => Some(make.completion(Err(error))),
            Ok(handle) => Some(make.completion(Ok(handle))),
        },
    };
    batch::run_filling(tasks, work, |completion| state.tell(completion), || fill(state));
    let unfilled = state.books().give_up_filling();
    if let Some(kept) = unfilled {
        state.tell(Completion::HostKept { node: NODE, kept, problem: Some(has_ended()) });
    }
}

/// Whether a piece of the host was made ahead of need, or way was made for one.
fn fill(state: &State) -> bool {
    let mut books = state.books();
    let problem = match books.fill(state.uuid(Place::Host)) {
        Ok(true) => return true,
        Ok(false) => None,
        Err(error) => Some(DriverError::Failed(format!("make memory: {error}"))),
    };
    let filled = books.is_filled();
    drop(books);
    if let Some(kept) = filled {
        state.tell(Completion::HostKept { node: NODE, kept, problem });
    }
    false
}

fn has_ended() -> DriverError {
    DriverError::Failed("the driver has ended".to_owned())
}

impl Keep {
    /// Answered once it is filled, or refused.
    fn begin(self, state: &State) -> Option<Completion> {
        let Self { node, size, piece, pieces_max } = self;
        let problem = nowhere(node).or_else(|| state.books().keep_host(size, piece, pieces_max).err())?;
        Some(Completion::HostKept { node, kept: Bytes::ZERO, problem: Some(problem) })
    }
}

/// A simulated host is one node.
pub(super) const NODE: HostNode = HostNode(0);

pub(super) fn nowhere(node: HostNode) -> Option<DriverError> {
    (node != NODE).then(|| DriverError::Failed(format!("there is no node {node} of the host")))
}

impl Make {
    /// The books stay locked from before the memfd exists until it is entered: a look that met it waits here before
    /// it asks the books whose it is.
    pub(super) fn attempt(&self, state: &State) -> Result<Handle, Refusal> {
        if let Some(failure) = &self.failure {
            return Err(Refusal::Final(failure.clone()));
        }
        let Self { extent, place, size, zeroed, .. } = *self;
        let mut books = state.books();
        books.admit(extent, place, size)?;
        let memory = match place {
            Place::Device(_) => Memory::new(state.uuid(place), place, extent.get(), size),
            Place::Host => match books.take_kept(size, zeroed).map_err(Refusal::Final)? {
                Some(kept) => Ok(kept),
                None => books.host_memory(state.uuid(place), size),
            },
        };
        let memory =
            memory.map_err(|error| Refusal::Final(DriverError::Failed(format!("make {extent}: {error}"))))?;
        let handle = memory.handle();
        books.enter(extent, Arc::new(memory));
        Ok(handle)
    }

    pub(super) fn completion(&self, result: Result<Handle, DriverError>) -> Completion {
        Completion::Created { extent: self.extent, result }
    }
}
