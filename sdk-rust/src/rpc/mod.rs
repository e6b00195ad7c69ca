//! Calls over an asynchronous gRPC client, by threads and by tasks. A task's calls run on its own runtime.
//!
//! A calling thread drives the connection: it enters a runtime without threads and waits there, so that a call costs
//! no change of threads. When several threads wait, one drives for all. Between calls no thread drives: the next call
//! finds a connection that ended meanwhile and makes a new one, and it also sends the cancellation of a call that
//! gave up. A call from inside another runtime costs a thread of its own.

pub(crate) mod request_id;
mod retry;
pub(crate) mod status;
#[cfg(feature = "trace-context")]
pub(crate) mod trace;

use std::{
    future::Future,
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use rustix::event::EventfdFlags;
use tokio::{
    runtime::{self, Runtime},
    sync::watch,
};
use tonic::{
    Request, Response, Status,
    transport::{Channel, Endpoint},
};
use vramd_proto::v1;

use crate::{
    error::{Error, Result},
    interrupt::Interrupt,
    rpc::retry::with_retries,
};

/// An answer on its way when the session ends may still arrive.
const ENDED_GRACE: Duration = Duration::from_millis(300);
/// The daemon's own refusal of a passed deadline says more than the SDK's.
const DEADLINE_GRACE: Duration = Duration::from_millis(200);

/// The descriptors that a runtime opens: its poll, a waker, and the signals' sockets, with room to spare.
const RUNTIME_FDS_MAX: usize = 8;
/// How many runtimes of tasks keep a connection.
const RUNTIMES_MAX: usize = 8;

#[derive(Debug)]
pub(crate) struct Rpc {
    /// Only Drop takes it.
    runtime: Option<Runtime>,
    connection: Channel,
    endpoint: Endpoint,
    /// The connections of tasks, each driven by the runtime that the task runs on.
    of_runtimes: Mutex<Vec<(runtime::Id, Channel)>>,
    socket: PathBuf,
}

impl Rpc {
    /// Connects at the first call, and again whenever needed.
    pub(crate) fn open(socket: &Path) -> Result<Self> {
        let local = |error: &dyn std::fmt::Display| Error::broker_gone(error.to_string());
        let runtime = new_runtime().map_err(|error| local(&error))?;
        let path = socket.to_str().ok_or_else(|| local(&"the socket's path is not UTF-8"))?;
        let endpoint = Endpoint::from_shared(format!("unix://{path}")).map_err(|error| local(&error))?;
        let connection = {
            let _inside = runtime.enter();
            endpoint.connect_lazy()
        };
        let (of_runtimes, socket) = (Mutex::default(), socket.to_owned());
        Ok(Self { runtime: Some(runtime), connection, endpoint, of_runtimes, socket })
    }

    /// Calls `method` until it is answered, the deadline has passed, or `ended` says that no answer will come.
    pub(crate) fn call<Q, A, Method, Answer>(
        &self,
        deadline: Instant,
        ended: Option<watch::Receiver<bool>>,
        request: Q,
        method: Method,
    ) -> Result<A>
    where
        Q: Clone + Send + Sync + 'static,
        A: Send + 'static,
        Method: Fn(Channel, Request<Q>) -> Answer + Send + Sync + 'static,
        Answer: Future<Output = Result<Response<A>, Status>> + Send,
    {
        let interrupt = Interrupt::of_thread();
        let answer = self.answer(self.connection.clone(), deadline, ended, request, method);
        let call = async {
            tokio::select! {
                biased;
                interrupted = interrupt.raised() => Err(interrupted),
                answer = answer => answer,
            }
        };
        self.wait(call).unwrap_or_else(|error| {
            Err(self.gone(&format!("a thread for the call could not be started: {error}")))
        })
    }

    /// Like [`Self::call`], for a task: its runtime drives the connection.
    pub(crate) async fn call_async<Q, A, Method, Answer>(
        &self,
        deadline: Instant,
        ended: Option<watch::Receiver<bool>>,
        request: Q,
        method: Method,
    ) -> Result<A>
    where
        Q: Clone + Send + Sync + 'static,
        A: Send + 'static,
        Method: Fn(Channel, Request<Q>) -> Answer + Send + Sync + 'static,
        Answer: Future<Output = Result<Response<A>, Status>> + Send,
    {
        let connection = self.connection_here()?;
        self.answer(connection, deadline, ended, request, method).await
    }

    /// Builds the call on the caller's own thread, to take its trace; any thread may drive it.
    fn answer<Q, A, Method, Answer>(
        &self,
        connection: Channel,
        deadline: Instant,
        ended: Option<watch::Receiver<bool>>,
        request: Q,
        method: Method,
    ) -> impl Future<Output = Result<A>> + Send
    where
        Q: Clone + Send + Sync + 'static,
        A: Send + 'static,
        Method: Fn(Channel, Request<Q>) -> Answer + Send + Sync + 'static,
        Answer: Future<Output = Result<Response<A>, Status>> + Send,
    {
        #[cfg(feature = "trace-context")]
        let trace = crate::rpc::trace::TraceHeaders::of_caller();
        let attempts = with_retries(deadline, move || {
            let mut request = Request::new(request.clone());
            #[cfg(feature = "trace-context")]
            trace.put_into(request.metadata_mut());
            request.set_timeout(deadline.saturating_duration_since(Instant::now()));
            method(connection.clone(), request)
        });
        let patience = tokio::time::Instant::from_std(deadline + DEADLINE_GRACE);
        async move {
            match tokio::time::timeout_at(patience, unless_ended(attempts, ended)).await {
                Ok(Ok(response)) => Ok(response.into_inner()),
                Ok(Err(status)) => Err(self.failed(status)),
                Err(_elapsed) => Err(Error::deadline()),
            }
        }
    }

    /// The connection of the task's runtime.
    fn connection_here(&self) -> Result<Channel> {
        let runtime = runtime::Handle::try_current().map_err(|error| self.gone(&error.to_string()))?.id();
        let mut known = self.of_runtimes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, connection)) = known.iter().find(|(of, _)| *of == runtime) {
            return Ok(connection.clone());
        }
        if known.len() == RUNTIMES_MAX {
            // The oldest: its runtime is probably gone, and if not it connects again.
            known.remove(0);
        }
        let connection = self.endpoint.connect_lazy();
        known.push((runtime, connection.clone()));
        Ok(connection)
    }

    /// Drives the connection until the future is done.
    pub(crate) fn wait<T: Send>(&self, call: impl Future<Output = T> + Send) -> io::Result<T> {
        let runtime = self.runtime.as_ref().expect("only Drop takes the runtime");
        if runtime::Handle::try_current().is_err() {
            return Ok(runtime.block_on(call));
        }
        // A thread inside one runtime may not enter another: a new thread does.
        thread::scope(|scope| {
            let waiting = thread::Builder::new().spawn_scoped(scope, || runtime.block_on(call))?;
            Ok(waiting.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        })
    }

    /// Translates a status, and names the daemon's socket.
    pub(crate) fn failed(&self, status: Status) -> Error {
        match Error::from(status) {
            Error::BrokerGone { problem, .. } => self.gone(&problem),
            error => error,
        }
    }

    pub(crate) fn gone(&self, problem: &str) -> Error {
        Error::broker_gone(format!("{}: {problem}", self.socket.display()))
    }
}

