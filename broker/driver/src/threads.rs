//! The threads of a driver: started by name, joined when the driver is dropped.

use std::{
    fmt,
    sync::Arc,
    thread::{self, JoinHandle},
};

use crate::DriverError;

type OnPanic = Arc<dyn Fn(&str) + Send + Sync>;

pub(crate) struct Threads {
    all: Vec<JoinHandle<()>>,
    on_panic: OnPanic,
}

/// Lives on a thread as long as it runs.
struct Watch {
    name: String,
    on_panic: OnPanic,
}

impl Drop for Watch {
    fn drop(&mut self) {
        if thread::panicking() {
            (self.on_panic)(&format!("the driver's thread {} has panicked", self.name));
        }
    }
}

impl Threads {
    /// `on_panic` is called on each thread that panics. Without it, a caller would wait forever for the work of
    /// that thread.
    pub(crate) fn new(on_panic: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self { all: Vec::new(), on_panic: Arc::new(on_panic) }
    }

    pub(crate) fn start(&mut self, name: &str, run: Box<dyn FnOnce() + Send>) -> Result<(), DriverError> {
        let watch = Watch { name: name.to_owned(), on_panic: Arc::clone(&self.on_panic) };
        let watched = move || {
            let _watch = watch;
            run();
        };
        let thread = thread::Builder::new().name(name.to_owned()).spawn(watched);
        self.all.push(
            thread.map_err(|error| DriverError::Failed(format!("cannot start thread {name}: {error}")))?,
        );
        Ok(())
    }

    /// Waits for all threads, which must have been asked to end. Called on one of them, from inside the
    /// driver's sink, it waits for none: the threads wait for one another, and one of them for this call.
    pub(crate) fn join(&mut self) {
        if self.all.iter().any(|thread| thread.thread().id() == thread::current().id()) {
            return;
        }
        for thread in self.all.drain(..) {
            // A panic was reported when it happened.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Threads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Threads").field("all", &self.all).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn only_a_panicking_thread_is_reported() {
        let reported = Arc::new(Mutex::new(Vec::new()));
        let reports = Arc::clone(&reported);
        let mut threads = Threads::new(move |problem| reports.lock().unwrap().push(problem.to_owned()));
        threads.start("good", Box::new(|| {})).unwrap();
        threads.start("bad", Box::new(|| panic!("on purpose"))).unwrap();
        threads.join();
        assert_eq!(*reported.lock().unwrap(), ["the driver's thread bad has panicked"]);
    }
}
