//! Parting from what was dropped: `Drop` queues, and this thread does the work that may block or fail.

use std::{
    io,
    sync::mpsc::{self, Sender, SyncSender},
    thread,
};

use vramd_types::AllocationId;

use crate::{
    fork::ProcessBound,
    session::{Parting, Session},
};

#[derive(Debug)]
pub(crate) enum Job {
    Part {
        session: ProcessBound<Session>,
        id: AllocationId,
        parting: Parting,
    },
    /// Says so when everything queued before is done.
    Flush(SyncSender<()>),
}

/// Starts the thread. It ends when the last sender is gone.
pub(crate) fn spawn() -> io::Result<Sender<Job>> {
    let (sender, jobs) = mpsc::channel();
    thread::Builder::new().name("vramd-release".to_owned()).spawn(move || {
        for job in jobs {
            match job {
                // Who dropped the handle asked for no answer; a session that ended takes its memory along.
                Job::Part { session, id, parting } => drop(session.part(id, parting, session.deadline())),
                Job::Flush(done) => drop(done.try_send(())),
            }
        }
    })?;
    Ok(sender)
}
