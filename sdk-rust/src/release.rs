//! Parting from what was dropped: `Drop` queues, and this thread does the work that may block or fail.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::{self, Receiver, Sender, sync_channel},
    },
    thread,
    time::Instant,
};

use vramd_types::AllocationId;

use crate::{
    fork::ProcessBound,
    session::{Parting, Session},
};

/// What a dropped handle leaves to be done.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) session: ProcessBound<Session>,
    pub(crate) id: AllocationId,
    pub(crate) parting: Parting,
}

#[derive(Debug)]
enum Job {
    Part(Part),
    /// Says so when everything queued before is done.
    Flush(mpsc::SyncSender<()>),
}

/// The way to the thread, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Releases {
    jobs: Sender<Job>,
    /// Parts queued and not done yet.
    pending: Arc<AtomicUsize>,
}

impl Releases {
    pub(crate) fn start() -> io::Result<Self> {
        let (jobs, queue) = mpsc::channel();
        let pending = Arc::new(AtomicUsize::new(0));
        let done = Arc::clone(&pending);
        thread::Builder::new().name("vramd-release".to_owned()).spawn(move || run(queue, &done))?;
        Ok(Self { jobs, pending })
    }

    pub(crate) fn queue(&self, part: Part) {
        self.pending.fetch_add(1, Ordering::Relaxed);
        self.send(Job::Part(part));
    }

    /// Waits until everything queued before is done; whether that was in time. Most often nothing is queued, and then
    /// the thread is not asked: waking it would cost a call more than all else in this process.
    pub(crate) fn flush(&self, deadline: Instant) -> bool {
        // Acquire: what was parted from is seen to be.
        if self.pending.load(Ordering::Acquire) == 0 {
            return true;
        }
        let (done, flushed) = sync_channel(1);
        self.send(Job::Flush(done));
        flushed.recv_timeout(deadline.saturating_duration_since(Instant::now())).is_ok()
    }

    fn send(&self, job: Job) {
        // The thread ends after the last sender alone.
        let _ = self.jobs.send(job);
    }
}

fn run(queue: Receiver<Job>, pending: &AtomicUsize) {
    for job in queue {
        match job {
            Job::Part(Part { session, id, parting }) => {
                // Who dropped the handle asked for no answer; a session that ended takes its memory along.
                drop(session.part(id, parting, session.deadline()));
                pending.fetch_sub(1, Ordering::Release);
            }
            Job::Flush(done) => drop(done.try_send(())),
        }
    }
}
