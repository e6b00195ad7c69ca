//! The two call styles of the SDK over one core: they differ only in how they wait.
//!
//! Every operation is written once, as an `async fn` that takes a [`CallStyle`]. A blocking call waits inside each
//! step, on the calling thread: its future is ready at the first poll, and [`run_ready`] polls it without a runtime.
//! An async call waits as tokio's tasks do, on the caller's runtime.

use std::{
    future::Future,
    pin::pin,
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use tokio::{sync::oneshot, task::spawn_blocking, time::timeout_at};
use tonic::{Request, Response, Status, transport::Channel};
use vramd_proto::v1::memory_service_client::MemoryServiceClient;
use vramd_types::AllocationId;

use crate::{
    aio::blocking,
    channel::ReaderSeat,
    error::{Error, Result},
    interrupt::Interrupt,
    mapping::{COPY_CHUNK_BYTES, Until},
    process::fork::ProcessBound,
    session::Session,
};

/// Smaller than for threads, so that a copying task does not delay the tasks beside it.
const ASYNC_COPY_CHUNK_BYTES: usize = 256 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallStyle {
    Blocking,
    Async,
}

/// Runs the future of a blocking call.
pub(crate) fn run_ready<T>(work: impl Future<Output = T>) -> T {
    match pin!(work).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => outcome,
        Poll::Pending => unreachable!("the blocking style waits inside of each step"),
    }
}

impl CallStyle {
    /// Calls the daemon.
    pub(crate) async fn call<Q, A, Method, Answer>(
        self,
        session: &Session,
        deadline: Instant,
        request: Q,
        method: Method,
    ) -> Result<A>
    where
        Q: Clone + Send + Sync + 'static,
        A: Send + 'static,
        Method: Fn(MemoryServiceClient<Channel>, Request<Q>) -> Answer + Send + Sync + 'static,
        Answer: Future<Output = Result<Response<A>, Status>> + Send + 'static,
    {
        match self {
            Self::Blocking => session.call(deadline, request, method),
            Self::Async => session.call_async(deadline, request, method).await,
        }
    }

    /// A thread that waits for memory reads the channel itself. A task leaves that to the session's worker.
    pub(crate) fn take_seat(self, session: &Session) -> Option<ReaderSeat<'_>> {
        match self {
            Self::Blocking => session.take_seat(),
            Self::Async => None,
        }
    }

    /// Waits until the condition holds, or never can.
    pub(crate) async fn wait(self, session: &Session, until: Until, deadline: Instant) -> Result<()> {
        match self {
            Self::Blocking => session.wait(until, deadline),
            Self::Async => session.table().wait_async(until, deadline).await,
        }
    }

    /// Runs blocking work; for a task, on another thread.
    pub(crate) async fn run_blocking<T: Send + 'static>(
        self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        match self {
            Self::Blocking => work(),
            Self::Async => blocking(work).await,
        }
    }

    /// Waits until everything that was dropped so far is released.
    pub(crate) async fn flush(self, session: &Session, deadline: Instant) -> Result<()> {
        let flushed = match self {
            Self::Blocking => session.releases().flush(deadline)?,
            Self::Async => {
                let (done, flushed) = oneshot::channel();
                // The waiting task may be gone.
                session.releases().when_flushed(move || {
                    let _ = done.send(());
                });
                matches!(timeout_at(deadline.into(), flushed).await, Ok(Ok(())))
            }
        };
        if flushed { Ok(()) } else { Err(Error::deadline()) }
    }

    /// Unmaps an allocation and reports that to the daemon, which can take a while.
    pub(crate) async fn unmap(self, session: &ProcessBound<Session>, id: AllocationId, forget: bool) {
        match self {
            Self::Blocking => session.unmap(id, forget),
            Self::Async => {
                let session = session.clone();
                // This fails only if the runtime ends: then the daemon revokes the memory, and the worker unmaps it.
                let _ = spawn_blocking(move || session.unmap(id, forget)).await;
            }
        }
    }

    pub(crate) async fn pause(self, pause: Duration) {
        match self {
            Self::Blocking => {
                // An interrupt ends it early, and fails the caller's next step.
                let (interrupt, end) = (Interrupt::of_thread(), Instant::now() + pause);
                while Instant::now() < end && interrupt.check().is_ok() {
                    std::thread::sleep(interrupt.next_check(end).saturating_duration_since(Instant::now()));
                }
            }
            Self::Async => tokio::time::sleep(pause).await,
        }
    }

    /// Whether an operation may be given up by its caller while it is under way.
    pub(crate) fn may_be_abandoned(self) -> bool {
        self == Self::Async || Interrupt::of_thread().is_possible()
    }

    /// Fails once the calling thread was interrupted.
    pub(crate) fn check_interrupt(self) -> Result<()> {
        match self {
            Self::Blocking => Interrupt::of_thread().check(),
            Self::Async => Ok(()),
        }
    }

    /// The bytes that are copied at once.
    pub(crate) fn copy_chunk(self) -> usize {
        match self {
            Self::Blocking => COPY_CHUNK_BYTES,
            Self::Async => ASYNC_COPY_CHUNK_BYTES,
        }
    }

    /// Lets other tasks run between two chunks.
    pub(crate) async fn yield_now(self) {
        if self == Self::Async {
            tokio::task::yield_now().await;
        }
    }
}
