//! Creates extents, and host memory ahead of need. Creating a memfd takes microseconds, so one thread keeps up
//! with any caller.

use std::sync::{
    Arc,
    mpsc::{Receiver, Sender},
};

use vramd_types::{Bytes, ExtentId, HostNode};

use super::{
    accounts::Refusal,
    memory::Memory,
    state::{State, send},
    surveyor::SurveyorOrder,
};
use crate::{Completion, DriverError, Export, PinPace, batch, location::Location};

#[derive(Debug)]
pub(super) enum Task {
    Make(Make),
    PinAhead(PinAhead),
}

/// An extent to create, or to fail.
#[derive(Debug)]
pub(super) struct Make {
    pub(super) extent: ExtentId,
    pub(super) location: Location,
    pub(super) size: Bytes,
    /// Without it the extent may hold old bytes.
    pub(super) zeroed: bool,
    pub(super) failure: Option<DriverError>,
}

/// A request to pin host memory ahead of need.
#[derive(Debug)]
pub(super) struct PinAhead {
    pub(super) node: HostNode,
    pub(super) size: Bytes,
    pub(super) piece: Bytes,
    pub(super) pieces_max: usize,
    pub(super) pace: PinPace,
}

/// Runs until all senders are gone. If only memory that others held at the last survey stands in the way, the
/// order goes to the surveyor, which tries again after another survey.
pub(super) fn run(state: &State, tasks: &Receiver<Task>, surveys: &Sender<SurveyorOrder>) {
    let work = |task: Task| match task {
        Task::PinAhead(target) => target.begin(state),
        Task::Make(make) => match make.attempt(state) {
            Err(Refusal::NeedsSurvey) => {
                send(surveys, SurveyorOrder::Make(make));
                None
            }
            Err(Refusal::Final(error)) => Some(make.completion(Err(error))),
            Ok(handle) => Some(make.completion(Ok(handle))),
        },
    };
    batch::run_filling(tasks, work, |completion| state.report(completion), || pin_ahead(state));
    let unfilled = state.accounts().stop_pinning_ahead();
    if let Some(free) = unfilled {
        state.report(Completion::PinnedAhead { node: state.node, free, problem: Some(has_ended()) });
    }
}

/// Creates one piece ahead of need, or makes way for one. Returns whether it did.
fn pin_ahead(state: &State) -> bool {
    let mut accounts = state.accounts();
    let problem = match accounts.pin_step(state.uuid(Location::Host)) {
        Ok(true) => return true,
        Ok(false) => None,
        Err(error) => Some(DriverError::Failed(format!("cannot create memory: {error}"))),
    };
    let filled = accounts.take_filled();
    drop(accounts);
    if let Some(free) = filled {
        state.report(Completion::PinnedAhead { node: state.node, free, problem });
    }
    false
}

fn has_ended() -> DriverError {
    DriverError::Failed("the driver has ended".to_owned())
}

impl PinAhead {
    /// Answered once nothing is left to pin, or now if it is refused.
    fn begin(self, state: &State) -> Option<Completion> {
        let Self { node, size, piece, pieces_max, pace } = self;
        let problem = state
            .refuse_node(node)
            .or_else(|| state.accounts().set_pin_target(size, piece, pieces_max, pace).err())?;
        Some(Completion::PinnedAhead { node, free: Bytes::ZERO, problem: Some(problem) })
    }
}

impl Make {
    /// The accounts stay locked from before the memfd exists until it is entered. A survey that saw it waits
    /// here before it looks up the memory in the accounts.
    pub(super) fn attempt(&self, state: &State) -> Result<Export, Refusal> {
        if let Some(failure) = &self.failure {
            return Err(Refusal::Final(failure.clone()));
        }
        let Self { extent, location, size, zeroed, .. } = *self;
        let mut accounts = state.accounts();
        accounts.admit(extent, location, size)?;
        let memory = match location {
            Location::Device(_) => Memory::new(state.uuid(location), location, extent.get(), size),
            Location::Host => match accounts.take_free_pinned(size, zeroed).map_err(Refusal::Final)? {
                Some(free) => Ok(free),
                None => accounts.host_memory(state.uuid(location), size),
            },
        };
        let memory = memory.map_err(|error| {
            Refusal::Final(DriverError::Failed(format!("cannot create extent {extent}: {error}")))
        })?;
        let handle = memory.export();
        accounts.enter(extent, Arc::new(memory));
        Ok(handle)
    }

    pub(super) fn completion(&self, result: Result<Export, DriverError>) -> Completion {
        Completion::Created { extent: self.extent, result }
    }
}
