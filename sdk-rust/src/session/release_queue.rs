//! The queue of releases: `Drop` queues a handle, and this thread does the work that may block or fail. It also runs
//! work that is due later.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError, Sender, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use vramd_types::AllocationId;

use crate::{
    error::Result,
    interrupt::Interrupt,
    process::fork::ProcessBound,
    session::{
        ReleaseKind, Session,
        call_style::{CallStyle, run_ready},
        release,
    },
};

/// The release of a dropped handle.
#[derive(Debug)]
pub(crate) struct Release {
    pub(crate) session: ProcessBound<Session>,
    pub(crate) id: AllocationId,
    pub(crate) release_kind: ReleaseKind,
}

enum Job {
    Release(Release),
    /// Other work that may block or fail.
    Work(Work),
    Later(Timer),
    /// Called when everything queued before is done.
    Flush(Work),
}

type Work = Box<dyn FnOnce() + Send>;

struct Timer {
    at: Instant,
    work: Work,
}

/// The sender to the thread, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct ReleaseQueue {
    jobs: Sender<Job>,
    /// Releases that are queued and not done yet.
    pending: Arc<AtomicUsize>,
}

impl ReleaseQueue {
    pub(crate) fn start() -> io::Result<Self> {
        let (jobs, queue) = mpsc::channel();
        let pending = Arc::new(AtomicUsize::new(0));
        let done = Arc::clone(&pending);
        thread::Builder::new().name("vramd-release".to_owned()).spawn(move || run(queue, &done))?;
        Ok(Self { jobs, pending })
    }

    pub(crate) fn queue(&self, release: Release) {
        self.pending.fetch_add(1, Ordering::Relaxed);
        self.send(Job::Release(release));
    }

    /// Runs work on the thread, after everything queued before.
    pub(crate) fn run(&self, work: impl FnOnce() + Send + 'static) {
        self.pending.fetch_add(1, Ordering::Relaxed);
        self.send(Job::Work(Box::new(work)));
    }

    /// Runs short work on the thread after a pause, unless the session has ended by then.
    pub(crate) fn run_after(&self, pause: Duration, work: impl FnOnce() + Send + 'static) {
        // A time beyond the clock's range never comes.
        if let Some(at) = Instant::now().checked_add(pause) {
            self.send(Job::Later(Timer { at, work: Box::new(work) }));
        }
    }

    /// Waits until everything queued before is done; returns whether that was before the deadline. Usually nothing is
    /// queued, and the thread is not woken: waking it would cost a call more than all else in this process.
    pub(crate) fn flush(&self, deadline: Instant) -> Result<bool> {
        if self.is_idle() {
            return Ok(true);
        }
        let (done, flushed) = sync_channel(1);
        self.when_flushed(move || {
            // The waiting thread may be gone.
            let _ = done.try_send(());
        });
        let interrupt = Interrupt::of_thread();
        loop {
            let pause = interrupt.next_check(deadline);
            match flushed.recv_timeout(pause.saturating_duration_since(Instant::now())) {
                Ok(()) => return Ok(true),
                Err(RecvTimeoutError::Timeout) if pause < deadline => interrupt.check()?,
                Err(_) => return Ok(false),
            }
        }
    }

    /// Calls `done` when everything queued before is done, perhaps at once. `done` must be short.
    pub(crate) fn when_flushed(&self, done: impl FnOnce() + Send + 'static) {
        if self.is_idle() { done() } else { self.send(Job::Flush(Box::new(done))) }
    }

    fn is_idle(&self) -> bool {
        // Acquire: the effects of finished releases are visible.
        self.pending.load(Ordering::Acquire) == 0
    }

    fn send(&self, job: Job) {
        // The thread outlives every sender.
        let _ = self.jobs.send(job);
    }
}

fn run(queue: Receiver<Job>, pending: &AtomicUsize) {
    let mut timers: Vec<Timer> = Vec::new();
    loop {
        for due in timers.extract_if(.., |timer| timer.at <= Instant::now()) {
            (due.work)();
        }
        let job = match timers.iter().map(|timer| timer.at).min() {
            None => queue.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(next) => queue.recv_timeout(next.saturating_duration_since(Instant::now())),
        };
        match job {
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
            Ok(Job::Later(timer)) => timers.push(timer),
            Ok(Job::Release(Release { session, id, release_kind })) => {
                // A dropped handle has no caller to report to; memory of an ended session ends with it.
                drop(run_ready(release(CallStyle::Blocking, &session, id, release_kind, session.deadline())));
                pending.fetch_sub(1, Ordering::Release);
            }
            Ok(Job::Work(work)) => {
                work();
                pending.fetch_sub(1, Ordering::Release);
            }
            Ok(Job::Flush(done)) => done(),
        }
    }
}
