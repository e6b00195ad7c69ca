//! The state that the threads of a run share, and the observer that knows the truth.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex as Ghost, MutexGuard};

use loom::sync::Mutex;
use loom::sync::mpsc::Sender;
use vramd_words::{AtomicU64, Client, Daemon, HEADER_WORDS, Header, Waiting, Worker, open};

use crate::form::Form;
use crate::step::Step;

/// The extents that a part lies in, one after the other: a new one at each fetch.
pub(crate) const EXTENTS: usize = 6;

pub(crate) type Memory = Arc<[AtomicU64]>;

/// Frames to the daemon, and orders of its operator. One inbox, as the reactor has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ToDaemon {
    Pin,
    Mapped,
    Unmapped { written: bool },
    Evict,
    Fence,
    WriteBack { fails: bool },
    Deadline,
    Finish,
}

/// Frames to the worker, and requests of its own process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ToWorker {
    Revoke,
    Map {
        extent: usize,
    },
    /// The requested part is still mapped.
    Resident,
    Wake,
    Detach,
    Stop,
}

/// A call that waits for its `pin` frame's answer.
pub(crate) struct Call {
    pub(crate) id: usize,
    pub(crate) writes: bool,
    pub(crate) granted: Sender<()>,
}

pub(crate) struct World {
    pub(crate) form: Option<Form>,
    pub(crate) memory: Memory,
    pub(crate) client: Client<Memory>,
    pub(crate) extents: [AtomicU64; EXTENTS],
    pub(crate) calls: Mutex<Vec<Call>>,
    pub(crate) to_daemon: Sender<ToDaemon>,
    pub(crate) to_worker: Sender<ToWorker>,
    truth: Ghost<Truth>,
}

/// The truth. No thread of the protocol reads it: it is for assertions, and adds no step to a run.
#[derive(Debug, Default)]
pub(crate) struct Truth {
    /// The extent behind the client's addresses.
    pub(crate) mapped: Option<usize>,
    /// The extent of the part, if any.
    pub(crate) owned: Option<usize>,
    pub(crate) pins: u32,
    /// All that was ever written, in order.
    pub(crate) writes: Vec<u64>,
    /// How many of these precede an unpin, so that every later pin must see them.
    pub(crate) settled: usize,
}

impl World {
    pub(crate) fn new(
        form: Option<Form>,
        to_daemon: Sender<ToDaemon>,
        to_worker: Sender<ToWorker>,
    ) -> (World, Daemon<Memory>, Worker<Memory>) {
        let memory: Memory = (0..HEADER_WORDS + 2).map(|_| AtomicU64::new(0)).collect();
        let header = Header { major: 1, minor: 0, features: 0, slots: 1 };
        let daemon = Daemon::create(memory.clone(), header).unwrap();
        let (client, worker) = open(memory.clone(), 1).unwrap();
        let extents = std::array::from_fn(|_| AtomicU64::new(u64::MAX));
        let calls = Mutex::new(Vec::new());
        let truth = Ghost::default();
        (World { form, memory, client, extents, calls, to_daemon, to_worker, truth }, daemon, worker)
    }

    pub(crate) fn is(&self, form: Form) -> bool {
        self.form == Some(form)
    }

    /// The ordering that this run gives a step, if it differs from the views'.
    pub(crate) fn ordering(&self, of: Step) -> Option<Ordering> {
        match self.form {
            Some(Form::Ordered(step, order)) if step == of => Some(order),
            _ => None,
        }
    }

    /// The bare word, for forms that do with it what no view allows.
    pub(crate) fn bare(&self) -> &AtomicU64 {
        &self.memory[HEADER_WORDS]
    }

    pub(crate) fn truth(&self) -> MutexGuard<'_, Truth> {
        self.truth.lock().unwrap()
    }

    pub(crate) fn tell_daemon(&self, message: ToDaemon) {
        self.to_daemon.send(message).unwrap();
    }

    pub(crate) fn tell_worker(&self, message: ToWorker) {
        self.to_worker.send(message).unwrap();
    }
}

/// The waiting calls among `calls`, counted as the words need them.
pub(crate) fn count(calls: &[Call]) -> Waiting {
    let writers = u32::try_from(calls.iter().filter(|call| call.writes).count()).unwrap();
    Waiting { readers: u32::try_from(calls.len()).unwrap() - writers, writers }
}
