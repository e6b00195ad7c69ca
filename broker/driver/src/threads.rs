//! The threads of a driver: started by name, joined when it is dropped.

use std::thread::{self, JoinHandle};

use crate::DriverError;

#[derive(Debug, Default)]
pub(crate) struct Threads(Vec<JoinHandle<()>>);

impl Threads {
    pub(crate) fn start(&mut self, name: &str, run: Box<dyn FnOnce() + Send>) -> Result<(), DriverError> {
        let thread = thread::Builder::new().name(name.to_owned()).spawn(run);
        self.0.push(thread.map_err(|error| DriverError::Failed(format!("start thread {name}: {error}")))?);
        Ok(())
    }

    /// Waits for all of them, who must have been told to end. Called by one of them, from inside the driver's sink, it
    /// waits for none, since they wait for one another, and one of them for this.
    pub(crate) fn join(&mut self) {
        if self.0.iter().any(|thread| thread.thread().id() == thread::current().id()) {
            return;
        }
        for thread in self.0.drain(..) {
            // A thread that panicked has said so; nothing is added here.
            let _ = thread.join();
        }
    }
}
