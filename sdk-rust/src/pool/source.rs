//! The door between a pool and its session.
//!
//! The pool needs six things from outside, and gets all of them here: memory for chunks, the number of revokes so
//! far, whether the session's memory is away, a thread that runs the search for idle memory later, whether this process is the one that made the pool, and
//! the error for a forked child. The public types in `api.rs` name the SDK's types too; the files behind them name
//! nothing of the SDK but this door and its errors.
//!
//! The pool is a module and not a crate that is generic over its source: the caches of threads lie in a
//! `thread_local`, which cannot be generic, and a chunk is always an [`Allocation`].

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use vramd_types::{Bytes, Reason};

pub(super) use crate::handles::allocation::Allocation;
use crate::{
    client::Client,
    error::{Error, Result},
    handles::request::AllocationRequest,
    process::mark::ProcessMark,
    session::forked_error,
};

#[derive(Debug)]
pub(super) struct Source {
    client: Client,
    process: ProcessMark,
    revokes: Arc<AtomicU64>,
}

impl Source {
    pub(super) fn new(client: Client) -> Result<Self> {
        let process = ProcessMark::current()
            .map_err(|error| Error::refused(Reason::RequestInvalid, &[("problem", &error)]))?;
        let revokes = Arc::clone(client.session().table().revokes());
        Ok(Self { client, process, revokes })
    }

    /// Allocates a chunk of one part, with arbitrary content. This calls the daemon.
    pub(super) fn allocate_chunk(&self, size: Bytes, device: Option<&str>) -> Result<Allocation> {
        let mut request = AllocationRequest::new(size).part_size(size).uninitialized();
        if let Some(device) = device {
            request = request.device(device);
        }
        self.client.allocate(request)
    }

    /// The number of revokes that the session has received. A chunk may be among what they took.
    #[inline]
    pub(super) fn revokes(&self, ordering: Ordering) -> u64 {
        self.revokes.load(ordering)
    }

    /// Refuses blocks while the session's memory is away. The number of revokes has changed when it leaves.
    pub(super) fn check_here(&self) -> Result<()> {
        self.client.session().table().check_here()
    }

    pub(super) fn is_away(&self) -> bool {
        !self.client.session().table().is_here()
    }

    /// Runs work on the session's release thread, after a pause.
    pub(super) fn run_after(&self, pause: Duration, work: impl FnOnce() + Send + 'static) {
        self.client.session().releases().run_after(pause, work);
    }

    /// Whether this process made the pool: a forked child has inherited the value and not the memory.
    #[inline]
    pub(super) fn is_own_process(&self) -> bool {
        self.process.is_current()
    }

    /// The error for a forked child.
    pub(super) fn forked_error(&self) -> Error {
        forked_error(self.client.session())
    }
}
