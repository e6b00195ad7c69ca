//! Serves `/metrics`, `/livez` and `/readyz` to every process that can connect.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::get,
};
use broker_core::Broker;
use hyper::server::conn::http1;
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
    time::timeout,
};

use super::{Shared, export_queue::stopped, figures::Snapshot};
use crate::reactor::Inbox;

/// Maximum connections at once; others wait to be accepted.
const CONNECTIONS_MAX: usize = 32;
/// Maximum time of a connection, which has one request and its answer.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the reactor may take to answer a read before it counts as stuck.
const REACTOR_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause before the next accept after a failed one.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

#[derive(Clone, Debug)]
pub(super) struct HttpState {
    pub(super) shared: &'static Shared,
    pub(super) inbox: Inbox,
    pub(super) stop: watch::Receiver<bool>,
}

/// Serves until the stop.
pub(super) async fn serve(listener: TcpListener, state: HttpState) {
    let mut stop = state.stop.clone();
    let routes = Router::new()
        .route("/metrics", get(metrics))
        .route("/livez", get(alive))
        .route("/readyz", get(ready))
        .with_state(state);
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let accepted = async {
            let permit = Arc::clone(&permits).acquire_owned().await;
            (permit, listener.accept().await)
        };
        let (permit, accepted) = tokio::select! {
            accepted = accepted => accepted,
            () = stopped(&mut stop) => return,
        };
        match accepted {
            Ok((stream, _)) => {
                let answer = answer(stream, routes.clone());
                tokio::spawn(async move {
                    // A slower peer is cut off, and sees that.
                    let _ = timeout(CONNECTION_TIMEOUT, answer).await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::debug!(%error, "a connection for metrics could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn answer(stream: TcpStream, routes: Router) {
    let service = TowerToHyperService::new(routes);
    // Errors are the peer's: it left, or does not speak HTTP.
    let _ = http1::Builder::new().keep_alive(false).serve_connection(TokioIo::new(stream), service).await;
}

impl HttpState {
    /// Reads the broker. `None` if the reactor has ended or is stuck.
    async fn read<T: Send + 'static>(&self, read: impl FnOnce(&Broker) -> T + Send + 'static) -> Option<T> {
        timeout(REACTOR_TIMEOUT, self.inbox.read(read)).await.ok().flatten()
    }
}

async fn metrics(State(state): State<HttpState>) -> Response {
    let Some(snapshot) = state.read(Snapshot::of).await else {
        return unavailable("the daemon is stopping, or does not answer");
    };
    match state.shared.metrics.prometheus_text(snapshot) {
        Ok(text) => ([(CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

/// Answers whether the reactor works. A daemon that does not answer should be restarted.
async fn alive(State(state): State<HttpState>) -> Response {
    match state.read(|_| ()).await {
        Some(()) => "ok\n".into_response(),
        None => unavailable("the daemon is stopping, or does not answer"),
    }
}

/// Answers whether the daemon admits new clients.
async fn ready(State(state): State<HttpState>) -> Response {
    if *state.stop.borrow() {
        return unavailable("the daemon is stopping");
    }
    match state.read(|broker| (broker.is_surveyed(), broker.node().draining)).await {
        Some((true, false)) => "ok\n".into_response(),
        Some((true, true)) => unavailable("the node is draining"),
        Some((false, _)) => unavailable("the devices have not been surveyed yet"),
        None => unavailable("the daemon is stopping, or does not answer"),
    }
}

fn unavailable(why: &str) -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response()
}