impl Drop for Rpc {
    fn drop(&mut self) {
        // This never waits, so it is also allowed inside another runtime.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Makes the runtime, or fails if descriptors run out. Tokio would panic for lack of its signals' descriptors, which
/// it opens with the first runtime if any crate of the program asks for signals.
fn new_runtime() -> io::Result<Runtime> {
    let spare: Vec<OwnedFd> = (0..RUNTIME_FDS_MAX)
        .map(|_| rustix::event::eventfd(0, EventfdFlags::CLOEXEC))
        .collect::<Result<_, _>>()?;
    drop(spare);
    runtime::Builder::new_current_thread().enable_io().enable_time().build()
}

async fn unless_ended<T>(
    attempts: impl Future<Output = Result<T, Status>>,
    ended: Option<watch::Receiver<bool>>,
) -> Result<T, Status> {
    let Some(mut ended) = ended else { return attempts.await };
    tokio::pin!(attempts);
    tokio::select! {
        answer = &mut attempts => return answer,
        _ = ended.wait_for(|ended| *ended) => {}
    }
    match tokio::time::timeout(ENDED_GRACE, attempts).await {
        Ok(answer) => answer,
        Err(_) => Err(Status::unavailable("the daemon ended the channel")),
    }
}

/// The trace of the calling thread, for a frame of the channel.
pub(crate) fn trace_of_caller() -> Option<v1::TraceContext> {
    #[cfg(feature = "trace-context")]
    {
        trace::TraceHeaders::of_caller().into_message()
    }
    #[cfg(not(feature = "trace-context"))]
    {
        None
    }
}
