//! Blocking calls over an asynchronous gRPC client.
//!
//! One runtime with one thread drives the connection. Callers do not enter it but wait for its answer on a
//! channel, so that a blocking call is possible on any thread, those of another runtime included.

use std::{
    future::Future,
    path::{Path, PathBuf},
    sync::mpsc::{RecvTimeoutError, sync_channel},
    time::{Duration, Instant},
};

use tokio::{runtime::Runtime, sync::watch};
use tonic::{
    Request, Response, Status,
    transport::{Channel, Endpoint},
};

use crate::{
    error::{Error, Result},
    retry::with_retries,
};

/// An answer that is on its way when the session ends may still arrive.
const ENDED_GRACE: Duration = Duration::from_millis(300);
/// The daemon's own word on a passed deadline says more than ours.
const DEADLINE_GRACE: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub(crate) struct Rpc {
    /// Taken by Drop alone.
    runtime: Option<Runtime>,
    connection: Channel,
    socket: PathBuf,
}

impl Rpc {
    /// Connects at the first call, and again whenever it must.
    pub(crate) fn open(socket: &Path) -> Result<Self> {
        let local = |error: &dyn std::fmt::Display| Error::BrokerGone { problem: error.to_string() };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("vramd-rpc")
            .enable_all()
            .build()
            .map_err(|error| local(&error))?;
        let path = socket.to_str().ok_or_else(|| local(&"the socket's path is not UTF-8"))?;
        let endpoint = Endpoint::from_shared(format!("unix://{path}")).map_err(|error| local(&error))?;
        let connection = {
            let _inside = runtime.enter();
            endpoint.connect_lazy()
        };
        Ok(Self { runtime: Some(runtime), connection, socket: socket.to_owned() })
    }

    /// Calls `method` until it is answered, the deadline has passed, or `ended` says that nobody will answer.
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
        let runtime = self.runtime.as_ref().expect("only Drop takes the runtime");
        let connection = self.connection.clone();
        let (answered, answer) = sync_channel(1);
        let task = runtime.spawn(async move {
            let attempts = with_retries(deadline, || {
                let mut request = Request::new(request.clone());
                request.set_timeout(deadline.saturating_duration_since(Instant::now()));
                method(connection.clone(), request)
            });
            let outcome = unless_ended(attempts, ended).await;
            // The caller may have stopped waiting.
            let _ = answered.send(outcome);
        });
        let patience = deadline.saturating_duration_since(Instant::now()) + DEADLINE_GRACE;
        match answer.recv_timeout(patience) {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(match Error::from(status) {
                Error::BrokerGone { problem } => self.gone(&problem),
                error => error,
            }),
            Err(RecvTimeoutError::Timeout) => {
                task.abort();
                Err(Error::Deadline)
            }
            Err(RecvTimeoutError::Disconnected) => Err(self.gone("the call was abandoned")),
        }
    }

    fn gone(&self, problem: &str) -> Error {
        Error::BrokerGone { problem: format!("{}: {problem}", self.socket.display()) }
    }
}

impl Drop for Rpc {
    fn drop(&mut self) {
        // Never waits, and so is also allowed inside another runtime.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
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
