//! Makes extents. A memfd is made in microseconds, so one thread keeps up with any caller.

use std::sync::{
    Arc,
    mpsc::{Receiver, Sender},
};

use vramd_types::{Bytes, ExtentId};

use super::{
    books::Refusal,
    looker::Look,
    memory::Memory,
    state::{State, hand},
};
use crate::{Completion, DriverError, Handle, batch, place::Place};

/// An extent to make, or to fail to make.
#[derive(Debug)]
pub(super) struct Make {
    pub(super) extent: ExtentId,
    pub(super) place: Place,
    pub(super) size: Bytes,
    pub(super) failure: Option<DriverError>,
}

/// Until nobody can send any more. What finds no room because of memory that others held when last looked at is
/// passed on, to be tried again after another look.
pub(super) fn run(state: &State, makes: &Receiver<Make>, looks: &Sender<Look>) {
    let make = |make: Make| match make.attempt(state) {
        Err(Refusal::Tight) => {
            hand(looks, Look::Make(make));
            None
        }
        Err(Refusal::Final(error)) => Some(make.completion(Err(error))),
        Ok(handle) => Some(make.completion(Ok(handle))),
    };
    batch::run(makes, make, |completion| state.tell(completion));
}

impl Make {
    /// The books stay locked from before the memfd exists until it is entered: a look that met it waits here before
    /// it asks the books whose it is.
    pub(super) fn attempt(&self, state: &State) -> Result<Handle, Refusal> {
        if let Some(failure) = &self.failure {
            return Err(Refusal::Final(failure.clone()));
        }
        let Self { extent, place, size, .. } = *self;
        let mut books = state.books();
        books.admit(extent, place, size)?;
        let memory = Memory::new(state.uuid(place), place, extent, size)
            .map_err(|error| Refusal::Final(DriverError::Failed(format!("make {extent}: {error}"))))?;
        let handle = memory.handle();
        books.enter(Arc::new(memory));
        Ok(handle)
    }

    pub(super) fn completion(&self, result: Result<Handle, DriverError>) -> Completion {
        Completion::Created { extent: self.extent, result }
    }
}
